r"""Linear networks under the squared loss: their gear, and runs at falling tolerances.

One gear, **implicit**: Kvaerno5 in log time, until the residuals are at rounding or β is at a minimum. Between the rise
of one coordinate and that of the next the path follows a valley of the loss, where it is stiff: Dopri8 in arc length
had not arrived after four times the steps (L = 4, α = 0.01: 1,016). What is small at a saddle rises within a share of
all time that is as small as itself, for $L>2$: $w=1/(1/\alpha-t)$ for three layers. There a stretch ends, and the next
one counts its time from its own start.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from jaxflow._core import RESULTS, ScaledGradient, good, linalg, positive_or_one
from jaxflow.flow import AbstractCoordinates, Drive, Lane, LogTime, LossExcess, Spectrum
from jaxflow.limits.path import AbstractProblem, End, Shift, Start, begin, go_on
from jaxflow.limits.saddles import AtMinimum, Hurried, hurried
from jaxflow.limits.stages import Count, Positive
from jaxflow.limits.steps import IMPLICIT_STEPS, implicit_control, kvaerno
from jaxflow.limits.units import largest_entry
from jaxflow.models import DiagonalLinearNetwork
from jaxflow.risk import EmpiricalRisk
from jaxflow.trajectory import Trajectory

# From one fine run of a regression to the next the tolerance falls to this, and errors to some eleventh.
FINER = 0.1


class Shaken(AbstractCoordinates):
    r"""The coordinates `inside`, seen at $x+640\,\varepsilon\,\text{amount}\,\max_j|x_j|\,\sigma$ with
    signs σ that stand still.

    A mode that is as small as the start, or has decayed below it, is added to weights that have grown,
    and has their roundings. Where its size decides the limit, these roundings do too, at every tolerance. The
    coordinates of a diagonal network do not mix, nor do Fourier modes: there `each` entry is shaken by its own size.
    `amount` of zero changes no bit.
    """

    inside: AbstractCoordinates
    amount: Float[Array, ""]
    each: bool = eqx.field(static=True)

    @property
    def stretched(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.inside.stretched

    def encode(self, risk: Any, model: Any) -> tuple[PyTree, PyTree]:
        return self.inside.encode(risk, model)

    def decode(self, context: PyTree, state: PyTree) -> Any:
        return self.inside.decode(context, self._moved(state))

    def left_behind(self, context: PyTree) -> Float[Array, ""] | float:
        return self.inside.left_behind(context)

    def field(self, context: PyTree, state: PyTree) -> ScaledGradient:
        return self.inside.field(context, self._moved(state))

    def log_norm(self, context: PyTree, state: PyTree, scaled: ScaledGradient) -> Float[Array, ""]:
        return self.inside.log_norm(context, self._moved(state), scaled)

    def velocity(self, context: PyTree, state: PyTree, scaled: ScaledGradient) -> PyTree:
        return self.inside.velocity(context, self._moved(state), scaled)

    def _moved(self, state: PyTree) -> PyTree:
        leaves, structure = jax.tree.flatten(state)
        largest = largest_entry(leaves)
        # Ten standard deviations of the roundings of all steps, added up at random: of a mode that decides the limit a
        # pattern of signs shows less than a tenth of the effect in 8% of all cases. (With one standard deviation a true
        # error was a quarter above the printed one.)
        size = 10.0 * math.sqrt(IMPLICIT_STEPS) * float(jnp.finfo(largest.dtype).eps) * self.amount

        def shaken(key: int, x: Array) -> Array:
            signs = jax.random.rademacher(jax.random.key(key), x.shape, x.dtype)
            return x + size * signs * (x if self.each else largest)

        return jax.tree.unflatten(structure, [shaken(k, x) for k, x in enumerate(leaves)])


class RegressionGears(AbstractProblem):
    """The flow of one linear network to its limit point.

    **Arguments:** `rtol` of steps; `size`: the largest entry of the start; `missed`: the mean of |y|; `coordinates`,
    `log_time`, `report`: see `LinearStaged`; `shaken`: see `Shaken`.
    """

    rtol: float | Float[Array, ""]
    size: Float[Array, ""]
    missed: Float[Array, ""]
    coordinates: AbstractCoordinates
    log_time: float
    shaken: float | Float[Array, ""] = 0.0
    saves: int = 0
    report: Callable[[str], None] | None = eqx.field(static=True, default=None)

    @property
    def gears(self) -> tuple[str, ...]:
        return ("implicit",)

    def drive(self, gear: int, model: Any, max_steps: Count, again: Bool[Array, ""]) -> Drive:
        del gear, again
        # The last iteration of Newton's method, which converges quadratically, is accurate to the square of its length:
        # to roundings, from their root on. Below it needs digits that layers far apart in size do not have. (L = 3,
        # α = 0.01 at rtol 1e-11: with 1e-8 1,800 steps at most and errors of 1e-10, with 1e-11 one of six paths ran out
        # of 20,000.)
        eps = float(jnp.finfo(self.size.dtype).eps)
        digits = jnp.maximum(self.rtol, math.sqrt(eps))
        # What starts small decides the limit by its own digits. Newton's method cannot follow there: its residuals
        # have the roundings of weights that are no longer small.
        small = positive_or_one(jnp.minimum(self.size, 1.0))
        least, newton = (small * jnp.maximum(1e-2 * x, 10.0 * eps) for x in (self.rtol, digits))
        solver = kvaerno(digits, newton, partial(linalg.newton, residual=False))
        # The sum of residuals relative to that of targets: 1e-14 is a loss of 1e-28 relative to that of the zero
        # function, a few roundings of the outputs. In single precision paths end where rounding begins.
        ends = max(1e-14, 20.0 * eps)
        fitted = jnp.log(ends) + jnp.log(jnp.maximum(self.missed, jnp.finfo(self.missed.dtype).tiny))
        stop = LossExcess(fitted) | AtMinimum(ends) | Hurried(jnp.asarray(self.rtol))
        return Drive(solver, implicit_control(rtol=self.rtol, atol=least), stop, max_steps, self.report)

    def lane(self, gear: int, drive: Drive, start: Start) -> Lane:
        del gear
        each = isinstance(start.here.model, DiagonalLinearNetwork) or isinstance(self.coordinates, Spectrum)
        coordinates = Shaken(self.coordinates, jnp.asarray(self.shaken), each)
        return start.lane(drive, coordinates=coordinates, clock=LogTime(), until=self.log_time)

    def shift(self, gear: int, risk: EmpiricalRisk, lost: Int[Array, ""], stretch: Trajectory) -> Shift:
        final = stretch.final
        again = hurried(jnp.asarray(self.rtol), final.log_time, final.log_gradient_norm, final.log_norm)
        again = again & (stretch.result == RESULTS.event_occurred)
        return Shift(jnp.where(again, gear, End.ended), jnp.asarray(True))


class Runs(NamedTuple):
    """Runs of one regression so far: β of the last good one, how far `apart` it is from that before, its `error`; the
    `count` of good ones, the steps `left`, and which one is the `best`."""

    beta: Float[Array, " d"]
    apart: Float[Array, ""]
    error: Float[Array, ""]
    count: Int[Array, ""]
    left: Int[Array, ""]
    best: Int[Array, ""]


def continued(
    problem: RegressionGears,
    risk: EmpiricalRisk,
    model: Any,
    max_steps: Count,
    gap: Positive,
    known: Bool[Array, ""] | bool = False,
) -> tuple[Trajectory, Float[Array, ""]]:
    r"""Regression at $10^4$ and $10^3$ times rtol, at rtol, then at a tenth each time, until its error is `gap`.

    Errors of a method of order five fall a little faster than the tolerance of its steps. The difference
    $d_k=\|\beta_k-\beta_{k-1}\|/\|\beta_k\|$ is then many times the error of $\beta_k$. Modes that are still small
    where others have grown have the rounding errors of the grown ones, at every tolerance. Successive runs are
    therefore perturbed by roundings of opposite signs (`Shaken`), and differ by twice the effect. The reported
    error is $2\max(d_k,d_{k-1}\tau_{k-1}/\tau_{k-2})$ with the tolerances τ, because one difference may be small by
    chance, plus 1000 roundings, which is more than was observed on paths (7e-14). Coarse runs take a small share of
    the steps of the last one ($\tau^{-1/6}$), and pass saddles at which fine runs mistake roundings for errors.

    **Arguments:** as of `follow`; `max_steps` is for all runs; `known`: the limit is known otherwise, so that one
    run at rtol is enough.
    **Returns:** the finest trajectory that succeeded, and the estimated error; +inf if only one run succeeded.
    """
    floor = 1000.0 * float(jnp.finfo(jnp.result_type(float)).eps)
    usual = max(problem.rtol, floor)
    tolerances = [usual / FINER**4, usual / FINER**3, usual]
    while tolerances[-1] > 1.5 * floor:
        tolerances.append(max(FINER * tolerances[-1], floor))
    # What is expected to be left of the difference before.
    falls = [0.0, 0.0, *(y / x for x, y in itertools.pairwise(tolerances[:-1]))]

    def run(runs: Runs, how: tuple[Array, Array, Array]) -> tuple[Runs, Trajectory]:
        (rtol, fall, at), ended = how, ((runs.error <= gap) & (runs.count > 2)) | (runs.left <= 0)
        idle = jnp.where(known, at != tolerances.index(usual), ended)
        one = replace(problem, rtol=rtol, shaken=1.0 - 2.0 * (at % 2))
        way = begin(one, risk, model)
        path = go_on(one, risk, replace(way, gear=jnp.where(idle, End.ended, way.gear)), runs.left).path
        beta = path.final.model.linear_coefficients()
        better = good(path.result) & ~idle
        apart = jnp.linalg.norm(beta - runs.beta) / positive_or_one(jnp.linalg.norm(beta))
        error = 2.0 * jnp.maximum(apart, fall * runs.apart) + floor
        found = Runs(
            beta=jnp.where(better, beta, runs.beta),
            apart=jnp.where(better & (runs.count > 0), apart, runs.apart),
            error=jnp.where(better & (runs.count > 0), error, runs.error),
            count=runs.count + better,
            left=runs.left - jnp.where(idle, 0, path.stats["num_steps"]),
            best=jnp.where(better | ((runs.count == 0) & ~idle), at, runs.best),
        )
        return found, path

    beta, none = jnp.zeros_like(model.linear_coefficients()), jnp.zeros((), int)
    zero = jnp.zeros((), beta.dtype)
    start = Runs(beta, zero, zero + jnp.inf, none, none + max_steps, none)
    runs, found = jax.lax.scan(run, start, (jnp.asarray(tolerances), jnp.asarray(falls), jnp.arange(len(falls))))
    chosen: Any = jax.tree.map(lambda x: x[runs.best], found)
    # What all runs took together.
    stats = {
        name: jnp.sum(found.stats[name], axis=0) if name.startswith("num_") else x for name, x in chosen.stats.items()
    }
    return Trajectory(chosen.final, chosen.saved, chosen.regime, chosen.result, stats), runs.error
