r"""Linear networks under a margin loss: their gears, and when one follows another.

1. **Explicit**: Tsit5 in arc length, until all data are fitted and coordinates are selected, or a path to the limit of
   a convex program is stiff.
2. **Implicit**, of networks that are not fully connected: Kvaerno5, where explicit steps have not come to fitted data.
   Of two layers in log arc length, which near a finite point is a log time. Of more in log time: near a saddle the
   gradient of small coordinates is of the size of roundings, and so is unit speed.
3. **Multipliers**, of two layers: `MultiplierNewton` in log arc length until the flow certifies its direction or its
   direction is at rest. Of a component with slack $1-\kappa$ the share $\rho^{-2(1-\kappa)}$ is left, so that log ρ is
   allowed to be a million.
   **Weights**, of more layers, whose margins are no quadratic forms: Kvaerno5 in log arc length, as far as exponents
   have digits for Newton's method. From there the limit is that of the hard-margin flow (`jaxflow.limits.linear`).
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import diffrax
import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxflow._core import RESULTS, good, linalg
from jaxflow.flow import (
    AbstractCoordinates,
    AbstractStop,
    ArcLength,
    AtRest,
    Budget,
    CertificateGap,
    Drive,
    Lane,
    LogArcLength,
    LogTime,
    LossExcess,
    MultiplierNewton,
    Situation,
    Stiff,
    Weights,
)
from jaxflow.flow.drive import FIRST_STEP
from jaxflow.flow.solvers import state_norm
from jaxflow.limits.attention import EXPONENTS
from jaxflow.limits.path import AbstractProblem, End, Shift, Start
from jaxflow.limits.saddles import AtMinimum, Hurried, at_minimum, hurried
from jaxflow.limits.self_certificate import flow_certifier
from jaxflow.limits.stages import FAR, FLOOR, HORIZON, LOG_LOSS, PATH_RTOL, STATIONARY, Count, Positive
from jaxflow.limits.steps import implicit_control, kvaerno, relative_control, share_of
from jaxflow.risk import EmpiricalRisk
from jaxflow.trajectory import Trajectory

# ρ^L to which weights are followed at least, and rates are fitted: those of more than two layers have no digits for
# Newton's method from 1e9 on (two of 64 convolutional networks).
EXACT = 1e6


class Fitted(AbstractStop):
    """Stops where every margin $y_if(x_i)$ is positive."""

    def __call__(self, situation: Situation) -> Bool[Array, ""]:
        return jnp.all(situation.risk.margins(situation.decode()) > 0)


class NetworkGears(AbstractProblem):
    """The flow of one linear network out along its limit direction.

    **Arguments:** `coordinates`: those of `coordinates_of` for the start; `size`: its largest entry; `gap` to certify;
    `near`, `far`, `saves`, `report`: see `LinearStaged`; `degree`: layers; `mixes`: whether the network is fully
    connected.
    """

    coordinates: AbstractCoordinates
    size: Float[Array, ""]
    gap: Positive
    near: float
    far: float | None
    saves: int
    degree: int = eqx.field(static=True)
    mixes: bool = eqx.field(static=True)
    report: Callable[[str], None] | None = eqx.field(static=True, default=None)

    @property
    def gears(self) -> tuple[str, ...]:
        last = "multipliers" if self.degree == 2 else "weights"
        return ("explicit", last) if self.mixes else ("explicit", "implicit", last)

    @property
    def convex(self) -> bool:
        """Whether the program of the limit is convex, so that it does not depend on the path."""
        return self.mixes or self.degree == 2

    def drive(self, gear: int, model: Any, max_steps: Count, again: Bool[Array, ""]) -> Drive:
        name, steps = self.gears[gear], jnp.asarray(max_steps)
        still = AtMinimum(STATIONARY)
        fitted = still | (Budget(log_arc_length=float(np.log(self.near))) & Fitted())
        entry = jnp.where(self.size > 0, jnp.minimum(self.size, 1.0), 1.0)
        if name == "explicit":
            controller = diffrax.PIDController(rtol=1e-7, atol=1e-9 * entry, norm=state_norm)
            ends = fitted if self.degree == 2 else still
            # Where which limit is reached does not depend on the path, a stiff one need not be followed closely.
            ends = ends | Stiff() if self.convex else ends
            return Drive(diffrax.Tsit5(), controller, ends, share_of(steps), self.report)
        if name == "implicit":
            # What stays small at a saddle has the size of the start, and is known to this share of it; with a hundredth
            # of that, roundings of what has grown are taken for errors (steps rejected one by one, three of seven
            # networks of four layers).
            rtol = max(PATH_RTOL, 100.0 * float(jnp.finfo(entry.dtype).eps))
            controller = implicit_control(rtol=rtol, atol=rtol * entry)
            solver = kvaerno(0.1 * rtol, 0.1 * rtol * entry, partial(linalg.newton, residual=False))
            ends = fitted if self.degree == 2 else fitted | Hurried(jnp.asarray(rtol))
            return Drive(solver, controller, ends, share_of(steps), self.report)
        exact = Budget(log_arc_length=float(np.log(self._exact - self.near)))
        if name == "multipliers":
            ends = still | (CertificateGap(self.gap, flow_certifier()) & exact) | AtRest()
            controller = implicit_control(rtol=1e-4, atol=1e-6)
            return Drive(MultiplierNewton(), controller, ends, steps, self.report)
        # Barely separable data have exponents of a hundred where others have millions.
        ends = still | (LossExcess(LOG_LOSS) & exact)
        # As of a caller's own model, in narrow valleys.
        solver = kvaerno(1e-6, 1e-8, partial(linalg.chord, residual=False, relative=True), iterations=40)
        return Drive(solver, relative_control(1e-4), ends, share_of(steps), self.report)

    def lane(self, gear: int, drive: Drive, start: Start) -> Lane:
        # A cap is one of lengths of the weights.
        coordinates = Weights() if self.gears[gear] == "weights" else self.coordinates
        lane = partial(start.lane, drive, coordinates=coordinates)
        name, near = self.gears[gear], self.near
        if name == "explicit":
            return lane(clock=ArcLength(), until=HORIZON if self.degree == 2 else near)
        if name == "implicit":
            lengths = LogArcLength(unit=start.unit, floor=FLOOR, timed=False)
            return lane(clock=lengths if self.degree == 2 else LogTime(), until=HORIZON, dt0=FIRST_STEP)
        # Rates are fitted where the flow is the exact one.
        saves = jnp.linspace(np.log(0.5 * self._exact - near), np.log(self._exact - near), self.saves)
        if name == "multipliers":
            clock = LogArcLength(unit=start.unit, cap=max(EXPONENTS**0.5, self._exact), timed=False)
            until = HORIZON if self.far is None else float(np.log(self.far - near))
            return lane(clock=clock, until=until, save_at=saves)
        return lane(clock=LogArcLength(unit=near, floor=FLOOR), until=float(np.log(FAR)), save_at=saves)

    def shift(self, gear: int, risk: EmpiricalRisk, lost: Int[Array, ""], stretch: Trajectory) -> Shift:
        name, last, yes = self.gears[gear], jnp.asarray(len(self.gears) - 1), jnp.asarray(True)
        spent = stretch.result == RESULTS.max_steps_reached
        if name in ("multipliers", "weights"):
            return Shift(jnp.asarray(End.ended), yes)
        final = stretch.final
        data: Any = risk.data
        outwards = ~at_minimum(data, final.model, final.multipliers, final.velocity)
        there = good(stretch.result) & outwards
        # Out of steps, one of a convex program goes out all the same.
        onwards = jnp.where(outwards, last, End.ended) if self.convex else jnp.asarray(End.ended)
        if name == "explicit" and not self.mixes:
            # Out of steps a path may be at a saddle, and a stiff one has not come to fitted data.
            onwards = jnp.asarray(gear + 1)
            if self.convex:
                fits = jnp.all(risk.margins(final.model) > 0) & (final.log_arc_length >= np.log(self.near))
                there, spent = there & fits, spent | (there & ~fits)
        following = jnp.where(there, last, jnp.where(spent, onwards, End.ended))
        if name == "implicit" and self.degree > 2:
            again = hurried(jnp.asarray(PATH_RTOL), final.log_time, final.log_gradient_norm, final.log_norm)
            following = jnp.where(there & again, gear, following)
        return Shift(following, yes)

    @property
    def _exact(self) -> float:
        """The arc length to which the flow is the exact one, at least."""
        return max(EXACT ** (1.0 / self.degree), 3.0 * self.near)
