"""Methods: the sequence of clocks, coordinates, solvers and stopping rules that leads to a limit."""

import abc
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optimistix
from jaxtyping import Array, Bool, Float

from jaxflow._core import RESULTS, good, require
from jaxflow.flow import (
    ArcLength,
    Budget,
    LogArcLength,
    Scores,
    SelectionSettled,
    StationaryPoint,
    Weights,
    integrate,
)
from jaxflow.flow.solvers import state_norm
from jaxflow.models import CombinedAttention
from jaxflow.risk import EmpiricalRisk
from jaxflow.trajectory import Point, Trajectory


class AbstractMethod(eqx.Module):
    """How `find_limit` follows the flow."""

    @abc.abstractmethod
    def follow(self, risk: EmpiricalRisk, model: Any, max_steps: int) -> Trajectory:
        """A trajectory far enough to read the limit off it, with save points to fit its rate."""


class Staged(AbstractMethod):
    r"""The default, three stages of one path:

    1. **Near** (to arc length `near`): Tsit5 in arc length. Tokens are selected here, where the path bends and
       nothing is stiff.
    2. **Far** (to `far`, and beyond it, at most to `horizon`, until the selection has settled): Kvaerno5 in log
       arc length. Stiff and smooth: ten to forty steps.
    3. **Relaxation**: a few implicit Euler steps of 2% each. Large steps of a method with an explicit first
       stage leave the *velocity* with an error of about 1/length (an algebraic variable of index two);
       implicit Euler damps it by a factor λ/(0.02·length) a step.

    The certificate reads velocity and multipliers at the end. `CombinedAttention` runs in score coordinates.
    Finite stationary points end the path in any parametrisation (`floor` lets the clock turn into a time
    there); they are recognised by a gradient that vanishes beside its own multipliers.

    **Arguments:** `near`, `far`, `horizon`: arc lengths (`far=None`: 1e5 for W, 3e3 for factors, whose log t
    grows like its square); `floor`: see `jaxflow.flow.ArcLength`; `saves`: number of save points over the last
    two decades before `far`, for the rate.
    """

    near: float = 50.0
    far: float | None = None
    horizon: float = 1e9
    floor: float = 0.03
    saves: int = 8

    def __check_init__(self) -> None:
        far = self.horizon if self.far is None else self.far
        require(0 < self.near < far <= self.horizon, "method", "expected 0 < near < far <= horizon")
        require(self.saves >= 1, "saves", f"expected at least 1, got {self.saves}")

    def follow(self, risk: EmpiricalRisk, model: Any, max_steps: int) -> Trajectory:
        combined = isinstance(model, CombinedAttention) and risk.filter(model) == model.trainable()
        coordinates = Scores() if combined else Weights()
        far = (1e5 if combined else 3e3) if self.far is None else self.far
        still = StationaryPoint(STATIONARY)

        def stage(model: Any, skip: Bool[Array, ""], until: Array, **how: Any) -> Trajectory:
            until = jnp.where(skip, -jnp.inf, until)
            return integrate(
                risk, model, until=until, coordinates=coordinates, max_steps=max_steps, throw=False, **how
            )  # fmt: skip

        near = stage(
            model,
            jnp.asarray(False),
            jnp.asarray(self.near),
            clock=ArcLength(floor=self.floor),
            solver=diffrax.Tsit5(),
            controller=diffrax.PIDController(rtol=1e-6, atol=1e-8, norm=state_norm),
            stop=still,
        )
        done = ~good(near.result) | (stationarity(near) <= STATIONARY)
        settled = Budget(log_arc_length=float(np.log(far - self.near))) & SelectionSettled()
        middle = stage(
            near.final.model,
            done,
            jnp.log(self.horizon - self.near),
            clock=LogArcLength(unit=self.near, floor=self.floor),
            solver=diffrax.Kvaerno5(root_finder=optimistix.Newton(rtol=1e-5, atol=1e-7, norm=state_norm)),
            controller=diffrax.PIDController(rtol=1e-3, atol=1e-5, pcoeff=0.3, icoeff=0.4),
            stop=still | settled,
            save_at=jnp.log(far - self.near) - jnp.linspace(np.log(100.0), 0.0, self.saves),
        )
        path = followed_by(near, middle, done)
        done = ~good(path.result) | (stationarity(path) <= STATIONARY)
        clock = LogArcLength(unit=far)
        last = stage(
            path.final.model,
            done,
            clock.reading(jnp.asarray(RELAXATION_STEPS * RELAXATION_STEP)),
            clock=clock,
            solver=diffrax.ImplicitEuler(root_finder=optimistix.Newton(rtol=1e-8, atol=1e-8, norm=state_norm)),
            controller=diffrax.ConstantStepSize(),
            dt0=RELAXATION_STEP,
        )
        # Where it does not converge (rounding in exponents of 1e7 and more), the path before it stands.
        return followed_by(path, last, done | ~good(last.result))


# Two steps damp the velocity's error to rounding; the others are reserve for weak multipliers.
RELAXATION_STEP = 0.02
RELAXATION_STEPS = 5

# ‖∇L‖/Σ|p| below this is a stationary point: saturated limits of unit-sphere instances end between 1e-2 and 1.
STATIONARY = 1e-6


def followed_by(first: Trajectory, second: Trajectory, skipped: Bool[Array, ""]) -> Trajectory:
    """One path of two stages; where the second was skipped, the first. Save points are the second's."""

    def add(a: Array, b: Array) -> Array:
        return jnp.logaddexp(a, b)

    start = first.final

    def shift(point: Point) -> Point:
        return eqx.tree_at(
            lambda p: (p.log_time, p.log_arc_length),
            point,
            (add(start.log_time, point.log_time), add(start.log_arc_length, point.log_arc_length)),
        )

    final = jax.tree.map(lambda a, b: jnp.where(skipped, a, b), start, shift(second.final))
    saved = first.saved if second.saved is None else shift(second.saved)
    stats = {
        name: first.stats[name] + jnp.where(skipped, 0, second.stats[name])
        for name in ("num_steps", "num_accepted_steps", "num_rejected_steps")
    }
    result = RESULTS.where(skipped, first.result, second.result)
    return Trajectory(final, saved, second.regime, result, stats)


def stationarity(trajectory: Trajectory) -> Float[Array, ""]:
    r"""$\|\nabla L\|/\sum_k|p_k|$ at the end: of order one under saturation, zero at a stationary point."""
    final = trajectory.final
    total = jnp.sum(jnp.abs(final.multipliers))  # pyright: ignore[reportArgumentType]
    norm = jnp.exp(final.log_gradient_norm - final.log_scale)
    return jax.lax.select(total > 0, norm / jnp.where(total > 0, total, 1.0), jnp.zeros_like(norm))
