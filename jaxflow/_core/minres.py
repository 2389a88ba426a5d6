"""MINRES, for symmetric systems that are neither definite nor worth a matrix. Lineax has no such method."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PyTree


def minres(
    product: Callable[[PyTree], PyTree],
    right: PyTree,
    *,
    rtol: float | Float[Array, ""],
    atol: float | Float[Array, ""] = 0.0,
    max_steps: int | Int[Array, ""],
) -> tuple[PyTree, Int[Array, ""]]:
    r"""Solves Kx = b for a symmetric K that is known by its products, as exactly as asked for or as `max_steps` allow.

    The method of Paige and Saunders (1975): of all x in the span of $b,Kb,K^2b,\dots$ the one with the least
    $\|b-Kx\|$, from the recurrence of Lanczos, with a QR factorisation by Givens rotations.

    **Arguments:** `product`: from x to Kx, pytrees of one structure. It ends at $\|b-Kx\|\le$ max(`rtol` ‖b‖, `atol`),
    after an even number of products.

    **Returns:** x and the number of products.
    """
    b, unravel = ravel_pytree(right)
    size = jnp.linalg.norm(b)
    zero, none, one = jnp.zeros_like(b), jnp.zeros_like(size), jnp.ones_like(size)
    asked = jnp.maximum(rtol * size, atol)

    def over(x: Array, y: Array) -> Array:
        return x / jnp.where(y > 0, y, 1.0)

    def going(carry: Any) -> Array:
        *_, residual, count = carry
        return (count < max_steps) & (jnp.abs(residual) > asked)

    def body(carry: Any) -> Any:
        # Of Lanczos vectors v, their search directions w and rotations, the last two of each.
        x, (v_old, v), (w_old, w), beta, (c_old, c), (s_old, s), residual, count = carry
        image = ravel_pytree(product(unravel(v)))[0]
        alpha = jnp.dot(v, image)
        image = image - alpha * v - beta * v_old
        following = jnp.linalg.norm(image)
        # The new column of the tridiagonal matrix, rotated: two entries above the diagonal, and the diagonal.
        above, upper = s_old * beta, s * alpha + c_old * c * beta
        diagonal = c * alpha - c_old * s * beta
        length = jnp.hypot(diagonal, following)
        turn = over(diagonal, length), over(following, length)
        direction = over(v - above * w_old - upper * w, length)
        x = x + turn[0] * residual * direction
        pairs = (v, over(image, following)), (w, direction)
        return x, *pairs, following, (c, turn[0]), (s, turn[1]), -turn[1] * residual, count + 1

    begun = (zero, (zero, over(b, size)), (zero, zero), none, (one, one), (none, none), size, jnp.zeros((), int))
    # Two at a time: the second of two pairs is written where the first was, and no vector is copied.
    x, *_, count = lax.while_loop(going, lambda carry: body(body(carry)), begun)
    return unravel(x), count
