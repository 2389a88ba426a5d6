r"""Attention layers in parallel: $f_i=\sum_h h_h(X_i^\top\mathrm{softmax}(X_iW_hz_i))$."""

from collections.abc import Iterable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from jaxflow._core import ScaledGradient, check_kind, checked, exp_nonpositive, require, tree_norm, tree_scale
from jaxflow.data import TokenData
from jaxflow.models.attention import AbstractAttention, CombinedAttention
from jaxflow.models.base import AbstractModel, Pullback


class MultiHeadAttention(AbstractModel):
    r"""The sum of H attention layers on the same data, each with its own weights and its own prediction head.

    With linear heads $v_h$ this is one output of ordinary multi-head attention, with the value and output weights of a
    head combined in $v_h$.

    **Arguments:** `parts`: attention models, of any parametrisations.
    """

    parts: tuple[AbstractAttention, ...]

    def __init__(self, parts: Any):
        listed = isinstance(parts, Iterable) and not hasattr(parts, "dtype")
        require(listed, "parts", "expected a sequence of attention models", got=parts)
        self.parts = tuple(parts)
        for part in self.parts:
            check_kind("parts", part, AbstractAttention, "attention models")

    def __check_init__(self) -> None:
        require(len(self.parts) > 0, "parts", "expected at least one attention model")

    @classmethod
    @checked()
    def init(
        cls, key: Key[Array, ""], data: TokenData, heads: Any, part: type = CombinedAttention
    ) -> "MultiHeadAttention":
        """A layer of class `part` for each of the prediction heads `heads` (a sequence, or an array `(H, d)`)."""
        listed = isinstance(heads, tuple | list) or getattr(heads, "ndim", 0) >= 2
        require(listed, "heads", "expected a head for each layer", got=heads)
        heads = list(heads)
        require(len(heads) > 0, "heads", "expected at least one prediction head")
        keys = jax.random.split(key, len(heads))
        return cls(part.init(keys[h], data, head) for h, head in enumerate(heads))

    @property
    def degree(self) -> int | None:
        """The degree of homogeneity of all layers if it is the same, else None."""
        degrees = {part.degree for part in self.parts}
        return degrees.pop() if len(degrees) == 1 else None

    def attention(self, data: TokenData) -> Float[Array, "H *n T"]:
        """Attention probabilities of every layer."""
        return jnp.stack([part.attention(data) for part in self.parts])

    def outputs(self, data: TokenData) -> Float[Array, "*n"]:
        return jnp.sum(jnp.stack([part.outputs(data) for part in self.parts]), axis=0)

    def linearize(self, data: TokenData, trainable: PyTree) -> tuple[Float[Array, "*n"], Pullback]:
        """Each layer pulls the same output weights back on a scale of its own; the common scale is the largest of
        these.

        Multipliers are stacked, `(H, n, [k,] T)`.
        """
        found = [part.linearize(data, t) for part, t in zip(self.parts, trainable.parts, strict=True)]
        values = jnp.sum(jnp.stack([outputs for outputs, _ in found]), axis=0)
        empty = eqx.filter(self, trainable)

        def pullback(scales: Float[Array, "*n"], weights: Float[Array, "*n"]) -> ScaledGradient:
            pulled: list[Any] = [pull(scales, weights) for _, pull in found]
            # A layer without any gradient (all its scores equal, say) has no say in the scale.
            moves = jnp.stack([tree_norm(jax.lax.stop_gradient(one.gradient)) > 0 for one in pulled])
            own = jnp.where(moves, jnp.stack([one.log_scale for one in pulled]), -jnp.inf)
            largest = jax.lax.stop_gradient(jnp.max(own))
            common = jnp.where(jnp.isneginf(largest), 0.0, largest)
            factors = exp_nonpositive(own - common)
            gradients = tuple(tree_scale(factors[h], one.gradient) for h, one in enumerate(pulled))
            multipliers = jnp.stack([factors[h] * one.multipliers for h, one in enumerate(pulled)])
            gradient = eqx.tree_at(lambda m: m.parts, empty, gradients, is_leaf=lambda x: x is None)
            return ScaledGradient(common, gradient, multipliers)

        return values, pullback

    def trainable(self) -> PyTree:
        return eqx.tree_at(lambda m: m.parts, self, tuple(part.trainable() for part in self.parts))

    def check(self, data: TokenData) -> None:
        for part in self.parts:
            part.check(data)
