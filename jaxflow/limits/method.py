"""Methods: the sequence of clocks, coordinates, solvers and stopping rules that leads to a limit."""

import abc
from collections.abc import Callable
from typing import Any, ClassVar

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from jaxflow._core import as_boolean, as_integer, check_kind, check_real, good, linalg, require
from jaxflow.flow import (
    ArcLength,
    Budget,
    Drive,
    LogArcLength,
    LogTime,
    Scores,
    SelectionSettled,
    StationaryPoint,
    Weights,
)
from jaxflow.flow.solvers import state_norm
from jaxflow.limits.attention import FAR, LOG_HORIZON, AttentionGears, cap_of, coordinates_of
from jaxflow.limits.composition import CompositionResolved, composition_resolved
from jaxflow.limits.path import follow
from jaxflow.limits.stages import STATIONARY, Count, Positive, followed_by, kept, stationarity
from jaxflow.models import AbstractAttention, CombinedAttention, MultiHeadAttention, is_linear
from jaxflow.risk import EmpiricalRisk
from jaxflow.trajectory import Trajectory


class AbstractMethod(eqx.Module):
    """How `find_limit` follows the flow.

    `max_steps` and `gap` come as arrays, one compiled program for all of them, where `takes_arrays` says that no
    Python code looks at them; else as the numbers that they are.

    **Example:**

    ```python
    assert isinstance(jf.Staged(), jf.limits.AbstractMethod)
    ```
    """

    takes_arrays: ClassVar[bool] = False

    @abc.abstractmethod
    def follow(self, risk: EmpiricalRisk, model: Any, max_steps: Count, gap: Positive = 1e-8) -> Trajectory:
        """A trajectory far enough to read the limit off it and certify it to `gap`, with save points for its rate."""


