r"""One-layer softmax attention $f_i = h(X_i^\top\mathrm{softmax}(X_iWz_i))$, trained through W or its factors."""

import abc
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from jaxflow._core import (
    ScaledGradient,
    as_array,
    as_matrix,
    as_vector,
    checked,
    compiled_once,
    exp_nonpositive,
    require,
    tree_norm,
)
from jaxflow.data import TokenData
from jaxflow.models.base import AbstractModel, Pullback, on_one_scale, require_shape
from jaxflow.models.heads import Head, as_head, check_head, head_gradients, head_outputs, is_linear
from jaxflow.models.saturation import Saturation, log_attention


class AbstractAttention(AbstractModel):
    """Attention with some parametrisation of the combined weights W, equation (2) of Tarzanagh et al. (2023).

    By default the attention weights are trained and the head is fixed; see `trainable` of the risk.
    """

    head: eqx.AbstractVar[Head]
    # W is homogeneous of this degree in the attention weights.
    degree: eqx.AbstractClassVar[int]

    def logits(self, data: TokenData) -> Float[Array, "*n T"]:
        r"""$a_{it} = x_{it}^\top W z_i$, `(n, T)` or `(n, k, T)`; hidden tokens included."""
        return bilinear(data, data.queries @ self.combined_weights().T, data.tokens)

    @abc.abstractmethod
    def combined_weights(self) -> Float[Array, "..."]:
        """The matrix W `(d, d)` that the parameters define; for a prompt, p `(e,)` itself."""

    def keys_and_queries(self, data: TokenData) -> tuple[Float[Array, "n T d"], Float[Array, "..."]]:
        """What the weights are multiplied by in the logits: tokens and queries, unless the model has others in their
        place."""
        return data.tokens, data.queries

    def attention(self, data: TokenData) -> Float[Array, "*n T"]:
        """Attention probabilities s, zero at hidden tokens."""
        return jnp.exp(log_attention(self.logits(data), data.visible))

    def outputs(self, data: TokenData) -> Float[Array, "*n"]:
        return head_outputs(self.head, mix(data, self.attention(data)))

    def linearize(self, data: TokenData, trainable: PyTree) -> tuple[Float[Array, "*n"], Pullback]:
        params, frozen = eqx.partition(self, trainable)
        logits, pull_logits = jax.vjp(lambda p: eqx.combine(p, frozen).logits(data), params)
        values, saturation, mixture = self._attend(data, logits)
        head_is_trained = any(leaf is True for leaf in jax.tree.leaves(trainable.head))

        def pullback(scales: Float[Array, "*n"], weights: Float[Array, "*n"]) -> ScaledGradient:
            scale, multipliers = saturation.multipliers(scales, weights)
            (gradient,) = pull_logits(multipliers)
            if not head_is_trained:
                return ScaledGradient(scale, gradient, multipliers)
            point = mixture()
            head_scale, weights = on_one_scale(scales, weights)
            _, pull_head = jax.vjp(lambda p: head_outputs(eqx.combine(p, frozen).head, point), params)
            (head_gradient,) = pull_head(weights)
            # The head's own derivative does not saturate and sets the common scale; beside it what attention's
            # loses to underflow is nothing. Only where the head's vanishes is attention's scale the common one.
            moves = tree_norm(jax.lax.stop_gradient(head_gradient)) > 0
            common = jnp.where(moves, head_scale, scale)
            small = exp_nonpositive(scale - common)
            gradient = jax.tree.map(lambda a, b: small * a + b, gradient, head_gradient)
            return ScaledGradient(common, gradient, small * multipliers)

        return values, pullback

    def _attend(
        self, data: TokenData, logits: Float[Array, "*n T"]
    ) -> tuple[Float[Array, "*n"], Saturation, Callable[[], Float[Array, "*n d"]]]:
        r"""Outputs, attention with the slopes of the head, and what makes $X_i^\top s_i$."""

        def mixture() -> Float[Array, "*n d"]:
            return mix(data, jnp.exp(log_attention(logits, data.visible)))

        if is_linear(self.head):
            # Slopes are the same everywhere (a loop around this forms them once), and outputs need no mixture.
            anywhere = jnp.zeros((*data.output_shape, data.tokens.shape[-1]), data.tokens.dtype)
            saturation = Saturation.at(logits, data.visible, token_slopes(data, head_gradients(self.head, anywhere)))
            return saturation.mean_slopes(), saturation, mixture
        point = mixture()
        slopes = token_slopes(data, head_gradients(self.head, point))
        return head_outputs(self.head, point), Saturation.at(logits, data.visible, slopes), lambda: point


