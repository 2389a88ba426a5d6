"""Methods: the sequence of clocks, coordinates, solvers and stopping rules that leads to a limit."""

import abc
from collections.abc import Callable
from typing import Any, ClassVar

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxflow._core import check_real, checked, positive_or_one, require
from jaxflow.flow import Scores, Weights
from jaxflow.limits.any_attention import AnyAttentionGears, accurate_solver
from jaxflow.limits.attention import MOST_EXPONENTS, AttentionGears, cap_of, coordinates_of
from jaxflow.limits.path import AbstractProblem, Underway, follow, under_way
from jaxflow.limits.stages import FLOOR, HORIZON, PATH_RTOL, Count, Positive, fitted_below, kept
from jaxflow.limits.units import units_of
from jaxflow.losses import Tail, tail_of
from jaxflow.models import AbstractAttention, CombinedAttention, MultiHeadAttention, PromptAttention, is_linear
from jaxflow.risk import EmpiricalRisk
from jaxflow.theory import Rule
from jaxflow.trajectory import Trajectory


class AbstractMethod(eqx.Module):
    """How `find_limit` follows the flow.

    With `takes_arrays`, `max_steps` and `gap` are arrays, so that one compiled program serves all their values (no
    Python code branches on them); else they are Python numbers.
    """

    takes_arrays: ClassVar[bool] = False

    @abc.abstractmethod
    def follow(self, risk: EmpiricalRisk, model: Any, max_steps: Count, gap: Positive = 1e-8) -> Trajectory:
        """A trajectory that is long enough to find the limit and certify it to `gap`, with save points for its rate."""


@checked(
    positive=["near", "far", "horizon", "cap", "rtol"], infinite=["cap"], nonnegative=["floor"], most={"rtol": 1.0}
)
class Staged(AbstractMethod):
    r"""The default: settings of the gears in which attention is followed (`jaxflow.limits.path`).

    One layer with a linear head and its own trainable parameters has the gears of `jaxflow.limits.attention`: explicit
    steps, implicit ones where a path is stiff, and multipliers until the flow certifies its direction. Other models
    (composing heads, factored layers in parallel), and any model for which a `solver` is given, have the gears of
    `jaxflow.limits.any_attention`; the defaults of lengths below, `solver` and `rtol` are those of these gears. There
    the gap of factors falls only like $(\log t)^{-(1-\kappa)}$: a component with slack $1-\kappa$ adds at most
    $\max_\kappa(1-\kappa)\rho^{-2(1-\kappa)}=1/(2e\log\rho)$ to it, so that a gap of 1e-3 needs $\log\rho$ in the
    hundreds. Beyond arc length `cap` the flow of factors is replaced by its limiting dynamics (see `LogArcLength`), up
    to `far`; the trajectory's `regime` reports it.

    Finite stationary points end the path in any parametrisation (with `floor` the clock behaves like a time there).
    They are recognised by a gradient that is small relative to its multipliers, or, of a loss with its infimum at
    finite outputs, by multipliers that are roundings of those at the start.

    **Arguments:** `near`, `far`, `horizon`: arc lengths (None: 50, 1e5 and 1e9 for W; 10, 1e130 and 1e130 for
    factors, in double precision); `cap=None`: none for W, 1e3 for factors; `floor`: see `jaxflow.flow.ArcLength`;
    `saves`: number of save points for the rate, over the last two decades before `far`, or before the cap;
    `timed=False`: log t to leading order alone, for half of the work (see `jaxflow.flow.ArcLength`; rates are then
    fitted against that); `solver` and `rtol` of the far stage (None: Kvaerno5 with Newton's method, the most accurate
    for a step); `report`: receives a line a second (see `find_limit`'s `progress`).

    **Example:**

    ```python
    jf.find_limit(risk, model, method=jf.Staged())  # the default; jf.Staged(near=30.0) ends the first stage earlier
    ```
    """

    takes_arrays: ClassVar[bool] = True
    near: float | None = None
    far: float | None = None
    horizon: float | None = None
    cap: float | None = None
    floor: float = FLOOR
    saves: int = 8
    timed: bool = True
    solver: diffrax.AbstractSolver | None = None
    rtol: float = 1e-3
    report: Callable[[str], None] | None = eqx.field(static=True, default=None)

    def __check_init__(self) -> None:
        given = [x for x in (self.near, self.far, self.horizon) if x is not None]
        require(given == sorted(given), "method", "expected near < far <= horizon")

    @property
    def usual_lengths(self) -> bool:
        """Whether all lengths are the defaults, which are those of data of order one."""
        return (self.near, self.far, self.horizon, self.cap) == (None,) * 4

    def follow(self, risk: EmpiricalRisk, model: Any, max_steps: Count, gap: Positive = 1e-8) -> Trajectory:
        return follow(self.problem(risk, model, gap), risk, model, max_steps)

    def problem(self, risk: EmpiricalRisk, model: Any, gap: Positive = 1e-8) -> AbstractProblem:
        """The gears of an instance."""
        structured = self.solver is None and coordinates_of(risk, model) is not None
        return self._structured(risk, model, gap) if structured else self._any(risk, model)

    def _structured(self, risk: EmpiricalRisk, model: Any, gap: Positive) -> AttentionGears:
        cap = cap_of(model, gap) if self.cap is None else self.cap
        far = (jnp.minimum(1e5, cap) if model.degree == 1 else cap) if self.far is None else self.far
        return AttentionGears(
            conserved=kept(model),
            gap=gap,
            cap=cap,
            far=far,
            most_cap=MOST_EXPONENTS ** (1.0 / model.degree) if self.cap is None else None,
            fitted=fitted_below(risk, model),
            near=HORIZON if self.near is None else self.near,
            log_horizon=HORIZON if self.horizon is None else float(np.log(self.horizon)),
            floor=self.floor,
            saves=self.saves,
            timed=self.timed,
            report=self.report,
        )

    def _any(self, risk: EmpiricalRisk, model: Any) -> AnyAttentionGears:
        combined = isinstance(model, CombinedAttention) and risk.filter(model) == model.trainable()
        straight = combined or (isinstance(model, MultiHeadAttention | PromptAttention) and model.degree == 1)
        near = self.near or (50.0 if straight else 10.0)
        # log t, of order ρ², must not overflow.
        longest = min(1e130, float(jnp.finfo(jnp.result_type(float)).max) ** 0.42)
        far = self.far or (1e5 if straight else longest)
        horizon = self.horizon or (max(far, 1e9) if straight else far)
        require(near < far <= horizon, "method", f"expected near < far <= horizon, got {near}, {far}, {horizon}")
        return AnyAttentionGears(
            coordinates=Scores() if combined else Weights(),
            solver=accurate_solver() if self.solver is None else self.solver,
            near=near,
            far=far,
            horizon=horizon,
            cap=self.cap or (float("inf") if straight else 1e3),
            rtol=self.rtol,
            floor=self.floor,
            saves=self.saves,
            fitted=fitted_below(risk, model),
            path_rtol=PATH_RTOL,
            timed=self.timed,
            composes=isinstance(model, AbstractAttention) and not is_linear(model.head),
            report=self.report,
        )


