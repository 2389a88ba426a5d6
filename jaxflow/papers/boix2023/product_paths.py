"""Paths of products in logarithms: every step of an integration, what lies between, and steps that end at a stage."""

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree
from scipy.interpolate import CubicHermiteSpline
from scipy.optimize import bisect

from jaxflow._core import check_real, checked, linalg
from jaxflow.flow.clocks import RescaledTime
from jaxflow.flow.coordinates import LogHadamard
from jaxflow.flow.drive import Drive, Lane
from jaxflow.flow.solvers import as_controller, as_solver, state_norm, with_tolerances
from jaxflow.models import HadamardNetwork, LogWeights
from jaxflow.risk import EmpiricalRisk
from jaxflow.theory import incremental_learning
from jaxflow.trajectory import Trajectory

# Of logarithms, so that a weight's relative error in a step is 1e-4. What is learned attracts and forgets it; to what
# is not it adds to logarithms of thousands, and to the time of a stage 1e-8 of it. The share of a logarithm is what
# keeps that so down to logarithms of 1e4.
ATOL = 1e-4
SHARE = 1e-4


class StageSteps(diffrax.AbstractStepSizeController):
    r"""A controller for `LogHadamard` whose steps do not run over the beginning of a stage.

    On a plateau $\omega$ moves on straight lines; errors are nil and steps grow, until one of them lands behind the
    moment at which a product becomes of order one. A controller of errors finds that out by rejecting, once a stage
    and for every factor between the length of a plateau and that of a stage, $\log(1/\alpha)$. Here the lines are
    continued. With $m_i=\max(\omega_i,\log c_i-\omega_i)$, the logarithm of the larger of $|u_i\pm v_i|$, and x the
    way from $m_i$ to 0, a step ends at the latest where the first of the $m_i$ comes within
    $\tfrac12\log(x/\epsilon)$ of 0: there the product is of order $\epsilon/x$, and what it adds to a step of x e-folds
    of order ε. Nearer than twice that, half of the way is a step, and from −2 on one e-fold, over which the cubic
    between two steps is right to 1/384. What is learned has rates so small that nothing is left of that.

    Measured on a head of ten dimensions at α = e^(−10000), twelve stages: 203 steps, none of them rejected. Kvaerno5
    under a controller of errors alone takes 552, 188 of them rejected.

    **Arguments:** `inner`: what controls the error; `log_conserved` `(p,)`: $\log c=\log(u^2-v^2)$ of the start;
    `reach`: where the solver evaluates the field at most, in steps; `tolerance`: ε.
    """

    inner: diffrax.AbstractStepSizeController
    log_conserved: Float[Array, " p"]
    reach: float = 1.0
    tolerance: float = ATOL

    def wrap(self, direction: Any) -> "StageSteps":
        return StageSteps(self.inner.wrap(direction), self.log_conserved, self.reach, self.tolerance)

    def init(self, *args: Any, **kwargs: Any) -> tuple[Any, PyTree]:
        return self.inner.init(*args, **kwargs)

    def adapt_step_size(self, t0: Any, t1: Any, y0: PyTree, y1_candidate: PyTree, *rest: Any) -> tuple[Any, ...]:
        keep, start, end, jumped, state, result = self.inner.adapt_step_size(t0, t1, y0, y1_candidate, *rest)
        before, after = self._sizes(y0), self._sizes(y1_candidate)
        rate = (after - before) / (t1 - t0)
        rising = rate > 0
        x = jnp.maximum(-after, 2.0)
        way = jnp.maximum(x - 0.5 * jnp.log(x / self.tolerance), 0.5 * x)
        wait = jnp.min(jnp.where(rising, way / jnp.where(rising, rate, 1.0), jnp.inf)) / self.reach
        # A rejected step says nothing about the lines.
        return keep, start, jnp.where(keep, jnp.minimum(end, start + wait), end), jumped, state, result

    def _sizes(self, extended: PyTree) -> Float[Array, " p"]:
        sums = extended[0]
        return jnp.maximum(sums, self.log_conserved - sums)


