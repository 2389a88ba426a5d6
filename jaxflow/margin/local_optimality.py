r"""Locally optimal selections: Definition 2 of Tarzanagh et al. (2023) and Definition 4 of its appendix."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxflow._core import AbstractPrinted, Code, SelectionStatus, checked, positive_or_one
from jaxflow.data import TokenData, optimal_tokens
from jaxflow.margin.attention import attention_svm
from jaxflow.margin.certificate import ProgramResult, Solution
from jaxflow.margin.program import AbstractProgram
from jaxflow.models import token_scores

# Margins of a certified solution carry an error of about 1e-14; an excess below this is support, and up to a thousand
# times as much a token is neither clearly support nor clearly not. (Float32 widens both by its epsilon.)
SUPPORT_MARGIN = 1e-9


class LocalOptimality(AbstractPrinted):
    """Whether a selection is locally optimal, why, and how far that can be trusted.

    - `locally_optimal`: every support token scores less than the selected one.
    - `support`: the support indices, in the shape of the selection.
    - `status`: `global_` (the optimal tokens), `local`, `not_local`, `ambiguous` (the answer depends on a token whose
      margin is within 1e-6 of one), `not_applicable` (no solution).
    - `excess`: margin − 1 of every masked token, +inf elsewhere.
    """

    locally_optimal: Bool[Array, ""]
    support: Bool[Array, "n ..."]
    status: Code
    excess: Float[Array, "n ..."]

    def __bool__(self) -> bool:
        return bool(self.locally_optimal)


@checked()
def is_locally_optimal(data: TokenData, head: Any, selection: Any, solution: Solution) -> LocalOptimality:
    r"""Decides Definition 2: $\gamma_{i\alpha_i}>\gamma_{it}$ for every support index t.

    **Arguments:**

    - `data`, `head`: the instance; the head gives the token scores (an array means a linear head).
    - `selection`: mask or indices, as for `attention_svm`. In a selected set the smallest score counts.
    - `solution`: `solve(attention_svm(data, selection, ...))`, in any norm (Definition 4).

    **Raises:** `ValueError` as `attention_svm`.
    """
    norm = "l1" if solution.primal.ndim == 1 else "frobenius"
    program = attention_svm(data, selection, norm)
    return decide(program, token_scores(data, head), solution)


def support_tokens(
    program: AbstractProgram, solution: Solution
) -> tuple[Bool[Array, "n ..."], Bool[Array, "n ..."], Float[Array, "n ..."]]:
    """Tokens that clearly are support, tokens that may be, and margin − 1."""
    excess = program.margins(solution.primal) - 1.0
    rounding = 1e3 * float(jnp.finfo(solution.dual.dtype).eps)
    largest = jnp.max(solution.dual, initial=0.0)
    weight = solution.dual / positive_or_one(largest)
    near, close = max(SUPPORT_MARGIN, rounding), max(1e3 * SUPPORT_MARGIN, 10 * rounding)
    # By strong convexity ‖W − W*‖² <= 2·gap·‖W‖²: what an inaccurate answer says of margins.
    gap = jnp.maximum(solution.certificate.duality_gap, 0.0)
    blur = jnp.sqrt(2 * gap) * solution.certificate.primal_value * program.row_sizes()
    blur = jnp.where(solution.result == ProgramResult.inaccurate, blur, 0.0)
    close = jnp.maximum(close, jnp.where(jnp.isfinite(blur), blur, jnp.inf))
    clear = program.active & ((excess <= near) | ((excess <= close) & (weight > close)))
    return clear, program.active & (excess <= close) & ~clear, excess


def decide(program: Any, scores: Float[Array, "n ..."], solution: Solution) -> LocalOptimality:
    """`is_locally_optimal` for a program and scores that exist already."""
    clear, unclear, excess = support_tokens(program, solution)
    chosen = program.selection & program.visible
    selected = jnp.min(jnp.where(chosen, scores, jnp.inf), axis=-1, keepdims=True)
    rival = scores >= selected
    best = optimal_tokens(scores, program.visible)
    is_best = jnp.all(jnp.where(chosen, best, True))
    status = jnp.where(is_best, SelectionStatus.global_.value, SelectionStatus.local.value)
    status = jnp.where(jnp.any(unclear & rival), SelectionStatus.ambiguous.value, status)
    status = jnp.where(jnp.any(clear & rival), SelectionStatus.not_local.value, status)
    useful = (ProgramResult.optimal, ProgramResult.inaccurate, ProgramResult.stationary)
    answered = jnp.any(jnp.stack([solution.result == code for code in useful])) & jnp.all(jnp.isfinite(scores))
    status = jnp.where(answered, status, SelectionStatus.not_applicable.value)
    local = (status == SelectionStatus.global_.value) | (status == SelectionStatus.local.value)
    return LocalOptimality(
        locally_optimal=local,
        support=clear & answered,
        status=Code(status, SelectionStatus),
        excess=excess,
    )
