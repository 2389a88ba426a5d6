"""Products of two vectors: what leaves a saddle, however small it is."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from jaxflow.models import DiagonalAttention, DiagonalLinearNetwork


def has_pairs(model: Any) -> bool:
    r"""Whether the weights are two vectors a, b with products $a\odot b$: diagonal attention, two diagonal layers."""
    return isinstance(model, DiagonalAttention) or (isinstance(model, DiagonalLinearNetwork) and model.depth == 2)


def pair_growth(weights: PyTree, velocity: PyTree, conserved: Any = None) -> Float[Array, ""]:
    r"""The largest rate at which $a_j+b_j$ or $a_j-b_j$ grows, of those that are not zero; −inf where all are.

    Gradient flow of $\beta=a\odot b$ has $\dot a=g\odot b$ and $\dot b=g\odot a$: the sum grows at the rate $g_j$, the
    difference at $-g_j$, and their product never changes. One that is $10^{-100}$ of the whole still takes over where
    it grows faster. The rates are read as $\dot a_j/b_j$, without cancellation.

    **Arguments:** `weights`, `velocity`: pytrees of the two vectors; `conserved`: $a^2-b^2$ of the start, which says
    that neither is zero although rounding has made them so.
    """
    (a, b), (moving_a, moving_b) = jax.tree.leaves(weights), jax.tree.leaves(velocity)
    larger = jnp.abs(b) >= jnp.abs(a)
    rate = jnp.where(larger, moving_a, moving_b) / nonzero(jnp.where(larger, b, a))
    known = jnp.zeros_like(rate) if conserved is None else conserved
    no_sum, no_difference = (a == -b) & (known == 0), (a == b) & (known == 0)
    return jnp.max(jnp.maximum(jnp.where(no_sum, -jnp.inf, rate), jnp.where(no_difference, -jnp.inf, -rate)))


def entry_growth(weights: PyTree, velocity: PyTree) -> Float[Array, ""]:
    r"""$\max_j\dot x_j/x_j$ over the entries that are not zero, −inf where all are."""

    def largest(x: Array, v: Array) -> Array:
        return jnp.max(jnp.where(x == 0, -jnp.inf, v / nonzero(x)))

    return jnp.max(jnp.stack(jax.tree.leaves(jax.tree.map(largest, weights, velocity))))


def nonzero(x: Array) -> Array:
    """x, and one where it is zero: for quotients that are not used there."""
    return jnp.where(x == 0, 1.0, x)
