"""Stages of one path: what joins them, and how a stationary end is recognised."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxflow._core import one_lane_at_a_time, positive_or_one, tree_norm
from jaxflow._core.linalg import ROUNDED
from jaxflow.flow.coordinates.halves import has_pairs, pair_growth
from jaxflow.flow.stopping import GROWTH
from jaxflow.limits.kantorovich import flat, kantorovich
from jaxflow.losses import Tail, tail_of
from jaxflow.risk import EmpiricalRisk
from jaxflow.trajectory import Point

# The tolerance of steps that decide where a path goes. (At 1e-5 two of 1,200 paths of attention passed a separatrix on
# its other side.)
PATH_RTOL = 1e-6
# ‖∇L‖/Σ|p| below this is a stationary point: saturated limits of unit-sphere instances end between 1e-2 and 1.
STATIONARY = 1e-6
# The relative error of what is called a stationary point.
LARGEST_POINT_ERROR = 1e-2
# The clock becomes a time where pushes cancel: a path into a finite point has finite length.
FLOOR = 0.03
# How far a clock is run. This arc length takes a million explicit steps and more: stiffness or a rule ends the stretch
# before. At this log arc length a component with slack 1 - κ, which falls like exp(-2(1 - κ)s), is at 1e-8 for every
# slack above 1e-5. By this log time a path has left its saddle.
HORIZON = 1e6
# A length of weights that can be written down. A loss that has not fallen up to there does not fall.
FAR = 1e100
# The log of the loss at which exponents are large enough for the hard-margin flow. From starts at losses between e^-30
# and e^-1000 its limits differ by 1e-3 to 1e-6.
LOG_LOSS = -100.0
# Log time at which a path that has not come to an end is left: at rates of 1e-6 it has come to its point, and what is
# left of terms that fall like 1/t is rounding.
LOG_TIME = 30.0

# What a caller gives as a number, and a compiled program takes as an array: one program for all gaps and budgets.
Positive = float | Float[Array, ""]
Count = int | Int[Array, ""]


def stationarity(final: Point) -> Float[Array, ""]:
    r"""$\|\nabla L\|/\sum_k|p_k|$: of order one under saturation, zero at a stationary point; infinite where it is not
    `readable`, so far out that no stationary point is there."""
    total = jnp.sum(jnp.abs(jnp.asarray(final.multipliers)))
    exact = readable(final) & jnp.isfinite(final.log_scale)
    norm = jnp.exp(jnp.where(exact, final.log_gradient_norm - jnp.where(exact, final.log_scale, 0.0), jnp.inf))
    # Multipliers that are all zero push nowhere; a NaN is no stationary point.
    ratio = jax.lax.select(total > 0, norm / positive_or_one(total), jnp.zeros_like(norm))
    return jnp.where(jnp.isnan(total), jnp.inf, ratio)


def vanished(final: Point, degree: int, tolerance: float = STATIONARY) -> Bool[Array, ""]:
    r"""Whether $\|\nabla L\|/\sum|p|$ is small because pushes cancel and not because the weights are small.

    At weights of norm ρ, homogeneous of degree L in the parameters, it is of order $\rho^{L-1}$ wherever nothing
    cancels: from factors of size 1e-8 the flow has only just left the saddle at zero.
    """
    # Of weights themselves a start at zero is as good as any: ρ^0, where ρ = 0 has no logarithm.
    size = 1.0 if degree == 1 else jnp.minimum(1.0, jnp.exp((degree - 1) * final.log_norm))
    return stationarity(final) <= tolerance * size


def log_multipliers(final: Any) -> Float[Array, ""]:
    r"""$\log\sum|p|$, of a point or a scaled gradient."""
    return final.log_scale + jnp.log(jnp.sum(jnp.abs(jnp.asarray(final.multipliers))))


def fitted_below(risk: EmpiricalRisk, model: Any) -> Float[Array, ""]:
    r"""$\log\sum|p|$ at which a loss is at its infimum, if it has that at finite outputs: roundings of the start's."""
    if risk.loss.margin and tail_of(risk.loss) is not Tail.flat:
        # No logarithm is that small but the one of zero.
        return -jnp.asarray(jnp.finfo(jnp.result_type(float)).max)
    return log_multipliers(risk.scaled_gradient(model)) + jnp.log(ROUNDED)