@checked()
def mix(data: TokenData, attention: Float[Array, "*n T"]) -> Float[Array, "*n d"]:
    r"""$X_i^\top s_i$ for every output."""
    shape = (*data.output_shape, data.tokens.shape[-2])
    require(attention.shape == shape, "attention", f"expected shape {shape}, got {attention.shape}")
    return jnp.einsum("ntd,nt->nd" if data.single_query else "ntd,nkt->nkd", data.tokens, attention)


@checked()
def token_slopes(data: TokenData, gradients: Float[Array, "*n d"]) -> Float[Array, "*n T"]:
    r"""$\langle\nabla h, x_{it}\rangle$ for every output and token.

    **Example:**

    ```python
    mixed = jf.models.mix(data, model.attention(data))
    jf.models.token_slopes(data, jf.models.head_gradients(model.head, mixed))  # (n, T)
    ```
    """
    shape = (*data.output_shape, data.tokens.shape[-1])
    require(gradients.shape == shape, "gradients", f"expected shape {shape}, got {gradients.shape}")
    return jnp.einsum("ntd,nd->nt" if data.single_query else "ntd,nkd->nkt", data.tokens, gradients)


def bilinear(data: TokenData, queries: Float[Array, "*n m"], keys: Float[Array, "n T m"]) -> Array:
    """The product of every query with the keys of its sequence, in the shape of the logits."""
    return jnp.einsum("ntm,nm->nt" if data.single_query else "ntm,nkm->nkt", keys, queries)


@compiled_once
def _uniform(key: Key[Array, ""], shape: tuple[int, ...], d: int) -> Array:
    # The start of the published experiments (Tarzanagh et al. 2023, App. F): U(-1/sqrt d, 1/sqrt d).
    return jax.random.uniform(key, shape, minval=-1.0, maxval=1.0) / jnp.sqrt(d)


@compiled_once
def _two_uniform(key: Key[Array, ""], shape: tuple[int, ...], d: int) -> tuple[Array, Array]:
    first, second = jax.random.split(key)
    return _uniform(first, shape, d), _uniform(second, shape, d)


class CombinedAttention(AbstractAttention):
    """Attention trained through W `(d, d)` itself, (W-ERM) of Tarzanagh et al. (2023)."""

    W: Float[Array, "d d"] = eqx.field(converter=partial(as_matrix, "W"))
    head: Head = eqx.field(converter=as_head)
    degree: ClassVar[int] = 1
    trained: ClassVar[tuple[str, ...]] = ("W",)

    @classmethod
    @checked(least={"m": 1})
    def init(cls, key: Key[Array, ""], data: TokenData, head: Any) -> "CombinedAttention":
        r"""Entries uniform on $\pm1/\sqrt d$."""
        d = data.tokens.shape[-1]
        return cls(_uniform(key, (d, d), d), head)

    def combined_weights(self) -> Float[Array, "d d"]:
        return self.W

    def check(self, data: TokenData) -> None:
        d = data.tokens.shape[-1]
        require_shape("W", self.W, (d, d), f"for tokens of dimension {d}")
        check_head(self.head, data)


class FactoredAttention(AbstractAttention):
    r"""Attention trained through $W = KQ^\top$ with K, Q `(d, m)`, (KQ-ERM) of Tarzanagh et al. (2023)."""

    K: Float[Array, "d m"] = eqx.field(converter=partial(as_matrix, "K"))
    Q: Float[Array, "d m"] = eqx.field(converter=partial(as_array, "Q"))
    head: Head = eqx.field(converter=as_head)
    degree: ClassVar[int] = 2
    trained: ClassVar[tuple[str, ...]] = ("K", "Q")

    def __check_init__(self) -> None:
        require(self.K.shape == self.Q.shape, "Q", f"expected K's shape {self.K.shape}, got {self.Q.shape}")

    @classmethod
    @checked(least={"m": 1})
    def init(cls, key: Key[Array, ""], data: TokenData, head: Any, m: int | None = None) -> "FactoredAttention":
        r"""Entries of both factors uniform on $\pm1/\sqrt d$; `m` columns, d by default."""
        d = data.tokens.shape[-1]
        return cls(*_two_uniform(key, (d, d if m is None else m), d), head)

    def logits(self, data: TokenData) -> Float[Array, "*n T"]:
        queries = data.queries @ self.Q
        if data.single_query:
            # Tokens are more than queries: the one vector that they all meet costs less than a key for each.
            return bilinear(data, queries @ self.K.T, data.tokens)
        return bilinear(data, queries, data.tokens @ self.K)

    def combined_weights(self) -> Float[Array, "d d"]:
        return self.K @ self.Q.T

    def conserved(self) -> Float[Array, "m m"]:
        r"""$K^\top K - Q^\top Q$, constant along the gradient flow."""
        return self.K.T @ self.K - self.Q.T @ self.Q

    def check(self, data: TokenData) -> None:
        d = data.tokens.shape[-1]
        require_shape("K", self.K, (d, self.K.shape[-1]), f"for tokens of dimension {d}")
        require_shape("Q", self.Q, self.K.shape, "as K has")
        check_head(self.head, data)