def begun(risk: EmpiricalRisk, model: Any, method: Any, gap: Positive, max_steps: Count, rule: Rule) -> Underway:
    """An instance at its start, in the gears of `Staged` or `LinearStaged`: in units, if lengths are the usual ones."""
    units = units_of(risk, model) if method.usual_lengths else None
    within = (risk, model) if units is None else units.inward(risk, model)
    # What is compiled holds the program of the rule: another rule is another one.
    return under_way((method.problem(*within, gap),), *within, max_steps, (risk, model, units, gap, rule))


def followed(one: Underway) -> tuple[EmpiricalRisk, Any, Trajectory, Positive]:
    """The instance, its path and the gap, of what `begun` has begun."""
    risk, model, units, gap, _ = one.known
    return risk, model, one.path if units is None else units.outward(one.path, model), gap


def begun_twice(risk: EmpiricalRisk, model: Any, method: Any, gap: Positive, max_steps: Count, rule: Rule) -> Underway:
    """As `begun`, but where a loss has its infimum at finite outputs two paths, of which the last has the tolerance
    `gap`. Points of such a loss may be a set, and steps lead past the edge of a flat tail: how far off the end is, is
    told by a tolerance a hundred times as large."""
    one = begun(risk, model, method, gap, max_steps, rule)
    if tail_of(risk.loss) is Tail.exponential:
        return one
    problem, way = *one.problems, *one.ways
    rtol = jnp.minimum(gap, PATH_RTOL)
    rough, fine = (eqx.tree_at(lambda p: p.path_rtol, problem, r) for r in (100.0 * rtol, rtol))
    return one._replace(problems=(rough, fine), ways=(way, way))


def apart_from_rough(one: Underway) -> Float[Array, ""]:
    """How far the ends of two paths are from each other, relative to the last; zero where there is one."""
    if len(one.ways) == 1:
        return jnp.zeros(())
    first, last = (one.ways[k].path.final.model.combined_weights() for k in (0, -1))
    return jnp.linalg.norm(last - first) / positive_or_one(jnp.linalg.norm(last))


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
        f"{gap} is below what {dtype} can certify (about {100 * eps:.0e}); "
        + ("enable x64 with jax.config.update('jax_enable_x64', True), or " if eps > 1e-12 else "")
        + "ask for a larger gap",
    )
    return gap
