r"""The point of least norm in the convex hull of the constraint elements, on which every solver starts.

$$\min_\lambda\ \tfrac12\Big\|\sum_k\lambda_kA_k\Big\|_F^2\quad\text{s.t.}\quad
\sum_{k\in I}\lambda_k=1,\ \lambda_k\ge0\ (k\in I),\ \lambda_j\text{ free}\ (j\in E)$$

Always feasible and bounded. An optimum above zero is a feasible margin program, solved in the Frobenius norm;
an optimum of zero is Gordan's certificate that no W has positive margins (Farkas).

Method: principal pivots (`nearest_face`); where they come to no end, or the optimum is near zero, Mehrotra's
predictor-corrector interior point (SIAM J. Optim. 2, 1992) on the Gram matrix. Then one factorisation that either
solves the equations of the identified active set, or, at an optimum of zero, moves λ into the null space of the
constraint elements without leaving the positive orthant.
"""

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Inexact, Int

from jaxflow._core import linalg, positive_or_one
from jaxflow._core.linalg import ROUNDED
from jaxflow.margin._linear_algebra import corrected_step, where_needed
from jaxflow.margin.conclude import default_tolerance
from jaxflow.margin.l1_vertex import PIVOTS
from jaxflow.margin.program import Compact

# Constraints up to which the active set is looked for by pivots first: a pivot changes all of a square matrix, and a
# large one does not fit into a cache. (500 programs of 20 and 42 constraints, in chunks of 16: 9 and 26 ms, by interior
# point alone 18 and 75; gaps are the same.)
MOST_PIVOTED = 128
# Squared norm, relative to that of the rows, from which pivots tell the face: a thousandth of what rounding leaves.
SMALLEST_PIVOTED = 1e-9

# Tolerance of a start (an optimum of zero is still followed down to rounding).
START_TOLERANCE = 1e-3

# A constraint enters the face where its margin is too small by this many rounding errors: the tableau's own.
VIOLATED = 100.0


class MinNormPoint(eqx.Module):
    r"""`weights` λ with sum one; `primal`, a multiple of the margin program's solution (zero if there is
    none); `zero`, whether the optimum vanished to rounding; `steps` taken (pivots, where
    they were enough); `converged`."""

    weights: Float[Array, " m"]
    primal: Inexact[Array, "..."]
    zero: Bool[Array, ""]
    steps: Int[Array, ""]
    converged: Bool[Array, ""]


