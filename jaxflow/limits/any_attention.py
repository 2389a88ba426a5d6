"""Attention of any kind (heads that compose tokens, factored layers in parallel, a caller's own solver): its gears.

1. **Explicit**: Tsit5 in arc length, to `near`; of heads that may compose several tokens until each query has selected
   one, or the path is stiff.
2. **Mixing**, where it has not: an implicit method in log t. Proportions relax at a rate that grows against that of
   what is masked like 1/s, and an arc length is no clock (its speed turns around wherever they are out of balance). It
   ends where one token a query is selected, or where rounding in the head's slopes would outweigh what is masked
   (`CompositionResolved`, the end of the path).
3. **Implicit**: Kvaerno5 in log arc length, to `far`, and beyond it, at most to `horizon`, until the selection has
   settled.
4. **Relaxation**: a few implicit Euler steps of 1% each. Large steps of a method with an explicit first stage leave the
   *velocity* with an error of about 1/length (an algebraic variable of index two); implicit Euler damps it by a factor
   λ/(0.01·length) a step.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import diffrax
import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from jaxflow._core import good, linalg
from jaxflow.data import TokenData
from jaxflow.flow import (
    AbstractCoordinates,
    AbstractStop,
    ArcLength,
    Budget,
    Drive,
    Lane,
    LogArcLength,
    LogTime,
    LossExcess,
    SelectionSettled,
    Situation,
    StationaryPoint,
    Stiff,
)
from jaxflow.flow.drive import FIRST_STEP
from jaxflow.flow.solvers import state_norm
from jaxflow.limits.attention import selected
from jaxflow.limits.path import AbstractProblem, End, Shift, Start
from jaxflow.limits.self_certificate import select, settled
from jaxflow.limits.stages import LOG_TIME, STATIONARY, Count, Positive, log_multipliers, stationarity
from jaxflow.limits.steps import explicit_control, implicit_control, kvaerno, relative_control
from jaxflow.models import AbstractAttention
from jaxflow.risk import EmpiricalRisk
from jaxflow.trajectory import Trajectory

# Two steps damp the velocity's error to rounding; the others are reserve for weak multipliers.
RELAXATION_STEPS = 5


def accurate_solver() -> diffrax.AbstractSolver:
    """Kvaerno5 with Newton's method to tolerances well below those of a step."""
    return kvaerno(1e-5, 1e-7)


class CompositionResolved(AbstractStop):
    r"""Stops where some query mixes several tokens and what is masked has nearly vanished.

    Slopes of mixed tokens tend to each other, and their differences are rounding errors ε. What is masked pulls like
    its attention s: the direction is off by s, and by ε/s, which are equal at $s=\sqrt\varepsilon$.
    """

    def __call__(self, situation: Situation) -> Bool[Array, ""]:
        return composition_resolved(situation.decode(), situation.risk.data)  # pyright: ignore[reportArgumentType]


def composition_resolved(model: AbstractAttention, data: TokenData) -> Bool[Array, ""]:
    r"""Whether some query mixes several tokens and all others have less than $\sqrt\varepsilon$ of the attention."""
    attention = model.attention(data)
    chosen = select(attention)
    several = jnp.any(jnp.sum(chosen, axis=-1) > 1)
    left = jnp.max(jnp.where(chosen, 0.0, attention))
    return several & settled(attention, data.visible) & (left <= jnp.sqrt(jnp.finfo(left.dtype).eps))


class AnyAttentionGears(AbstractProblem):
    """The flow of attention whose margins have no structure that `MultiplierNewton` could use.

    **Arguments:** `near`, `far`, `horizon`, `cap`: arc lengths, see above and `Staged`; `composes`: whether the head
    may compose tokens; `coordinates` of all gears; `solver`, `rtol` of the implicit gear, `path_rtol` of the explicit
    one; `fitted`: see `fitted_below`; `floor`, `saves`, `timed`, `report` as in `Staged`.
    """

    coordinates: AbstractCoordinates
    solver: diffrax.AbstractSolver
    near: float
    far: float
    horizon: float
    cap: float
    rtol: float
    floor: float
    saves: int
    fitted: Positive
    path_rtol: Positive
    timed: bool = eqx.field(static=True)
    composes: bool = eqx.field(static=True)
    report: Callable[[str], None] | None = eqx.field(static=True, default=None)

    @property
    def gears(self) -> tuple[str, ...]:
        mixing = ("mixing",) if self.composes else ()
        return ("explicit", *mixing, "implicit", "relaxation")

    def drive(self, gear: int, model: Any, max_steps: Count, again: Bool[Array, ""]) -> Drive:
        name = self.gears[gear]
        stop = StationaryPoint(STATIONARY, model.degree or 1) | LossExcess(self.fitted)
        stop = stop | CompositionResolved() if self.composes else stop
        if name == "explicit":
            ends = stop | SelectionSettled() | Stiff() if self.composes else stop
            return Drive(diffrax.Tsit5(), explicit_control(self.path_rtol), ends, max_steps, self.report)
        if name == "mixing":
            controller = implicit_control(rtol=1e-5, atol=1e-7)
            return Drive(accurate_solver(), controller, stop | SelectionSettled(), max_steps, self.report)
        if name == "implicit":
            settled = Budget(log_arc_length=float(np.log(self.far - self.near))) & SelectionSettled()
            return Drive(self.solver, relative_control(self.rtol), stop | settled, max_steps, self.report)
        euler = diffrax.ImplicitEuler(root_finder=linalg.newton(rtol=1e-8, atol=1e-8, norm=state_norm))
        return Drive(euler, diffrax.ConstantStepSize(), None, max_steps, self.report)

    def lane(self, gear: int, drive: Drive, start: Start) -> Lane:
        name = self.gears[gear]
        lane = partial(start.lane, drive, coordinates=self.coordinates)
        if name == "explicit":
            return lane(clock=ArcLength(floor=self.floor, timed=self.timed), until=self.near)
        if name == "mixing":
            return lane(clock=LogTime(), until=LOG_TIME)
        if name == "implicit":
            # Rates are fitted where the flow is the exact one.
            end = min(self.far, max(self.cap, 2.5 * self.near))
            return lane(
                clock=LogArcLength(unit=self.near, floor=self.floor, cap=self.cap, timed=self.timed),
                until=float(np.log(self.horizon - self.near)),
                save_at=jnp.linspace(np.log(max(end / 100, self.near)), np.log(end - self.near), self.saves),
            )
        clock = LogArcLength(unit=self.far, timed=self.timed)
        until = clock.reading(jnp.asarray(RELAXATION_STEPS * FIRST_STEP))
        return lane(clock=clock, until=until, dt0=FIRST_STEP)

    def shift(self, gear: int, risk: EmpiricalRisk, lost: Int[Array, ""], stretch: Trajectory) -> Shift:
        name, followed = self.gears[gear], good(stretch.result)
        data: Any = risk.data
        if name == "relaxation":
            # Where it does not converge (rounding in exponents of 1e7 and more), the path before it stands.
            return Shift(jnp.asarray(End.ended), followed)
        final = stretch.final
        ends = ~followed | (stationarity(final) <= STATIONARY) | (log_multipliers(final) <= self.fitted)
        # At rest on the sphere there is no velocity left to relax.
        last = name == "implicit" and self.cap < self.far
        following = jnp.asarray(End.ended if last else gear + 1)
        if self.composes and name == "explicit":
            following = jnp.where(selected(stretch, data), gear + 2, following)
        elif self.composes:
            ends = ends | composition_resolved(final.model, data)
        return Shift(jnp.where(ends, End.ended, following), jnp.asarray(True))
