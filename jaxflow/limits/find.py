"""`find_limit`: from an instance to a certified limit."""

import dataclasses
from typing import Any, overload

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxflow._core import (
    RESULTS,
    Code,
    Outcome,
    SelectionStatus,
    as_boolean,
    as_integer,
    checked,
    compiled_once,
    good,
    is_concrete,
    one_lane_at_a_time,
    require,
    tree_in_float,
)
from jaxflow.data import TokenData, require_untied, tied_sequences
from jaxflow.limits.composition import composed_scores
from jaxflow.limits.head_state import head_state
from jaxflow.limits.limit import Limit, LimitKind
from jaxflow.limits.linear import find_linear_limit
from jaxflow.limits.linear_limit import LinearLimit
from jaxflow.limits.method import AbstractMethod, Staged, accurate_solver, arguments_of, checked_gap
from jaxflow.limits.model_limit import ModelLimit
from jaxflow.limits.own_model import find_own_limit, is_own
from jaxflow.limits.path import Underway, by_gears, under_way
from jaxflow.limits.progress import Progress
from jaxflow.limits.rate import fit_rate, no_rate
from jaxflow.limits.reduction import reduced
from jaxflow.limits.self_certificate import MASKED_ATTENTION, better_of, flow_bounds, select, settled, valid_if
from jaxflow.limits.stages import STATIONARY, Count, Positive, kept, rests, stationarity
from jaxflow.limits.units import units_of
from jaxflow.limits.verdict import judge
from jaxflow.margin import ProgramResult, solve
from jaxflow.margin.local_optimality import decide
from jaxflow.models import (
    AbstractAttention,
    AbstractLinearNetwork,
    CombinedAttention,
    DiagonalAttention,
    FactoredAttention,
    token_scores,
)
from jaxflow.risk import EmpiricalRisk
from jaxflow.theory import Prediction, Rule, predict, rule_of
from jaxflow.trajectory import Trajectory, describe

# Steps of the methods for attention: of 1,600 paths in crowded cells the longest that was decided took 1,239.
MAX_STEPS = 2000
# Steps of the methods for linear networks, most of which are implicit.
NETWORK_STEPS = 4096


@overload
def find_limit(
    risk: EmpiricalRisk,
    model: AbstractLinearNetwork,
    *,
    method: Any = None,
    gap: float | None = None,
    max_steps: int | None = None,
    throw: bool = True,
    progress: Any = False,
) -> LinearLimit: ...


@overload
def find_limit(
    risk: EmpiricalRisk,
    model: CombinedAttention | FactoredAttention | DiagonalAttention,
    *,
    method: Any = None,
    gap: float | None = None,
    max_steps: int | None = None,
    throw: bool = True,
    progress: Any = False,
) -> Limit: ...


@overload
def find_limit(
    risk: EmpiricalRisk,
    model: Any,
    *,
    method: Any = None,
    gap: float | None = None,
    max_steps: int | None = None,
    throw: bool = True,
    progress: Any = False,
) -> Any: ...


