"""`find_limit`: from an instance to a certified limit."""

from typing import Any, overload

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from jaxflow._core import RESULTS, Code, Outcome, SelectionStatus, after, good, is_concrete, require
from jaxflow.data import TokenData, require_untied, tied_sequences
from jaxflow.limits.composition import composed_scores
from jaxflow.limits.head_state import head_state
from jaxflow.limits.limit import Limit, LimitKind
from jaxflow.limits.linear import LinearLimit, find_linear_limit
from jaxflow.limits.method import AbstractMethod, Staged
from jaxflow.limits.stages import STATIONARY, stationarity
from jaxflow.limits.rate import fit_rate, no_rate
from jaxflow.limits.self_certificate import as_weights, certify_point, select, settled, valid_if
from jaxflow.margin import Certificate, ProgramResult, solve
from jaxflow.margin.local_optimality import decide
from jaxflow.models import AbstractAttention, AbstractLinearNetwork, token_scores
from jaxflow.risk import EmpiricalRisk
from jaxflow.theory import Prediction, predict
from jaxflow.trajectory import Trajectory, describe


@overload
def find_limit(
    risk: EmpiricalRisk,
    model: AbstractLinearNetwork,
    *,
    method: Any = None,
    gap: float = 1e-8,
    max_steps: int = 4096,
    throw: bool = True,
) -> LinearLimit: ...


@overload
def find_limit(
    risk: EmpiricalRisk,
    model: Any,
    *,
    method: Any = None,
    gap: float = 1e-8,
    max_steps: int = 4096,
    throw: bool = True,
) -> Limit: ...


def find_limit(
    risk: EmpiricalRisk,
    model: Any,
    *,
    method: Any = None,
    gap: float = 1e-8,
    max_steps: int = 4096,
    throw: bool = True,
) -> Limit | LinearLimit:
    r"""Where gradient flow goes from `model`, which program its limit solves, and how sure that is.

    The flow is followed in logarithmic clocks until its own multipliers and velocity certify its direction to
    the relative duality gap `gap` (W), or to a fixed far length (factors, whose own gap falls only like a power
    of log t). The program that theory predicts for the selected tokens is solved beside it, from the data
    alone; neither answer replaces the other.

    **Arguments:**

    - `risk`: an `EmpiricalRisk` on `TokenData`, with one output a sequence or several; `model`: an attention
      model, the start, with a head of any kind that stays fixed. One instance: batch with `jax.vmap`, and wrap
      in `jax.jit` what runs more than once. Layers in parallel: see `jaxflow.limits.find_limits`. Or a linear
      network on `LinearData`: its coefficients tend to a direction (margin losses) or to a point (squared error).
    - `method`: how to follow the flow; `Staged()` by default, `LinearStaged()` for linear networks.
    - `gap`: the relative duality gap that counts as certified.
    - `max_steps`: the budget of integration steps; beyond it the outcome is `undecided`.
    - `throw`: raise where one concrete instance is ambiguous or failed. Under a trace nothing raises; every
      member of a batch has its own `outcome`.

    **Returns:** a `Limit`, for a linear network on `LinearData` a `LinearLimit`; `print` it.

    **Raises:** `ValueError` naming the argument: NaN data, wrong shapes, tied optimal tokens (with their
    indices, if `throw`), a head that is trained, a gap below what the dtype can certify; `RuntimeError` if
    `throw` and it failed.
    """
    if isinstance(model, AbstractLinearNetwork):
        return find_linear_limit(risk, model, method=method, gap=gap, max_steps=max_steps, throw=throw)
    method = check_arguments(risk, model, AbstractAttention, method, gap, max_steps)
    data: Any = risk.data
    if throw:
        require_untied(token_scores(data, model.head), data.visible)
    limit = _find_limit(risk, model, method, gap, max_steps)
    if throw and is_concrete(limit.outcome) and bool(limit.outcome == Outcome.failed):
        raise RuntimeError(
            f"find_limit: {describe(limit.trajectory.result)} (program: {limit.program_solution.result}); "
            "pass throw=False to look at the limit"
        )
    return limit


def check_arguments(risk: EmpiricalRisk, model: Any, kind: type, method: Any, gap: float, max_steps: int) -> Any:
    """The method, after every concrete argument has been looked at. **Raises:** `ValueError` naming it."""
    data = risk.data
    if not isinstance(data, TokenData):
        raise ValueError("risk: find_limit needs a risk on TokenData")
    if not isinstance(model, kind):
        raise ValueError(f"model: expected an attention model, got {type(model).__name__}")
    method = Staged() if method is None else method
    require(isinstance(method, AbstractMethod), "method", f"expected a method, got {method!r}")
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
    dtype = jnp.result_type(data.tokens, float)
    finest = 100 * float(jnp.finfo(dtype).eps)
    require(
        gap >= finest,
        "gap",
        f"{gap} is below what {dtype} can certify (about {finest:.0e}); enable x64 with "
        "jax.config.update('jax_enable_x64', True), or ask for less",
    )
    require(max_steps >= 1, "max_steps", f"expected at least 1, got {max_steps}")
    return method


