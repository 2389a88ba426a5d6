"""`find_limit`: from an instance to a certified limit."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxflow._core import (
    Code,
    Outcome,
    SelectionStatus,
    checked,
    compiled_once,
    good,
    is_concrete,
    one_lane_at_a_time,
    require,
    tree_in_float,
)
from jaxflow._core.linalg import ROUNDED
from jaxflow.data import TokenData, require_untied, tied_sequences
from jaxflow.limits.attention_facts import AttentionFacts, head_state
from jaxflow.limits.limit import Limit, LimitKind
from jaxflow.limits.linear import network_call
from jaxflow.limits.method import (
    AbstractMethod,
    Staged,
    apart_from_rough,
    arguments_of,
    begun_twice,
    checked_gap,
    followed,
)
from jaxflow.limits.outcome import decided
from jaxflow.limits.own_model import is_own, own_call
from jaxflow.limits.path import Underway, by_gears, out_of_steps
from jaxflow.limits.progress import told
from jaxflow.limits.rate import fit_rate, weights_gap
from jaxflow.limits.reduction import reduced
from jaxflow.limits.self_certificate import MASKED_ATTENTION, better_of, flow_bounds, select, settled, valid_if
from jaxflow.limits.stages import (
    LARGEST_POINT_ERROR,
    Count,
    Positive,
    Rest,
    at_rest,
    fitted_below,
    kept,
    minimum_near,
    stationarity,
)
from jaxflow.limits.steps import IMPLICIT_STEPS
from jaxflow.limits.units import in_units
from jaxflow.limits.verdict import judge
from jaxflow.margin import ProgramResult, solve
from jaxflow.margin.local_optimality import decide
from jaxflow.models import AbstractAttention, AbstractLinearNetwork, head_gradients, mix, token_scores, token_slopes
from jaxflow.risk import EmpiricalRisk
from jaxflow.theory import Prediction, Rule, predict, rule_of
from jaxflow.trajectory import Trajectory

# Steps of the methods for attention: of 1,600 paths in crowded cells the longest that was decided took 1,239.
MAX_STEPS = 2000
# Steps of the methods for a caller's own model, most of which are explicit and cost microseconds.
OWN_STEPS = 200_000


@checked(least={"max_steps": 1})
def find_limit(
    risk: EmpiricalRisk,
    model: Any,
    *,
    method: Any = None,
    gap: float | None = None,
    max_steps: int | None = None,
    throw: bool = True,
    progress: Any = False,
) -> Limit:
    r"""Where gradient flow goes from `model`, which program its limit solves, and how sure that is.

    The flow is followed in logarithmic clocks up to the lengths of `method`. The program that theory predicts for the
    selected tokens is solved separately, from the data alone. The direction is *certified* where that program is solved
    to `gap` and the flow's own direction is within `gap` of its optimum; the program's own optimality proves nothing
    about the flow. If the flow has settled on another direction, the outcome is `prediction_contradicted`.

    **Arguments:**

    - `risk`: an `EmpiricalRisk`; `model`: the start. The model is an attention model on `TokenData`, with one output a
      sequence or several and a fixed head of any kind (for layers in parallel see `jaxflow.limits.find_limits`); or a
      linear network on `LinearData`, whose coefficients tend to a direction (margin losses) or to a point (squared
      error); or any other model, for example a callable on one input (see `jaxflow.limits.ModelFacts` and the page
      "Your own model"). Both are one instance: use `jax.vmap` for a batch, and `jax.jit` for what runs more than once
      (on a CPU the lanes of a batch are followed one after the other). Data and weights of other floating-point types
      are converted to JAX's default precision.
    - `method`: how to follow the flow; by default `Staged()` for attention, `LinearStaged()` for linear networks and
      `ModelStaged()` for models of your own.
    - `gap`: what counts as certified: the largest excess of the flow's direction over the program's optimum, and the
      largest duality gap of the program. For a limit point: the relative error to which it is followed; `limit.error`
      is the error that was reached. None: 1e-8 in double precision, 1e-4 in single.
    - `max_steps`: the budget of integration steps over all gears (`trajectory.stats` has the steps of each), 2,000 by
      default, 4,096 for linear networks (for all runs of a regression together), 200,000 for a model of your own;
      beyond it the outcome is `undecided`.
    - `throw`: raise where one concrete instance is ambiguous or failed. Under a trace nothing raises; every
      member of a batch has its own `outcome`.
    - `progress`: announce each stage, and print one line a second with the progress of the flow: on standard error, or
      to a function that receives each line. A program with progress is not kept in the compilation cache.

    **Returns:** a `Limit`; `print` it.

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
    risk, model = tree_in_float((risk, model))
    if isinstance(model, AbstractLinearNetwork):
        call, most = network_call, IMPLICIT_STEPS
    elif is_own(risk, model):
        call, most = own_call, OWN_STEPS
    else:
        call, most = partial(_attention_call, throw), MAX_STEPS
    method, found = call(risk, model, method, gap, most if max_steps is None else max_steps)
    return told(found, method, risk, model, throw=throw, progress=progress)


