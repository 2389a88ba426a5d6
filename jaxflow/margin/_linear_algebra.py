"""Small linear algebra that the interior-point methods share."""

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxflow._core import linalg, positive_or_one


def step_to_boundary(
    x: Float[Array, " m"], direction: Float[Array, " m"], where: Bool[Array, " m"]
) -> Float[Array, ""]:
    """The largest step (at most infinity) that keeps x + step·direction nonnegative on `where`."""
    shrinking = where & (direction < 0)
    ratio = -x / jnp.where(shrinking, direction, -1.0)
    return jnp.min(jnp.where(shrinking, ratio, jnp.inf), initial=jnp.inf)


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
    if not refine:
        return x
    return x + apply(right - matrix @ x)


def low_rank_solver(
    rows: Float[Array, "m d"], inner: Float[Array, " d"], outer: Float[Array, " m"], regularisation: float
) -> Callable[..., Float[Array, " m"]]:
    r"""Solves $(A\,\mathrm{diag}(D)A^\top+\mathrm{diag}(E))x=r$ for `m` > `d` by one factorisation of size d.

    With the Woodbury identity and $M=I+D^{1/2}A^\top E^{-1}AD^{1/2}$:
    $x=E^{-1}(r-AD^{1/2}M^{-1}D^{1/2}A^\top E^{-1}r)$. Where E is small the difference cancels; one step of
    iterative refinement brings back what it loses. E is raised by `regularisation` times the diagonal, as
    `scaled_cholesky` does.

    **Returns:** `solve(right, refine=True)`.
    """
    root = jnp.sqrt(inner)
    half = rows * root[None, :]
    raised = outer + regularisation * (outer + jnp.sum(half**2, axis=1))
    small = (half / raised[:, None]).T @ half + jnp.eye(rows.shape[1], dtype=rows.dtype)
    factor, scale = scaled_cholesky(small, 0.0)

    def apply(right: Float[Array, " m"]) -> Float[Array, " m"]:
        seen = half.T @ (right / raised)
        pulled = scale * linalg.cholesky_solve(factor, (scale * seen)[:, None])[:, 0]
        return (right - half @ pulled) / raised

    def solve(right: Float[Array, " m"], refine: bool = True) -> Float[Array, " m"]:
        x = apply(right)
        if not refine:
            return x
        return x + apply(right - half @ (half.T @ x) - outer * x)

    return solve
