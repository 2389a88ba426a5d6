r"""The limit point of any model: losses that have their infimum at finite outputs (squared error, hinges)."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxflow._core import good, linalg, positive_or_one
from jaxflow._core.kinks import kink_count
from jaxflow._core.linalg import ROUNDED
from jaxflow.flow import Weights
from jaxflow.flow.pieces import Kinks, knows_pieces
from jaxflow.limits.kantorovich import flat, orthonormal, piece_at
from jaxflow.limits.limit import Limit
from jaxflow.limits.model_facts import ModelFacts, StationaryFacts
from jaxflow.limits.outcome import decided
from jaxflow.limits.own_gears import OwnGears
from jaxflow.limits.path import Underway, broken, by_gears, under_way
from jaxflow.limits.stages import LARGEST_POINT_ERROR, STATIONARY, fitted_below, stationarity
from jaxflow.losses import AbstractLoss, Tail, slope_jumps, tail_of
from jaxflow.models import AbstractAttention
from jaxflow.risk import EmpiricalRisk

# Trained numbers for which dense systems are no burden: 2,000 are some seconds a step.
MOST_WEIGHTS = 2000
# Kinks that a path can slide on at once, for which steps along them are worth their time where others lead to a limit
# too: they cost the third power. (250 of 50 units and 50 data had not ended after 330 s; steps across them took 73.)
MOST_HELD = 200


def is_long(risk: EmpiricalRisk, model: Any, *_: Any) -> bool:
    """Whether the limit of such margins takes longer than compiling its program: their Jacobian is larger than a dense
    system may be (digits of ten classes, 1e7, with an empty cache 49 s in place of 72 s)."""
    trained = jax.tree.leaves(eqx.filter(model, risk.filter(model)))
    return sum(x.size for x in trained) * eqx.filter_eval_shape(risk.margins, model).size >= MOST_WEIGHTS**2


def _begun(risk: EmpiricalRisk, model: Any, method: Any, gap: float, max_steps: int) -> Underway:
    theta, unravel = flat(risk, model)
    # A loss that only bends, as a squared hinge does, costs a smooth model a few steps; each end on a kink costs more.
    kinked = kink_count(lambda x: risk.source.outputs(unravel(x)), theta) > 0 or slope_jumps(risk.loss)
    most = located_kinks(risk, model, theta.size) if kinked else 0
    located = most > 0
    rtol = jnp.asarray((1e-5 if kinked and not located else gap) if method.rtol is None else method.rtol)
    fine = OwnGears(
        # From there on Newton's method takes the derivatives of the loss to rounding.
        log_loss=fitted_below(risk, model),
        rtol=rtol,
        kinked=kinked,
        stiff=True,
        point=True,
        located=located,
        still=ROUNDED,
        long=is_worth_compiling(most),
        report=method.report,
    )
    # The distance from the rough one estimates the error of the other.
    rough = eqx.tree_at(lambda p: p.rtol, fine, 100.0 * rtol)
    return under_way((rough, fine), risk, model, max_steps, model)


def located_kinks(risk: EmpiricalRisk, model: Any, size: int) -> int:
    """The most kinks that a path can slide on at once. Zero where it is not followed along kinks: where they cannot be
    looked for, or all their normals are more than a dense system may be. Steps are as long as accuracy allows then."""
    if isinstance(model, AbstractAttention) or not knows_pieces(Weights(), model):
        return 0
    state, context = Weights().encode(risk, model)
    count = eqx.filter_eval_shape(Kinks(Weights(), context).at, state).switches.size
    return min(count, size) if count * size <= MOST_WEIGHTS**2 else 0


def is_worth_compiling(located: int) -> bool:
    """Whether steps along so many kinks cost more than a faster program for them. (Of 20 units and 20 data 100: 60 ms
    a step, or 8 ms of a program that takes as long to compile as some hundred of these steps.)"""
    return 2 * located >= MOST_HELD


def _concluded(one: Underway) -> Limit:
    risk, model, (rough, fine) = one.risk, one.known, (way.path for way in one.ways)
    problem: Any = one.problems[0]
    theta, unravel = flat(risk, fine.final.model)
    first, _ = flat(risk, rough.final.model)
    slope = jnp.max(jnp.abs(_pushes(risk, risk.loss, risk.source.outputs(model))))
    point, facts, interpolates = settle(risk, unravel, theta, fine.final.log_time, slope, problem.located)
    # The error of a method falls at least like its tolerance: of a hundredth, a tenth is on the safe side. Where pieces
    # meet it need not (a third was left of it, of units with ReLU squared): those of a loss that ends flat do as well.
    left = 1.0 if problem.kinked or tail_of(risk.loss) is Tail.flat else 0.1
    followed = left * jnp.linalg.norm(theta - first) / positive_or_one(jnp.linalg.norm(point))
    error = jnp.where(good(rough.result) & good(fine.result), facts.error + followed, jnp.inf)
    facts = eqx.tree_at(lambda f: f.error, facts, error)
    # Two tolerances that lead to two points tell neither from the limit.
    known = error <= LARGEST_POINT_ERROR
    ratio = stationarity(fine.final)
    rests = ~interpolates & (ratio <= STATIONARY) & (facts.eigenvalue > 0)
    kind, outcome = decided(broken=broken(fine), interpolates=known & interpolates, rests=known & rests)
    return Limit(
        kind=kind,
        outcome=outcome,
        flow_direction=eqx.filter(unravel(point / positive_or_one(jnp.linalg.norm(point))), risk.filter(model)),
        end=unravel(point),
        stationarity=ratio,
        trajectory=fine,
        details=ModelFacts(facts),
    )


# The limit of a flow whose loss has its infimum at finite outputs: followed in log t until the loss is flat.
point_of = by_gears(_begun, _concluded)


def settle(
    risk: EmpiricalRisk,
    unravel: Callable[[Array], Any],
    theta: Float[Array, " p"],
    log_time: Float[Array, ""],
    slope: Float[Array, ""],
    located: bool = False,
) -> tuple[Float[Array, " p"], StationaryFacts, Bool[Array, ""]]:
    r"""Newton's method from the end of a flow, and the error of its point by the Hessian of the loss.

    A small gradient is no rest: along a channel to infinity, as where a sigmoid saturates, the flow goes on like a
    power or a logarithm of t. A mode of curvature λ has decayed where $\lambda t\gg1$; along a channel λt is of order
    one. What all other modes leave of the gradient, times t, is how far the flow moves in the next e-fold of time: of
    a weight that grows along a channel a share of 1/log t or more, in whatever units, and at a rest roundings. (Of 59
    networks with squared errors and hinges θ moved by 7e-3 or more in 34, and by 2e-9 at most in the others.)

    **Arguments:** `log_time`: of this end; `slope`: the largest derivative of the loss by an output at the start;
    `located`: whether the flow was followed along kinks, so that it may rest on some of them.

    **Returns:** the point; `StationaryFacts`, with an infinite error where the flow goes on; whether the data are
    fitted there.
    """
    piece = piece_at(risk, unravel, theta, located)
    count = float(risk.count(piece.outputs(theta)))

    def pushes(theta: Array) -> Array:
        return _pushes(risk, piece.loss, piece.outputs(theta)).reshape(-1)

    curves = _curves(risk, unravel(theta))
    residual = jnp.max(jnp.abs(pushes(theta))) / positive_or_one(slope)
    # A loss with an exponential tail is nowhere zero.
    interpolates = (residual <= jnp.sqrt(ROUNDED)) & (tail_of(risk.loss) is not Tail.exponential)
    bent = jnp.sqrt(jnp.maximum(curves, 0.0))

    def rows(theta: Array) -> Array:
        return piece.along(bent[:, None] * jax.jacfwd(lambda x: piece.outputs(x).reshape(-1))(theta))

    # Fitted: the outputs whose loss is curved are brought to where it is flat, by the shortest way along the kinks.
    def shortest(theta: Array, _: Any) -> tuple[Array, None]:
        change = linalg.lstsq(rows(theta), jnp.where(bent > 0, pushes(theta) / positive_or_one(bent), 0.0))
        return theta - change, None

    fitted, _ = jax.lax.scan(shortest, theta, None, length=linalg.doublings(theta.dtype))
    left = jnp.max(jnp.abs(_pushes(risk, piece.loss, risk.source.outputs(unravel(fitted))))) / positive_or_one(slope)
    values = jnp.stack([linalg.singular_values(rows(x)) ** 2 / count for x in (theta, fitted)])
    on = values > ROUNDED * jnp.max(values)
    lowest = jnp.min(jnp.where(on, values, jnp.inf))
    moved = jnp.linalg.norm(fitted - theta)
    # Where no output's loss is curved it is zero: an explicit step has led past the edge of a hinge.
    length = jnp.sqrt(2.0 * risk(unravel(theta)) / lowest) + moved
    fitted_error = jnp.where(left <= ROUNDED, length, jnp.inf)
    lowest = jnp.where(jnp.isfinite(lowest), lowest, jnp.nan)

    # Not fitted: a stationary point of the loss on the kinks that the path has come to slide on. Beside them the gates
    # of Filippov's solution leave no gradient, so that the Hessian at fixed gates is that of the loss along them. The
    # flow moves where outputs move alone: what leaves them as they are, as scales of two layers, is no direction of it.
    def slope_of(x: Array) -> Array:
        there, pull = jax.vjp(piece.outputs, x)
        return pull(_pushes(risk, piece.loss, there) / count)[0]

    moves = jax.jacfwd(lambda x: piece.outputs(x).reshape(-1))(theta)
    basis = orthonormal(piece.along(moves))
    along = piece.along(slope_of(theta)[None])[0]
    gradient, hessian = basis @ along, basis @ jax.jacfwd(slope_of)(theta) @ basis.T
    safe = jnp.where(jnp.all(jnp.isfinite(hessian)), hessian, jnp.eye(len(basis)))
    eigenvalues, vectors = linalg.eigh(0.5 * (safe + safe.T))
    live = jnp.abs(eigenvalues) > ROUNDED * jnp.max(jnp.abs(eigenvalues))
    least = jnp.min(jnp.where(live, eigenvalues, jnp.inf))
    turned = vectors.T @ gradient
    change = basis.T @ vectors @ jnp.where(live, turned / jnp.where(live, eigenvalues, 1.0), 0.0)
    time = jnp.exp(log_time)
    decayed = jnp.exp(-time * eigenvalues) <= LARGEST_POINT_ERROR
    moving = jnp.abs(along - basis.T @ vectors @ jnp.where(decayed, turned, 0.0))
    # Weight by weight: of θ as a whole, weights that are large by their units hide the others (with inputs of 1e-6 a
    # channel moved θ by 2e-8). What is within the roundings of the terms of a gradient is none.
    terms = jnp.abs(pushes(theta)) @ jnp.abs(moves) / count
    moving = jnp.where(moving > 4.0 * float(jnp.finfo(theta.dtype).eps) * terms, moving, 0.0)
    drift = jnp.max(jnp.where(moving > 0, time * moving / jnp.abs(theta), 0.0))
    # Where nothing is curved a slope leads on however small it is, as of a hinge with small inputs: there it has to be
    # small against the slopes that it is the sum of.
    flat_slope = jnp.linalg.norm(jnp.where(live, 0.0, turned))
    level = flat_slope <= STATIONARY * jnp.sum(jnp.abs(pushes(theta)) * jnp.linalg.norm(moves, axis=1)) / count
    # Units that are still small move no outputs, and leave a saddle later: no direction along the kinks may be one of
    # negative curvature. There, where little is left of the gradient, scales of layers have curvatures of roundings.
    bent_down = jax.jacfwd(slope_of)(theta - change)
    bent_down = piece.along(piece.along(jnp.where(jnp.all(jnp.isfinite(bent_down)), bent_down, -1.0)).T)
    curvatures = linalg.eigvalsh(0.5 * (bent_down + bent_down.T))
    rests = (least > 0) & (curvatures[0] >= -ROUNDED * jnp.max(jnp.abs(curvatures)))
    rests = rests & level & (drift <= STATIONARY)
    resting_error = jnp.where(rests, 2.0 * jnp.linalg.norm(gradient) / least, jnp.inf)

    point = jnp.where(interpolates, fitted, theta - change)
    size = positive_or_one(jnp.linalg.norm(point))
    facts = StationaryFacts(
        residual=residual,
        eigenvalue=jnp.where(interpolates, lowest, least),
        rank=jnp.where(interpolates, jnp.sum(on[0]), jnp.sum(live)),
        error=jnp.where(interpolates, fitted_error, resting_error) / size,
        drift=drift,
    )
    return point, facts, interpolates


def _pushes(risk: EmpiricalRisk, loss: AbstractLoss, outputs: Float[Array, "..."]) -> Float[Array, "..."]:
    """Derivatives of a loss by every output."""
    log_scale, weights = loss.scaled_derivative(outputs, risk.source.targets(outputs))
    return jnp.exp(log_scale) * weights


def _curves(risk: EmpiricalRisk, model: Any) -> Float[Array, " m"]:
    """Second derivatives of the loss by every output: of losses of one output alone."""
    outputs = risk.source.outputs(model)
    first = jax.grad(lambda f: jnp.sum(risk.loss.value(f, risk.source.targets(outputs))))
    return jax.jvp(first, (outputs,), (jnp.ones_like(outputs),))[1].reshape(-1)
