r"""Limits on one data point by two layers in closed form: Theorems 3 and 5, Corollary 4 of Yun et al. (2021)."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxflow._core import checked
from jaxflow._core.linalg import ROUNDED
from jaxflow.models import AbstractLinearNetwork, contract
from jaxflow.papers.table import Table
from jaxflow.theory.pairs import data_singular, invert


@checked()
def point_limit(network: AbstractLinearNetwork, x: Float[Array, " d"], y: Float[Array, ""]) -> Table:
    r"""The limit of gradient flow on $\tfrac12(f(x)-y)^2$ from `network`, in closed form.

    With $a=U_1^\top v_1(0)$, $b=U_2^\top v_2(0)$ (the scale α is in them), ν solves
    $\sum_j\tfrac{s_j}4[(a_j+b_j)^2e^{2s_j\nu}-(a_j-b_j)^2e^{-2s_j\nu}]=y$, which is $g(\nu)=y/\alpha^2$ without its
    cancellation.

    **Returns:** `layers` $(v_1^\infty,v_2^\infty)$, `coefficients` $\beta(\Theta^\infty)$, and `slack`:
    $\min_j[U_1^\top v_1]_j^2-[U_2^\top v_2]_j^2$ at the start, which the theorem wants positive.

    Source: Theorem 5.
    """
    tensor, found = data_singular(network, x)
    v1, v2 = tensor.weights
    s = jnp.where(found.values > ROUNDED * found.values[0], found.values, 0.0)
    a, b = found.left.T @ v1, found.right.T @ v2
    nu = invert(s, a + b, a - b, y)
    plus, minus = (a + b) * jnp.exp(s * nu), (a - b) * jnp.exp(-s * nu)
    first = v1 + found.left @ (0.5 * (plus + minus) - a)
    second = v2 + found.right @ (0.5 * (plus - minus) - b)
    slack = jnp.min(jnp.where(s > 0, a**2 - b**2, jnp.inf))
    layers = (first, second)
    return Table(layers=layers, coefficients=contract(tensor.data_tensor, layers), slack=slack)


@checked()
def direction_limit(network: AbstractLinearNetwork, x: Float[Array, " d"], y: Float[Array, ""]) -> Table:
    r"""The limit direction on one separable data point, y = ±1, from the data and the signs of the start.

    $\rho^\infty=y\,e_1/s_1$ minimises $\|\rho\|_1$ s.t. $ys^\top\rho\ge1$; $|\eta_1|=|\eta_2|=|\rho|^{1/2}$ and
    $\mathrm{sign}\,\eta_1=\mathrm{sign}(y)\,\mathrm{sign}\,\eta_2$. The sign that is left free is that of
    $[U_1^\top v_1(0)]_1$, which never changes.

    - `first`, `second`: unit $U_1\eta_1^\infty$, $U_2\eta_2^\infty$; where the largest singular value is `tied`, one
      of several solutions of the ℓ1 program, and the flow chooses by its start.
    - `coefficients`: unit direction of β; `rate`: $s_2/s_1-1$, the power of ‖β‖ with which the rest of ρ decays;
      layers and β, in which products of a first and a second component remain, converge with half of it.
    - `slack`: as of `point_limit`.

    Source: Theorem 3; Corollary 4 for filters of length 1 and 2.
    """
    tensor, found = data_singular(network, x)
    v1, v2 = tensor.weights
    s, a, b = found.values, found.left.T @ v1, found.right.T @ v2
    sign = jnp.where(a[0] < 0, -1.0, 1.0)
    first, second = sign * found.left[:, 0], sign * y * found.right[:, 0]
    beta = contract(tensor.data_tensor, (first, second))
    following = s[1] if s.shape[0] > 1 else jnp.zeros_like(s[0])
    return Table(
        first=first,
        second=second,
        coefficients=beta / jnp.linalg.norm(beta),
        rate=following / s[0] - 1.0,
        tied=following > (1.0 - ROUNDED) * s[0],
        slack=jnp.min(jnp.where(s > ROUNDED * s[0], a**2 - b**2, jnp.inf)),
    )


@checked()
def filtered_direction(
    x: Float[Array, " d"], y: float | Float[Array, ""]
) -> tuple[Float[Array, " d"], Float[Array, ""]]:
    r"""Corollary 4, filters of length 2: $y(2x\pm(\overleftarrow x+\overrightarrow x))$, and $x^\top\overleftarrow x$.

    The sign is that of the autocorrelation $x^\top\overleftarrow x$; at zero the singular values tie and the corollary
    is silent. **Returns:** the unit direction and the autocorrelation.
    """
    left, right = jnp.roll(x, -1), jnp.roll(x, 1)
    correlation = x @ left
    direction = jnp.asarray(y) * (2 * x + jnp.where(correlation < 0, -1.0, 1.0) * (left + right))
    return direction / jnp.linalg.norm(direction), correlation