class Staged(AbstractMethod):
    r"""The default. One layer with a linear head and its own trainable parameters goes in **rounds** (`limits.rounds`):
    explicit in arc length until attention is saturated, then by `MultiplierNewton` in log arc length until the flow
    certifies its direction, and again where a selection is left. Other models (composing heads, layers in parallel),
    and any model for which a `solver` is given, go in three stages of one path; defaults and fields below that name
    stages, `far` and `horizon` as lengths, are theirs:

    1. **Near** (to arc length `near`): Tsit5 in arc length. Tokens are selected here, where the path bends and
       nothing is stiff yet: stiffness grows with the logits, like the length for W and its square for factors.
    2. **Far** (to `far`, and beyond it, at most to `horizon`, until the selection has settled): Kvaerno5 in log
       arc length. Stiff and smooth: ten to forty steps.
    3. **Relaxation** (W): a few implicit Euler steps of 2% each. Large steps of a method with an explicit first
       stage leave the *velocity* with an error of about 1/length (an algebraic variable of index two);
       implicit Euler damps it by a factor λ/(0.02·length) a step.

    The certificate reads velocity and multipliers at the end. `CombinedAttention` runs in score coordinates.
    Factors close their gap only like $(\log t)^{-(1-\kappa)}$: a component with slack $1-\kappa$ adds at most
    $\max_\kappa(1-\kappa)\rho^{-2(1-\kappa)}=1/(2e\log\rho)$ to it, wherever κ lies, so that a gap of 1e-3
    wants $\log\rho$ in the hundreds. Beyond arc length `cap` they follow the limiting dynamics (see
    `LogArcLength`), up to `far`; the trajectory's `regime` says so.

    A head that is not linear may compose several tokens. Proportions then relax at a rate that grows against that of
    what is masked like 1/s, and an arc length is no clock (its speed turns around wherever they are out of balance).
    Such heads pass from a short first stage to log t, with an implicit method, until one token is selected (and the
    path goes on as above) or rounding in the head's slopes would outweigh what is masked (`CompositionResolved`, its
    end). Layers in parallel follow one joint path, in the weights themselves.

    Finite stationary points end the path in any parametrisation (`floor` lets the clock turn into a time
    there); they are recognised by a gradient that vanishes beside its own multipliers.

    **Arguments:** `near`, `far`, `horizon`: arc lengths (None: 50, 1e5 and 1e9 for W; 10, 1e130 and 1e130 for
    factors, in double precision); `cap=None`: none for W, 1e3 for factors; `floor`: see
    `jaxflow.flow.ArcLength`; `saves`: number of save points for the rate, over the last two decades before
    `far`, or before the cap; `timed=False`: log t to leading order alone, for half of the work (see
    `jaxflow.flow.ArcLength`; rates are then fitted against that); `solver` and `rtol` of the far stage (None:
    Kvaerno5 with Newton's method, the most accurate a step; `quick_solver()` takes more steps in less time);
    `report`: receives a line a second (see `find_limit`'s `progress`).

    **Example:**

    ```python
    jf.find_limit(risk, model, method=jf.Staged(near=30.0))
    ```
    """

    takes_arrays: ClassVar[bool] = True
    near: float | None = None
    far: float | None = None
    horizon: float | None = None
    cap: float | None = None
    floor: float = 0.03
    saves: int = 8
    timed: bool = True
    solver: diffrax.AbstractSolver | None = None
    rtol: float = 1e-3
    report: Callable[[str], None] | None = eqx.field(static=True, default=None)

    def __check_init__(self) -> None:
        for name in ("near", "far", "horizon", "cap"):
            if getattr(self, name) is not None:
                check_real(name, getattr(self, name), positive=True, inf=name == "cap")
        check_real("floor", self.floor, least=0.0)
        check_real("rtol", self.rtol, positive=True, most=1.0)
        as_integer("saves", self.saves, 0)
        as_boolean("timed", self.timed)
        if self.solver is not None:
            check_kind("solver", self.solver, diffrax.AbstractSolver, "a solver of Diffrax")
        check_report(self.report)
        given = [x for x in (self.near, self.far, self.horizon) if x is not None]
        require(given == sorted(given), "method", "expected near < far <= horizon")

    def lengths(self, combined: bool, dtype: Any) -> tuple[float, float, float, float]:
        """`near`, `far`, `horizon` and `cap` with their defaults; log t, of order ρ², must not overflow."""
        near = (50.0 if combined else 10.0) if self.near is None else self.near
        far = 1e5 if combined else min(1e130, float(jnp.finfo(dtype).max) ** 0.42)
        far = far if self.far is None else self.far
        horizon = max(far, 1e9 if combined else far) if self.horizon is None else self.horizon
        cap = (float("inf") if combined else 1e3) if self.cap is None else self.cap
        require(near < far <= horizon, "method", f"expected near < far <= horizon, got {near}, {far}, {horizon}")
        return near, far, horizon, cap

    def follow(self, risk: EmpiricalRisk, model: Any, max_steps: Count, gap: Positive = 1e-8) -> Trajectory:
        if self.solver is None and coordinates_of(risk, model) is not None:
            return self._in_gears(risk, model, max_steps, gap)
        return self._in_stages(risk, model, max_steps)

    def _in_gears(self, risk: EmpiricalRisk, model: Any, max_steps: Count, gap: Positive = 1e-8) -> Trajectory:
        cap = cap_of(model, gap) if self.cap is None else self.cap
        far = (jnp.minimum(1e5, cap) if model.degree == 1 else cap) if self.far is None else self.far
        gears = AttentionGears(
            conserved=kept(model),
            gap=gap,
            cap=cap,
            far=far,
            near=FAR if self.near is None else self.near,
            log_horizon=LOG_HORIZON if self.horizon is None else float(np.log(self.horizon)),
            floor=self.floor,
            saves=self.saves,
            timed=self.timed,
            report=self.report,
        )
        return follow(gears, risk, model, max_steps)

    def _in_stages(self, risk: EmpiricalRisk, model: Any, max_steps: Count) -> Trajectory:
        combined = isinstance(model, CombinedAttention) and risk.filter(model) == model.trainable()
        coordinates = Scores() if combined else Weights()
        straight = combined or (isinstance(model, MultiHeadAttention) and model.degree == 1)
        near_length, far, horizon, cap = self.lengths(straight, jnp.result_type(float))
        composes = isinstance(model, AbstractAttention) and not is_linear(model.head)
        still = StationaryPoint(STATIONARY, model.degree or 1)
        still = still | CompositionResolved() if composes else still
        # Rates are fitted where the flow is the exact one.
        end = min(far, max(cap, 2.5 * near_length))

        def stage(model: Any, solver: Any, controller: Any, stop: Any = None, **how: Any) -> Trajectory:
            drive = Drive(solver, controller, stop, max_steps, self.report)
            return drive.trajectory(drive.run(drive.start(risk, model, coordinates=coordinates, **how)))

        def resolved(path: Trajectory) -> Bool[Array, ""]:
            data: Any = risk.data
            return composition_resolved(path.final.model, data) if composes else jnp.asarray(False)

        near = stage(
            model,
            diffrax.Tsit5(),
            diffrax.PIDController(rtol=1e-6, atol=1e-8, norm=state_norm),
            still,
            clock=ArcLength(floor=self.floor, timed=self.timed),
            until=min(near_length, MIXING_LENGTH) if composes else near_length,
        )
        done = ~good(near.result) | (stationarity(near) <= STATIONARY)
        if composes:
            mixing = stage(
                near.final.model,
                diffrax.Kvaerno5(root_finder=linalg.newton(rtol=1e-5, atol=1e-7, norm=state_norm)),
                diffrax.PIDController(rtol=1e-5, atol=1e-7, pcoeff=0.3, icoeff=0.4, norm=state_norm),
                still | SelectionSettled(),
                clock=LogTime(),
                until=MIXING_LOG_TIME,
                idle=done,
            )
            near = followed_by(near, mixing, done)
            done = ~good(near.result) | (stationarity(near) <= STATIONARY) | resolved(near)
        settled = Budget(log_arc_length=float(np.log(far - near_length))) & SelectionSettled()
        middle = stage(
            near.final.model,
            accurate_solver() if self.solver is None else self.solver,
            diffrax.PIDController(rtol=self.rtol, atol=1e-2 * self.rtol, pcoeff=0.3, icoeff=0.4, norm=state_norm),
            still | settled,
            clock=LogArcLength(unit=near_length, floor=self.floor, cap=cap, timed=self.timed),
            until=float(np.log(horizon - near_length)),
            save_at=jnp.linspace(np.log(max(end / 100, near_length)), np.log(end - near_length), self.saves),
            idle=done,
        )
        path = followed_by(near, middle, done)
        if cap < far:
            # At rest on the sphere: there is no velocity left to relax.
            return path
        done = ~good(path.result) | (stationarity(path) <= STATIONARY) | resolved(path)
        clock = LogArcLength(unit=far, timed=self.timed)
        last = stage(
            path.final.model,
            diffrax.ImplicitEuler(root_finder=linalg.newton(rtol=1e-8, atol=1e-8, norm=state_norm)),
            diffrax.ConstantStepSize(),
            clock=clock,
            until=clock.reading(jnp.asarray(RELAXATION_STEPS * RELAXATION_STEP)),
            dt0=RELAXATION_STEP,
            idle=done,
        )
        # Where it does not converge (rounding in exponents of 1e7 and more), the path before it stands.
        return followed_by(path, last, done | ~good(last.result))


