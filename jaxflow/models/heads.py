r"""Prediction heads $h:\mathbb R^d\to\mathbb R$ that follow the attention layer.

Any callable module will do; an array of shape `(d,)` means `LinearHead`.
"""

from collections.abc import Callable
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxflow._core import require
from jaxflow.data import TokenData


class LinearHead(eqx.Module):
    r"""$h(x) = v^\top x$, with `v` of shape `(d,)`. Tarzanagh et al. (2023) §2, Sheen et al. (2024) §3.1."""

    v: Float[Array, " d"]

    def __init__(self, v: Any):
        self.v = jnp.asarray(v)

    def __check_init__(self) -> None:
        require(self.v.ndim >= 1, "v", f"expected shape (d,), got {self.v.shape}")

    def __call__(self, x: Float[Array, " d"]) -> Float[Array, ""]:
        return jnp.dot(self.v, x)


class MLPHead(eqx.Module):
    r"""$h(x) = \mathbf 1^\top\mathrm{ReLU}(Vx)$, with `V` of shape `(r, d)`. Tarzanagh et al. (2023) §6.

    The gradient is piecewise constant: it jumps across the kinks and vanishes where all units are off.
    """

    V: Float[Array, "r d"]

    def __init__(self, V: Any):
        self.V = jnp.asarray(V)

    def __check_init__(self) -> None:
        require(self.V.ndim >= 2, "V", f"expected shape (r, d), got {self.V.shape}")

    def __call__(self, x: Float[Array, " d"]) -> Float[Array, ""]:
        return jnp.sum(jax.nn.relu(self.V @ x))


class ConcaveHead(eqx.Module):
    r"""$h(x) = v^\top x-\lambda\|x\|^2$. Tarzanagh et al. (2023) §6 (Lemma 6, Figs. 9 and 12)."""

    v: Float[Array, " d"]
    lam: Float[Array, ""]

    def __init__(self, v: Any, lam: Any):
        self.v = jnp.asarray(v)
        self.lam = jnp.asarray(lam, dtype=self.v.dtype)

    def __check_init__(self) -> None:
        require(self.v.ndim >= 1, "v", f"expected shape (d,), got {self.v.shape}")

    def __call__(self, x: Float[Array, " d"]) -> Float[Array, ""]:
        return jnp.dot(self.v, x) - self.lam * jnp.dot(x, x)


Head = Callable[[Float[Array, " d"]], Float[Array, ""]]


def as_head(head: Any) -> Head:
    """A head from what a caller gave: a callable as it is, an array `(d,)` as `LinearHead`.

    **Raises:** `ValueError` naming `head`.
    """
    if callable(head):
        return cast(Head, head)
    array = jnp.asarray(head)
    require(array.ndim >= 1, "head", "expected a callable or an array of shape (d,)")
    return LinearHead(array)


def token_scores(data: TokenData, head: Any) -> Float[Array, "*n T"]:
    r"""Token scores $\gamma_{it}=Y_i\,h(x_{it})$ (Definition 1 of Tarzanagh et al. 2023).

    **Returns:** `(n, T)`, or `(n, k, T)` for k outputs per sequence.
    """
    values = jax.vmap(jax.vmap(as_head(head)))(data.tokens)
    if data.single_query:
        return data.labels[:, None] * values
    return data.labels[:, :, None] * values[:, None, :]