class DiagonalAttention(AbstractAttention):
    r"""Attention trained through $W = \mathrm{diag}(k\odot q)$ with k, q `(d,)`, Sheen et al. (2024) §4.1."""

    k: Float[Array, " d"] = eqx.field(converter=partial(as_vector, "k"))
    q: Float[Array, " d"] = eqx.field(converter=partial(as_array, "q"))
    head: Head = eqx.field(converter=as_head)
    degree: ClassVar[int] = 2
    trained: ClassVar[tuple[str, ...]] = ("k", "q")

    def __check_init__(self) -> None:
        require(self.k.shape == self.q.shape, "q", f"expected k's shape {self.k.shape}, got {self.q.shape}")

    @classmethod
    @checked(least={"m": 1})
    def init(cls, key: Key[Array, ""], data: TokenData, head: Any) -> "DiagonalAttention":
        r"""Entries of both vectors uniform on $\pm1/\sqrt d$."""
        d = data.tokens.shape[-1]
        return cls(*_two_uniform(key, (d,), d), head)

    def logits(self, data: TokenData) -> Float[Array, "*n T"]:
        # Scaling the queries axis by axis, as a product with a diagonal matrix of any batch rank.
        return bilinear(data, jnp.einsum("...d,d->...d", data.queries, self.k * self.q), data.tokens)

    def combined_weights(self) -> Float[Array, "d d"]:
        return jnp.diag(self.k * self.q)

    def conserved(self) -> Float[Array, " d"]:
        r"""$k\odot k - q\odot q$, constant along the gradient flow."""
        return self.k**2 - self.q**2

    def check(self, data: TokenData) -> None:
        d = data.tokens.shape[-1]
        require_shape("k", self.k, (d,), f"for tokens of dimension {d}")
        require_shape("q", self.q, (d,), f"for tokens of dimension {d}")
        check_head(self.head, data)


class PromptAttention(AbstractAttention):
    r"""Attention trained through a prompt p `(e,)`: $a_{it}=k_{it}^\top p$ with fixed keys $k_{it}=K^\top x_{it}$;
    Ataee Tarzanagh, Li, Zhang, Oymak (2023), *Max-Margin Token Selection in Attention Mechanism*.

    **Arguments:** `p`; `head`, on the tokens; `K` `(d, e)`, fixed; None: keys are the tokens. Queries are not used.

    **Example:**

    ```python
    prompted = jf.models.PromptAttention(jnp.zeros(data.tokens.shape[-1]), head)
    jf.find_limit(jf.EmpiricalRisk(data, "logistic"), prompted).direction  # p at margin one
    ```
    """

    p: Float[Array, " e"]
    head: Head
    K: Float[Array, "d e"] | None
    degree: ClassVar[int] = 1
    trained: ClassVar[tuple[str, ...]] = ("p",)

    def __init__(self, p: Any, head: Any, K: Any = None):
        self.p = as_vector("p", p)
        self.head = as_head(head)
        self.K = None if K is None else as_matrix("K", K)

    @classmethod
    @checked()
    def init(cls, key: Key[Array, ""], data: TokenData, head: Any, K: Any = None) -> "PromptAttention":
        r"""Entries uniform on $\pm1/\sqrt e$."""
        K = None if K is None else as_matrix("K", K)
        e = data.tokens.shape[-1] if K is None else K.shape[-1]
        return cls(_uniform(key, (e,), e), head, K)

    def keys_and_queries(self, data: TokenData) -> tuple[Float[Array, "n T e"], Float[Array, "..."]]:
        """Keys, and a one for each query."""
        keys = data.tokens if self.K is None else data.tokens @ self.K
        return keys, jnp.ones((*data.output_shape, 1), keys.dtype)

    def logits(self, data: TokenData) -> Float[Array, "*n T"]:
        logits = self.keys_and_queries(data)[0] @ self.p
        return jnp.broadcast_to(logits if data.single_query else logits[:, None], data.visible.shape)

    def combined_weights(self) -> Float[Array, " e"]:
        return self.p

    def check(self, data: TokenData) -> None:
        d = data.tokens.shape[-1]
        if self.K is not None:
            require_shape("K", self.K, (d, self.p.size), f"for tokens of dimension {d}")
        require_shape("p", self.p, (d if self.K is None else self.K.shape[-1],), "for keys of that dimension")
        check_head(self.head, data)
