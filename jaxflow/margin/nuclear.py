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
Mehrotra's predictor-corrector; the m×m Schur matrix is a sum of Hadamard products because the constraint
elements have rank one. Then the rank and the active set are fixed and the remaining equations are solved by
Newton's method (`nuclear_polish`).
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxflow._core import linalg
from jaxflow.margin._linear_algebra import refined_solve, scaled_cholesky, step_to_boundary
from jaxflow.margin.certificate import Solution
from jaxflow.margin.conclude import conclude, default_tolerance
from jaxflow.margin.min_norm_point import START_TOLERANCE, min_norm_point
from jaxflow.margin.nuclear_polish import polish
from jaxflow.margin.program import AbstractProgram, Compact, RankOneRows

# Step lengths tried at once: eliminations tell which keep a matrix positive definite. They cost a fraction of the
# eigenvalues that the exact length needs, and cannot hang on NaN.
STEPS = (1.0, 0.97, 0.93, 0.88, 0.82, 0.75, 0.66, 0.55, 0.44, 0.33, 0.22, 0.12, 0.05, 0.01)


# Violated constraints, in units of the tolerance, at which the interior point may stop. Scaling repairs
# margins, so that their violation only adds to the certified gap; equalities it cannot repair.
MARGIN_RESIDUAL, EQUALITY_RESIDUAL = 1e3, 10.0


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
    size: Float[Array, ""],
    skip: Bool[Array, ""],
    *,
    max_steps: int,
    tolerance: float,
) -> NuclearPoint:
    r"""Interior point on the reduced dual.

    **Arguments:** `cross`: $\langle f_k,f_l\rangle$; `queries`: $g_k$ in q coordinates; `size`: the scale of
    $\|W\|$; `skip`: do nothing (an infeasible program).
    """
    m, q = queries.shape
    dtype = queries.dtype
    eps = float(jnp.finfo(dtype).eps)
    on = inequality.astype(dtype)
    used = inequality | equality
    allowed = jnp.where(jnp.any(equality), EQUALITY_RESIDUAL, MARGIN_RESIDUAL)
    count = jnp.sum(on) + q
    eye = jnp.eye(q, dtype=dtype)
    cross = jnp.where(used[:, None] & used[None, :], cross, 0.0)
    grid = jnp.asarray(STEPS, dtype)

    def constraint(pushed: Array, weights: Array) -> Array:
        """M⊤M from h-free data: (λ∘g)⊤ ⟨f,f⟩ (λ∘g); `pushed` is ⟨f,f⟩(λ∘g)."""
        return (weights[:, None] * queries).T @ pushed

    start = on
    first = constraint(cross @ (start[:, None] * queries), start)
    norm = jnp.sqrt(jnp.trace(first))
    weights = start * 0.7 / jnp.where(norm > 0, norm, 1.0)
    state = (jnp.zeros((), int), weights, 0.5 * size * eye, jnp.ones((m,), dtype), jnp.where(skip, 1, 0))

    def body(state: tuple) -> tuple:
        step, weights, Y, slack, _ = state
        H = cross @ (weights[:, None] * queries)  # rows h_k = M⊤ f_k
        C = eye - constraint(H, weights)
        C = 0.5 * (C + C.T)
        factor_C = linalg.cholesky(C)
        half = linalg.lower_solve(factor_C, eye)
        P = half.T @ half
        divisor = jnp.where(inequality, weights, 1.0)
        mean = (jnp.sum(Y * C) + jnp.sum(on * slack * weights)) / count

        GY, HY, GP, HP = queries @ Y, H @ Y, queries @ P, H @ P
        gYg, gYh, hYh = GY @ queries.T, GY @ H.T, HY @ H.T
        gPg, gPh, hPh = GP @ queries.T, GP @ H.T, HP @ H.T
        schur = 2 * cross * gYg + gYh * gPh.T + gYg * hPh + hYh * gPg + gYh.T * gPh
        schur = jnp.where(used[:, None] & used[None, :], schur, 0.0)
        schur = schur + jnp.diag(jnp.where(inequality, slack / divisor, jnp.where(used, 0.0, 1.0)))
        factor, scale = scaled_cholesky(schur, 10 * eps)

        def pair(matrix: Array) -> Array:
            """⟨D_k, Z⟩ = 2 h_k⊤ Z g_k for symmetric Z."""
            return 2 * jnp.sum((H @ matrix) * queries, axis=1)

        def direction(centre: Array, correction: Array, second: Array, product: Array, refine: bool = True) -> tuple:
            """Newton direction to complementarity `centre`, with the second-order terms given."""
            skewed = correction @ P
            known = 0.5 * (skewed + skewed.T)
            right = on - second - pair(centre * P - known) + on * (centre - product) / divisor
            change = refined_solve(schur, factor, scale, jnp.where(used, right, 0.0), refine)
            pushed = cross @ (change[:, None] * queries)
            mixed = (weights[:, None] * queries).T @ pushed
            change_C = -(mixed + mixed.T)
            square = constraint(pushed, change)
            turned = Y @ change_C @ P
            change_Y = centre * P - Y - 0.5 * (turned + turned.T) - known
            change_slack = on * ((centre - product - slack * change) / divisor - slack)
            return change, change_Y, change_slack, change_C, square, pushed

        def longest(move: tuple) -> Array:
            change, change_Y, change_slack, change_C, square, _ = move
            alpha = grid[:, None, None]
            trial_Y = Y[None] + alpha * change_Y[None]
            trial_C = C[None] + alpha * change_C[None] - alpha**2 * square[None]
            fine = jax.vmap(linalg.definite)(trial_Y) & jax.vmap(linalg.definite)(trial_C)
            matrices = jnp.max(jnp.where(fine, grid, 0.0))
            to_weights = step_to_boundary(weights, change, inequality)
            to_slack = step_to_boundary(slack, change_slack, inequality)
            return jnp.minimum(matrices, jnp.minimum(to_weights, to_slack))

        nothing = jnp.zeros_like(C)
        zero = jnp.zeros((), dtype)
        move = direction(zero, nothing, jnp.zeros_like(weights), jnp.zeros_like(weights), refine=False)
        affine = longest(move)
        change, change_Y, change_slack, change_C, square, pushed = move
        next_C = C + affine * change_C - affine**2 * square
        reached = jnp.sum((Y + affine * change_Y) * next_C)
        reached += jnp.sum(on * (slack + affine * change_slack) * (weights + affine * change))
        ratio = jnp.clip(reached / count / jnp.where(mean > 0, mean, 1.0), 0.0, 1.0)
        centre = mean * jnp.clip(ratio ** jnp.maximum(1.0, 3 * affine**2), 1e-6, 1.0)
        second = 2 * jnp.sum((pushed @ change_Y) * queries, axis=1)
        move = direction(centre, change_Y @ change_C - Y @ square, second, on * change * change_slack)
        length = (0.9 + 0.09 * affine) * longest(move)
        change, change_Y, change_slack, *_ = move
        fine = jnp.isfinite(length) & (length > 0)
        for part in (change, change_Y, change_slack):
            fine = fine & jnp.all(jnp.isfinite(part))
        length = jnp.where(fine, length, 0.0)
        weights = weights + length * jnp.where(fine, change, 0.0)
        Y = Y + length * jnp.where(fine, change_Y, 0.0)
        slack = slack + length * jnp.where(fine, change_slack, 0.0)
        H = cross @ (weights[:, None] * queries)
        gap = jnp.sum(Y * (eye - constraint(H, weights))) + jnp.sum(on * slack * weights)
        residual = jnp.abs(on - 2 * jnp.sum((H @ Y) * queries, axis=1) + on * slack)
        primal = jnp.max(jnp.where(used, residual, 0.0), initial=0.0)
        small = (gap <= tolerance * jnp.sum(on * weights)) & (primal <= allowed * tolerance)
        return step + 1, weights, Y, slack, jnp.where(fine, jnp.where(small, 1, 0), 2)

    def unfinished(state: tuple) -> Bool[Array, ""]:
        return (state[0] < max_steps) & (state[4] == 0)

    steps, weights, Y, _, status = lax.while_loop(unfinished, body, state)
    return NuclearPoint(weights, Y, steps, status == 1)


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
