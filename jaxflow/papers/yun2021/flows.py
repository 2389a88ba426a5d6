"""Risks, random data and distances of §2.1, and where the flow of a regression ends."""

from typing import Any

import diffrax
import jax
import jax.numpy as jnp

from jaxflow._core import good, linalg
from jaxflow.data import LinearData
from jaxflow.flow import integrate
from jaxflow.flow.solvers import state_norm
from jaxflow.limits import LinearStaged
from jaxflow.losses import Exponential, Squared
from jaxflow.models import Decomposition
from jaxflow.papers.table import Table
from jaxflow.risk import EmpiricalRisk
from jaxflow.study import subkey

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


def flow_end(risk: EmpiricalRisk, model: Any, coordinates: Any = None, rtol: float = 1e-9) -> Table:
    """Where the flow of a regression ends: β, the relative `residual` of the outputs, whether it got there, `ok`."""
    path = LinearStaged(coordinates=coordinates, rtol=rtol).follow(risk, model, MAX_STEPS, GAP)
    data: Any = risk.data
    beta = path.final.model.linear_coefficients()
    miss = jnp.max(jnp.abs(data.inputs @ beta - data.targets)) / jnp.max(jnp.abs(data.targets))
    return Table(beta=beta, residual=miss, ok=good(path.result) & (miss <= 1e-12))


def far_out(start: Any, x: Any, y: Any, until: float, save_at: Any = None) -> Any:
    """The flow of the exponential loss of one data point to this log arc length."""
    return integrate(
        classification(x[None], y[None]),
        start,
        clock="log_arc_length",
        solver="Tsit5",
        controller=DIRECTIONS,
        until=until,
        save_at=save_at,
        throw=False,
    )


def normal_data(key: Any, n: int, d: int) -> tuple[Any, Any]:
    """Gaussian inputs and targets."""
    input_key, target_key = jax.random.split(key)
    return jax.random.normal(input_key, (n, d)), jax.random.normal(target_key, (n,))


def separable(key: Any, n: int, d: int) -> tuple[Any, Any]:
    """Gaussian inputs with random labels; n ≤ d points in general position are separable."""
    input_key, label_key = jax.random.split(key)
    return jax.random.normal(input_key, (n, d)), jax.random.rademacher(label_key, (n,)).astype(float)


def random_decomposition(key: Any, m: int, d: int, depth: int = 2) -> Decomposition:
    """Gaussian S `(m, d)`, and U_l `(m + l, m)` of random orthonormal columns."""
    layers = range(1, depth + 1)
    factors = (linalg.qr(jax.random.normal(subkey(key, f"U_{one}"), (m + one, m)))[0] for one in layers)
    return Decomposition(jax.random.normal(subkey(key, "S"), (m, d)), tuple(factors))


def distance(a: Any, b: Any) -> Any:
    """‖a − b‖/‖b‖."""
    return jnp.linalg.norm(a - b) / jnp.linalg.norm(b)


def direction_distance(a: Any, b: Any) -> Any:
    """Of unit vectors."""
    return jnp.linalg.norm(a / jnp.linalg.norm(a) - b / jnp.linalg.norm(b))
