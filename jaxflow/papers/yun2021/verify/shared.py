"""What the checks share: instances, flows, and how residuals become a row."""

from collections.abc import Sequence
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
from jaxflow.report import Verdict
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
    expected: Verdict = Verdict.holds,
) -> Row:
    """A row for a statement that holds where `values` ≤ `tolerance`.

    All of them: `expected`. A few undecided (NaN: the flow did not get there) are counted and prove nothing; one
    value above the tolerance contradicts the statement.
    """
    values, inside = np.asarray(values, float).ravel(), np.asarray(inside, bool).ravel()
    decided = inside & np.isfinite(values)
    above = int(np.sum(values[decided] > tolerance))
    count = int(decided.sum())
    undecided = int((inside & ~decided).sum())
    worst = float(values[decided].max()) if count else float("inf")
    verdict = Verdict.counterexample_found if above else expected
    return Row(
        source,
        checked,
        f"{above} of {count} exceed {tolerance:.0e}" + (f"; {undecided} undecided" if undecided else "") + more,
        count,
        int((~inside).sum()),
        worst,
        residual,
        verdict if count else Verdict.outside_hypotheses,
        {"above": above, "undecided": undecided, "worst": worst},
    )


def map_instances(function: Any, *arrays: Any) -> dict[str, np.ndarray]:
    """`function` of one instance over leading axes, one after the other: on a CPU no lane waits for the slowest."""
    found = jax.jit(lambda *xs: jax.lax.map(lambda x: function(*x), xs))(*arrays)
    return {name: np.asarray(value) for name, value in found.items()}


def fit(x: Sequence[float] | np.ndarray, y: Sequence[float] | np.ndarray) -> tuple[float, float]:
    """Slope of y against x by least squares, and half its 95% interval (two standard errors)."""
    x, y = np.asarray(x, float), np.asarray(y, float)
    if len(x) < 3:
        return float("nan"), float("nan")
    slope, constant = np.polyfit(x, y, 1)
    rest = y - slope * x - constant
    error = np.sqrt(np.sum(rest**2) / (len(x) - 2) / np.sum((x - x.mean()) ** 2))
    return float(slope), float(2 * error)