@checked(positive=["tolerance"])
def stage_solver(tolerance: float = ATOL) -> diffrax.AbstractSolver:
    """KenCarp5 with one Jacobian a step: the method of highest order that looks at nothing beyond the end of a step."""
    # The step's own tolerances, written out: a lane's root finder is not told them.
    return diffrax.KenCarp5(root_finder=linalg.chord(rtol=SHARE * tolerance, atol=tolerance))


@checked(positive=["tolerance"])
def stage_controller(
    solver: diffrax.AbstractSolver, log_conserved: Float[Array, " p"], tolerance: float = ATOL
) -> StageSteps:
    """`StageSteps` around a PI controller with this absolute tolerance on the logarithms of weights."""
    inner = diffrax.PIDController(rtol=SHARE * tolerance, atol=tolerance, pcoeff=0.3, icoeff=0.4, norm=state_norm)
    return StageSteps(inner, log_conserved, _reach(solver), tolerance)


def _reach(solver: diffrax.AbstractSolver) -> float:
    """The largest of a Runge-Kutta method's nodes, and 1 at least: Kvaerno5 looks 23% beyond the end of a step."""
    tableau: Any = getattr(solver, "tableau", None)
    parts = getattr(tableau, "tableaus", (tableau,))
    return max([1.0, *(float(np.max(part.c)) for part in parts if part is not None)])


class ProductPath(eqx.Module):
    r"""The flow of a `HadamardNetwork` in rescaled time, at every accepted step.

    - `times` `(m,)`; `log_sums` `(m, p)`: $\omega=\log(u+v)$; `rates` `(m, p)`: $d\omega/d\tau$.
    - `log_conserved` `(p,)`; `losses` `(m,)`; `trajectory`: the end, with result and statistics.

    Between steps ω is the cubic with these values and rates.
    """

    times: Float[np.ndarray, " m"]
    log_sums: Float[np.ndarray, "m p"]
    rates: Float[np.ndarray, "m p"]
    log_conserved: Float[np.ndarray, " p"]
    losses: Float[np.ndarray, " m"]
    log_alpha: float
    trajectory: Trajectory

    @property
    def products(self) -> Float[np.ndarray, "m p"]:
        r"""$u\odot v$ at the steps."""
        return self.products_of(self.log_sums)

    def products_of(self, log_sums: np.ndarray) -> np.ndarray:
        r"""$(e^{2\omega}-e^{2\log c-2\omega})/4$."""
        return 0.25 * (np.exp(2.0 * log_sums) - np.exp(2.0 * (self.log_conserved - log_sums)))

    def log_sums_at(self, times: Any) -> np.ndarray:
        """ω at any times of the path, `(k, p)`."""
        return CubicHermiteSpline(self.times, self.log_sums, self.rates)(np.atleast_1d(times))

    def products_at(self, times: Any) -> np.ndarray:
        """The products at any times of the path, `(k, p)`."""
        return self.products_of(self.log_sums_at(times))

    def crossings(self, coordinate: int, product: float) -> np.ndarray:
        """When a product passes this value (not zero) going away from zero, in order."""
        size = 0.5 * np.log(2.0 * abs(product) * (1.0 + np.sqrt(1.0 + self._balance(coordinate, product))))
        level = size if product > 0 else self.log_conserved[coordinate] - size
        toward = 1.0 if product > 0 else -1.0
        above = toward * (self.log_sums[:, coordinate] - level) >= 0
        steps = np.flatnonzero(~above[:-1] & above[1:])
        cubic = CubicHermiteSpline(self.times, self.log_sums[:, coordinate] - level, self.rates[:, coordinate])
        # Bisection to rounding: the cubic may be flat at one end.
        return np.array([bisect(cubic, *self.times[step : step + 2], xtol=np.finfo(float).tiny) for step in steps])

    def passes(self, coordinate: int, product: float, near: float) -> float:
        """The crossing of this value that is nearest to a time; NaN where there is none."""
        found = self.crossings(coordinate, product)
        return float(found[np.argmin(np.abs(found - near))]) if len(found) else np.nan

    def _balance(self, coordinate: int, product: float) -> float:
        # w² = 2|a|(1 + sqrt(1 + (c/2a)²)): exact for balanced and unbalanced starts alike.
        return float(np.exp(2.0 * (self.log_conserved[coordinate] - np.log(2.0 * abs(product)))))

    def reached(self, until: float) -> bool:
        """Whether the integration came to its end."""
        return bool(self.times[-1] >= until * (1.0 - 1e-12))


