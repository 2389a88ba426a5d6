r"""One data point and two layers: what Theorems 3 and 5 of Yun, Krishnan, Mobahi (2021) share with other limits."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxflow._core import AbstractPrinted, linalg, require
from jaxflow.models import AbstractLinearNetwork, LinearTensorNetwork, as_tensor_network


class DataSingular(AbstractPrinted):
    r"""$\mathsf M(x)=U_1\mathrm{diag}(s)U_2^\top$ with s > 0 decreasing; `left` $U_1$, `values` s, `right` $U_2$."""

    left: Float[Array, "k1 m"]
    values: Float[Array, " m"]
    right: Float[Array, "k2 m"]


def data_singular(network: AbstractLinearNetwork, x: Float[Array, " d"]) -> tuple[LinearTensorNetwork, DataSingular]:
    """The network in tensor form and the singular value decomposition of its data tensor at x. L = 2."""
    tensor = as_tensor_network(network)
    require(tensor.depth == 2, "network", f"expected two layers, got {tensor.depth}")
    left, values, right = linalg.svd(tensor.at(x))
    return tensor, DataSingular(left, values, right.T)


def invert(s: Float[Array, " m"], plus: Float[Array, " m"], minus: Float[Array, " m"], y: Array) -> Float[Array, ""]:
    r"""ν with $\tfrac14\sum_js_j[p_j^2e^{2s_j\nu}-m_j^2e^{-2s_j\nu}]=y$, p = a + b and m = a − b, s of any signs.

    By bisection; the left side is increasing. Source: $g^{-1}$ of Theorem 5.
    """

    def g(nu: Array) -> Array:
        return jnp.sum(0.25 * s * (plus**2 * jnp.exp(2 * s * nu) - minus**2 * jnp.exp(-2 * s * nu))) - y

    # Exponents up to 700: beyond, the start is below 1e-150 of the target.
    widest = 350.0 / jnp.max(jnp.abs(s))

    def halve(_: Any, ends: tuple) -> tuple:
        low, high = ends
        middle = 0.5 * (low + high)
        above = g(middle) > 0
        return jnp.where(above, low, middle), jnp.where(above, middle, high)

    # To the roundings of a ν that is 1e-20 of the widest.
    low, high = jax.lax.fori_loop(0, 120, halve, (-widest, widest))
    return 0.5 * (low + high)
