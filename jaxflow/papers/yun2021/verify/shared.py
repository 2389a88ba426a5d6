"""What the checks share: instances, flows, and how residuals become a row."""

from dataclasses import replace
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np

from jaxflow._core import good
from jaxflow.data import LinearData
from jaxflow.flow.solvers import state_norm
from jaxflow.limits import LinearStaged
from jaxflow.losses import Exponential, Squared
from jaxflow.papers.checks import Row
from jaxflow.report import Rate, bounded_evidence
from jaxflow.report import fit as fit
from jaxflow.risk import EmpiricalRisk

# Limit points are held to this: the flow is integrated at rtol 1e-9.
POINT = 1e-8

MAX_STEPS = 20_000
# For paths of classification, which end at a certificate; a regression ends at its residuals.
GAP = 1e-8

# For paths of directions: log t beside the state has rates like the margins, which would dictate the steps.
DIRECTIONS = diffrax.PIDController(rtol=1e-9, atol=1e-11, pcoeff=0.3, icoeff=0.4, norm=state_norm)


def regression(X: Any, y: Any) -> EmpiricalRisk:
    """The summed squared loss of §2.1."""
    return EmpiricalRisk(LinearData(X, y), Squared(), reduction="sum")


def classification(X: Any, y: Any) -> EmpiricalRisk:
    """The summed exponential loss of §2.1."""
    return EmpiricalRisk(LinearData(X, y), Exponential(), reduction="sum")


def flow_end(risk: EmpiricalRisk, model: Any, coordinates: Any = None, rtol: float = 1e-9) -> dict[str, Any]:
    """Where the flow of a regression ends: `beta`, the relative `residual`, whether it got there, `steps`."""
    path = LinearStaged(coordinates=coordinates, rtol=rtol).follow(risk, model, MAX_STEPS, GAP)
    data: Any = risk.data
    beta = path.final.model.linear_coefficients()
    miss = jnp.max(jnp.abs(data.inputs @ beta - data.targets)) / jnp.max(jnp.abs(data.targets))
    return {
        "beta": beta,
        "residual": miss,
        "followed": good(path.result) & (miss <= 1e-12),
        "steps": path.stats["num_steps"],
    }


def separable(key: Any, n: int, d: int) -> tuple[Any, Any]:
    """Random labels and normal inputs; for n ≤ d they are separable with probability one."""
    input_key, label_key = jax.random.split(key)
    return jax.random.normal(input_key, (n, d)), jax.random.rademacher(label_key, (n,)).astype(float)


def distance(a: Any, b: Any) -> Any:
    """‖a − b‖/‖b‖."""
    return jnp.linalg.norm(a - b) / jnp.linalg.norm(b)


def direction_distance(a: Any, b: Any) -> Any:
    """Of unit vectors."""
    return jnp.linalg.norm(a / jnp.linalg.norm(a) - b / jnp.linalg.norm(b))


def residual_row(
    source: str,
    checked: str,
    values: np.ndarray,
    inside: np.ndarray,
    tolerance: float,
    residual: str,
    *,
    more: str = "",
    limit: bool = False,
    rate: Rate | None = None,
    checked_by: str = "",
) -> Row:
    """A row for a statement that is met where `values` ≤ `tolerance`, on the instances `inside` its hypotheses.

    What is not finite is undecided (the flow did not get there) and stays in the denominator. `limit`, `rate` and
    `checked_by` as in `Evidence`.
    """
    values, inside = np.asarray(values, float).ravel(), np.asarray(inside, bool).ravel()
    kept = np.where(np.isfinite(values), values, np.nan)[inside]
    evidence = bounded_evidence(kept, tolerance, limit=limit, rate=rate, checked_by=checked_by)
    above, undecided = evidence.contradicted, evidence.undecided
    decided = kept[~np.isnan(kept)]
    worst = float(decided.max()) if len(decided) else float("inf")
    return Row(
        source,
        checked,
        f"{above} of {evidence.inside} exceed {tolerance:.0e}"
        + (f"; {undecided} undecided" if undecided else "")
        + more,
        evidence.inside,
        int((~inside).sum()),
        worst,
        residual,
        evidence,
        {"above": above, "undecided": undecided, "worst": worst},
    )


def late_row(row: Row) -> Row:
    """The same row where values above the bound are late: of a limit, they are undecided and contradict nothing."""
    evidence = row.evidence
    late = replace(
        evidence, contradicted=0, undecided=evidence.undecided + evidence.contradicted, limit=True, checked_by=""
    )
    return replace(row, evidence=late)


def map_instances(function: Any, *arrays: Any) -> dict[str, np.ndarray]:
    """`function` of one instance over leading axes, one after the other: on a CPU no lane waits for the slowest."""
    found = jax.jit(lambda *xs: jax.lax.map(lambda x: function(*x), xs))(*arrays)
    return {name: np.asarray(value) for name, value in found.items()}
