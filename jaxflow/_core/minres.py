"""MINRES, for symmetric systems that are neither definite nor worth a matrix. Lineax has no such method."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, PyTree

from jaxflow._core.trees import tree_dot, tree_norm, tree_scale


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
    size = tree_norm(right)
    none, one = jnp.zeros_like(size), jnp.ones_like(size)
    asked = jnp.maximum(rtol * size, atol)

    def inverse(y: Array) -> Array:
        return jnp.where(y > 0, 1.0 / jnp.where(y > 0, y, 1.0), 0.0)

    def going(carry: Any) -> Array:
        *_, residual, count = carry
        return (count < max_steps) & (jnp.abs(residual) > asked)

    def step(carry: Any) -> Any:
        # Of Lanczos vectors v, their search directions w, what x takes of these and rotations, the last two of each.
        (v_old, v), (w_old, w), (_, part), beta, (c_old, c), (s_old, s), residual, count = carry
        image = product(v)
        alpha = tree_dot(v, image)
        image = jax.tree.map(lambda y, v, v_old: y - alpha * v - beta * v_old, image, v, v_old)
        following = tree_norm(image)
        # The new column of the tridiagonal matrix, rotated: two entries above the diagonal, and the diagonal.
        above, upper = s_old * beta, s * alpha + c_old * c * beta
        diagonal = c * alpha - c_old * s * beta
        share = inverse(jnp.hypot(diagonal, following))
        cosine, sine = share * diagonal, share * following
        direction = jax.tree.map(lambda v, w_old, w: share * (v - above * w_old - upper * w), v, w_old, w)
        pairs = (v, tree_scale(inverse(following), image)), (w, direction), (part, cosine * residual)
        return *pairs, following, (c, cosine), (s, sine), -sine * residual, count + 1

    def moved(x: PyTree, carry: Any) -> PyTree:
        _, (w_old, w), (part_old, part), *_ = carry
        return jax.tree.map(lambda x, w_old, w: x + part_old * w_old + part * w, x, w_old, w)

    def body(carry: Any) -> Any:
        # Two steps a turn: the second of two pairs is written where the first was. x takes the two directions of the
        # turn before, which are in memory: XLA would form those of this turn once more for it.
        x, *lanczos = carry
        return moved(x, lanczos), *step(step(lanczos))

    # A vector stays in its leaves: XLA takes three times as long for what it joins.
    zero = jax.tree.map(jnp.zeros_like, right)
    pairs = (zero, tree_scale(inverse(size), right)), (zero, zero), (none, none)
    begun = zero, *pairs, none, (one, one), (none, none), size, jnp.zeros((), int)
    x, *lanczos = lax.while_loop(going, body, begun)
    return moved(x, lanczos), lanczos[-1]