# Algorithm 1, compiled.
algorithm_1 = eqx.filter_jit(incremental_learning)


@checked(least={"max_steps": 1})
def follow_products(
    risk: EmpiricalRisk,
    model: HadamardNetwork,
    log_alpha: float,
    until: float,
    *,
    solver: diffrax.AbstractSolver | str | None = None,
    controller: diffrax.AbstractStepSizeController | None = None,
    tolerance: float | None = None,
    max_steps: int = 50_000,
) -> ProductPath:
    r"""Integrates a start of size α in `LogHadamard` coordinates to a rescaled time, keeping every step.

    **Arguments:** `model`: with its weights already of size α (`HadamardNetwork.scaled`); `log_alpha`:
    $\log\alpha$, the unit of time; `until`: in units of $\log(1/\alpha)$; the others as in `integrate`, but that an
    implicit solver without a controller goes from stage to stage (`stage_controller`); with a `tolerance` of the
    logarithms that is `stage_solver`.

    **Raises:** `ValueError` naming the argument.
    """
    risk.check(model)
    LogHadamard().check(risk, model)
    check_real("log_alpha", log_alpha)
    check_real("until", until, positive=True)
    clock = RescaledTime(log_alpha)
    chosen = as_solver(solver if tolerance is None else stage_solver(tolerance), clock)
    if solver is None and tolerance is None and isinstance(chosen, diffrax.AbstractImplicitSolver):
        chosen = stage_solver()
    if controller is None and isinstance(chosen, diffrax.AbstractImplicitSolver):
        controller = stage_controller(chosen, model.log_weights.log_conserved, tolerance or ATOL)
    controller = as_controller(controller, chosen, clock)
    inner = controller.inner if isinstance(controller, StageSteps) else controller
    drive = Drive(with_tolerances(chosen, inner), controller, max_steps=max_steps)
    lane = _start(drive, risk, model, clock, jnp.asarray(until))
    times, log_sums, trajectory = record(drive, lane)
    rates, losses = _rates_and_losses(risk, model, jnp.asarray(log_sums), jnp.asarray(-log_alpha))
    return ProductPath(
        times=times,
        log_sums=log_sums,
        rates=np.asarray(rates),
        log_conserved=np.asarray(model.log_weights.log_conserved),
        losses=np.asarray(losses),
        log_alpha=log_alpha,
        trajectory=trajectory,
    )


@eqx.filter_jit
def _start(drive: Drive, risk: EmpiricalRisk, model: HadamardNetwork, clock: RescaledTime, until: Any) -> Any:
    return drive.start(risk, model, clock=clock, coordinates=LogHadamard(sparse=True), until=until)


def _rates_and_losses(risk: EmpiricalRisk, model: HadamardNetwork, log_sums: Any, unit: Any) -> Any:
    # Padded to powers of two, so that paths of any length share a few programs.
    m = log_sums.shape[0]
    padded = 1 << (m - 1).bit_length()
    filled = jnp.concatenate([log_sums, jnp.broadcast_to(log_sums[-1:], (padded - m, log_sums.shape[1]))])
    rates, losses = _map_steps(risk, model, filled, unit)
    return rates[:m], losses[:m]


