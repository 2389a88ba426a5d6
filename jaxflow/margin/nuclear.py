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
Mehrotra's predictor-corrector (`mehrotra`), from the solution in the Frobenius norm; the m×m Schur matrix is a product
of m×q(q+1)/2 matrices, or a sum of Hadamard products, because the constraint elements have rank one. At a gap of 1e-7
the rank and the active set are fixed and the remaining equations are solved by Newton's method (`nuclear_polish`).
"""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from jaxflow._core import linalg, positive_or_one
from jaxflow._core.lanes import looped_on_cpu
from jaxflow.margin._linear_algebra import where_needed
from jaxflow.margin.certificate import Solution
from jaxflow.margin.conclude import INTERIOR_GAP, default_tolerance, judge
from jaxflow.margin.matrix_room import RankOneRoom
from jaxflow.margin.mehrotra import MAX_STEPS, Constraints, Interior, follow
from jaxflow.margin.min_norm_point import MinNormPoint, interior_weights, min_norm_point
from jaxflow.margin.nuclear_polish import polish
from jaxflow.margin.program import AbstractProgram, Compact, RankOneRows

# Gap at which Newton's method takes over. What it leaves open (four of a thousand programs with n, T, d = 6, 8, 10)
# begins anew.
HANDOVER = 1e-7

# The start: the share of the room that λ takes, and what is added to shares and slack that may be zero. (Over 600
# programs with n, T, d = 6, 8, 10: 8.5 steps; 9.4 from a multiple of the identity and slack one.)
NEAR, LIFT = 0.97, 0.1

# Lanes that a batch on CPU follows together: more wait for each other, and leave the caches.
LANES = 8


def interior_point(
    cross: Float[Array, "m m"],
    queries: Float[Array, "m q"],
    inequality: Bool[Array, " m"],
    equality: Bool[Array, " m"],
    weights: Float[Array, " m"],
    Y: Float[Array, "q q"],
    slack: Float[Array, " m"],
    inside: Float[Array, " m"],
    size: Float[Array, ""],
    skip: Bool[Array, ""],
    *,
    max_steps: int,
    tolerance: float,
) -> tuple[Interior, Interior]:
    r"""Interior point on the reduced dual from λ, Y and slack, and its polish. `status` is 1 where it converged.

    What that does not settle, in half of the steps, begins anew, far from the boundary, and goes on to the end; what
    that leaves open (sets of tokens, whose weights are not unique) is polished as singular.

    **Arguments:** `cross`: $\langle f_k,f_l\rangle$; `queries`: $g_k$ in q coordinates; `inside`: λ far from the
    boundary, of any scale, and `size`, the scale of $\|W\|$; `skip`: do nothing (an infeasible program).
    """
    constraints = Constraints(inequality, equality, inequality.astype(queries.dtype))
    room = partial(RankOneRoom, cross, queries, constraints.used)
    state = Interior(jnp.zeros((), int), weights, Y, slack, jnp.where(skip, 1, 0))

    def attempt(carry: tuple) -> tuple:
        state, _, _, _, careful, _ = carry
        geometry = room(careful)
        until = jnp.where(careful, tolerance, max(HANDOVER, tolerance))
        most = jnp.where(careful, max_steps, max_steps // 2)
        end = follow(geometry, constraints, state, max_steps=most, tolerance=until)
        *better, settled = polish(geometry, constraints, end.weights, end.shares)
        again = ~careful & ~settled
        M = geometry.combine(inside)
        norm = jnp.sqrt(jnp.trace(geometry.inner(M, M)))
        far = Interior(
            end.steps,
            0.7 * inside / positive_or_one(norm),
            0.5 * size * jnp.eye(geometry.size, dtype=inside.dtype),
            jnp.ones_like(inside),
            jnp.zeros((), int),
        )
        state = jax.tree.map(lambda anew, here: jnp.where(again, anew, here), far, end)
        return state, tuple(better), settled | (end.status == 1), settled, jnp.asarray(True), again

    # A loop, of which a batch makes a second round only where a lane is not settled by the first.
    carry = (state, (weights, Y), skip, skip, jnp.asarray(False), ~skip)
    end, better, converged, settled, _, _ = lax.while_loop(lambda carry: carry[-1], attempt, carry)

    def once_more(needed: Array) -> tuple[Array, Array]:
        weights = jnp.where(needed, end.weights, 0.0)
        return polish(room(True), constraints, weights, end.shares, singular=True)[:2]

    better = where_needed(~settled, once_more, better)
    end = replace(end, status=jnp.where(converged, 1, 2))
    return end, replace(end, weights=better[0], shares=better[1])


def solve_convex(compact: Compact, max_steps: int) -> tuple[Interior, Interior, Float[Array, "d q"]]:
    """The interior point and its polish, in the reduced coordinates of the basis returned with them.

    An infeasible program is not attempted: its weights are the Farkas ray, Y is zero.
    """
    rows = compact.rows
    assert isinstance(rows, RankOneRows)
    least = min_norm_point(compact, start=True)
    # Coordinates of the queries in an orthonormal basis of their span, where that is smaller than d.
    reduced, basis = rows.right, jnp.eye(rows.right.shape[1], dtype=rows.right.dtype)
    if len(reduced) < len(basis):
        basis, triangle = linalg.qr(reduced.T)
        reduced = triangle.T
    skip = least.zero | ~jnp.any(compact.inequality)
    weights, Y, slack, inside, size = _start(compact, least, basis)
    tolerance = default_tolerance(weights.dtype, 0.1 * INTERIOR_GAP)

    one = partial(interior_point, max_steps=max_steps, tolerance=tolerance)
    few = looped_on_cpu(one, lambda *stacks: min(LANES, len(stacks[0])))
    points = few(
        *(rows.left @ rows.left.T, rows.repeat(reduced), compact.inequality, compact.equality),
        *(jnp.where(skip, least.weights, weights), jnp.where(skip, 0.0, Y), slack, inside, size, skip),
    )
    point, polished = (replace(p, steps=least.steps + p.steps) for p in points)
    return point, polished, basis


def _start(
    compact: Compact, least: MinNormPoint, basis: Float[Array, "d q"]
) -> tuple[Float[Array, " m"], Float[Array, "q q"], Float[Array, " m"], Float[Array, " m"], Float[Array, ""]]:
    r"""λ, Y and slack from the solution in the Frobenius norm, whose margins and singular vectors are not far off; and
    λ and a scale to begin anew with.

    At the optimum $2Y=(W^\top W)^{1/2}$ and the slack is what margins exceed; both are lifted off the boundary.
    """
    rows, inequality = compact.rows, compact.inequality
    inside = interior_weights(compact, least)
    combined = rows.combine(inside) @ basis
    primal = least.primal @ basis
    margins = rows.values(least.primal)
    margin = jnp.min(jnp.where(inequality, margins, jnp.inf), initial=jnp.inf)
    squares = jnp.stack([combined.T @ combined, primal.T @ primal])
    fine = (margin > 0) & jnp.isfinite(margin) & jnp.all(jnp.isfinite(squares))
    values, vectors = linalg.eigh(jnp.where(fine, squares, jnp.eye(basis.shape[1], dtype=squares.dtype)))
    roots = jnp.sqrt(jnp.maximum(values, 0.0))
    largest = jnp.where(roots[:, -1] > 0, roots[:, -1], 1.0)
    margin = jnp.where(fine, margin, 1.0)
    shares = (roots[1] + LIFT * largest[1]) / margin
    Y = 0.5 * (vectors[1] * shares[None, :]) @ vectors[1].T
    slack = jnp.where(inequality & fine, jnp.maximum(margins / margin - 1.0, 0.0) + LIFT, 1.0)
    squared = jnp.sum(rows.combine(least.weights) ** 2)
    size = 1.0 / jnp.sqrt(positive_or_one(squared))
    return NEAR * inside / largest[0], Y, slack, inside, size


def solve_nuclear(program: AbstractProgram, compact: Compact, tolerance: float, max_steps: int | None) -> Solution:
    r"""$\min\|W\|_*$ without a rank bound."""
    max_steps = MAX_STEPS if max_steps is None else max_steps
    point, polished, basis = solve_convex(compact, max_steps)
    return judge(
        program,
        compact,
        # W = 2 M(λ) Y in the original coordinates.
        [(2 * (compact.rows.combine(x.weights) @ basis @ x.shares) @ basis.T, x.weights) for x in (point, polished)],
        steps=point.steps,
        spent=(point.status != 1) & (point.steps >= max_steps),
        tolerance=tolerance,
    )