def _attention_call(
    throw: bool, risk: EmpiricalRisk, model: Any, method: Any, gap: float | None, max_steps: int
) -> tuple[Any, Callable[[Any], Limit]]:
    method, gap = check_arguments(risk, model, AbstractAttention, method, gap)
    data: Any = risk.data
    if throw:
        refuse_ties(data, model.head)
    numbers = arguments_of(method, gap, max_steps, data)
    return method, lambda method: _find_limit(risk, model, method, *numbers, rule_of(model))


def check_arguments(risk: EmpiricalRisk, model: Any, kind: type, method: Any, gap: float | None) -> tuple[Any, float]:
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
        "theorems name the program of a limit only for a fixed head; follow the flow of a trained head with integrate",
    )
    return method, checked_gap(gap, jnp.result_type(data.tokens, float))


def refuse_ties(data: TokenData, head: Any) -> None:
    """**Raises:** `ValueError` that lists the tied optimal tokens. Does nothing to traced values."""
    if is_concrete(data, head):
        require_untied(*_scores(data, head))


@compiled_once
def _scores(data: TokenData, head: Any) -> tuple[Array, Array]:
    # One small program rather than the nine of its operations.
    return token_scores(data, head), data.visible


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
    del rule  # as in `begun`
    return small.lift(risk, limit)


def _concluded(one: Underway) -> Limit:
    risk, model, path, gap = followed(one)
    rest = replace(one.ways[-1], path=path).rest if one.problems[-1].doubts else None
    return conclude(risk, model, path, gap, rest=rest, apart=apart_from_rough(one))


_by_gears = by_gears(begun_twice, _concluded)


@compiled_once
def _by_method(
    risk: EmpiricalRisk, model: Any, method: AbstractMethod, gap: Positive, max_steps: Count, rule: Rule
) -> Limit:
    del rule  # as in `begun`
    return conclude(risk, model, method.follow(risk, model, max_steps, gap), gap)


