r"""Why an integration spent its budget: what limits its steps at its last point."""

import enum
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float

from jaxflow._core import AbstractPrinted, Code, checked, in_numbers, positive_or_one
from jaxflow._core.linalg import ROUNDED
from jaxflow.flow.clocks import AbstractClock, ArcLength, LogArcLength, LossTime, as_clock
from jaxflow.flow.coordinates import AbstractCoordinates, as_coordinates
from jaxflow.flow.filippov import mode_at
from jaxflow.flow.pieces import Kinks, has_kinks
from jaxflow.flow.saving import check_until
from jaxflow.flow.solvers import as_solver
from jaxflow.flow.system import System, make_system, underflown
from jaxflow.risk import EmpiricalRisk
from jaxflow.trajectory import Trajectory

# Distances from a kink, relative to the weights, at which steps to and fro about it end: tolerances of 1e-4 and less.
NEAR = 1e-5
# Explicit methods are stable while step times rate is below about three.
STABLE = 3.0


class Cause(enum.IntEnum):
    """What limits the steps of an integration: the first cause that applies.

    - `unknown`: none of the following.
    - `underflown`: the gradient is below the smallest normal number.
    - `interpolated`: all data of a squared loss are fitted to rounding; the rest of the path is noise.
    - `sliding`: the flow stays on kinks.
    - `stiff`: an explicit method at its limit of stability needs at least as many steps again.
    """

    unknown = 0
    underflown = 1
    interpolated = 2
    sliding = 3
    stiff = 4


ADVICE = {
    Cause.unknown: "nothing holds it up here; give more steps, or a looser controller",
    Cause.underflown: "the gradient has underflown; use clock='arc_length', whose speed is bounded",
    Cause.interpolated: "all data are met to rounding; end earlier, or by stop=jaxflow.LossExcess(...)",
    Cause.sliding: "it slides along kinks; use solver=jaxflow.Filippov(), or a looser controller to step to and fro",
    Cause.stiff: "it is stiff; use solver='kvaerno5'",
}


class Diagnosis(AbstractPrinted):
    """What limits the steps of an integration at its last point.

    `cause`: a `Cause`; `sliding` `(g,)`: the kinks that the flow would slide on there, in the order in which the model
    meets them; `rate`: the largest rate of change of the field, by the clock's variable; `steps`: how many steps an
    explicit method at its limit of stability needs for the rest (NaN where the clock's reading is not known);
    `residual`: the largest residual, relative to the targets (NaN for losses of the margin). `print` shows a sentence.
    """

    cause: Code
    sliding: Bool[Array, " g"]
    rate: Float[Array, ""]
    steps: Float[Array, ""]
    residual: Float[Array, ""]

    def __str__(self) -> str:
        if self.cause.value.ndim > 0:
            return in_numbers(self)
        sentence = ADVICE[Cause(int(self.cause))]
        if self.cause == Cause.sliding:
            kinks = ", ".join(str(k) for k in jnp.flatnonzero(self.sliding)[:8].tolist())
            return f"{sentence} (kinks {kinks}{', ...' if self.sliding.sum() > 8 else ''} of {self.sliding.size})"
        if self.cause == Cause.stiff:
            return f"{sentence} (an explicit method needs {float(self.steps):.1g} more steps to stay stable)"
        return sentence


@checked()
def diagnose(
    trajectory: Trajectory,
    risk: EmpiricalRisk,
    *,
    clock: AbstractClock | str,
    until: float | Float[Array, ""],
    solver: Any = None,
    coordinates: AbstractCoordinates | str | None = None,
) -> Diagnosis:
    """What limits the steps of a trajectory at its last point. The arguments are those of the call of `integrate` that
    computed it.

    The error of `integrate` names the cause where the budget is spent. `diagnose` takes any trajectory:

    ```python
    trajectory = jf.integrate(risk, model, clock="log_time", until=5.0, solver="tsit5", max_steps=5000, throw=False)
    print(jf.diagnose(trajectory, risk, clock="log_time", until=5.0))
    ```
    """
    clock, coordinates = as_clock(clock), as_coordinates(coordinates)
    check_until(clock, until)
    # By its name, or the clock's default: what `integrate` made of it.
    implicit = isinstance(as_solver(solver, clock), diffrax.AbstractImplicitSolver)
    return _diagnose(trajectory, risk, clock, jnp.asarray(until, float), coordinates, implicit)


@eqx.filter_jit
def _diagnose(
    trajectory: Trajectory, risk: EmpiricalRisk, clock: AbstractClock, until: Array, coordinates: Any, implicit: bool
) -> Diagnosis:
    final = trajectory.final
    system, state = make_system(clock, coordinates, risk, final.model)
    s = _variable(clock, final.log_time, final.log_arc_length)
    rate = _rate(system, jnp.where(jnp.isfinite(s), s, 0.0), state)
    steps = rate * (clock.internal(until) - s) / STABLE
    residual = jnp.full((), jnp.nan)
    if not risk.loss.margin and not risk.opaque:
        outputs = risk.source.outputs(final.model)
        targets = risk.source.targets(outputs)
        size = jnp.max(jnp.abs(targets))
        residual = jnp.max(jnp.abs(outputs - targets)) / positive_or_one(size)
    sliding = jnp.zeros(0, bool)
    if has_kinks(coordinates, risk, final.model):
        kinks = Kinks(coordinates, system.context)
        sliding = mode_at(kinks, state, NEAR * (1.0 + jnp.linalg.norm(ravel_pytree(state)[0]))).sliding
    cause = jnp.where((not implicit) & (steps > trajectory.stats["num_steps"]), Cause.stiff.value, Cause.unknown.value)
    cause = jnp.where(jnp.any(sliding), Cause.sliding.value, cause)
    cause = jnp.where(underflown(final.log_gradient_norm), Cause.underflown.value, cause)
    # Where targets are met to what tolerances and roundings leave of them the gradient is zero, and nothing has
    # underflown.
    cause = jnp.where(residual <= ROUNDED, Cause.interpolated.value, cause)
    return Diagnosis(Code(cause, Cause), sliding, rate, steps, residual)


def _variable(clock: AbstractClock, log_time: Array, log_arc_length: Array) -> Array:
    """The clock's variable at a point; NaN where no reading determines it."""
    if isinstance(clock, LossTime):
        return jnp.full_like(log_time, jnp.nan)
    if isinstance(clock, LogArcLength):
        return clock.internal(log_arc_length)
    if isinstance(clock, ArcLength):
        return clock.internal(jnp.exp(log_arc_length))
    if clock.reads_negative:
        return clock.internal(log_time)
    # Of the others it is the time, in a unit of theirs.
    return jnp.exp(log_time - clock.log_time(jnp.ones_like(log_time)))


def _rate(system: System, s: Array, state: Any) -> Array:
    """The spectral radius of the field's Jacobian in the state, by power iteration."""
    rho, _, _ = system.scale(s)
    flat, unravel = ravel_pytree(state)
    _, w, length = system.start(state)

    def field(y: Array) -> Array:
        return ravel_pytree(system.field(s, (unravel(y), w, length), None)[0])[0]

    y = flat / rho
    start = jnp.sin(1.0 + jnp.arange(flat.size, dtype=flat.dtype))

    def power(_: Any, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        v, _ = carry
        _, image = jax.jvp(field, (y,), (v / jnp.linalg.norm(v),))
        size = jnp.linalg.norm(image)
        return jnp.where(size > 0, image, v), size

    # It is asked for to a factor of two.
    return jax.lax.fori_loop(0, 30, power, (start, jnp.zeros((), flat.dtype)))[1]