def find_limit(
    risk: EmpiricalRisk,
    model: Any,
    *,
    method: Any = None,
    gap: float | None = None,
    max_steps: int | None = None,
    throw: bool = True,
    progress: Any = False,
) -> Limit | LinearLimit | ModelLimit:
    r"""Where gradient flow goes from `model`, which program its limit solves, and how sure that is.

    The flow is followed in logarithmic clocks as far as `method` goes. The program that theory predicts for the
    selected tokens is solved beside it, from the data alone. The direction is *certified* where that program is
    solved to `gap` and the flow's own direction is within `gap` of its optimum: the program's own optimality says
    nothing of the flow. A flow that has settled elsewhere ends as `prediction_contradicted`.

    **Arguments:**

    - `risk`: an `EmpiricalRisk` on `TokenData`, with one output a sequence or several; `model`: an attention
      model, the start, with a head of any kind that stays fixed. One instance: batch with `jax.vmap`, and wrap
      in `jax.jit` what runs more than once (on a CPU the lanes of a batch are followed one after the other). Layers in
      parallel: see `jaxflow.limits.find_limits`. Or a linear
      network on `LinearData`: its coefficients tend to a direction (margin losses) or to a point (squared error). Or
      any other model, a plain callable on one input too: see `ModelLimit` and the page "Your own model".
    - `method`: how to follow the flow; `Staged()` by default, `LinearStaged()` for linear networks, `ModelStaged()` for
      models that are the caller's own.
      Data and weights of other floating-point types are taken in JAX's default precision.
    - `gap`: what counts as certified: the largest excess of the flow's direction over the program's optimum, and
      the largest duality gap of the program. Of a limit point: the relative error to which it is followed; what was
      reached is in its `error`. None: 1e-8 in double precision, 1e-4 in single.
    - `max_steps`: the budget of integration steps over all gears (`trajectory.stats` has the steps of each), 2,000 by
      default, 4,096 for linear networks, 200,000 for a model of the caller's own (of each
      run, where a regression is followed again more closely: see `LinearStaged.continued`); beyond it the outcome is
      `undecided`.
    - `throw`: raise where one concrete instance is ambiguous or failed. Under a trace nothing raises; every
      member of a batch has its own `outcome`.
    - `progress`: announce each stage, and print one line a second with the progress of the flow: on standard error, or
      to a function that receives each line. Such a program is not kept in the compilation cache.

    **Returns:** a `Limit`, for a linear network on `LinearData` a `LinearLimit`, for other models a `ModelLimit`;
    `print` it.

    **Raises:** `ValueError` naming the argument: NaN data, wrong shapes, tied optimal tokens (with their
    indices, if `throw`), a head that is trained, a gap below what the dtype can certify; `RuntimeError` if
    `throw` and it failed.

    **Example:**

    ```python
    limit = jf.find_limit(risk, model)
    print(limit)
    assert limit.outcome == "globally_optimal" or limit.outcome == "locally_optimal"
    ```
    """
    require(isinstance(risk, EmpiricalRisk), "risk", f"expected an EmpiricalRisk, got {type(risk).__name__}")
    risk, model = tree_in_float((risk, model))
    if not isinstance(model, AbstractLinearNetwork) and is_own(risk, model):
        return find_own_limit(risk, model, method=method, gap=gap, max_steps=max_steps, throw=throw, progress=progress)
    default = NETWORK_STEPS if isinstance(model, AbstractLinearNetwork) else MAX_STEPS
    max_steps = default if max_steps is None else as_integer("max_steps", max_steps, 1)
    throw = as_boolean("throw", throw)
    if isinstance(model, AbstractLinearNetwork):
        return find_linear_limit(
            risk, model, method=method, gap=gap, max_steps=max_steps, throw=throw, progress=progress
        )
    method, gap = check_arguments(risk, model, AbstractAttention, method, gap, max_steps)
    data: Any = risk.data
    if isinstance(method, Staged) and method.solver is None and _has_twins(data):
        # Two copies share their attention for ever; multipliers want one token with all of it.
        method = dataclasses.replace(method, solver=accurate_solver())
    if throw:
        refuse_ties(data, model.head)
    lines = Progress(progress, "find_limit", risk, model)
    limit = _find_limit(risk, model, lines.method(method), *arguments_of(method, gap, max_steps, data), rule_of(model))
    lines.done(limit)
    if throw and is_concrete(limit.outcome) and int(limit.outcome) == Outcome.failed:
        raise RuntimeError(
            f"find_limit: {describe(limit.trajectory.result)} (program: {limit.program_solution.result}); "
            "pass throw=False to look at the limit"
        )
    return limit


def check_arguments(
    risk: EmpiricalRisk, model: Any, kind: type, method: Any, gap: float | None, max_steps: int
) -> tuple[Any, float]:
    """Method and gap, after every concrete argument has been looked at. **Raises:** `ValueError` naming it."""
    data = risk.data
    if not isinstance(data, TokenData):
        raise ValueError("risk: find_limit needs a risk on TokenData")
    if not isinstance(model, kind):
        raise ValueError(f"model: expected an attention model, got {type(model).__name__}")
    method = Staged() if method is None else method
    require(isinstance(method, AbstractMethod), "method", "expected a method", got=method)
    data.check()
    risk.check(model)
    heads = [layer.head for layer in getattr(risk.filter(model), "parts", (risk.filter(model),))]
    trained = any(leaf is True for leaf in jax.tree.leaves(heads))
    require(
        not trained,
        "trainable",
        "no theorem says which program the limit solves unless it is that of a fixed head; follow a head that is "
        "trained with integrate",
    )
    gap = checked_gap(gap, jnp.result_type(data.tokens, float))
    as_integer("max_steps", max_steps, 1)
    return method, gap


