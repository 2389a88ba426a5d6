r"""Programs in the nuclear norm, by an interior point on a reduced dual.

The dual of $\min\|W\|_*$ s.t. $\langle f_kg_k^\top,W\rangle\ge1$ is
$$\max_{\lambda\ge0}\sum_k\lambda_k\quad\text{s.t.}\quad C(\lambda)=I-M^\top M\succeq0,\qquad
M=\sum_k\lambda_kf_kg_k^\top .$$
Only $\langle f_k,f_l\rangle$ and the queries enter it, and the queries span q = min(n·k, d) dimensions (the
row space of the solution lies in their span: Lemma 1 of Tarzanagh et al. 2023), so that C is q×q whatever d
is. With a multiplier $Y\succeq0$ of the matrix constraint the primal is $W=2MY$ and the optimality
conditions are

$$\langle A_k,2MY\rangle-w_k=1,\qquad YC=\mu I,\qquad w_k\lambda_k=\mu .$$

Method: Newton steps on these with the HKM symmetrisation (Helmberg, Rendl, Vanderbei, Wolkowicz 1996) and
Mehrotra's predictor-corrector (`mehrotra`); the m×m Schur matrix is a sum of Hadamard products because the constraint
elements have rank one. Then the rank and the active set are fixed and the remaining equations are solved by
Newton's method (`nuclear_polish`).
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxflow._core import linalg
from jaxflow.margin._linear_algebra import refined_solve, scaled_cholesky
from jaxflow.margin.certificate import Solution
from jaxflow.margin.conclude import conclude, default_tolerance
from jaxflow.margin.mehrotra import AbstractGeometry, AbstractPlace, Constraints, Move, begin_at, follow
from jaxflow.margin.min_norm_point import START_TOLERANCE, interior_weights, min_norm_point
from jaxflow.margin.nuclear_polish import polish
from jaxflow.margin.program import AbstractProgram, Compact, RankOneRows

# Step lengths tried at once: eliminations tell which keep a matrix positive definite. They cost a fraction of the
# eigenvalues that the exact length needs, and cannot hang on NaN.
# They are closest near one, where the last digits are made: between 1 and 0.97 lies a factor of thirty in the gap.
STEPS = (1.0, 0.997, 0.985, 0.96, 0.92, 0.86, 0.78, 0.68, 0.56, 0.44, 0.33, 0.2, 0.08, 0.01)


class NuclearPoint(eqx.Module):
    """`weights` λ, multiplier `Y`, `steps` taken, and whether the interior point converged."""

    weights: Float[Array, " m"]
    Y: Float[Array, "q q"]
    steps: Int[Array, ""]
    converged: Bool[Array, ""]


def interior_point(
    cross: Float[Array, "m m"],
    queries: Float[Array, "m q"],
    inequality: Bool[Array, " m"],
    equality: Bool[Array, " m"],
    start: Float[Array, " m"],
    size: Float[Array, ""],
    skip: Bool[Array, ""],
    *,
    max_steps: int,
    tolerance: float,
) -> NuclearPoint:
    r"""Interior point on the reduced dual from λ ∝ `start`.

    **Arguments:** `cross`: $\langle f_k,f_l\rangle$; `queries`: $g_k$ in q coordinates; `size`: the scale of
    $\|W\|$; `skip`: do nothing (an infeasible program).
    """
    q = queries.shape[1]
    on = inequality.astype(queries.dtype)
    constraints = Constraints(inequality, equality, on)
    used = constraints.used
    geometry = _Matrices(jnp.where(used[:, None] & used[None, :], cross, 0.0), queries, used)
    norm = jnp.sqrt(jnp.trace(geometry.square(start)))
    weights = 0.7 * start / jnp.where(norm > 0, norm, 1.0)
    state = begin_at(weights, 0.5 * size * jnp.eye(q, dtype=queries.dtype), skip)
    end = follow(geometry, constraints, state, max_steps=max_steps, tolerance=tolerance)
    return NuclearPoint(end.weights, end.shares, end.steps, end.status == 1)


class _Matrices(AbstractGeometry):
    r"""The room $C(\lambda)=I-M^\top M$, a matrix, with the multiplier Y."""

    def __init__(self, cross: Array, queries: Array, used: Array):
        self.cross, self.queries, self.used = cross, queries, used
        self.size = queries.shape[1]

    def pushed(self, weights: Array) -> Array:
        """⟨f, f⟩(λ∘g): rows $h_k=M^\\top f_k$."""
        return self.cross @ (weights[:, None] * self.queries)

    def square(self, weights: Array) -> Array:
        """MᵀM = (λ∘g)ᵀ⟨f, f⟩(λ∘g)."""
        return (weights[:, None] * self.queries).T @ self.pushed(weights)

    def at(self, weights: Array, shares: Array, outer: Array) -> "_MatrixPlace":
        return _MatrixPlace(self, weights, shares, outer)

    def finish(self, weights: Array, shares: Array) -> tuple[Array, Array]:
        H = self.pushed(weights)
        square = (weights[:, None] * self.queries).T @ H
        left = jnp.sum(shares * (jnp.eye(self.size, dtype=square.dtype) - square))
        return left, 2 * jnp.sum((H @ shares) * self.queries, axis=1)


class _MatrixPlace(AbstractPlace):
    """HKM symmetrisation; the Schur matrix is a sum of Hadamard products."""

    def __init__(self, geometry: _Matrices, weights: Array, Y: Array, outer: Array):
        queries, cross, used = geometry.queries, geometry.cross, geometry.used
        eye = jnp.eye(geometry.size, dtype=queries.dtype)
        self.geometry, self.weights, self.Y = geometry, weights, Y
        self.H = H = geometry.pushed(weights)
        C = eye - (weights[:, None] * queries).T @ H
        self.C = C = 0.5 * (C + C.T)
        half = linalg.lower_solve(linalg.cholesky(C), eye)
        self.P = P = half.T @ half
        GY, HY, GP, HP = queries @ Y, H @ Y, queries @ P, H @ P
        gYg, gYh, hYh = GY @ queries.T, GY @ H.T, HY @ H.T
        gPg, gPh, hPh = GP @ queries.T, GP @ H.T, HP @ H.T
        schur = 2 * cross * gYg + gYh * gPh.T + gYg * hPh + hYh * gPg + gYh.T * gPh
        schur = jnp.where(used[:, None] & used[None, :], schur, 0.0)
        self.schur = schur + jnp.diag(outer)
        self.factor, self.scale = scaled_cholesky(self.schur, 10 * float(jnp.finfo(queries.dtype).eps))

    def product(self) -> Array:
        return jnp.sum(self.Y * self.C)

    def known(self, centre: Array, correction: Array) -> Array:
        matrix = centre * self.P - self._turned(correction)
        # ⟨D_k, Z⟩ = 2 h_kᵀ Z g_k for symmetric Z.
        return 2 * jnp.sum((self.H @ matrix) * self.geometry.queries, axis=1)

    def solve(self, right: Array, refine: bool) -> Array:
        return refined_solve(self.schur, self.factor, self.scale, right, refine)

    def move(self, change: Array, centre: Array, correction: Array) -> Move:
        queries = self.geometry.queries
        pushed = self.geometry.pushed(change)
        mixed = (self.weights[:, None] * queries).T @ pushed
        change_C = -(mixed + mixed.T)
        square = (change[:, None] * queries).T @ pushed
        turned = self.Y @ change_C @ self.P
        change_Y = centre * self.P - self.Y - 0.5 * (turned + turned.T) - self._turned(correction)
        return Move(change, change_Y, (change_C, square, pushed))

    def longest(self, move: Move) -> Array:
        change_C, square, _ = move.more
        grid = jnp.asarray(STEPS, self.Y.dtype)
        alpha = grid[:, None, None]
        trial_Y = self.Y[None] + alpha * move.shares[None]
        trial_C = self.C[None] + alpha * change_C[None] - alpha**2 * square[None]
        fine = jax.vmap(linalg.definite)(trial_Y) & jax.vmap(linalg.definite)(trial_C)
        return jnp.max(jnp.where(fine, grid, 0.0))

    def product_after(self, move: Move, step: Array) -> Array:
        change_C, square, _ = move.more
        return jnp.sum((self.Y + step * move.shares) * (self.C + step * change_C - step**2 * square))

    def centring(self, ratio: Array, affine: Array) -> Array:
        return jnp.clip(ratio ** jnp.maximum(1.0, 3 * affine**2), 1e-6, 1.0)

    def second_order(self, move: Move) -> tuple[Array, Array]:
        change_C, square, pushed = move.more
        second = 2 * jnp.sum((pushed @ move.shares) * self.geometry.queries, axis=1)
        return move.shares @ change_C - self.Y @ square, second

    def _turned(self, correction: Array) -> Array:
        skewed = correction @ self.P
        return 0.5 * (skewed + skewed.T)


def solve_convex(compact: Compact, max_steps: int) -> tuple[NuclearPoint, NuclearPoint, Float[Array, "d q"]]:
    """The interior point and its polish, in the reduced coordinates of the basis returned with them.

    An infeasible program is not attempted: its weights are the Farkas ray, Y is zero.
    """
    rows = compact.rows
    assert isinstance(rows, RankOneRows)
    start = min_norm_point(rows, compact.inequality, compact.equality, tolerance=START_TOLERANCE)
    squared = jnp.sum(rows.combine(start.weights) ** 2)
    reduced, basis = reduce_queries(rows.right)
    queries = rows.repeat(reduced)
    size = 1.0 / jnp.sqrt(jnp.where(squared > 0, squared, 1.0))
    cross = rows.left @ rows.left.T
    skip = start.zero | ~jnp.any(compact.inequality)
    point = interior_point(
        cross,
        queries,
        compact.inequality,
        compact.equality,
        interior_weights(rows, start, compact.inequality, compact.equality),
        size,
        skip,
        max_steps=max_steps,
        tolerance=default_tolerance(cross.dtype, 4.5e4),
    )
    weights, Y = jnp.where(skip, start.weights, point.weights), jnp.where(skip, 0.0, point.Y)
    steps, converged = start.steps + point.steps, point.converged | skip
    better = polish(cross, queries, compact.inequality, compact.equality, weights, Y)
    return NuclearPoint(weights, Y, steps, converged), NuclearPoint(*better, steps, converged), basis


def solve_nuclear(program: AbstractProgram, tolerance: float | None, max_steps: int | None) -> Solution:
    r"""$\min\|W\|_*$ without a rank bound. Default tolerance: gap 1e-10 in float64."""
    compact = program.compact()
    tolerance = default_tolerance(compact.targets.dtype, 4.5e5) if tolerance is None else tolerance
    max_steps = 50 if max_steps is None else max_steps
    point, polished, basis = solve_convex(compact, max_steps)
    return conclude(
        program,
        compact,
        [(primal_of(compact, each, basis), each.weights) for each in (point, polished)],
        steps=point.steps,
        spent=~point.converged & (point.steps >= max_steps),
        tolerance=tolerance,
    )


def primal_of(compact: Compact, point: NuclearPoint, basis: Float[Array, "d q"]) -> Float[Array, "d d"]:
    """W = 2 M(λ) Y in the original coordinates."""
    rows = compact.rows
    assert isinstance(rows, RankOneRows)
    return 2 * (rows.combine(point.weights) @ basis @ point.Y) @ basis.T


def reduce_queries(
    queries: Float[Array, "outputs d"],
) -> tuple[Float[Array, "outputs q"], Float[Array, "d q"]]:
    """Coordinates of the queries in an orthonormal basis of their span, where that is smaller than d."""
    outputs, d = queries.shape
    if outputs >= d:
        return queries, jnp.eye(d, dtype=queries.dtype)
    basis, triangle = linalg.qr(queries.T)
    return triangle.T, basis
