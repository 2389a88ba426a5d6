"""How `find_limit` follows the flow of a linear network: to its limit point, or out along its limit direction."""

from collections.abc import Callable
from typing import Any, ClassVar

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxflow._core import RESULTS, as_integer, check_kind, check_real, good, linalg, require
from jaxflow.flow import (
    AbstractCoordinates,
    AbstractStop,
    ArcLength,
    AtRest,
    Budget,
    CertificateGap,
    Drive,
    Halves,
    LogArcLength,
    LogTime,
    MultiplierNewton,
    Situation,
    StationaryPoint,
    Weights,
)
from jaxflow.flow.pairs import has_pairs
from jaxflow.flow.solvers import state_norm
from jaxflow.limits.method import AbstractMethod, check_report
from jaxflow.limits.network_certificate import network_certifier
from jaxflow.limits.shaken import Shaken
from jaxflow.limits.stages import STATIONARY, Count, Positive, followed_by, kept, stationarity
from jaxflow.models import DeepLinearNetwork
from jaxflow.risk import EmpiricalRisk
from jaxflow.trajectory import Trajectory

# ρ^L at which the flow passes to its limiting dynamics. Margins keep a floor of one over it, and what rounding leaves
# of an exponent, ρ^L ε, is still small against one. Newton's method for the weights themselves loses digits that the
# multipliers need much earlier, and with as many digits as below it takes all of its steps at 1e10, with any at 1e12.
# The floor is in units of the least margin on the unit sphere, which is 1e-3 and less of more layers. Of a fully
# connected network, which is held against a convex program, it is to be below the gap; its path ends where it is
# certified.
MARGIN_CAP = 1e12
WEIGHTS_CAP = 1e6
DEEP_CAP = 1e9
CONVEX_CAP = 1e10
# Steps at `DEEP_CAP`, of which paths take 40 to 200: where exponents have no digits for it, Newton's method finds no
# step there at all (two of 64 convolutional networks), and the path is followed again at the next of these.
FAR_STEPS = 512
DEEP_CAPS = ((DEEP_CAP, 1e-5), (3e7, 3e-6), (WEIGHTS_CAP, 1e-6))
# Steps of the explicit stage of more than two layers: where it has not arrived by then, data are barely separable or
# not at all, or they wait at a saddle: it is stiff, and goes on implicitly. Where which stationary point is reached
# depends on the path, it is followed closely for longer (with 3,072 the ends are the same to 1e-13, 128 of 128).
NEAR_STEPS = 512
SELECTING_STEPS = 1024
# Where coordinates of such a path wait their turn at a saddle, unit speed is a matter of roundings and explicit steps
# stand still: it goes on implicitly in log time. What waits has the size of the start, and is known to this share of
# it; with a hundredth of that, roundings of what has grown are taken for errors (steps rejected one by one, three of
# seven networks of four layers). 160 to 440 steps were needed; ends agree with those at a hundredth of the tolerance.
SADDLE_RTOL, SADDLE_STEPS, SADDLE_LOG_TIME = 1e-6, 1024, 1e5
# The first step there: Diffrax's own rule looks ahead to where the field overflows.
FIRST_STEP = 0.01
# What is 0.01 and waits its turn in four layers has a gradient of 1e-6: a saddle, and no end.
DEEP_STATIONARY = 1e-12
# Lengths turn into times where pushes cancel, as for attention: a path into a finite point has no length to go.
FLOOR = 0.03
# Log arc lengths to which paths go. A component with slack 1 - κ falls like exp(-2(1 - κ)s): at 1e6 to 1e-8 for every
# slack above 1e-5. Newton's method for the weights is driven to lengths that can be written down.
LOG_FAR = 1e6
WEIGHTS_FAR = 1e100
# How many times `near` is waited for weights that fit the data: those of a start far out have a long way to go.
PATIENCE = 100.0

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


