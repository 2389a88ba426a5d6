"""How `find_limit` follows the flow of a linear network: to its limit point, or out along its limit direction."""

from collections.abc import Callable
from typing import Any, ClassVar

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxflow._core import RESULTS, as_integer, check_kind, check_real, good, linalg, positive_or_one, require
from jaxflow.flow import (
    AbstractCoordinates,
    AbstractStop,
    Drive,
    LogTime,
    Situation,
    StationaryPoint,
    Weights,
)
from jaxflow.flow.pairs import has_pairs
from jaxflow.flow.solvers import state_norm
from jaxflow.limits.method import AbstractMethod, check_report
from jaxflow.limits.network_gears import NetworkGears
from jaxflow.limits.path import follow
from jaxflow.limits.shaken import Shaken
from jaxflow.limits.stages import Count, Positive, kept
from jaxflow.models import DeepLinearNetwork
from jaxflow.risk import EmpiricalRisk
from jaxflow.trajectory import Trajectory

# Below this Newton's method asks for digits that layers far apart in size do not have; its last iteration, of a method
# that converges quadratically, is far more accurate than it is long. (L = 3, α = 0.01 at rtol 1e-11: with 1e-8 1,800
# steps at most and errors of 1e-10, with 1e-11 one of six paths ran out of 20,000.)
NEWTON = 1e-8
# Runs of a tolerance continuation at most, and the share of the difference of two that is reported as error.
RUNS = 3
FINER = 10.0
# Tolerances of what the first run does not get through, with the absolute one a hundred times as large: at a saddle of
# five layers, where what waits has a push of 1e-9, roundings are taken for errors and every other step is rejected.
# Errors there fall more slowly, once to a third where data were ill-conditioned: twice the difference is reported.
LOOSE, LOOSE_FINER = (1e-5, 1e-7), 0.5
# Starts below this are followed again with roundings made larger. Two differences of three numbers with one spread
# miss a quarter of the third's own error in one of a hundred cases.
SMALL_START = 1e-3
SAMPLED = 4.0


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

    **Classification**: the gears of `jaxflow.limits.network_gears`.

    **Regression**: Kvaerno5 in log time, until the residuals are at rounding. The path follows a valley of the loss
    between one coordinate's rise and the next, stiff already there: Dopri8 in arc length had not arrived after four
    times the steps (L = 4, α = 0.01: 1,016).

    **Arguments:** `near`, `far`: arc lengths of classification (`far=None`: $e^{10^6}$ for two layers, 1e100 for more);
    `log_time`: end of regression, `rtol` its tolerance (errors of β are up to a few hundred times that from α = 0.1
    or less); `saves`: save points for the rate; `coordinates`: of regression, None for `Weights`; `Dual` where the
    network allows it; `report`: receives a line a second (see `find_limit`'s `progress`).

    **Example:**

    ```python
    jf.find_limit(jf.EmpiricalRisk(linear, "exponential"), network, method=jf.LinearStaged())  # the default
    ```
    """

    takes_arrays: ClassVar[bool] = True
    near: float = 10.0
    far: float | None = None
    log_time: float = 200.0
    rtol: float = 1e-9
    saves: int = 8
    coordinates: AbstractCoordinates | None = None
    report: Callable[[str], None] | None = eqx.field(static=True, default=None)

    def __check_init__(self) -> None:
        check_real("near", self.near, positive=True)
        if self.far is not None:
            check_real("far", self.far, positive=True)
        check_real("log_time", self.log_time, positive=True)
        check_real("rtol", self.rtol, positive=True)
        as_integer("saves", self.saves)
        if self.coordinates is not None:
            check_kind("coordinates", self.coordinates, AbstractCoordinates, "coordinates")
        check_report(self.report)
        ordered = 0 < self.near < (np.inf if self.far is None else self.far)
        require(ordered, "near", f"expected 0 < near < far, got {self.near} and {self.far}")
        require(self.saves >= 3, "saves", f"a rate needs three points, got {self.saves}")
        require(0 < self.rtol < 1, "rtol", f"expected a small positive number, got {self.rtol}")

    def follow(self, risk: EmpiricalRisk, model: Any, max_steps: Count, gap: Positive = 1e-8) -> Trajectory:
        if risk.loss.margin:
            return follow(self.problem(model, gap), risk, model, max_steps)
        return self._inwards(risk, model, max_steps)

    def problem(self, model: Any, gap: Positive) -> NetworkGears:
        """The gears of a network under a margin loss."""
        return NetworkGears(
            conserved=kept(model),
            size=largest_entry(model),
            gap=gap,
            near=self.near,
            far=self.far,
            saves=self.saves,
            degree=model.degree,
            pairs=has_pairs(model),
            convex=isinstance(model, DeepLinearNetwork),
            report=self.report,
        )

    def continued(
        self, risk: EmpiricalRisk, model: Any, max_steps: Count, gap: Positive, known: Bool[Array, ""] | bool = False
    ) -> tuple[Trajectory, Float[Array, ""]]:
        r"""Regression by tolerance continuation: again with rtol/100 until the error of β is at most `gap`.

        Error per step of a method of order 5 is in proportion to rtol, and steps to rtol^(−1/6): of two runs 100 apart
        the finer one has 1/46 of the other's error, $\|\beta_k-\beta_{k-1}\|/45$. Reported is a tenth of the
        difference, relative to $\|\beta_k\|$, plus 1000 roundings, more than paths were seen to leave (7e-14). Of 300
        paths whose end is known (α from 1e-4 to 10) none was further from it than that. At most three runs, none below
        1000 roundings; a run that fails leaves the one before it as the answer. `max_steps` is for each.

        From a start below 1e-3, modes that are still that small have the roundings of the weights that have grown. Two
        more runs at rtol are `Shaken` by 64 times their roundings, one each way: four times the larger of their
        distances from the first is added. (Of one such network ten runs lay within 2e-8 of its limit, at every
        tolerance, on both sides.) Where the first run of more than two layers has used up its steps, two `LOOSE` ones
        take its place, and twice their difference is reported.

        **Arguments:** as of `follow`; `known`: the limit is known otherwise, so that the first run is enough.
        **Returns:** the finest trajectory that succeeded, and the error estimated; +inf where there is no second.
        """
        floor = 1000.0 * float(jnp.finfo(jnp.result_type(float)).eps)
        tolerances, small = [max(self.rtol, floor)], largest_entry(model) < SMALL_START
        while len(tolerances) < RUNS and max(tolerances[-1] / 100.0, floor) < 0.1 * tolerances[-1]:
            tolerances.append(max(tolerances[-1] / 100.0, floor))

        known = jnp.asarray(known)
        # Strict runs, those with larger roundings, and loose ones.
        shakes = [1.0, -1.0] if len(tolerances) > 1 else []
        strict, loose = len(tolerances), [max(x, floor) for x in LOOSE] if model.degree > 2 and shakes else []
        kinds = ["strict"] * strict + ["shaken"] * len(shakes) + ["loose"] * len(loose)
        runs = (
            jnp.asarray(tolerances + tolerances[:1] * len(shakes) + loose),
            jnp.asarray([0.0] * strict + shakes + [0.0] * len(loose)),
            jnp.asarray([kind == "loose" for kind in kinds]),
            jnp.arange(len(kinds)),
        )

        def run(state: tuple, how: tuple[Array, Array, Array, Array]) -> tuple[tuple, tuple]:
            (before, error, count, finished, lost, last), (rtol, shaken, freely, at) = state, how
            idle = jnp.where(shaken != 0, (count < 2) | ~small, finished)
            # Of a small start the errors of loose runs would be unknown.
            needed = lost & ~small & ((at == len(kinds) - len(loose)) | ((count > 0) & ~known))
            idle = jnp.where(freely, ~needed, idle)
            trajectory = self._inwards(risk, model, max_steps, rtol, idle, shaken, freely)
            beta = trajectory.final.model.linear_coefficients()
            done = good(trajectory.result) & ~idle
            better = done & (shaken == 0)
            size = jnp.linalg.norm(beta)
            apart = jnp.linalg.norm(beta - before) / positive_or_one(size)
            apart = apart / jnp.where(freely, LOOSE_FINER, FINER)
            error = jnp.where(better & (count > 0), apart + floor, error)
            finished = finished | ~better | known | (error <= gap)
            lost = lost | ((at == 0) & (trajectory.result == RESULTS.max_steps_reached))
            state = jnp.where(better, beta, before), error, count + better, finished, lost, jnp.where(better, at, last)
            return state, (trajectory, beta, done)

        start = jnp.zeros_like(model.linear_coefficients())
        unknown, no, none = jnp.asarray(jnp.inf, start.dtype), jnp.asarray(False), jnp.zeros((), int)
        state = (start, unknown, none, no, no, none)
        (_, error, count, *_, last), (found, betas, done) = jax.lax.scan(run, state, runs)
        if shakes:
            size = jnp.linalg.norm(betas[0])
            apart = jnp.linalg.norm(betas[strict : strict + 2] - betas[:1], axis=-1) / positive_or_one(size)
            noise = SAMPLED * jnp.max(jnp.where(done[strict : strict + 2], apart, jnp.inf))
            error = error + jnp.where(small & (count >= 2), noise, 0.0)
        chosen: Any = jax.tree.map(lambda x: x[last], found)
        # What all runs took together.
        stats = {
            name: jnp.sum(found.stats[name], axis=0) if name.startswith("num_") else x
            for name, x in chosen.stats.items()
        }
        return Trajectory(chosen.final, chosen.saved, chosen.regime, chosen.result, stats), error

    def _inwards(
        self,
        risk: EmpiricalRisk,
        model: Any,
        max_steps: Count,
        rtol: Any = None,
        idle: Any = False,
        shaken: Any = None,
        loose: Any = False,
    ) -> Trajectory:
        # In single precision paths end, and steps are judged, where rounding begins: closer to it steps get short.
        eps = float(jnp.finfo(jnp.result_type(float)).eps)
        rtol, ends = max(self.rtol, 1000.0 * eps) if rtol is None else rtol, max(1e-14, 20.0 * eps)
        digits, size = jnp.where(loose, 0.1 * rtol, jnp.maximum(rtol, NEWTON)), jnp.minimum(largest_entry(model), 1.0)
        # What starts small decides the limit by its own digits. Newton's method cannot follow there: its residuals
        # have the roundings of weights that are no longer small.
        least, newton = (jnp.maximum(jnp.where(loose, 1.0, 1e-2) * x, 10.0 * eps) for x in (rtol, digits))
        least = positive_or_one(size) * least
        drive = Drive(
            diffrax.Kvaerno5(root_finder=linalg.newton(rtol=digits, atol=newton, norm=state_norm)),
            diffrax.PIDController(rtol=rtol, atol=least, pcoeff=0.3, icoeff=0.4, norm=state_norm),
            Interpolated(ends) | StationaryPoint(ends),
            max_steps,
            self.report,
        )
        coordinates = Weights() if self.coordinates is None else self.coordinates
        coordinates = coordinates if shaken is None else Shaken(coordinates, shaken)
        lane = drive.start(risk, model, coordinates=coordinates, clock=LogTime(), until=self.log_time, idle=idle)
        return drive.trajectory(drive.run(lane))


def largest_entry(model: Any) -> Float[Array, ""]:
    """The size of the largest number in any layer."""
    return jnp.max(jnp.stack([jnp.max(jnp.abs(w)) for w in model.layers]))