@checked(positive=["gap"])
def conclude(
    risk: EmpiricalRisk,
    model: Any,
    trajectory: Trajectory,
    gap: Positive,
    theorem: str | None = None,
    rest: Rest | None = None,
    apart: Positive = 0.0,
) -> Limit:
    """The limit of a trajectory from `model`, with its program and certificates.

    `theorem`: the sentence that replaces the theorem registered for the model. `rest`: the minimum of the loss that
    was found near the end; None: `conclude` looks for one. `apart`: how far off that may be beside, relative.

    **Example:**

    ```python
    path = jf.integrate(risk, model, clock="log_time", until=20.0)
    jf.limits.conclude(risk, model, path, 1e-8)  # the limit of a path that was followed so far
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
    _, _, inside = in_units(risk, model, trajectory)
    ratio = stationarity(inside.final)
    attends = settled(attention, data.visible) & (ratio > ROUNDED)
    own = valid_if(attends, own)
    verdict = judge(own, bounds.primal_value, directions, solution, inside, gap, model)

    arrived, spent = good(trajectory.result), out_of_steps(trajectory)
    if rest is None:
        seems_still = at_rest(inside.final, final.model.degree, kept(model), fitted_below(risk, model))
        rest = minimum_near(risk, trajectory.final, seems_still)
    error = jnp.where(rest.found, rest.error + apart, jnp.inf)
    status = decide(program, _composed_scores(final.model, data, attention, selection), solution).status
    # Tokens with higher scores pull away from a selection that is not locally optimal. The program does not contain
    # them; in the flow's own dual they count zero, and it closes only where they have no weight left.
    certified = verdict.certified & ((status != SelectionStatus.not_local) | (own.duality_gap <= gap))
    # Where several tokens are selected, equalities that do not hold yet leave values without a meaning.
    comparable = attends & (~jnp.any(program.equal) | (own.feasibility <= MASKED_ATTENTION))
    # A budget that ran out is no failure: the question is open. Nor is an unsolved program of an undecided path.
    unsolved = attends & (solution.result == ProgramResult.failed)
    broken = ~(arrived | spent) | (arrived & unsolved)
    tied = jnp.any(tied_sequences(token_scores(data, model.head), data.visible))
    unclear = certified & (status == SelectionStatus.ambiguous)
    kind, outcome = decided(
        broken=broken,
        rests=rest.found & (error <= LARGEST_POINT_ERROR),
        spent=spent,
        contradicted=verdict.contradicted & comparable,
        infeasible=(solution.result == ProgramResult.infeasible) & verdict.stands_still,
        certified=certified,
        optimal=_optimality(status),
        ambiguous=tied | unclear,
    )
    is_point = kind == LimitKind.point
    weights = rest.model.combined_weights()
    return Limit(
        kind=kind,
        outcome=outcome,
        selection=selection,
        selection_status=Code(
            jnp.where(broken | is_point, SelectionStatus.not_applicable.value, status.value), SelectionStatus
        ),
        flow_direction=jnp.where(is_point, weights, direction),
        end=weights,
        certificate=verdict.certificate,
        flow_certificate=own,
        excess=verdict.excess,
        program_solution=solution,
        stationarity=ratio,
        prediction=prediction,
        rate=fit_rate(program, solution, trajectory, weights_gap(program, solution)),
        trajectory=trajectory,
        details=AttentionFacts(head_state(final.model, data), error),
    )


def _composed_scores(
    model: AbstractAttention, data: TokenData, attention: Float[Array, "*n T"], selection: Bool[Array, "*n T"]
) -> Float[Array, "*n T"]:
    r"""Scores for Definition 2: $\gamma_{it}=Y_ih(x_{it})$, but slopes where a query selects several tokens.

    A mixture $\bar x_i=X_i^\top s_i$ is held by the slopes $Y_i\langle\nabla h(\bar x_i),x_{it}\rangle$: those of the
    selected tokens agree (else proportions would still move) and take their largest value here, so that rounding
    does not tell them apart. For a concave $Y_ih$ none larger means that the mixture is the best there is.
    """
    slopes = data.labels[..., None] * token_slopes(data, head_gradients(model.head, mix(data, attention)))
    several = jnp.sum(selection, axis=-1, keepdims=True) > 1
    top = jnp.max(jnp.where(selection, slopes, -jnp.inf), axis=-1, keepdims=True)
    return jnp.where(several, jnp.where(selection, top, slopes), token_scores(data, model.head))


def _optimality(status: Code) -> Array:
    """What a certified direction is called, by Definition 2 of its selected tokens."""
    named = {
        SelectionStatus.global_: Outcome.globally_optimal,
        SelectionStatus.local: Outcome.locally_optimal,
        SelectionStatus.not_local: Outcome.not_locally_optimal,
    }
    facts = [jnp.asarray(status == name) for name in named]
    return jnp.select(facts, [jnp.asarray(x, jnp.uint8) for x in named.values()], int(Outcome.undecided))