def min_norm_point(compact: Compact, *, max_steps: int = 40, start: bool = False, polish: bool = True) -> MinNormPoint:
    r"""Least-norm weights λ over the slots that are inequalities (simplex) and equalities (free).

    The interior point stops at a complementarity gap of 2e-12 relative to the squared norm, in single precision 1.5e-6
    (the polish does the rest), or after `max_steps`.

    **Arguments:** `start`: the point only gives other norms a scale and decides feasibility. It need not be exact, and
    nothing is polished but an optimum of zero, which proves something.
    """
    rows, inequality, equality = compact.rows, compact.inequality, compact.equality
    gram = rows.gram()
    dtype = gram.dtype
    eps = float(jnp.finfo(dtype).eps)
    tolerance = START_TOLERANCE if start else default_tolerance(dtype, 1e4)
    used = inequality | equality
    on = inequality.astype(dtype)
    count = jnp.maximum(jnp.sum(on), 1.0)
    diagonal = jnp.where(used, jnp.diagonal(gram), 0.0)
    scale = positive_or_one(jnp.sum(diagonal) / jnp.maximum(jnp.sum(used), 1))
    gram = jnp.where(used[:, None] & used[None, :], gram, 0.0) / scale
    # Regularisation at the level of rounding: the Gram matrix is singular when there are more rows than
    # entries.
    regular = jnp.where(used, 4 * eps, 1.0)

    first = on / count
    pushed = gram @ first
    level = jnp.min(jnp.where(inequality, pushed, jnp.inf), initial=jnp.inf) - 0.1
    level = jnp.where(jnp.isfinite(level), level, 0.0)
    slack = jnp.where(inequality, pushed - level, 1.0)

    def body(state: tuple) -> tuple:
        step, weights, slack, level, _ = state
        divisor = jnp.where(inequality, weights, 1.0)
        barrier = jnp.where(inequality, slack / divisor, regular * (~used))
        factor = linalg.cholesky(gram + jnp.diag(barrier + regular))
        dual_residual = gram @ weights - on * (level + slack)
        primal_residual = 1.0 - jnp.sum(on * weights)

        def direction(target: Array) -> tuple[Array, Array, Array]:
            both = jnp.stack([on, on * target / divisor - dual_residual], axis=1)
            unit, solved = linalg.cholesky_solve(factor, both).T
            change_level = (primal_residual - jnp.sum(on * solved)) / jnp.sum(on * unit)
            change = solved + change_level * unit
            return change_level, change, on * (target - slack * change) / divisor

        (level, weights, slack), fine = corrected_step(direction, (level, weights, slack), inequality)
        gap = jnp.sum(on * weights * slack)
        # The gap relative to the squared norm, or, where the norm itself vanishes, to the scale of the rows.
        small = (gap <= tolerance * jnp.sum(weights * (gram @ weights))) | (gap <= 0.01 * eps)
        return step + 1, weights, slack, level, jnp.where(fine, jnp.where(small, 1, 0), 2)

    def unfinished(state: tuple) -> Bool[Array, ""]:
        return (state[0] < max_steps) & (state[4] == 0)

    pivots, solved = jnp.zeros((), int), ~jnp.any(inequality)
    if len(gram) <= MOST_PIVOTED:
        face = nearest_face(gram, inequality, equality)
        total = jnp.sum(on * face.weights)
        # (1 - s)/s is the squared norm. A small one is left to the interior point, which decides what is zero.
        found = face.end & (total > 0) & (1.0 - total > SMALLEST_PIVOTED * total)
        pivots, solved = face.pivots, solved | found
        total = jnp.where(found, total, 1.0)
        pushed = gram @ face.weights
        first = jnp.where(found, face.weights / total, first)
        # On the face margins are equal but for rounding.
        excess = jnp.where(face.support, 0.0, jnp.maximum(pushed - (1.0 - total), 0.0))
        slack = jnp.where(found, jnp.where(inequality, excess / total, 1.0), slack)
    state = (jnp.zeros((), int), first, slack, level, jnp.where(solved, 1, 0))
    steps, weights, slack, _, status = lax.while_loop(unfinished, body, state)
    steps = jnp.where(steps > 0, steps, pivots)
    weights = weights / jnp.where(jnp.sum(on * weights) > 0, jnp.sum(on * weights), 1.0)
    square = jnp.sum(weights * (gram @ weights))
    # Squared norms below this are rounding of entries of order one.
    zero = (square < 1e3 * eps) & jnp.any(inequality)
    primal = rows.combine(weights)
    if polish:

        def polished(given: Array) -> tuple:
            return _polish(compact, given, scale, weights, slack, zero, square)

        if start:
            plain = weights, primal
            weights, primal = where_needed(zero, lambda needed: polished(jnp.where(needed, gram, 0.0)), plain)
        else:
            weights, primal = polished(gram)
    return MinNormPoint(weights, jnp.where(zero, jnp.zeros_like(primal), primal), zero, steps, status == 1)


def interior_weights(compact: Compact, point: MinNormPoint) -> Float[Array, " m"]:
    r"""A dual start for other norms: the min-norm weights, every inequality lifted by the hull's distance to
    zero.

    Where that distance g is small only these weights make $\sum\lambda_kA_k$ small; equal ones are 1/g times
    worse.
    """
    rows, on = compact.rows, compact.inequality.astype(point.weights.dtype)
    count = jnp.maximum(jnp.sum(on), 1.0)
    size = jnp.sum(on * rows.sizes()) / count
    distance = jnp.sqrt(jnp.sum(jnp.abs(rows.combine(point.weights)) ** 2))
    share = jnp.clip(distance / positive_or_one(size), 0.0, 1.0)
    lifted = jnp.maximum(point.weights, 0.0) + share / count
    return jnp.where(compact.inequality, lifted, jnp.where(compact.equality, point.weights, 0.0))


