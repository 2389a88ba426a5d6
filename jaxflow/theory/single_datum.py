r"""One data point and two layers: Theorems 3 and 5 of Yun, Krishnan, Mobahi (2021), for any linear tensor network."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxflow._core import checked, linalg, require
from jaxflow.models import AbstractLinearNetwork, LinearTensorNetwork, as_tensor_network, contract

# Singular values below this share of the largest are zero: rounding of the decomposition times the dimension.
NULL = 1e-13
# Singular values are tied with the largest from here on; a smaller gap separates only at ‖β‖ = e^(1/gap).
TIED = 1e-9
BISECTIONS = 120
NEWTON_STEPS = 4


class DataSingular(eqx.Module):
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


class PointLimit(eqx.Module):
    r"""Theorem 5: `layers` $(v_1^\infty,v_2^\infty)$, `coefficients` $\beta(\Theta^\infty)$.

    `push`: $g^{-1}(y/\alpha^2)$. `slack`: $\min_j[U_1^\top v_1]_j^2-[U_2^\top v_2]_j^2$ at the start, which the
    theorem wants positive.

    **Example:**

    ```python
    x, y = jnp.array([1.0, 0.5, 0.2]), jnp.asarray(1.0)
    found = jf.theory.point_limit(network, x, y)
    assert jnp.allclose(x @ found.coefficients, y)
    ```
    """

    layers: tuple[Float[Array, " k"], Float[Array, " l"]]
    coefficients: Float[Array, " d"]
    push: Float[Array, ""]
    slack: Float[Array, ""]


@checked()
def point_limit(network: AbstractLinearNetwork, x: Float[Array, " d"], y: Float[Array, ""]) -> PointLimit:
    r"""The limit of gradient flow on $\tfrac12(f(x)-y)^2$ from `network`, in closed form.

    With $a=U_1^\top v_1(0)$, $b=U_2^\top v_2(0)$ (the scale α is in them), ν solves
    $\sum_j\tfrac{s_j}4[(a_j+b_j)^2e^{2s_j\nu}-(a_j-b_j)^2e^{-2s_j\nu}]=y$, which is $g(\nu)=y/\alpha^2$ without its
    cancellation.

    Source: Theorem 5.

    **Example:**

    ```python
    x, y = jnp.array([1.0, 0.5, 0.2]), jnp.asarray(1.0)
    jf.theory.point_limit(network, x, y).coefficients
    ```
    """
    tensor, found = data_singular(network, x)
    v1, v2 = tensor.weights
    s = jnp.where(found.values > NULL * found.values[0], found.values, 0.0)
    a, b = found.left.T @ v1, found.right.T @ v2
    nu = invert(s, a + b, a - b, y)
    plus, minus = (a + b) * jnp.exp(s * nu), (a - b) * jnp.exp(-s * nu)
    first = v1 + found.left @ (0.5 * (plus + minus) - a)
    second = v2 + found.right @ (0.5 * (plus - minus) - b)
    slack = jnp.min(jnp.where(s > 0, a**2 - b**2, jnp.inf))
    return PointLimit((first, second), contract(tensor.data_tensor, (first, second)), nu, slack)


def invert(s: Float[Array, " m"], plus: Float[Array, " m"], minus: Float[Array, " m"], y: Array) -> Float[Array, ""]:
    r"""ν with $\tfrac14\sum_js_j[p_j^2e^{2s_j\nu}-m_j^2e^{-2s_j\nu}]=y$, p = a + b and m = a − b, s of any signs.

    Bisection on a bracket, then Newton's method; the left side is increasing. Source: $g^{-1}$ of Theorem 5.
    """

    def g(nu: Array) -> Array:
        return jnp.sum(0.25 * s * (plus**2 * jnp.exp(2 * s * nu) - minus**2 * jnp.exp(-2 * s * nu))) - y

    def slope(nu: Array) -> Array:
        return jnp.sum(0.5 * s**2 * (plus**2 * jnp.exp(2 * s * nu) + minus**2 * jnp.exp(-2 * s * nu)))

    # Exponents up to 700: beyond, the start is below 1e-150 of the target.
    widest = 350.0 / jnp.max(jnp.abs(s))

    def halve(_: Any, ends: tuple) -> tuple:
        low, high = ends
        middle = 0.5 * (low + high)
        above = g(middle) > 0
        return jnp.where(above, low, middle), jnp.where(above, middle, high)

    low, high = jax.lax.fori_loop(0, BISECTIONS, halve, (-widest, widest))
    return jax.lax.fori_loop(0, NEWTON_STEPS, lambda _, nu: nu - g(nu) / slope(nu), 0.5 * (low + high))


class DirectionLimit(eqx.Module):
    r"""Theorem 3: limit directions of both layers and of β.

    - `first`, `second`: unit $U_1\eta_1^\infty$, $U_2\eta_2^\infty$; where the largest singular value is `tied`, one of
      several solutions of the ℓ1 program, and the flow chooses by its start.
    - `coefficients`: unit direction of β; `rate`: $s_2/s_1-1$, the power of ‖β‖ with which the rest of ρ decays;
      layers and β, in which products of a first and a second component remain, converge with half of it.
    - `slack`: as in `PointLimit`.

    **Example:**

    ```python
    x, y = jnp.array([1.0, 0.5, 0.2]), jnp.asarray(1.0)
    found = jf.theory.direction_limit(network, x, y)
    found.coefficients, found.rate
    ```
    """

    first: Float[Array, " k"]
    second: Float[Array, " l"]
    coefficients: Float[Array, " d"]
    rate: Float[Array, ""]
    tied: Bool[Array, ""]
    slack: Float[Array, ""]


@checked()
def direction_limit(network: AbstractLinearNetwork, x: Float[Array, " d"], y: Float[Array, ""]) -> DirectionLimit:
    r"""The limit direction on one separable data point, y = ±1, from the data and the signs of the start.

    $\rho^\infty=y\,e_1/s_1$ minimises $\|\rho\|_1$ s.t. $ys^\top\rho\ge1$; $|\eta_1|=|\eta_2|=|\rho|^{1/2}$ and
    $\mathrm{sign}\,\eta_1=\mathrm{sign}(y)\,\mathrm{sign}\,\eta_2$. The sign that is left free is that of
    $[U_1^\top v_1(0)]_1$, which never changes.

    Source: Theorem 3; Corollary 4 for filters of length 1 and 2.

    **Example:**

    ```python
    x, y = jnp.array([1.0, 0.5, 0.2]), jnp.asarray(1.0)
    jf.theory.direction_limit(network, x, y).coefficients
    ```
    """
    tensor, found = data_singular(network, x)
    v1, v2 = tensor.weights
    s, a, b = found.values, found.left.T @ v1, found.right.T @ v2
    sign = jnp.where(a[0] < 0, -1.0, 1.0)
    first, second = sign * found.left[:, 0], sign * y * found.right[:, 0]
    beta = contract(tensor.data_tensor, (first, second))
    following = s[1] if s.shape[0] > 1 else jnp.zeros_like(s[0])
    return DirectionLimit(
        first=first,
        second=second,
        coefficients=beta / jnp.linalg.norm(beta),
        rate=following / s[0] - 1.0,
        tied=following > (1.0 - TIED) * s[0],
        slack=jnp.min(jnp.where(s > NULL * s[0], a**2 - b**2, jnp.inf)),
    )


@checked()
def filtered_direction(
    x: Float[Array, " d"], y: float | Float[Array, ""]
) -> tuple[Float[Array, " d"], Float[Array, ""]]:
    r"""Corollary 4, filters of length 2: $y(2x\pm(\overleftarrow x+\overrightarrow x))$, and $x^\top\overleftarrow x$.

    The sign is that of the autocorrelation $x^\top\overleftarrow x$; at zero the singular values tie and the corollary
    is silent. **Returns:** the unit direction and the autocorrelation.

    **Example:**

    ```python
    direction, correlation = jf.theory.filtered_direction(jnp.array([1.0, 0.5, 0.2]), 1.0)
    ```
    """
    left, right = jnp.roll(x, -1), jnp.roll(x, 1)
    correlation = x @ left
    direction = jnp.asarray(y) * (2 * x + jnp.where(correlation < 0, -1.0, 1.0) * (left + right))
    return direction / jnp.linalg.norm(direction), correlation
