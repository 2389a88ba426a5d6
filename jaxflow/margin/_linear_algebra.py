"""What the methods share: a step of interior points, small linear algebra, and a turn that a batch makes at need."""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from jaxflow._core import all_finite, linalg, positive_or_one

T = TypeVar("T")


def step_to_boundary(
    x: Float[Array, " m"], direction: Float[Array, " m"], where: Bool[Array, " m"]
) -> Float[Array, ""]:
    """The largest step (at most infinity) that keeps x + step·direction nonnegative on `where`."""
    shrinking = where & (direction < 0)
    ratio = -x / jnp.where(shrinking, direction, -1.0)
    return jnp.min(jnp.where(shrinking, ratio, jnp.inf), initial=jnp.inf)


def corrected_step(
    direction: Callable[[Float[Array, " m"]], tuple[Array, ...]], state: tuple[Array, ...], where: Bool[Array, " m"]
) -> tuple[tuple[Array, ...], Bool[Array, ""]]:
    r"""One step of Mehrotra's predictor-corrector (SIAM J. Optim. 2, 1992).

    **Arguments:** `state`: arrays of which the last two are λ and s, positive on `where`; `direction`: the changes of
    all that bring $s\,\Delta\lambda+\lambda\,\Delta s$ to a target and end the residuals of all other equations.

    **Returns:** the state after the step, and whether there was one: it stays where a change is not finite.
    """
    *_, weights, slack = state
    on = where.astype(weights.dtype)
    count = jnp.maximum(jnp.sum(on), 1.0)
    product = on * weights * slack
    mean = jnp.sum(product) / count

    def longest(changes: tuple[Array, ...]) -> Float[Array, ""]:
        ends = (step_to_boundary(x, dx, where) for x, dx in zip((weights, slack), changes[-2:], strict=True))
        return jnp.minimum(*ends)

    *_, change_weights, change_slack = changes = direction(-product)
    affine = jnp.minimum(1.0, longest(changes))
    left = jnp.sum(on * (weights + affine * change_weights) * (slack + affine * change_slack)) / count
    centre = mean * jnp.clip(left / positive_or_one(mean), 0.0, 1.0) ** 3
    changes = direction(on * centre - product - on * change_weights * change_slack)
    # The customary share of the way to the boundary.
    length = jnp.minimum(1.0, 0.995 * longest(changes))
    moved = jnp.isfinite(length) & (length > 0) & all_finite(changes)
    length, changes = jnp.where(moved, length, 0.0), jax.tree.map(lambda dx: jnp.where(moved, dx, 0.0), changes)
    return jax.tree.map(lambda x, dx: x + length * dx, state, changes), moved


def where_needed(needed: Bool[Array, ""], compute: Callable[[Bool[Array, ""]], T], otherwise: T) -> T:
    """`compute(needed)` where it is `needed`.

    A loop of at most one turn, not a branch: a batch of which no lane needs it makes none. What is to wait for the turn
    has to depend on the argument of `compute`: the compiler would compute the rest before the loop.
    """

    def turn(state: tuple[Array, T]) -> tuple[Array, T]:
        return jnp.asarray(False), compute(state[0])

    return lax.while_loop(lambda state: state[0], turn, (needed, otherwise))[1]


def scaled_cholesky(
    matrix: Float[Array, "m m"], regularisation: float
) -> tuple[Float[Array, "m m"], Float[Array, " m"]]:
    """The Cholesky factor of D K D + regularisation·I with D = diag(K)^(-1/2), and D."""
    diagonal = jnp.diagonal(matrix)
    scale = 1.0 / jnp.sqrt(positive_or_one(diagonal))
    identity = jnp.eye(matrix.shape[0], dtype=matrix.dtype)
    scaled = matrix * scale[:, None] * scale[None, :] + regularisation * identity
    return linalg.cholesky(scaled), scale


def refined_solve(
    matrix: Float[Array, "m m"],
    factor: Float[Array, "m m"],
    scale: Float[Array, " m"],
    right: Float[Array, " m"],
    refine: bool = True,
) -> Float[Array, " m"]:
    """Solves K x = right with the factor of `scaled_cholesky`, and one step of iterative refinement."""

    def apply(residual: Float[Array, " m"]) -> Float[Array, " m"]:
        return scale * linalg.cholesky_solve(factor, (scale * residual)[:, None])[:, 0]

    x = apply(right)
    return x + apply(right - matrix @ x) if refine else x