def _polish(
    compact: Compact,
    gram: Float[Array, "m m"],
    scale: Float[Array, ""],
    weights: Float[Array, " m"],
    slack: Float[Array, " m"],
    zero: Bool[Array, ""],
    square: Float[Array, ""],
) -> tuple[Float[Array, " m"], Inexact[Array, "..."]]:
    """Better weights, and the primal refined on its own: margins of the sum over λ carry an error of
    ε·‖A‖²/‖W‖⁻², a refined primal only ε·‖A‖·‖W‖, which matters where margins are small."""
    rows, inequality, equality = compact.rows, compact.inequality, compact.equality
    dtype = gram.dtype
    eps = float(jnp.finfo(dtype).eps)
    on = inequality.astype(dtype)
    # A constraint is active where its weight exceeds its excess margin, both on the scale of one.
    support = (inequality & (weights > slack / jnp.maximum(square, eps))) | equality
    spread = jnp.where(inequality, jnp.sqrt(jnp.maximum(weights, 0.0)), equality.astype(dtype))
    chosen = jnp.where(zero, spread, support.astype(dtype))
    off = jnp.where(zero, 0.0, (~support).astype(dtype))
    matrix = gram * chosen[:, None] * chosen[None, :] + jnp.diag(off)
    factor = linalg.cholesky(matrix + 1e3 * eps * jnp.eye(gram.shape[0], dtype=dtype))

    def solve(right: Array) -> Array:
        return chosen * linalg.cholesky_solve(factor, (chosen * right)[:, None])[:, 0]

    # Farkas: remove the component of λ that the elements see. Otherwise: equal margins on the support.
    def refine_weights(_: Array, point: Array) -> Array:
        seen = rows.values(rows.combine(point)) / scale
        return point + solve(jnp.where(zero, 0.0, on) - seen)

    def refine_primal(_: Array, point: Array) -> Array:
        return point + rows.combine(solve(on - rows.values(point))) / scale

    # Each refinement gains the ratio of regularisation to pivot, about ten digits.
    first = jnp.where(zero, weights, jnp.zeros_like(weights))
    polished = lax.fori_loop(0, 3, refine_weights, first)
    primal = lax.fori_loop(0, 3, refine_primal, rows.combine(polished) / scale)
    # A weight that the exact solution has at zero may come out as −ε: what follows judges the clipped point.
    polished = jnp.where(inequality, jnp.maximum(polished, 0.0), polished)
    total = jnp.sum(on * polished)
    polished = polished / positive_or_one(total)

    # Both bounds on the optimum improve separately: the lower one with λ, the upper one with the primal.
    fine = (total > 0) & jnp.all(jnp.isfinite(polished))
    plain = rows.combine(weights)
    shorter = jnp.sum(jnp.abs(rows.combine(polished)) ** 2) <= jnp.sum(jnp.abs(plain) ** 2)

    def upper(point: Array) -> Array:
        seen = rows.values(point)
        margin = jnp.min(jnp.where(inequality, seen, jnp.inf), initial=jnp.inf)
        safe = positive_or_one(margin)
        broken = jnp.max(jnp.where(equality, jnp.abs(seen), 0.0), initial=0.0)
        return jnp.where(margin > 0, (jnp.sqrt(jnp.sum(jnp.abs(point) ** 2)) + broken) / safe, jnp.inf)

    tighter = jnp.all(jnp.isfinite(primal)) & (upper(primal) <= upper(plain))
    return jnp.where(fine & shorter, polished, weights), jnp.where(tighter, primal, plain)


class Face(eqx.Module):
    r"""`weights` $\lambda$, zero off the face, which has the `support`; `pivots` done, and whether they came to their
    `end`."""

    weights: Float[Array, " m"]
    support: Bool[Array, " m"]
    pivots: Int[Array, ""]
    end: Bool[Array, ""]