def arguments_of(method: AbstractMethod, gap: float, max_steps: int, data: Any) -> tuple[Any, Any]:
    """Gap and budget as `method` takes them, in the precision of the data."""
    dtype = jnp.result_type(*jax.tree.leaves(eqx.filter(data, eqx.is_inexact_array)), float)
    return (np.asarray(gap, dtype), np.asarray(max_steps)) if method.takes_arrays else (gap, max_steps)


def checked_gap(gap: float | None, dtype: Any) -> float:
    """The gap to certify; None: about the root of the rounding error. **Raises:** `ValueError` for less than 100 ε."""
    eps = float(jnp.finfo(dtype).eps)
    if gap is None:
        return 1e-8 if eps < 1e-12 else 1e-4
    check_real("gap", gap, positive=True)
    require(
        gap >= 100 * eps,
        "gap",
        f"{gap} is below what {dtype} can certify (about {100 * eps:.0e}); enable x64 with "
        "jax.config.update('jax_enable_x64', True), or ask for less",
    )
    return gap


def check_report(report: Any) -> None:
    """**Raises:** `ValueError` for what receives no lines."""
    require(report is None or callable(report), "report", "expected a function of a line", got=report)


def accurate_solver() -> diffrax.AbstractSolver:
    """Kvaerno5 with Newton's method to tolerances well below those of a step."""
    return diffrax.Kvaerno5(root_finder=linalg.newton(rtol=1e-5, atol=1e-7, norm=state_norm))


def quick_solver() -> diffrax.AbstractSolver:
    """Kvaerno3 with one Jacobian a stage: half as many steps again, each at a quarter of the price (measured for
    factors at d = 4, where differentiating the field by every weight is what a step costs)."""
    return diffrax.Kvaerno3(root_finder=linalg.chord(rtol=1e-5, atol=1e-7, norm=state_norm))


# Two steps damp the velocity's error to rounding; the others are reserve for weak multipliers.
RELAXATION_STEP = 0.02
RELAXATION_STEPS = 5
# Where a head may compose tokens: the length at which log t takes over, before proportions are stiff (e^3 against 1),
# and how far it goes. What is masked falls like 1/t, to 1e-8 by log t of about 19.
MIXING_LENGTH = 3.0
MIXING_LOG_TIME = 30.0
