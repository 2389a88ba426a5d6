"""How `find_limit` follows the flow of a linear network: to its limit point, or out along its limit direction."""

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from jaxflow._core import ScaledGradient, as_integer, check_kind, check_real, good, linalg, positive_or_one, require
from jaxflow.flow import AbstractCoordinates, Drive, LogTime, LossExcess, StationaryPoint, Weights
from jaxflow.limits.method import AbstractMethod, check_report
from jaxflow.limits.network_gears import NetworkGears
from jaxflow.limits.path import follow
from jaxflow.limits.stages import Count, Positive, kept
from jaxflow.limits.steps import IMPLICIT_STEPS, implicit_control, kvaerno
from jaxflow.limits.units import largest_entry
from jaxflow.models import DeepLinearNetwork, DiagonalLinearNetwork
from jaxflow.risk import EmpiricalRisk
from jaxflow.trajectory import Trajectory

# From one fine run of a regression to the next the tolerance falls to this, and errors to some eleventh.
FINER = 0.1


class Shaken(AbstractCoordinates):
    r"""The coordinates `inside`, seen at $x+640\,\varepsilon\,\text{amount}\,\max_j|x_j|\,\sigma$ with
    signs σ that stand still.

    A mode that is as small as the start, or has decayed below it, is added to weights that have grown,
    and has their roundings. Where its size decides the limit, these roundings do too, at every tolerance. The
    coordinates of a diagonal network do not mix: there `each` entry is shaken by its own size. `amount` of zero
    changes no bit.
    """

    inside: AbstractCoordinates
    amount: Float[Array, ""]
    each: bool = eqx.field(static=True)

    def encode(self, risk: Any, model: Any) -> tuple[PyTree, PyTree]:
        return self.inside.encode(risk, model)

    def decode(self, context: PyTree, state: PyTree) -> Any:
        return self.inside.decode(context, self._moved(state))

    def left_behind(self, context: PyTree) -> Float[Array, ""] | float:
        return self.inside.left_behind(context)

    def field(self, context: PyTree, state: PyTree) -> ScaledGradient:
        return self.inside.field(context, self._moved(state))

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


class Runs(NamedTuple):
    """Runs of one regression so far: β of the last good one, how far `apart` it is from that before, its `error`; the
    `count` of good ones, the steps `left`, and which one is the `best`."""

    beta: Float[Array, " d"]
    apart: Float[Array, ""]
    error: Float[Array, ""]
    count: Int[Array, ""]
    left: Int[Array, ""]
    best: Int[Array, ""]


class LinearStaged(AbstractMethod):
    r"""The default for linear networks.

    **Classification**: the gears of `jaxflow.limits.network_gears`.

    **Regression**: Kvaerno5 in log time, until the residuals are at rounding. Between the rise of one coordinate and
    that of the next the path follows a valley of the loss, where it is stiff: Dopri8 in arc length had not arrived
    after four times the steps (L = 4, α = 0.01: 1,016).

    **Arguments:** `near`, `far`: arc lengths of classification (`far=None`: $e^{10^6}$ for two layers, 1e100 for more);
    `log_time`: end of regression; `rtol`: its tolerance (errors of β are up to a few hundred times `rtol`, from α = 0.1
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
            return follow(self.problem(risk, model, gap), risk, model, max_steps)
        return self._inwards(risk, model, max_steps)

    @property
    def usual_lengths(self) -> bool:
        """Whether all lengths are the defaults, which are those of data of order one."""
        return (self.near, self.far) == (LinearStaged.near, None)

    def problem(self, risk: EmpiricalRisk, model: Any, gap: Positive) -> NetworkGears:
        """The gears of a network under a margin loss."""
        del risk
        return NetworkGears(
            conserved=kept(model),
            size=largest_entry(model.layers),
            gap=gap,
            near=self.near,
            far=self.far,
            saves=self.saves,
            degree=model.degree,
            mixes=isinstance(model, DeepLinearNetwork),
            report=self.report,
        )

    def continued(
        self, risk: EmpiricalRisk, model: Any, max_steps: Count, gap: Positive, known: Bool[Array, ""] | bool = False
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
        usual = max(self.rtol, floor)
        tolerances = [usual / FINER**4, usual / FINER**3, usual]
        while tolerances[-1] > 1.5 * floor:
            tolerances.append(max(FINER * tolerances[-1], floor))
        # What is expected to be left of the difference before.
        falls = [0.0, 0.0, *(y / x for x, y in itertools.pairwise(tolerances[:-1]))]

        def run(runs: Runs, how: tuple[Array, Array, Array]) -> tuple[Runs, Trajectory]:
            (rtol, fall, at), ended = how, ((runs.error <= gap) & (runs.count > 2)) | (runs.left <= 0)
            idle = jnp.where(known, at != tolerances.index(usual), ended)
            path = self._inwards(risk, model, runs.left, rtol, idle, 1.0 - 2.0 * (at % 2))
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
            name: jnp.sum(found.stats[name], axis=0) if name.startswith("num_") else x
            for name, x in chosen.stats.items()
        }
        return Trajectory(chosen.final, chosen.saved, chosen.regime, chosen.result, stats), runs.error

    def _inwards(
        self,
        risk: EmpiricalRisk,
        model: Any,
        max_steps: Count,
        rtol: Any = None,
        idle: Any = False,
        shaken: Any = 0.0,
    ) -> Trajectory:
        # In single precision paths end, and steps are judged, where rounding begins: closer to it steps get short.
        eps = float(jnp.finfo(jnp.result_type(float)).eps)
        rtol, ends = max(self.rtol, 1000.0 * eps) if rtol is None else rtol, max(1e-14, 20.0 * eps)
        # The last iteration of Newton's method, which converges quadratically, is accurate to the square of its length:
        # to roundings, from their root on. Below it needs digits that layers far apart in size do not have. (L = 3,
        # α = 0.01 at rtol 1e-11: with 1e-8 1,800 steps at most and errors of 1e-10, with 1e-11 one of six paths ran out
        # of 20,000.)
        digits, size = jnp.maximum(rtol, math.sqrt(eps)), jnp.minimum(largest_entry(model.layers), 1.0)
        # What starts small decides the limit by its own digits. Newton's method cannot follow there: its residuals
        # have the roundings of weights that are no longer small.
        least, newton = (jnp.maximum(1e-2 * x, 10.0 * eps) for x in (rtol, digits))
        least = positive_or_one(size) * least
        # The sum of residuals relative to that of targets: 1e-14 is a loss of 1e-28 relative to that of the zero
        # function, a few roundings of the outputs.
        data: Any = risk.data
        missed = jnp.sum(jnp.abs(data.targets)) / risk.count(data.targets)
        fitted = jnp.log(ends) + jnp.log(jnp.maximum(missed, jnp.finfo(missed.dtype).tiny))
        drive = Drive(
            kvaerno(digits, newton, partial(linalg.newton, residual=False)),
            implicit_control(rtol=rtol, atol=least),
            LossExcess(fitted) | StationaryPoint(ends),
            max_steps,
            self.report,
        )
        inside = Weights() if self.coordinates is None else self.coordinates
        coordinates = Shaken(inside, jnp.asarray(shaken), isinstance(model, DiagonalLinearNetwork))
        lane = drive.start(risk, model, coordinates=coordinates, clock=LogTime(), until=self.log_time, idle=idle)
        return drive.trajectory(drive.run(lane))