class Fitted(AbstractStop):
    """Stops where every margin $y_if(x_i)$ is positive."""

    def __call__(self, situation: Situation) -> Bool[Array, ""]:
        data: Any = situation.risk.data
        return jnp.all(data.targets * situation.decode().outputs(data) > 0)


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
    path bends; then log arc length. For two layers, once all data are fitted, by `MultiplierNewton` until the flow
    certifies its direction to the gap asked for or its direction is at rest. Of a component with slack
    $1-\kappa$ the share $\rho^{-2(1-\kappa)}$ is left, so that log ρ is allowed to be a million; beyond
    $\rho^L=10^{12}$ the path is that of the limiting dynamics (see `LogArcLength`). For more layers, whose margins are
    no quadratic forms, by Kvaerno5 for the weights, with $10^9$ in place of $10^{12}$ (or the largest of `DEEP_CAPS`
    that has digits), to `far`; of fully connected ones with $10^{10}$, until the direction is certified. Where explicit
    steps stand still at a saddle, Kvaerno5 in log time takes the path to `near`. Two diagonal layers move in `Halves`.

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
            return self._outwards(risk, model, max_steps, gap)
        return self._inwards(risk, model, max_steps)

    def continued(
        self, risk: EmpiricalRisk, model: Any, max_steps: Count, gap: Positive, known: Bool[Array, ""] | bool = False
    ) -> tuple[Trajectory, Float[Array, ""]]:
        r"""Regression by tolerance continuation: again with rtol/100 until the error of β is at most `gap`.

        Error per step of a method of order 5 is in proportion to rtol, and steps to rtol^(−1/6): of two runs 100 apart
        the finer one has 1/46 of the other's error, $\|\beta_k-\beta_{k-1}\|/45$. Reported is a tenth of the
        difference, relative to $\|\beta_k\|$, plus 1000 roundings, more than paths were seen to leave (7e-14). Of 300
        paths whose end is known (α from 1e-4 to 10) none was further from it than that. At most three runs, none below
        1000 roundings; a run that fails leaves the one before it as the answer. `max_steps` is for each.

        Of a start below 1e-3, what waits at that size for its turn is rounded with the weights that have grown. Two
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
            apart = jnp.linalg.norm(beta - before) / jnp.where(size > 0, size, 1.0)
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
            apart = jnp.linalg.norm(betas[strict : strict + 2] - betas[:1], axis=-1) / jnp.where(size > 0, size, 1.0)
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
        least = jnp.where(size > 0, size, 1.0) * least
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

    def _outwards(self, risk: EmpiricalRisk, model: Any, max_steps: Count, gap: Positive = 1e-8) -> Trajectory:
        pairs = has_pairs(model)
        deep = model.degree > 2 and not isinstance(model, DeepLinearNetwork)
        rest = DEEP_STATIONARY if deep else STATIONARY
        still = StationaryPoint(rest, model.degree, pairs)
        quadratic, size = model.degree == 2, jnp.minimum(largest_entry(model), 1.0)

        coordinates, convex = Halves(kept(model)) if pairs else Weights(), isinstance(model, DeepLinearNetwork)

        def stage(
            model: Any, solver: Any, controller: Any, stop: Any, steps: Count = max_steps, **how: Any
        ) -> Trajectory:
            drive = Drive(solver, controller, stop, steps, self.report)
            return drive.trajectory(drive.run(drive.start(risk, model, coordinates=coordinates, **how)))

        near = stage(
            model,
            diffrax.Tsit5(),
            diffrax.PIDController(rtol=1e-7, atol=1e-9 * jnp.where(size > 0, size, 1.0), norm=state_norm),
            still | (Budget(log_arc_length=float(np.log(self.near))) & Fitted()) if quadratic else still,
            max_steps if quadratic else jnp.minimum(max_steps, NEAR_STEPS if convex else SELECTING_STEPS),
            clock=ArcLength(),
            until=PATIENCE * self.near if quadratic else self.near,
        )
        stiff = near.result == RESULTS.max_steps_reached if convex else jnp.asarray(False)
        if deep:
            waits, entry = near.result == RESULTS.max_steps_reached, jnp.where(size > 0, size, 1.0)
            rtol = max(SADDLE_RTOL, 100.0 * float(jnp.finfo(jnp.result_type(float)).eps))
            newton = linalg.newton(rtol=0.1 * rtol, atol=0.1 * rtol * entry, norm=state_norm)
            onwards = stage(
                near.final.model,
                diffrax.Kvaerno5(root_finder=newton),
                diffrax.PIDController(rtol=rtol, atol=rtol * entry, pcoeff=0.3, icoeff=0.4, norm=state_norm),
                still | (Budget(log_arc_length=float(np.log(self.near))) & Fitted()),
                jnp.minimum(max_steps, SADDLE_STEPS),
                clock=LogTime(),
                until=SADDLE_LOG_TIME,
                dt0=FIRST_STEP,
                idle=~waits,
            )
            near = followed_by(near, onwards, ~waits)
        least = rest * jnp.exp((model.degree - 1) * jnp.minimum(near.final.log_norm, 0.0))
        done = ~(good(near.result) | stiff) | (stationarity(near) <= least)
        # Rates are fitted where the flow is the exact one.
        end = max(WEIGHTS_CAP ** (1.0 / model.degree), 3.0 * self.near)
        saves = jnp.linspace(np.log(0.5 * end - self.near), np.log(end - self.near), self.saves)
        certified = CertificateGap(gap, network_certifier()) & Budget(log_arc_length=float(np.log(end - self.near)))
        if quadratic:
            # The length so far, or the size of the weights of a start far out.
            unit = jnp.exp(jnp.logaddexp(near.final.log_arc_length, near.final.log_norm))
            far = stage(
                near.final.model,
                MultiplierNewton(),
                diffrax.PIDController(rtol=1e-4, atol=1e-6, pcoeff=0.3, icoeff=0.4, norm=state_norm),
                still | certified | AtRest(pairs=pairs),
                clock=LogArcLength(unit=unit, cap=max(MARGIN_CAP**0.5, end), timed=False),
                until=LOG_FAR if self.far is None else float(np.log(self.far - self.near)),
                save_at=saves,
                idle=done,
            )
            return followed_by(near, far, done)
        length = WEIGHTS_FAR if self.far is None else self.far
        # Single precision has no digits for more.
        fine = float(jnp.finfo(jnp.result_type(float)).eps) < 1e-12
        caps = DEEP_CAPS[-1:]
        if fine:
            caps = ((CONVEX_CAP, 1e-5),) if convex else DEEP_CAPS
        tries = jnp.asarray([(max(cap ** (1.0 / model.degree), end), digits) for cap, digits in caps])

        def outwards(finished: Bool[Array, ""], how: Float[Array, "2"]) -> tuple[Array, tuple[Trajectory, Array]]:
            cap, digits = how
            far = stage(
                near.final.model,
                diffrax.Kvaerno5(root_finder=linalg.newton(rtol=digits, atol=1e-2 * digits, norm=state_norm)),
                diffrax.PIDController(rtol=1e-4, atol=1e-6, pcoeff=0.3, icoeff=0.4, norm=state_norm),
                still | certified if convex else still,
                max_steps if len(caps) == 1 else jnp.minimum(max_steps, FAR_STEPS),
                clock=LogArcLength(unit=self.near, floor=FLOOR, cap=cap),
                until=float(np.log(length - self.near)),
                save_at=saves,
                idle=finished,
            )
            return finished | (far.result != RESULTS.max_steps_reached), (far, finished)

        _, (found, skipped) = jax.lax.scan(outwards, done, tries)
        last: Any = jax.tree.map(lambda x: x[jnp.maximum(jnp.sum(~skipped) - 1, 0)], found)
        # What all tries took together.
        stats = {name: jnp.sum(x, axis=0) if name.startswith("num_") else x[0] for name, x in found.stats.items()}
        return followed_by(near, eqx.tree_at(lambda t: t.stats, last, stats), done)


def largest_entry(model: Any) -> Float[Array, ""]:
    """The size of the largest number in any layer."""
    return jnp.max(jnp.stack([jnp.max(jnp.abs(w)) for w in model.layers]))