def refuse_ties(data: TokenData, head: Any) -> None:
    """**Raises:** `ValueError` that lists the tied optimal tokens. Does nothing to traced values."""
    if is_concrete(data, head):
        require_untied(*_scores(data, head))


@compiled_once
def _scores(data: TokenData, head: Any) -> tuple[Array, Array]:
    # One small program rather than the nine of its operations.
    return token_scores(data, head), data.visible


def _has_twins(data: TokenData) -> bool:
    """Whether some token stands twice in its sequence. A traced value cannot be inspected: False, and such an
    instance of a batch may end undecided. A `solver` of the method's own has the whole batch followed in stages."""
    if not is_concrete(data.tokens, data.mask):
        return False
    # By NumPy: within `jit` operations of JAX are traced, whatever they are on.
    visible = np.ones(data.tokens.shape[:-1], bool) if data.mask is None else np.asarray(data.mask)
    seen = np.asarray(visible if visible.ndim == 2 else np.any(visible, axis=1))
    rows = [tokens[kept] for tokens, kept in zip(np.asarray(data.tokens), seen, strict=True)]
    return any(len(np.unique(some, axis=0)) < len(some) for some in rows)


@one_lane_at_a_time
def _find_limit(risk: EmpiricalRisk, model: Any, method: AbstractMethod, gap: Any, max_steps: Any, rule: Rule) -> Limit:
    # Several d share what one call compiles. Within a larger program there is nothing to share.
    shared = is_concrete(risk, model, jnp.zeros(()))
    if not isinstance(method, Staged):
        return _by_method(risk, model, method, gap, max_steps, rule)
    small = _reduced(risk, model, rule, shared)
    if small is None:
        return _by_gears(risk, model, method, gap, max_steps, rule)
    return _lifted(small, risk, _by_gears(small.risk, small.model, method, gap, max_steps, rule), rule)


_reduced = compiled_once(reduced)


@compiled_once
def _lifted(small: Any, risk: EmpiricalRisk, limit: Limit, rule: Rule) -> Limit:
    del rule  # as in `_begun`
    return small.lift(risk, limit)


def _begun(risk: EmpiricalRisk, model: Any, method: Staged, gap: Positive, max_steps: Count, rule: Rule) -> Underway:
    own_lengths = (method.near, method.far, method.horizon, method.cap) == (None,) * 4
    units = units_of(risk, model) if own_lengths else None
    within = (risk, model) if units is None else units.inward(risk, model)
    # What is compiled holds the program of the rule: another rule is another one.
    return under_way((method.problem(*within, gap),), *within, max_steps, (risk, model, units, gap, rule))


def _concluded(one: Underway) -> Limit:
    risk, model, units, gap, _ = one.known
    return conclude(risk, model, one.path if units is None else units.outward(one.path, model), gap)


_by_gears = by_gears(_begun, _concluded)


@compiled_once
def _by_method(
    risk: EmpiricalRisk, model: Any, method: AbstractMethod, gap: Positive, max_steps: Count, rule: Rule
) -> Limit:
    del rule  # as in `_begun`
    return conclude(risk, model, method.follow(risk, model, max_steps, gap), gap)


