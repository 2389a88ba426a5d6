r"""The limit point of any model: losses that have their infimum at finite outputs (squared error, hinges)."""

from collections.abc import Callable
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float

from jaxflow._core import good, linalg
from jaxflow.flow import Drive, LogTime, LossExcess, StationaryPoint, Weights
from jaxflow.flow.solvers import state_norm
from jaxflow.limits.model_limit import StationaryFacts
from jaxflow.risk import EmpiricalRisk
from jaxflow.trajectory import Trajectory

# Loss derivatives this small, relative to those at the start, are zero: Newton's method then takes them to rounding.
FITTED = 1e-10
# Singular values below this share of the largest belong to no range: roundings of a product of a few matrices.
RANK = 1e-10
# Log time at which a flow that has not come to an end is left: at rates of 1e-6 it has.
LOG_TIME = 30.0
NEWTON_STEPS = 6
# Steps of an implicit method, each of which is worth thousands of an explicit one.
IMPLICIT_STEPS = 4096


def no_facts(dtype: Any) -> StationaryFacts:
    """Of no point."""
    nan = jnp.full((), jnp.nan, dtype)
    return StationaryFacts(nan, nan, jnp.zeros((), int), jnp.full((), jnp.inf, dtype))


def point_of(risk: EmpiricalRisk, model: Any, kinks: int, rtol: float, max_steps: int, report: Any) -> "PointFlow":
    """The flow in log t until the loss is flat, at 100 times `rtol` and at `rtol`, and the point that it tends to."""
    before = risk.scaled_gradient(model)
    begun = before.log_scale + jnp.log(jnp.sum(jnp.abs(before.multipliers)))  # pyright: ignore[reportArgumentType]
    stop = LossExcess(begun + jnp.log(FITTED)) | StationaryPoint(1e-9)

    def run(rtol: Array) -> Trajectory:
        # Far out rates times steps leave roundings of 1e-10 in a stage, which Newton's method cannot remove.
        finder = linalg.newton(rtol=rtol, atol=jnp.maximum(0.1 * rtol, 1e-9), norm=state_norm)
        solver = diffrax.Bosh3() if kinks else diffrax.Kvaerno5(root_finder=finder)
        controller = diffrax.PIDController(rtol=rtol, atol=1e-2 * rtol, pcoeff=0.3, icoeff=0.4, norm=state_norm)
        budget = max_steps if kinks else min(max_steps, IMPLICIT_STEPS)
        drive = Drive(solver, controller, stop, budget, report)
        return drive.trajectory(
            drive.run(drive.start(risk, model, coordinates=Weights(), clock=LogTime(), until=LOG_TIME))
        )

    both = jax.lax.map(run, jnp.asarray([100.0 * rtol, rtol]))
    rough, fine = (jax.tree.map(lambda x, i=i: x[i] if eqx.is_array(x) else x, both) for i in (0, 1))
    theta, unravel = flat(risk, fine.final.model)
    first, _ = flat(risk, rough.final.model)
    start, _ = flat(risk, model)
    slope = jnp.max(jnp.abs(_slopes(risk, unravel(start))[0]))
    point, facts, interpolates = settle(risk, unravel, theta, slope)
    # The error of a method falls at least like its tolerance: of a hundredth, a tenth is on the safe side.
    followed = 0.1 * jnp.linalg.norm(theta - first) / _positive(jnp.linalg.norm(point))
    both_good = good(rough.result) & good(fine.result)
    facts = eqx.tree_at(lambda f: f.error, facts, jnp.where(both_good, facts.error + followed, jnp.inf))
    return PointFlow(fine, unravel(point), facts, interpolates)


class PointFlow(eqx.Module):
    """A flow to a point: `trajectory`, the `model` at its limit, its `facts`, and whether the data are fitted."""

    trajectory: Trajectory
    model: Any
    facts: StationaryFacts
    interpolates: Bool[Array, ""]


