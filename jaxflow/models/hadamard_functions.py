r"""Functions $h(x;a)$ of products of weights: Example 3.2 of Boix-Adserà et al. (2023), and linear networks.

The converted text of the paper prints $W_O$ as $W_Q$ in places: the products of an attention layer are
$a=(w_K\odot w_Q,\ w_V\odot w_O)$.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from jaxflow._core import AbstractPrinted, checked, normal, require


class DiagonalLinear(AbstractPrinted):
    r"""$h(x;a)=\langle a,x\rangle$, a linear diagonal network of two layers (footnote 2)."""

    def __call__(self, x: Float[Array, " p"], a: Float[Array, " p"]) -> Float[Array, ""]:
        return jnp.dot(x, a)


class DiagonalHead(AbstractPrinted):
    r"""One attention head with diagonal weights, equation (1): `(T, d)` to `(T, d)`, p = 2d products.

    $h(X;a)=\mathrm{smax}(X\,\mathrm{diag}(a_{KQ})X^\top)X\,\mathrm{diag}(a_{VO})$ with $a=(a_{KQ},a_{VO})$. At a = 0
    the gradient for $a_{KQ}$ is exactly zero (the output does not depend on it), so that the first coordinate
    to be learned is one of $a_{VO}$.
    """

    def __call__(self, x: Float[Array, "T d"], a: Float[Array, " p"]) -> Float[Array, "T d"]:
        return attend(x, a)

    @staticmethod
    def size(d: int) -> int:
        """p for tokens of dimension d."""
        return 2 * d


class DiagonalTransformer(AbstractPrinted):
    r"""The transformer with diagonal attention weights of Example 3.2: L layers of H heads, p = 2dHL products.

    $\tilde Z_\ell=Z_{\ell-1}+\sum_i\mathrm{attention}(Z_{\ell-1};a^{\ell,i})$ and
    $Z_\ell=\tilde Z_\ell+\sigma(\tilde Z_\ell W_A^\ell)(W_B^\ell)^\top$ with σ = GELU and fixed
    $W_A^\ell,W_B^\ell$ `(L, d, m)`. Products are ordered by layer, then head, then (KQ, VO).
    """

    A: Float[Array, "L d m"]
    B: Float[Array, "L d m"]
    heads: int = eqx.field(static=True)

    def __check_init__(self) -> None:
        require(self.heads >= 1, "heads", f"expected at least 1, got {self.heads}")
        require(self.B.shape == self.A.shape, "B", f"expected A's shape {self.A.shape}, got {self.B.shape}")

    @classmethod
    @checked(least={"d": 1, "layers": 1, "heads": 1, "m": 1})
    def init(cls, key: Key[Array, ""], d: int, layers: int, heads: int, m: int) -> "DiagonalTransformer":
        r"""Feedforward weights Gaussian with variance $1/d$ ($A$) and $1/m$ ($B$)."""
        A, B = normal(key, (2, layers, d, m))
        return cls(A / jnp.sqrt(d), B / jnp.sqrt(m), heads)

    def size(self, d: int) -> int:
        """p for tokens of dimension d."""
        return 2 * d * self.heads * self.A.shape[0]

    def __call__(self, x: Float[Array, "T d"], a: Float[Array, " p"]) -> Float[Array, "T d"]:
        layers, d, _ = self.A.shape
        products = a.reshape(layers, self.heads, 2 * d)
        for layer in range(layers):
            heads = jax.vmap(attend, in_axes=(None, 0))(x, products[layer])
            x = x + jnp.sum(heads, axis=0)
            # The exact GELU; the approximation by tanh is as smooth, but another function.
            x = x + jax.nn.gelu(x @ self.A[layer], approximate=False) @ self.B[layer].T
        return x


def attend(x: Float[Array, "T d"], a: Float[Array, " p"]) -> Float[Array, "T d"]:
    """Equation (1) with diagonal weights."""
    logits_by, values_by = jnp.split(a, 2)
    # As a product of two matrices: as a contraction of three its derivative costs twice as much (measured).
    attention = jax.nn.softmax((x * logits_by[None, :]) @ x.T, axis=-1)
    return (attention @ x) * values_by[None, :]