@eqx.filter_jit
def _find_limit(risk: EmpiricalRisk, model: Any, method: AbstractMethod, gap: float, max_steps: int) -> Limit:
    return conclude(risk, model, method.follow(risk, model, max_steps, gap), gap)


def conclude(risk: EmpiricalRisk, model: Any, trajectory: Trajectory, gap: float, theorem: str | None = None) -> Limit:
    """The limit that a trajectory from `model` points at, with everything that vouches for it.

    `theorem`: what to say in place of the theorem registered for the model.
    """
    data: Any = risk.data
    final = trajectory.final
    attention = final.model.attention(data)
    selection = select(attention)
    prediction = predict(risk, model, selection)
    if theorem is not None:
        prediction = Prediction(prediction.program, theorem, prediction.assumptions)
    program: Any = prediction.program
    solution = solve(program)
    own, own_direction = certify_point(program, after(final, solution.certificate.duality_gap))
    ratio = stationarity(trajectory)
    own = valid_if(settled(attention, data.visible) & (ratio > STATIONARY), own)

    known = after(solution, own.duality_gap)
    rate = no_rate(program, known) if trajectory.saved is None else fit_rate(program, known, trajectory)

    followed = good(trajectory.result)
    stationary = ratio <= STATIONARY
    program_tighter = solution.certificate.duality_gap < own.duality_gap
    certificate: Certificate = _where(program_tighter, solution.certificate, own)
    certified = (certificate.duality_gap <= gap) & settled(attention, data.visible)
    status = decide(program, composed_scores(final.model, data, attention, selection), solution).status
    # A budget that ran out is no failure: the question is open. Nor is a program that nobody asked about.
    spent = (trajectory.result == RESULTS.max_steps_reached) | (trajectory.result == RESULTS.max_steps_rejected)
    unsolved = settled(attention, data.visible) & ~stationary & (solution.result == ProgramResult.failed)
    broken = ~(followed | spent) | (followed & unsolved)

    tied = jnp.any(tied_sequences(token_scores(data, model.head), data.visible))
    infeasible = solution.result == ProgramResult.infeasible
    by_status = [
        (SelectionStatus.global_, Outcome.globally_optimal),
        (SelectionStatus.local, Outcome.locally_optimal),
        (SelectionStatus.not_local, Outcome.not_locally_optimal),
    ]
    outcome = jnp.asarray(Outcome.undecided.value)
    for name, meaning in by_status:
        outcome = jnp.where(certified & (status == name), meaning.value, outcome)
    outcome = jnp.where(infeasible, Outcome.infeasible_program.value, outcome)
    outcome = jnp.where(spent, Outcome.undecided.value, outcome)
    outcome = jnp.where(stationary & ~broken, Outcome.finite_stationary_point.value, outcome)
    unclear = certified & ~stationary & (status == SelectionStatus.ambiguous)
    outcome = jnp.where(tied | unclear, Outcome.ambiguous.value, outcome)
    outcome = jnp.where(broken, Outcome.failed.value, outcome)

    kind = jnp.where(certified & followed, LimitKind.direction.value, LimitKind.none.value)
    kind = jnp.where(stationary, LimitKind.point.value, kind)
    kind = jnp.where(broken, LimitKind.none.value, kind)
    direction = jnp.where(program_tighter, as_weights(program, solution.primal), own_direction)
    is_point = kind == LimitKind.point
    return Limit(
        kind=Code(kind, LimitKind),
        outcome=Code(outcome, Outcome),
        selection=selection,
        selection_status=Code(
            jnp.where(broken | is_point, SelectionStatus.not_applicable.value, status.value), SelectionStatus
        ),
        weights=jnp.where(is_point, final.model.combined_weights(), direction),
        flow_direction=own_direction,
        certificate=certificate,
        flow_certificate=own,
        program_solution=solution,
        stationarity=ratio,
        head_state=head_state(final.model, data),
        prediction=prediction,
        rate=rate,
        trajectory=trajectory,
    )


def _where(condition: Bool[Array, ""], a: Any, b: Any) -> Any:
    return jax.tree.map(lambda x, y: jnp.where(condition, x, y), a, b)