def settle(
    risk: EmpiricalRisk, unravel: Callable[[Array], Any], theta: Float[Array, " p"], slope: Float[Array, ""]
) -> tuple[Float[Array, " p"], StationaryFacts, Bool[Array, ""]]:
    """Newton's method from where a flow was left, and what the loss's Hessian says of the way there.

    **Arguments:** `slope`: the largest derivative of the loss by an output at the start.

    **Returns:** the point; `StationaryFacts`; whether the data are fitted there.
    """
    count = 1.0 if risk.reduction == "sum" else float(_slopes(risk, unravel(theta))[0].size)
    slopes, curves = _slopes(risk, unravel(theta))
    residual = jnp.max(jnp.abs(slopes)) / _positive(slope)
    interpolates = residual <= jnp.sqrt(FITTED)
    bent = jnp.sqrt(jnp.maximum(curves, 0.0))

    def rows(theta: Array) -> Array:
        return bent[:, None] * jax.jacfwd(lambda x: risk.source.outputs(unravel(x)).reshape(-1))(theta)

    # Fitted: the outputs whose loss is curved are brought to where it is flat, by the shortest way.
    def shortest(theta: Array, _: Any) -> tuple[Array, None]:
        slopes, _ = _slopes(risk, unravel(theta))
        change = linalg.lstsq(rows(theta), jnp.where(bent > 0, slopes / _positive(bent), 0.0))
        return theta - change, None

    fitted, _ = jax.lax.scan(shortest, theta, None, length=NEWTON_STEPS)
    left = jnp.max(jnp.abs(_slopes(risk, unravel(fitted))[0])) / _positive(slope)
    values = jnp.stack([linalg.singular_values(rows(x)) ** 2 / count for x in (theta, fitted)])
    on = values > RANK * jnp.max(values)
    lowest = jnp.min(jnp.where(on, values, jnp.inf))
    moved = jnp.linalg.norm(fitted - theta)
    # Where no output's loss is curved it is zero: an explicit step has led past the edge of a hinge.
    length = jnp.sqrt(2.0 * risk(unravel(theta)) / lowest) + moved
    fitted_error = jnp.where(left <= FITTED, length, jnp.inf)
    lowest = jnp.where(jnp.isfinite(lowest), lowest, jnp.nan)

    # Not fitted: a stationary point of the loss itself.
    slope_of = jax.grad(lambda x: risk(unravel(x)))
    gradient, hessian = slope_of(theta), jax.jacfwd(slope_of)(theta)
    safe = jnp.where(jnp.all(jnp.isfinite(hessian)), hessian, jnp.eye(theta.size))
    eigenvalues, vectors = linalg.eigh(0.5 * (safe + safe.T))
    live = jnp.abs(eigenvalues) > RANK * jnp.max(jnp.abs(eigenvalues))
    least = jnp.min(jnp.where(live, eigenvalues, jnp.inf))
    change = vectors @ jnp.where(live, (vectors.T @ gradient) / jnp.where(live, eigenvalues, 1.0), 0.0)
    resting_error = jnp.where(least > 0, 2.0 * jnp.linalg.norm(gradient) / least, jnp.inf)

    point = jnp.where(interpolates, fitted, theta - change)
    size = _positive(jnp.linalg.norm(point))
    facts = StationaryFacts(
        residual=residual,
        eigenvalue=jnp.where(interpolates, lowest, least),
        rank=jnp.where(interpolates, jnp.sum(on[0]), jnp.sum(live)),
        error=jnp.where(interpolates, fitted_error, resting_error) / size,
    )
    return point, facts, interpolates


def flat(risk: EmpiricalRisk, model: Any) -> tuple[Float[Array, " p"], Callable[[Array], Any]]:
    """Trained parameters in one row, and the way back to a model."""
    params, frozen = eqx.partition(model, risk.filter(model))
    row, unravel = ravel_pytree(params)
    return row, lambda x: eqx.combine(unravel(x), frozen)


def _slopes(risk: EmpiricalRisk, model: Any) -> tuple[Float[Array, " m"], Float[Array, " m"]]:
    """First and second derivatives of the loss by every output."""
    outputs = risk.source.outputs(model).reshape(-1)
    targets = risk.source.targets(risk.source.outputs(model)).reshape(-1)
    first = jax.grad(lambda f: jnp.sum(risk.loss.value(f, targets)))
    return jax.jvp(first, (outputs,), (jnp.ones_like(outputs),))


def _positive(x: Array) -> Array:
    return jnp.where(x > 0, x, 1.0)