@checked(positive=["gap"])
def conclude(
    risk: EmpiricalRisk, model: Any, trajectory: Trajectory, gap: Positive, theorem: str | None = None
) -> Limit:
    """The limit that a trajectory from `model` points at, with everything that vouches for it.

    `theorem`: what to say in place of the theorem registered for the model, which then claims nothing.

    **Example:**

    ```python
    path = jf.integrate(risk, model, clock="log_time", until=20.0)
    jf.limits.conclude(risk, model, path, 1e-8)  # what can be said of a path that was followed so far
    ```
    """
    data: Any = risk.data
    final: Any = trajectory.final
    attention = final.model.attention(data)
    selection = select(attention)
    prediction = predict(risk, model, selection)
    if theorem is not None:
        prediction = Prediction(prediction.program, theorem, ())
    program: Any = prediction.program
    solution = solve(program)
    bounds, directions = flow_bounds(program, final.model, final.velocity, final.multipliers)
    own, direction = better_of(program, bounds, directions)
    units = units_of(risk, model)
    inside = trajectory if units is None else units.lengths_inward(trajectory)
    ratio = stationarity(inside)
    attends = settled(attention, data.visible) & (ratio > STATIONARY)
    own = valid_if(attends, own)
    verdict = judge(own, bounds.primal_value, directions, solution, inside, gap, model)

    rate = no_rate(program, solution) if trajectory.saved is None else fit_rate(program, solution, trajectory)

    followed = good(trajectory.result)
    stationary = rests(risk, inside, kept(model), ratio, program)
    status = decide(program, composed_scores(final.model, data, attention, selection), solution).status
    # Tokens with higher scores pull away from a selection that is not locally optimal. The program knows nothing of
    # them; in the flow's own dual they count zero, and it closes only where they have no weight left.
    certified = verdict.certified & ((status != SelectionStatus.not_local) | (own.duality_gap <= gap))
    # Where several tokens are selected, equalities that do not hold yet leave values without a meaning.
    comparable = attends & (~jnp.any(program.equal) | (own.feasibility <= MASKED_ATTENTION))
    contradicted = verdict.contradicted & comparable
    # A budget that ran out is no failure: the question is open. Nor is an unsolved program of an undecided path.
    spent = (trajectory.result == RESULTS.max_steps_reached) | (trajectory.result == RESULTS.max_steps_rejected)
    unsolved = attends & (solution.result == ProgramResult.failed)
    broken = ~(followed | spent) | (followed & unsolved)

    tied = jnp.any(tied_sequences(token_scores(data, model.head), data.visible))
    infeasible = (solution.result == ProgramResult.infeasible) & verdict.stands_still
    by_status = [
        (SelectionStatus.global_, Outcome.globally_optimal),
        (SelectionStatus.local, Outcome.locally_optimal),
        (SelectionStatus.not_local, Outcome.not_locally_optimal),
    ]
    outcome = jnp.asarray(Outcome.undecided.value)
    for name, meaning in by_status:
        outcome = jnp.where(certified & (status == name), meaning.value, outcome)
    outcome = jnp.where(infeasible, Outcome.infeasible_program.value, outcome)
    outcome = jnp.where(contradicted, Outcome.prediction_contradicted.value, outcome)
    outcome = jnp.where(spent, Outcome.undecided.value, outcome)
    outcome = jnp.where(stationary & ~broken, Outcome.finite_stationary_point.value, outcome)
    unclear = certified & (status == SelectionStatus.ambiguous)
    outcome = jnp.where(tied | unclear, Outcome.ambiguous.value, outcome)
    outcome = jnp.where(broken, Outcome.failed.value, outcome)

    kind = jnp.where((certified | contradicted) & followed, LimitKind.direction.value, LimitKind.none.value)
    kind = jnp.where(stationary, LimitKind.point.value, kind)
    kind = jnp.where(broken, LimitKind.none.value, kind)
    is_point = kind == LimitKind.point
    return Limit(
        kind=Code(kind, LimitKind),
        outcome=Code(outcome, Outcome),
        selection=selection,
        selection_status=Code(
            jnp.where(broken | is_point, SelectionStatus.not_applicable.value, status.value), SelectionStatus
        ),
        weights=jnp.where(is_point, final.model.combined_weights(), direction),
        certificate=verdict.certificate,
        flow_certificate=own,
        excess=verdict.excess,
        program_solution=solution,
        stationarity=ratio,
        head_state=head_state(final.model, data),
        prediction=prediction,
        rate=rate,
        trajectory=trajectory,
    )