def nearest_face(gram: Float[Array, "m m"], inequality: Bool[Array, " m"], equality: Bool[Array, " m"]) -> Face:
    r"""The face of a convex hull that holds its point of least norm, by principal pivots.

    With $G_{kl}=\langle A_k,A_l\rangle$ and $e_k=1$ for inequalities, 0 for equalities,
    $$\min_\lambda\ \tfrac12\lambda^\top G\lambda+\tfrac12(1-e^\top\lambda)^2,\qquad
    \lambda_k\ge0\ (k\in I),\ \lambda_j\text{ free}\ (j\in E)$$
    is nonnegative least squares, always feasible and bounded, and its solution divided by $s=e^\top\lambda$ is the
    point of least norm: $G\lambda\ge(1-s)e$ with equality on the support.

    Method: Wolfe's for the nearest point in a polytope (Math. Program. 11, 1976), which is that of Lawson and Hanson
    (Solving Least Squares Problems, 1974, ch. 23) for this least-squares problem: one constraint enters, the one that
    lowers the objective the most while the others on the face follow; those whose weight would turn negative leave. The
    objective falls, so that no face comes twice. It is kept as a tableau, swept at one entry a step (Goodnight, The
    American Statistician 33, 1979): plain operations on a batch where an interior point step factorises. Random
    programs take about as many pivots as constraints are active.

    **Arguments:** `gram`: with a diagonal of order one; slots that are neither kind are left alone.
    """
    dtype = gram.dtype
    eps = float(jnp.finfo(dtype).eps)
    on = inequality.astype(dtype)
    used = inequality | equality
    slots = jnp.arange(len(gram))
    table = gram + on[:, None] * on[None, :]
    # What must lie outside of the span of the face of a constraint's square, lest the face lose its dimension.
    least = max(ROUNDED, 100 * eps) * jnp.diagonal(table)

    def choose(square: Array, reached: Array, weights: Array, support: Array) -> tuple:
        """The step towards the solution on the face, and the pivot that follows it."""
        falling = support & inequality & (reached <= 0)
        lost = weights - reached
        length = jnp.where(falling, weights / jnp.where(falling & (lost > 0), lost, 1.0), jnp.inf)
        weights = jnp.where(support, weights + jnp.minimum(1.0, jnp.min(length)) * (reached - weights), 0.0)
        able = used & ~support & (square > least) & (equality | (reached > VIOLATED * eps))
        gain = jnp.where(equality, jnp.inf, reached**2 / jnp.where(able, square, 1.0))
        leaves = jnp.any(falling)
        key = jnp.where(leaves, -length, jnp.where(able, gain, -jnp.inf))
        return weights, jnp.argmax(key), leaves, leaves | jnp.any(able)

    def body(state: tuple) -> tuple:
        pivots, table, square, reached, support, weights, place, leaves, _ = state
        here = slots == place
        row = jnp.where(here, jnp.where(leaves, 1.0, -1.0), table[place])
        pivot = square[place]
        table = jnp.where(here[:, None] | here[None, :], 0.0, table) - row[:, None] * (row / pivot)[None, :]
        reached = jnp.where(here, 0.0, reached) - row * (reached[place] / pivot)
        square = jnp.where(here, 0.0, square) - row * (row / pivot)
        support, weights = support ^ here, jnp.where(here, 0.0, weights)
        return pivots + 1, table, square, reached, support, *choose(square, reached, weights, support)

    def unfinished(state: tuple) -> Bool[Array, ""]:
        # Random programs take at most one and a half for each *active* constraint.
        return state[-1] & (state[0] < PIVOTS * len(gram))

    # `reached` is the solution on the face, and off it what the margins lack.
    square, reached, support = jnp.diagonal(table), on, jnp.zeros_like(used)
    start = (jnp.zeros((), int), table, square, reached, support)
    state = (*start, *choose(square, reached, jnp.zeros_like(on), support))
    pivots, _, _, reached, support, weights, _, _, going = lax.while_loop(unfinished, body, state)
    # A constraint that lies next to the span of the face does not enter, and may be violated by the root of its square.
    lacks = jnp.max(jnp.where(inequality & ~support, reached, 0.0), initial=0.0)
    solved = lacks <= ROUNDED * (1.0 - jnp.sum(on * weights))
    return Face(weights, support, pivots, ~going & solved)
