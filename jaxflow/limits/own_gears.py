"""A caller's own model: its gears.

1. **Explicit**: Tsit5 in arc length, or Bosh3 where there is no other gear and the model has kinks, which cost an
   explicit method small steps and no more: along them a method of high order gains nothing.
2. **Implicit**: Kvaerno5 in log arc length, once explicit steps are as long as stability allows. It goes out along
   valleys of the loss, and into finite points, where log arc length turns into log time.

Steps of both end on kinks and slide along them (`Filippov`), where these are few enough. (6 units of a ReLU, 20 data:
350 steps lead to where 50,000 shorter ones of Bosh3 lead, or ought to: at `rtol` 1e-3 one of seven of these came to
another direction.) A loss that has its infimum at finite outputs leads to a point, and both gears run in log time.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import diffrax
import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxflow._core import good, linalg
from jaxflow._core.linalg import ROUNDED
from jaxflow.flow import ArcLength, Drive, Lane, LogArcLength, LogTime, LossExcess, StationaryPoint, Stiff, Weights
from jaxflow.flow.drive import FIRST_STEP
from jaxflow.flow.filippov import Filippov
from jaxflow.limits.path import AbstractProblem, End, Shift, Start, broken, out_of_steps
from jaxflow.limits.stages import FAR, FLOOR, HORIZON, LOG_TIME, STATIONARY, Count, Positive, log_multipliers, vanished
from jaxflow.limits.steps import IMPLICIT_STEPS, explicit_control, kvaerno, relative_control, share_of
from jaxflow.risk import EmpiricalRisk
from jaxflow.trajectory import Trajectory


class OwnGears(AbstractProblem):
    """The flow of any model, until its loss is e^`log_loss` or its gradient vanishes.

    **Arguments:** `kinked`: whether the model has kinks; `stiff`: whether there is an implicit gear; `point`: whether
    the loss has its infimum at finite outputs; `located`: whether steps of both gears end on kinks and slide there
    (`Filippov`); `rtol` of both gears; `still`: the gradient that has vanished, relative to the multipliers; `long`:
    see `AbstractProblem`; `report`: see `Drive`.
    """

    log_loss: float | Float[Array, ""]
    rtol: Positive
    kinked: bool = eqx.field(static=True)
    stiff: bool = eqx.field(static=True)
    point: bool = eqx.field(static=True, default=False)
    located: bool = eqx.field(static=True, default=False)
    still: float = STATIONARY
    report: Callable[[str], None] | None = eqx.field(static=True, default=None)
    saves: int = 0
    long: bool = eqx.field(static=True, default=False)

    @property
    def gears(self) -> tuple[str, ...]:
        return ("explicit", "implicit") if self.stiff else ("explicit",)

    def drive(self, gear: int, model: Any, max_steps: Count, again: Bool[Array, ""]) -> Drive:
        rtol, name = self.rtol, self.gears[gear]
        stop = LossExcess(self.log_loss) | StationaryPoint(self.still, 2)
        if name == "explicit":
            solver = self._across(diffrax.Tsit5() if self.stiff or not self.kinked else diffrax.Bosh3())
            ends = stop | Stiff() if self.stiff else stop
            # Such a step costs as much as an implicit one.
            most = jnp.minimum(max_steps, IMPLICIT_STEPS) if self.located else max_steps
            return Drive(solver, explicit_control(rtol), ends, most, self.report)
        # Far out rates times steps leave roundings of `ROUNDED` in a stage, which Newton's method cannot remove.
        digits = jnp.maximum(1e-2 * rtol, 10.0 * ROUNDED)
        # With one Jacobian a step iterations are cheap and converge linearly. (In a narrow valley 10 of them left 135
        # solves of 650 steps without an end, and 40 left 57 of 391.)
        finder = partial(linalg.chord, residual=not self.point, relative=self.point)
        solver = self._across(kvaerno(digits, digits, finder, iterations=40))
        # Along a kink that steps do not meet Newton's method gets nowhere.
        most = jnp.asarray(IMPLICIT_STEPS)
        most = most if self.located or not self.kinked else share_of(most)
        return Drive(solver, relative_control(rtol), stop, jnp.minimum(max_steps, most), self.report)

    def _across(self, method: diffrax.AbstractSolver) -> diffrax.AbstractSolver:
        return Filippov(method) if self.located else method

    def lane(self, gear: int, drive: Drive, start: Start) -> Lane:
        lane = partial(start.lane, drive, coordinates=Weights())
        if self.point:
            return lane(clock=LogTime(), until=LOG_TIME)
        if self.gears[gear] == "explicit":
            return lane(clock=ArcLength(floor=FLOOR, timed=False), until=HORIZON)
        return lane(clock=LogArcLength(unit=start.unit, floor=FLOOR, timed=False), until=math.log(FAR), dt0=FIRST_STEP)

    def shift(self, gear: int, risk: EmpiricalRisk, lost: Int[Array, ""], stretch: Trajectory) -> Shift:
        final, yes = stretch.final, jnp.asarray(True)
        if self.gears[gear] == self.gears[-1]:
            return Shift(jnp.asarray(End.ended), yes)
        size = log_multipliers(final)
        still = vanished(final, 2, self.still)
        ended = good(stretch.result) & ((size <= self.log_loss) | still)
        over = ended | broken(stretch) | out_of_steps(stretch)
        return Shift(jnp.where(over, End.ended, gear + 1), yes)
