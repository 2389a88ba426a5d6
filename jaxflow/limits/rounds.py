"""One-layer attention with a linear head, followed until its own certificate closes: explicit, then by multipliers."""

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxflow._core import RESULTS, good
from jaxflow.flow import (
    AbstractCoordinates,
    ArcLength,
    AtRest,
    Budget,
    CertificateGap,
    Drive,
    Factors,
    LogArcLength,
    MultiplierNewton,
    Scores,
    SelectionSettled,
    StationaryPoint,
    Unsaturated,
    Weights,
)
from jaxflow.flow.solvers import state_norm
from jaxflow.limits.self_certificate import flow_certifier
from jaxflow.limits.stages import STATIONARY, followed_by, stationarity
from jaxflow.models import CombinedAttention, DiagonalAttention, FactoredAttention, is_linear
from jaxflow.risk import EmpiricalRisk
from jaxflow.trajectory import Trajectory

# ρ^L at which the exponents stop to grow. Margins of a limit keep a floor of some ten over it, 1e-11; beyond, what
# rounding leaves of an exponent, ρ^L ε, is no longer small against one and Newton's method has nothing to converge to.
EXPONENTS = 1e12
# Attention of a query's top token at which multipliers take over, and below which they hand back: between the two a
# token is being left, by an explicit method.
SATURATED, LEAVING = 1e-3, 1e-2
# The share of the multipliers that may pull away from the selected tokens when they take over.
PULL = 1e-3
# Rounds of explicit steps and multipliers, each twice as long as the one before: a start far out passes through
# several selections.
ROUNDS = 16


def coordinates_of(risk: EmpiricalRisk, model: Any) -> AbstractCoordinates | None:
    """Coordinates of a model that know its margins; None for other models."""
    kinds = {CombinedAttention: Scores(), FactoredAttention: Factors(), DiagonalAttention: Weights()}
    found = kinds.get(type(model))
    if found is None or not is_linear(model.head) or risk.filter(model) != model.trainable():
        return None
    return found


def follow_in_rounds(
    risk: EmpiricalRisk,
    model: Any,
    *,
    gap: float,
    near: float,
    far: float,
    log_horizon: float,
    cap: float,
    floor: float,
    saves: int,
    timed: bool,
    max_steps: int,
) -> Trajectory:
    """The path of `model`, round by round, until the flow certifies its direction to `gap`, rests, or has ended.

    A round is an explicit stretch in arc length, until attention is saturated, and a stretch in log arc length by
    `MultiplierNewton`. One round is enough unless a selection is left again. Arguments as in `Staged`.
    """
    coordinates: Any = coordinates_of(risk, model)
    still = StationaryPoint(STATIONARY)
    explicit = diffrax.PIDController(rtol=1e-6, atol=1e-8, norm=state_norm)
    implicit = diffrax.PIDController(rtol=1e-3, atol=1e-5, pcoeff=0.3, icoeff=0.4, norm=state_norm)
    certified = CertificateGap(gap, flow_certifier())
    if saves:
        certified = certified & Budget(log_arc_length=float(np.log(far)))
    ends = certified | AtRest() | Unsaturated(1.0 - LEAVING) | still

    def saturated(path: Trajectory) -> Array:
        attention = path.final.model.attention(risk.data)
        return jnp.all(jnp.max(attention, axis=-1) >= 1.0 - LEAVING)

    def stage(model: Any, solver: Any, controller: Any, stop: Any, budget: Array, **how: Any) -> Trajectory:
        drive = Drive(solver, controller, stop, budget)
        return drive.trajectory(drive.run(drive.start(risk, model, coordinates=coordinates, **how)))

    def one(model: Any, length: Array, reach: Array, budget: Array) -> Trajectory:
        path = stage(
            model,
            diffrax.Tsit5(),
            explicit,
            still | SelectionSettled(SATURATED, PULL),
            budget,
            clock=ArcLength(floor=floor, timed=timed),
            until=reach,
        )
        # The length so far, or the size of the weights where they have not moved that far yet.
        unit = jnp.logaddexp(jnp.logaddexp(length, path.final.log_arc_length), path.final.log_norm)
        ended = ~good(path.result) | (stationarity(path) <= STATIONARY) | ~saturated(path)
        further = stage(
            path.final.model,
            MultiplierNewton(),
            implicit,
            ends,
            budget - path.stats["num_steps"],
            clock=LogArcLength(unit=jnp.exp(unit), cap=cap, timed=False),
            until=log_horizon,
            save_at=jnp.linspace(np.log(far / 100), np.log(0.99 * far), saves) if saves else None,
            idle=ended,
        )
        return followed_by(path, further, ended)

    arrays, static = eqx.partition(model, eqx.is_array)
    shapes = eqx.filter_eval_shape(one, model, jnp.zeros(()), jnp.ones(()), jnp.zeros((), int))
    empty, fixed = eqx.partition(shapes, lambda x: isinstance(x, jax.ShapeDtypeStruct))
    empty = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), empty)
    nothing = jnp.asarray(-jnp.inf)
    counts = {name: jnp.zeros((), int) for name in shapes.stats}

    def body(carry: Any) -> Any:
        arrays, past, _, count, _ = carry
        log_time, length, counts = past
        found = one(
            eqx.combine(arrays, static), length, near * 2.0**count, max_steps - counts["num_steps"]
        )
        final = found.final
        counts = {name: counts[name] + found.stats[name] for name in counts}
        past = jnp.logaddexp(log_time, final.log_time), jnp.logaddexp(length, final.log_arc_length), counts
        going = good(found.result) & (stationarity(found) > STATIONARY) & ~saturated(found)
        moved = eqx.filter(final.model, eqx.is_array)
        return moved, past, eqx.filter(found, eqx.is_array), count + 1, going

    carry = (arrays, (nothing, nothing, counts), empty, jnp.zeros((), int), jnp.asarray(True))
    _, past, last, _, going = jax.lax.while_loop(lambda c: c[4] & (c[3] < ROUNDS), body, carry)
    path = eqx.combine(last, fixed)
    log_time, length, counts = past
    final = eqx.tree_at(
        lambda p: (p.log_time, p.log_arc_length),
        path.final,
        (log_time, length),
    )
    result = RESULTS.where(going & good(path.result), RESULTS.max_steps_reached, path.result)
    return Trajectory(final, path.saved, path.regime, result, counts)
