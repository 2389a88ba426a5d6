"""How `find_limit` follows the flow of a linear network: to its limit point, or out along its limit direction."""

from typing import Any

import diffrax
import jax.numpy as jnp
import numpy as np
import optimistix
from jaxtyping import Array, Bool

from jaxflow._core import good, require
from jaxflow.flow import (
    AbstractCoordinates,
    AbstractStop,
    ArcLength,
    Drive,
    LogArcLength,
    LogTime,
    Situation,
    StationaryPoint,
    Weights,
)
from jaxflow.flow.solvers import state_norm
from jaxflow.limits.method import AbstractMethod
from jaxflow.limits.stages import STATIONARY, followed_by, stationarity
from jaxflow.risk import EmpiricalRisk
from jaxflow.trajectory import Trajectory

# ρ^L at which the flow passes to its limiting dynamics: beyond, margins of this size lose digits that the multipliers
# need, and their own floor, one over it, is where the margins of a limit with several support vectors end.
MARGIN_CAP = 1e6

# Below this Newton's method asks for digits that layers far apart in size do not have; its last iteration, of a method
# that converges quadratically, is far more accurate than it is long. (L = 3, α = 0.01 at rtol 1e-11: with 1e-8 1,800
# steps at most and errors of 1e-10, with 1e-11 one of six paths ran out of 20,000.)
NEWTON = 1e-8


class Interpolated(AbstractStop):
    r"""Stops where $\sum_i|f(x_i)-y_i|\le\text{tolerance}\cdot\sum_i|y_i|$.

    1e-14 is a loss of 1e-28 relative to that of the zero function, a few roundings of the outputs.
    """

    tolerance: float = 1e-14

    def __call__(self, situation: Situation) -> Bool[Array, ""]:
        risk = situation.risk
        targets: Any = risk.data
        size = jnp.sum(jnp.abs(targets.targets)) / (targets.targets.size if risk.reduction == "mean" else 1)
        return situation.scaled.log_scale + situation.log_sum <= jnp.log(self.tolerance) + jnp.log(size)


class LinearStaged(AbstractMethod):
    r"""The default for linear networks.

    **Classification**, two stages of one path: Tsit5 in arc length to `near`, where coordinates are selected and the
    path bends; then Kvaerno5 in log arc length to `far`. Beyond $\rho^L=10^6$ it follows the limiting dynamics (see
    `LogArcLength`), in which log t of $10^{100}$ and more is reached and slow components have time to decay.

    **Regression**: Kvaerno5 in log time, until the residuals are at rounding. The path follows a valley of the loss
    between one coordinate's rise and the next, stiff already there: Dopri8 in arc length had not arrived after four
    times the steps (L = 4, α = 0.01: 1,016).

    **Arguments:** `near`, `far`: arc lengths of classification; `log_time`: end of regression, `rtol` its tolerance
    (errors of β are up to a few hundred times that from α = 0.1 or less);
    `saves`: save points for the rate; `coordinates`: of regression, None for `Weights`; `Dual` where the network
    allows it.
    """

    near: float = 10.0
    far: float = 1e100
    log_time: float = 200.0
    rtol: float = 1e-9
    saves: int = 8
    coordinates: AbstractCoordinates | None = None

    def __check_init__(self) -> None:
        require(0 < self.near < self.far, "near", f"expected 0 < near < far, got {self.near} and {self.far}")
        require(self.saves >= 3, "saves", f"a rate needs three points, got {self.saves}")
        require(0 < self.rtol < 1, "rtol", f"expected a small positive number, got {self.rtol}")

    def follow(self, risk: EmpiricalRisk, model: Any, max_steps: int, gap: float) -> Trajectory:
        if risk.loss.margin:
            return self._outwards(risk, model, max_steps)
        return self._inwards(risk, model, max_steps)

    def _inwards(self, risk: EmpiricalRisk, model: Any, max_steps: int) -> Trajectory:
        digits = max(self.rtol, NEWTON)
        drive = Drive(
            diffrax.Kvaerno5(root_finder=optimistix.Newton(rtol=digits, atol=1e-2 * digits, norm=state_norm)),
            diffrax.PIDController(rtol=self.rtol, atol=1e-2 * self.rtol, pcoeff=0.3, icoeff=0.4, norm=state_norm),
            Interpolated() | StationaryPoint(1e-14),
            max_steps,
        )
        coordinates = Weights() if self.coordinates is None else self.coordinates
        lane = drive.start(risk, model, coordinates=coordinates, clock=LogTime(), until=self.log_time)
        return drive.trajectory(drive.run(lane))

    def _outwards(self, risk: EmpiricalRisk, model: Any, max_steps: int) -> Trajectory:
        cap = MARGIN_CAP ** (1.0 / model.degree)
        still = StationaryPoint(STATIONARY)

        def stage(model: Any, solver: Any, controller: Any, **how: Any) -> Trajectory:
            drive = Drive(solver, controller, still, max_steps)
            return drive.trajectory(drive.run(drive.start(risk, model, coordinates=Weights(), **how)))

        near = stage(
            model,
            diffrax.Tsit5(),
            diffrax.PIDController(rtol=1e-7, atol=1e-9, norm=state_norm),
            clock=ArcLength(),
            until=self.near,
        )
        done = ~good(near.result) | (stationarity(near) <= STATIONARY)
        # Rates are fitted where the flow is the exact one.
        end = max(cap, 3.0 * self.near)
        far = stage(
            near.final.model,
            diffrax.Kvaerno5(root_finder=optimistix.Newton(rtol=1e-6, atol=1e-8, norm=state_norm)),
            diffrax.PIDController(rtol=1e-4, atol=1e-6, pcoeff=0.3, icoeff=0.4, norm=state_norm),
            clock=LogArcLength(unit=self.near, cap=end),
            until=float(np.log(self.far - self.near)),
            save_at=jnp.linspace(np.log(0.5 * end - self.near), np.log(end - self.near), self.saves),
            idle=done,
        )
        return followed_by(near, far, done)
