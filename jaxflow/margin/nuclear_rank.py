r"""The nuclear norm under a rank bound m < d: (Att-SVM$_\star$) as it is for K, Q with m columns.

$$\min_{K,Q\in\mathbb R^{d\times m}}\tfrac12(\|K\|_F^2+\|Q\|_F^2)\quad\text{s.t.}\quad
\langle f_kg_k^\top,KQ^\top\rangle\ge1 .$$

Where the convex solution has rank at most m it is the global optimum (always if m >= n: Lemma 1 of Tarzanagh et al.
2023). Otherwise the program is not convex. Method: from several starts, alternating minimisation (with Q fixed the best
K is a min-norm point in the coordinates $Q^\top g_k$, and the other way round), then Newton's method on the KKT
conditions $K=MQ,\ Q=M^\top K$ and equal margins. The result is a stationary point with its KKT residual; it is known to
be global only where the duality gap closes. `failed` means that no start met the constraints, which does not prove that
none can.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jaxflow._core import checked, linalg
from jaxflow.margin.certificate import Solution
from jaxflow.margin.conclude import conclude_stationary
from jaxflow.margin.matrix_room import RankOneRoom
from jaxflow.margin.mehrotra import MAX_STEPS, Constraints
from jaxflow.margin.min_norm_point import min_norm_point
from jaxflow.margin.norms import RANK_TOLERANCE
from jaxflow.margin.nuclear import solve_convex
from jaxflow.margin.nuclear_polish import polish
from jaxflow.margin.program import AbstractProgram, Compact, RankOneRows

# Alternations converge linearly; Newton's method takes over once the active set has settled.
ALTERNATIONS = 60


def solve_nuclear_rank(
    program: AbstractProgram, compact: Compact, rank: int, tolerance: float, max_steps: int | None, starts: int
) -> Solution:
    """The convex solution where it satisfies the bound, else the best stationary point of `starts` starts."""
    rows = compact.rows
    assert isinstance(rows, RankOneRows)
    dtype = compact.targets.dtype
    # The convex solution as 2 M(λ) Y in the reduced coordinates, its factors by eigenvectors of Y.
    _, convex, basis = solve_convex(compact, MAX_STEPS if max_steps is None else max_steps)
    reduced = rows.right @ basis
    q = reduced.shape[1]
    m = min(rank, q, rows.left.shape[1])
    values, vectors = linalg.eigh(convex.shares)
    top = vectors[:, ::-1][:, :m] * jnp.sqrt(jnp.maximum(2 * values[::-1][:m], 0.0))[None, :]
    queries = rows.repeat(reduced)
    constraints = Constraints(compact.inequality, compact.equality, compact.targets)
    room = RankOneRoom(rows.left @ rows.left.T, queries, constraints.used, True)
    M = rows.left.T @ (convex.weights[:, None] * queries)
    truncated = M @ top @ top.T

    size = jnp.sqrt(jnp.sum(top**2) / top.size)
    noise = jax.random.normal(jax.random.key(0), (starts, q, m), dtype)
    # After the first the random part of a start is as large as the other.
    first = top[None] + size * noise.at[0].set(0.0)

    def point(left: Array, right: Array) -> tuple[Array, Array]:
        """The least-norm primal at margin one for rank-one rows, zero where there is none, and its
        weights."""
        smaller = RankOneRows(left, right)
        found = min_norm_point(replace(compact, rows=smaller), polish=False)
        primal = smaller.combine(found.weights)
        seen = jnp.where(compact.inequality, smaller.values(primal), jnp.inf)
        margin = jnp.min(seen, initial=jnp.inf)
        fine = ~found.zero & (margin > 0) & jnp.isfinite(margin)
        scale = jnp.where(fine, 1.0 / jnp.where(fine, margin, 1.0), 0.0)
        return scale * primal, scale * found.weights

    def balance(one: Array, other: Array) -> Array:
        """What makes the norms of both the geometric mean: at a stationary point they agree."""
        sizes = jnp.linalg.norm(one), jnp.linalg.norm(other)
        both = (sizes[0] > 0) & (sizes[1] > 0)
        return jnp.where(both, jnp.sqrt(sizes[0] / jnp.where(both, sizes[1], 1.0)), 1.0)

    def alternate(state: tuple, _: object) -> tuple[tuple, None]:
        Q = state[0]
        K = point(rows.left, reduced @ Q)[0]
        K = K * balance(Q, K)
        transposed, weights = point(rows.left @ K, reduced)
        return (transposed.T, K, weights), None

    def descend(Q: Float[Array, "q m"]) -> tuple[Array, Array]:
        start = (Q, jnp.zeros((rows.left.shape[1], m), dtype), jnp.zeros_like(convex.weights))
        (Q, K, weights), _ = lax.scan(alternate, start, None, length=ALTERNATIONS)
        ratio = balance(K, Q)
        # With Q = M⊤K from the last half step; after balancing the multipliers scale with it.
        Q, K, weights = Q * ratio, K / ratio, weights * ratio**2
        steps = linalg.doublings(dtype)
        better, Y, _ = polish(room, constraints, weights, 0.5 * Q @ Q.T, singular=True, rank=m, steps=steps)
        return jnp.stack([K @ Q.T, 2 * rows.left.T @ (better[:, None] * queries) @ Y]), jnp.stack([weights, better])

    primals, weights = jax.vmap(descend)(first)
    primals = jnp.concatenate([truncated[None], primals.reshape(-1, *truncated.shape)])
    weights = jnp.concatenate([convex.weights[None], weights.reshape(-1, weights.shape[-1])])
    return conclude_stationary(
        program,
        compact,
        jnp.where(jnp.isfinite(primals), primals, 0.0) @ basis.T,
        jnp.where(jnp.isfinite(weights), weights, 0.0),
        trivial=~jnp.any(compact.inequality),
        steps=convex.steps,
        tolerance=tolerance,
    )


@checked(positive=["tolerance"])
def numerical_rank(primal: Float[Array, "p q"], tolerance: float = RANK_TOLERANCE) -> Int[Array, ""]:
    """The number of singular values above `tolerance` times the largest; 0 for the zero matrix.

    Lemma 1 of Tarzanagh et al. (2023): at most min(n, d) for solutions of (Att-SVM) and (Att-SVM*).
    """
    # LAPACK may hang on NaN.
    finite = jnp.all(jnp.isfinite(primal))
    values = linalg.singular_values(jnp.where(finite, primal, 0.0))
    return jnp.sum((values > tolerance * values[0]) & (values > 0))
