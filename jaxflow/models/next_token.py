r"""Attention that predicts the next word: the vocabulary as its head."""

from functools import partial
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from jaxflow._core import as_matrix, checked, is_concrete, require
from jaxflow.models.base import AbstractModel, require_shape


class NextTokenAttention(AbstractModel):
    r"""One layer of attention trained through W, which predicts a word of its sequence as the next one; Li et al.
    (2024), *Mechanics of Next Token Prediction with Self-Attention*.

    Words have fixed embeddings $e_1,\dots,e_K$. A sequence attends to its words $x_t$ from the last one, with logits
    $e_{x_t}^\top We_{x_T}$, and the probability of a next word is the attention on all of its tokens. With $m_j$ tokens
    of the word j these are the shares of softmax over the words' outputs

    $$f_j=e_j^\top We_{x_T}+\log m_j,$$

    −∞ for a word that does not occur, so that `"cross_entropy"` is their loss $-\log\sum_{t:x_t=y}s_t$. It is the loss
    of Li et al. with the head $c_k^\top e_j=1$ for j = k, else zero, which is convex in W.

    **Arguments:** `W` `(d, d)`; `embeddings` `(K, d)`, fixed. Data are `(sequences, next_words)`: word numbers
    `(n, T)`, with −1 in front of a shorter sequence, and `(n,)`, each of a word in its sequence (or frequencies
    `(n, K)` of such words).

    **Example:**

    ```python
    sequences, following = jnp.array([[0, 1, 2], [1, 1, 2]]), jnp.array([0, 1])
    attention = jf.models.NextTokenAttention(jnp.zeros((3, 3)), jnp.eye(3))
    limit = jf.find_limit(jf.EmpiricalRisk((sequences, following), "cross_entropy"), attention)
    assert limit.outcome == "globally_optimal"
    ```
    """

    W: Float[Array, "d d"] = eqx.field(converter=partial(as_matrix, "W"))
    embeddings: Float[Array, "K d"] = eqx.field(converter=partial(as_matrix, "embeddings"))
    trained: ClassVar[tuple[str, ...]] = ("W",)

    @classmethod
    @checked()
    def init(cls, key: Key[Array, ""], embeddings: Float[Array, "K d"]) -> "NextTokenAttention":
        r"""Entries of W uniform on $\pm1/\sqrt d$."""
        d = embeddings.shape[-1]
        return cls(jax.random.uniform(key, (d, d), minval=-1.0, maxval=1.0) / jnp.sqrt(d), embeddings)

    def outputs(self, data: Any) -> Float[Array, "n K"]:
        words = words_of(data)
        counts = jnp.sum(jax.nn.one_hot(words, len(self.embeddings), dtype=self.W.dtype), axis=1)
        logits = self.embeddings[words[:, -1]] @ self.W.T @ self.embeddings.T
        present = counts > 0
        return jnp.where(present, logits + jnp.log(jnp.where(present, counts, 1.0)), -jnp.inf)

    def combined_weights(self) -> Float[Array, "d d"]:
        """W, of the logits."""
        return self.W

    def check(self, data: Any) -> None:
        K, d = self.embeddings.shape
        require_shape("W", self.W, (d, d), f"for embeddings of dimension {d}")
        inputs = getattr(data, "inputs", None)
        require(
            inputs is not None and inputs.ndim == 2, "data", "expected (sequences, next_words), of word numbers (n, T)"
        )
        if not is_concrete(data):
            return
        words, targets = np.asarray(data.inputs), np.asarray(data.targets)
        known = (words == np.round(words)) & (words >= -1) & (words < K)
        require(
            bool(known.all()), "data", f"expected word numbers from 0 to {K - 1}, or -1 in front", got=words[~known]
        )
        require(bool((words[:, -1] >= 0).all()), "data", "the last word of a sequence is -1; -1 belongs in front")
        occurs = (words[..., None] == np.arange(K)).any(axis=1)
        following = targets > 0 if targets.ndim == 2 else targets[:, None] == np.arange(K)
        other = bool((occurs & ~following).any() | (following.sum(axis=1) > 1).any())
        require(other, "data", "no sequence has a word beside its next one: the loss is zero whatever the weights")
        strange = np.flatnonzero((following & ~occurs).any(axis=1))
        require(
            strange.size == 0,
            "labels",
            f"the next word of sequence {strange[:1]} does not occur in it, and attention has no share for it",
        )


def words_of(data: Any) -> Int[Array, "n T"]:
    """The word numbers of sequences, −1 where there is none."""
    return jnp.asarray(data.inputs).astype(int)