def at_rest(final: Point, degree: int, conserved: Any = None, fitted: Positive = -float("inf")) -> Bool[Array, ""]:
    """Whether the gradient has `vanished`, or multipliers below `fitted` push no output any more. A saddle is no rest
    which an entry of diagonal weights leaves, however small it still is; `conserved` as in `pair_growth`."""
    rests, still = vanished(final, degree), log_multipliers(final) <= fitted
    if not has_pairs(final.model):
        return rests | still
    growth, ratio = pair_growth(_moving(final), final.velocity, conserved), stationarity(final)
    return still | rests & ((ratio == 0) | (growth <= STATIONARY / jnp.where(ratio == 0, 1.0, ratio)))


class Rest(NamedTuple):
    """Whether a path of attention is at rest; the model there (else where the path is), and an estimate of the relative
    error of its combined weights, +inf where there is none."""

    found: Bool[Array, ""]
    model: Any
    error: Float[Array, ""]


def minimum_near(risk: EmpiricalRisk, here: Point, looked: Bool[Array, ""]) -> Rest:
    """A path is at rest where every multiplier is zero, or `kantorovich` finds a minimum of the loss nearby, on the
    directions that move logits: to it leads a step of Newton's. Not at rest where it is not `looked` for."""
    data: Any = risk.data
    model: Any = here.model
    theta, model_at = flat(risk, model)

    def gaps(x: Array) -> Array:
        layers = getattr(model_at(x), "parts", (model_at(x),))
        logits = jnp.where(data.visible, jnp.stack([layer.logits(data) for layer in layers]), 0.0)
        top = jnp.argmax(jnp.where(data.visible, logits, -jnp.inf), axis=-1, keepdims=True)
        return jnp.where(data.visible, logits - jnp.take_along_axis(logits, top, axis=-1), 0.0).reshape(-1)

    def near(x: Array) -> tuple[Array, Array, Array]:
        # Where several logits give one output and nothing pushes that output, the minima are a whole set.
        found, step, left, alone = kantorovich(risk, model_at, x, gaps)
        # Weights of degree L in θ have L times its error. Which one of a set the flow comes to is known as well as its
        # path. (Of 12 ends under the squared error the farthest was 1.5e-8 off, and nothing of that was said.)
        error = (model.degree or 1) * left / positive_or_one(jnp.linalg.norm(x + step))
        error = jnp.where(alone, error, error + PATH_RTOL)
        return found <= 0.5, x + step, error

    def far(x: Array) -> tuple[Array, Array, Array]:
        return jnp.asarray(False), x, jnp.full((), jnp.inf, x.dtype)

    # For few of the lanes of a batch, which a CPU follows one after the other.
    @one_lane_at_a_time
    def found(looked: Array, theta: Array) -> tuple[Array, Array, Array]:
        return jax.lax.cond(looked, near, far, theta)

    nothing = looked & (stationarity(here) == 0)
    minimum, there, error = found(looked & ~nothing, theta)
    moved = jnp.where(minimum, there, theta)
    error = jnp.where(nothing, 0.0, jnp.where(minimum, error, jnp.inf))
    return Rest(nothing | minimum, model_at(moved), error)


def readable(final: Point) -> Bool[Array, ""]:
    """Whether the exponents of the gradient still have digits after the point: where they are 1e14 and more, as with
    logits of 1e150, the norm of the gradient cannot be separated from its scale. Exponents beyond a double are those of
    limiting dynamics, or of no gradient, which `stationarity` treats."""
    size = jnp.abs(final.log_scale)
    return jnp.isinf(size) | (size * jnp.finfo(size.dtype).eps < 1e-2)


def kept(model: Any) -> Any:
    """$a^2-b^2$ of a start that is made of pairs, else None."""
    return model.conserved().reshape(-1) if has_pairs(model) else None


def left_by_pairs(final: Point, conserved: Any) -> Bool[Array, ""]:
    """Whether some entry of diagonal weights, however small, grows faster than the whole: the direction is a saddle.
    False of other models, whose entries mix: rounding is enough to leave one. `conserved` as in `pair_growth`."""
    if not has_pairs(final.model):
        return jnp.asarray(False)
    weights = _moving(final)
    whole = tree_norm(weights)
    return pair_growth(weights, final.velocity, conserved) * whole > 1.0 + GROWTH


def _moving(final: Point) -> Any:
    return eqx.filter(final.model, jax.tree.map(lambda v: v is not None, final.velocity, is_leaf=lambda v: v is None))
