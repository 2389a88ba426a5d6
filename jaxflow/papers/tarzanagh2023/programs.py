"""Programs of tokens: that of the optimal ones, what became of programs, and how near weights are to a solution."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxflow._core import positive_or_one
from jaxflow.data import TokenData, optimal_tokens
from jaxflow.margin import ProgramResult, attention_svm, solve
from jaxflow.models import token_scores
from jaxflow.papers.tarzanagh2023.protocol import SETTLED

# Parametrisations and programs in the paper's words; the norm to whose program each parametrisation is biased.
NAMES = {"combined": "W", "factored": "(K, Q)"}
PROGRAMS = {"frobenius": "(Att-SVM)", "nuclear": "(Att-SVM*)"}
OWN = {"combined": "frobenius", "factored": "nuclear"}


def best_of(data: TokenData, head: Any) -> Array:
    """The optimal tokens, Booleans in the shape of the logits."""
    return optimal_tokens(token_scores(data, head), data.visible)


def optimal_program(data: TokenData, head: Any, norm: Any = "frobenius") -> tuple[Array, Any]:
    """The optimal tokens, and the solution of their program."""
    best = best_of(data, head)
    return best, solve(attention_svm(data, best, norm))


def solved(result: Any) -> Any:
    """By their results (`ProgramResult`): the programs that are."""
    return result == ProgramResult.optimal.value


def feasible(result: Any) -> Any:
    """Solved, or neither solved nor proven to have no solution."""
    return result != ProgramResult.infeasible.value


def top_tokens(attention: Array) -> tuple[Array, Array]:
    """The token of largest attention in each sequence, Booleans, and whether attention has settled on these."""
    top = jax.nn.one_hot(jnp.argmax(attention, axis=-1), attention.shape[-1], dtype=bool)
    return top, jnp.all(jnp.max(attention, axis=-1) >= 1.0 - SETTLED)


def cosine(a: Array, b: Array) -> Array:
    r"""$\langle A,B\rangle/\|A\|\|B\|$, zero where one of them is."""
    return jnp.sum(a * b) / positive_or_one(jnp.linalg.norm(a) * jnp.linalg.norm(b))


def misalignment(a: Array, b: Array) -> Array:
    r"""$1-\langle A,B\rangle/\|A\|\|B\|=\frac12\left\|A/\|A\|-B/\|B\|\right\|^2$, without cancellation.

    It is 1 where one of them is zero.
    """
    sizes = [jnp.linalg.norm(x) for x in (a, b)]
    unit = [x / positive_or_one(size) for x, size in zip((a, b), sizes, strict=True)]
    return jnp.where((sizes[0] > 0) & (sizes[1] > 0), 0.5 * jnp.sum((unit[0] - unit[1]) ** 2), 1.0)