@eqx.filter_jit
def _map_steps(risk: EmpiricalRisk, model: HadamardNetwork, log_sums: Any, unit: Any) -> Any:
    coordinates = LogHadamard()
    _, context = coordinates.encode(risk, model)

    def one(state: Any) -> Any:
        scaled = coordinates.field(context, state)
        return -unit * jnp.exp(scaled.log_scale) * scaled.gradient, risk(coordinates.decode(context, state))

    return jax.lax.map(one, log_sums)


@checked(nonnegative=["noise", "threshold"])
def perturbed(model: HadamardNetwork, key: Key[Array, ""], *, noise: float, threshold: float = 1e-5) -> HadamardNetwork:
    r"""Gaussian noise on every weight larger than the threshold (Appendix A of Boix-Adserà et al. 2023).

    u and v get independent noise, which breaks the conservation law: the larger of the two may change, and
    $u^2-v^2$ does. Coordinates with both weights below the threshold keep their logarithms.
    """
    u, v = model.log_weights.mantissas()
    noise_u, noise_v = noise * jax.random.normal(key, (2, u.shape[0]))
    moved_u = jnp.where(jnp.abs(u) > threshold, u + noise_u, u)
    moved_v = jnp.where(jnp.abs(v) > threshold, v + noise_v, v)
    moves = (jnp.abs(u) > threshold) | (jnp.abs(v) > threshold)
    new, old = LogWeights.of(moved_u, moved_v), model.log_weights
    return model.with_weights(jax.tree.map(lambda x, y: jnp.where(moves, x, y), new, old))


@checked(least={"chunk": 1})
def record(drive: Drive, lane: Lane, chunk: int = 512) -> tuple[np.ndarray, Any, Trajectory]:
    """Drives a lane to its end and keeps what it passed.

    **Arguments:** `drive`, `lane` as from `drive.start`; `chunk`: steps between two visits to the host, which is
    also what can be interrupted.

    **Returns:** the clock's variable at the accepted steps `(m,)`; coordinates there, with a leading axis of length m;
    the end, with result and statistics.
    """
    times, states = [np.asarray(lane.s)[None]], [jax.tree.map(lambda x: np.asarray(x)[None], coordinates(lane))]
    while bool(drive.running(lane)):
        lane, count, s, state = _some_steps(drive, lane, chunk)
        kept = slice(0, int(count))
        times.append(np.asarray(s)[kept])
        states.append(jax.tree.map(lambda x, kept=kept: np.asarray(x)[kept], state))
    s = np.concatenate(times)
    state = jax.tree.map(lambda *parts: np.concatenate(parts), *states)
    # Rejected steps stay where they were.
    new = np.concatenate([[True], np.diff(s) > 0])
    return s[new], jax.tree.map(lambda x: x[new], state), drive.trajectory(lane)


def coordinates(lane: Lane) -> Any:
    """The coordinates a lane has reached."""
    state, _, _ = lane.system.unpack(lane.s, lane.state)
    return state


@eqx.filter_jit
def _some_steps(drive: Drive, lane: Lane, chunk: int) -> tuple[Lane, Any, Any, Any]:
    moving, fixed = eqx.partition(lane, eqx.is_array)
    s = jnp.zeros(chunk)
    state = jax.tree.map(lambda x: jnp.zeros((chunk, *x.shape), x.dtype), coordinates(lane))

    def unfinished(carry: Any) -> Any:
        moving, count, _, _ = carry
        return (count < chunk) & drive.running(eqx.combine(moving, fixed))

    def step(carry: Any) -> Any:
        moving, count, s, state = carry
        lane = drive.step(eqx.combine(moving, fixed))
        state = jax.tree.map(lambda all_, one: all_.at[count].set(one), state, coordinates(lane))
        return eqx.filter(lane, eqx.is_array), count + 1, s.at[count].set(lane.s), state

    moving, count, s, state = jax.lax.while_loop(unfinished, step, (moving, 0, s, state))
    return eqx.combine(moving, fixed), count, s, state
