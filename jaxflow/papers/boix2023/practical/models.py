"""A vision transformer and a GPT-style one, small enough to read."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from jaxflow._core import require


class Shape(NamedTuple):
    """Layers, heads in each, width of the embedding, width of a head, width of the MLP."""

    layers: int
    heads: int
    width: int
    head: int
    mlp: int


# Appendix B: the transformer for CIFAR (with patches of 4), ViT-B/16 of Dosovitskiy et al. for ImageNet (patches of
# 16), and the smallest GPT-2.
VIT_CIFAR = Shape(6, 8, 512, 128, 512)
VIT_B16 = Shape(12, 12, 768, 64, 3072)
GPT2 = Shape(12, 12, 768, 64, 3072)


class Attention(eqx.Module):
    r"""Heads as in equation (1), with $W_K,W_Q,W_V,W_O$ `(H, d, d')`, logits divided by $\sqrt{d'}$."""

    key: Float[Array, "H d e"]
    query: Float[Array, "H d e"]
    value: Float[Array, "H d e"]
    output: Float[Array, "H d e"]

    @classmethod
    def init(cls, rng: Key[Array, ""], shape: Shape) -> "Attention":
        r"""Uniform on $\pm1/\sqrt{\text{inputs}}$, as linear layers usually start."""
        full = (shape.heads, shape.width, shape.head)
        inputs = (shape.width, shape.width, shape.width, shape.heads * shape.head)
        keys = jax.random.split(rng, 4)
        drawn = (jax.random.uniform(key, full, minval=-1.0) / n**0.5 for key, n in zip(keys, inputs, strict=True))
        return cls(*drawn)

    def __call__(self, x: Float[Array, "T d"], visible: Bool[Array, "T T"] | None) -> Float[Array, "T d"]:
        k, q, v = (jnp.einsum("td,hde->hte", x, w) for w in (self.key, self.query, self.value))
        logits = jnp.einsum("hte,hse->hts", q, k) / self.key.shape[-1] ** 0.5
        if visible is not None:
            logits = jnp.where(visible, logits, jnp.finfo(logits.dtype).min)
        return jnp.einsum("hts,hse,hde->td", jax.nn.softmax(logits, axis=-1), v, self.output)


class Block(eqx.Module):
    """Attention and an MLP with GELU, each after a normalisation and beside a residual connection."""

    attention: Attention
    first: eqx.nn.LayerNorm
    second: eqx.nn.LayerNorm
    up: eqx.nn.Linear
    down: eqx.nn.Linear

    @classmethod
    def init(cls, rng: Key[Array, ""], shape: Shape) -> "Block":
        """Equinox's own start for linear layers and normalisations."""
        attention, up, down = jax.random.split(rng, 3)
        return cls(
            Attention.init(attention, shape),
            eqx.nn.LayerNorm(shape.width),
            eqx.nn.LayerNorm(shape.width),
            eqx.nn.Linear(shape.width, shape.mlp, key=up),
            eqx.nn.Linear(shape.mlp, shape.width, key=down),
        )

    def __call__(self, x: Float[Array, "T d"], visible: Bool[Array, "T T"] | None) -> Float[Array, "T d"]:
        x = x + self.attention(jax.vmap(self.first)(x), visible)
        return x + jax.vmap(self.down)(jax.nn.gelu(jax.vmap(self.up)(jax.vmap(self.second)(x))))


class ViT(eqx.Module):
    """Patches, a token mapper with positions, blocks, mean over tokens, classes."""

    mapper: eqx.nn.Linear
    positions: Float[Array, "T d"]
    blocks: list[Block]
    norm: eqx.nn.LayerNorm
    classes: eqx.nn.Linear
    patch: int = eqx.field(static=True)

    @classmethod
    def init(cls, rng: Key[Array, ""], shape: Shape, side: int, channels: int, classes: int, patch: int = 4) -> "ViT":
        """For square images `(side, side, channels)`. **Raises:** `ValueError` unless patches tile the image."""
        require(side % patch == 0, "patch", f"{patch} does not divide the image's side {side}")
        mapper, positions, last, *blocks = jax.random.split(rng, 3 + shape.layers)
        return cls(
            eqx.nn.Linear(patch * patch * channels, shape.width, key=mapper),
            0.02 * jax.random.normal(positions, ((side // patch) ** 2, shape.width)),
            [Block.init(key, shape) for key in blocks],
            eqx.nn.LayerNorm(shape.width),
            eqx.nn.Linear(shape.width, classes, key=last),
            patch,
        )

    def __call__(self, image: Float[Array, "s s c"]) -> Float[Array, " classes"]:
        side, _, channels = image.shape
        n = side // self.patch
        tiles = image.reshape(n, self.patch, n, self.patch, channels).transpose(0, 2, 1, 3, 4).reshape(n * n, -1)
        x = jax.vmap(self.mapper)(tiles) + self.positions
        for block in self.blocks:
            x = block(x, None)
        return self.classes(jnp.mean(jax.vmap(self.norm)(x), axis=0))


class GPT(eqx.Module):
    """Tokens with positions, blocks in which a token sees those before it, the next token."""

    tokens: Float[Array, "v d"]
    positions: Float[Array, "T d"]
    blocks: list[Block]
    norm: eqx.nn.LayerNorm
    following: eqx.nn.Linear

    @classmethod
    def init(cls, rng: Key[Array, ""], shape: Shape, vocabulary: int, length: int) -> "GPT":
        """For sequences of at most `length` tokens."""
        tokens, positions, last, *blocks = jax.random.split(rng, 3 + shape.layers)
        return cls(
            0.02 * jax.random.normal(tokens, (vocabulary, shape.width)),
            0.02 * jax.random.normal(positions, (length, shape.width)),
            [Block.init(key, shape) for key in blocks],
            eqx.nn.LayerNorm(shape.width),
            eqx.nn.Linear(shape.width, vocabulary, key=last),
        )

    def __call__(self, sequence: Int[Array, " T"]) -> Float[Array, "T v"]:
        T = sequence.shape[0]
        x = self.tokens[sequence] + self.positions[:T]
        visible = jnp.tril(jnp.ones((T, T), bool))
        for block in self.blocks:
            x = block(x, visible)
        return jax.vmap(self.following)(jax.vmap(self.norm)(x))


Transformer = ViT | GPT


def rescaled(model: Transformer, scale: Float[Array, ""] | float) -> Transformer:
    """Every linear layer of the blocks and the last one times `scale`; the token mapper keeps its size (§5).

    Normalisations keep theirs too: their gains are no initial scale of a layer.
    """

    def layers(m: Transformer) -> list[PyTree]:
        last = m.classes if isinstance(m, ViT) else m.following
        return [*(layer for b in m.blocks for layer in (b.attention, b.up, b.down)), last]

    return eqx.tree_at(
        layers, model, [jax.tree.map(lambda x: scale * x if eqx.is_inexact_array(x) else x, y) for y in layers(model)]
    )
