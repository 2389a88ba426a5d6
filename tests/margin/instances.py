"""Instances that the files of this folder share, and one compiled solver for all batches of a kind."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxflow.data import TokenData, optimal_tokens, random_tokens
from jaxflow.margin import attention_svm, solve
from jaxflow.models import token_scores

NORMS = ["frobenius", "nuclear", "l1"]
LANES = 16

# Of programs that are stacked: compiled once for each kind, shape and norm.
SOLVED = jax.jit(jax.vmap(solve))


def batch(seed: int, d: int = 10) -> tuple[TokenData, Array]:
    """Data and optimal tokens of 16 instances with n = T = 4 in R^10; of dimension d, padded with zeros, which changes
    no solution."""

    def one(key: Array) -> tuple[TokenData, Array]:
        data, head = random_tokens(key, 4, 4, d)
        selection = optimal_tokens(token_scores(data, head), data.visible)
        tokens, queries = (jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, 10 - d)]) for x in (data.tokens, data.queries))
        return TokenData(tokens, queries, data.labels), selection

    return jax.vmap(one)(jax.random.split(jax.random.key(seed), LANES))


def lane(tree: Any, at: int) -> Any:
    """One member of a batch."""
    return jax.tree.map(lambda leaf: leaf[at], tree)


def single(seed: int) -> tuple[TokenData, Array]:
    """One instance."""
    return lane(batch(seed), 0)


def attention(norm: Any, data: TokenData, selection: Array) -> Any:
    """The programs of a batch of instances."""
    return jax.vmap(lambda data, selection: attention_svm(data, selection, norm))(data, selection)


def stacked(programs: list[Any]) -> Any:
    """Programs of one kind and shape as a batch."""
    return jax.tree.map(lambda *parts: jnp.stack(parts), *programs)
