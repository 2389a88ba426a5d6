r"""Programs over the unit ball of the spectral norm, or of ℓ∞: nuclear of any matrices, spectral, ℓ∞.

The room of the interior point (`mehrotra`) is the interior of such a ball: $I-M^\top M\succ0$ for matrices
(`matrix_room`), $1-|a_j|^2>0$ for the entries of a vector (`l1`). It is the room of the dual where the ball's norm is
the dual one, and of the primal program where it is the norm itself:

$$\min\|W\|_*:\ \ \max_\lambda\sum_kb_k\lambda_k\ \text{ with }\ M=\sum_k\lambda_kA_k,\qquad
\min\|V\|_2:\ \ \max_{V,\gamma}\gamma\ \text{ with }\ M=V,\ \langle A_k,V\rangle\ge\gamma .$$

On the primal side equalities are eliminated: $V=Nz+\gamma V_0$ with a basis N of what they leave free and the
solution $V_0$ of least Frobenius norm, so that V/γ meets them to rounding. λ is the multiplier of the inequalities;
that of the equalities follows from $\rho=\sum_k\lambda_kA_k$ by least squares.
"""

from dataclasses import replace
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Inexact

from jaxflow._core import linalg, positive_or_one
from jaxflow.margin.certificate import Solution
from jaxflow.margin.conclude import INTERIOR_GAP, default_tolerance, judge
from jaxflow.margin.l1 import L1Start, VectorRoom, begin
from jaxflow.margin.matrix_room import DenseRoom
from jaxflow.margin.mehrotra import MAX_STEPS, Constraints, Interior, follow
from jaxflow.margin.norms import Nuclear
from jaxflow.margin.program import AbstractProgram, Compact, DenseRows

# Gaps, in units of what counts as solved, at which a first answer is taken and the last; and steps from the one to the
# other. Where multipliers are not unique the later one may be the worse (completions: six of fifty).
GOALS, MORE_STEPS = (0.5, 0.05), 4

# The multiplier of the room at the start, in units of the solution. From 0.5 two of 400 random interpolations in ℓ∞
# came to a halt, from 5 none of them, but one of 100 symmetric completions, near the boundary after three steps. An
# attempt that comes to a halt is followed by another one from a point farther inside.
FAR, FARTHER = 5.0, 20.0


class _Side(NamedTuple):
    """Elements $B_j$ of $M=\\sum_jx_jB_j$, `(k, *shape)`; what is maximised over x; and where to start."""

    elements: Inexact[Array, "k ..."]
    constraints: Constraints
    start: Float[Array, " k"]
    slack: Float[Array, " c"]
    size: Float[Array, ""]


def solve_ball(program: AbstractProgram, compact: Compact, tolerance: float, max_steps: int | None) -> Solution:
    """Programs in the nuclear norm of dense elements, the spectral norm and ℓ∞."""
    max_steps = MAX_STEPS if max_steps is None else max_steps
    start = begin(program, compact)
    skip = start.infeasible | start.trivial
    rows, dtype = dense_rows(compact), compact.targets.dtype
    dual = isinstance(program.norm, Nuclear)
    shape = program.primal_zero.shape if program.norm.of_matrices else (rows.shape[1],)
    side = _dual_side(compact, start, rows, shape) if dual else _primal_side(program, compact, start, rows, shape)
    flat = side.elements.reshape(len(side.elements), -1)
    tall = len(shape) < 2 or shape[0] >= shape[1]
    # C has the size of the columns: of a wide matrix the transpose.
    matrices = DenseRoom(side.elements if tall else side.elements.transpose(0, 2, 1)) if len(shape) == 2 else None
    room = VectorRoom(flat) if matrices is None else matrices
    shares = FAR * side.size * room.one(dtype)
    state = Interior(jnp.zeros((), int), side.start, shares, side.slack, jnp.where(skip, 1, 0))

    def attempt(carry: tuple, plan: tuple) -> tuple[tuple, Interior]:
        (here, solved), (goal, anew) = carry, plan
        again = anew & ~solved
        begun = jax.tree.map(lambda a, b: jnp.where(again, a, b), far, here)
        onwards = again | (solved & ~anew)
        status = jnp.where(skip, 1, jnp.where(onwards, 0, jnp.where(anew, 1, here.status)))
        begun = replace(begun, steps=here.steps, status=status)
        most = jnp.where(anew, max_steps, jnp.where(solved, here.steps + MORE_STEPS, max_steps // 2))
        end = follow(room, side.constraints, begun, max_steps=most, tolerance=goal)
        return (end, solved | (end.status == 1)), end

    def answer(found: Interior) -> tuple[Array, Array]:
        point = found.weights @ flat
        pair = point.reshape(shape), found.shares
        push = 2 * room.times(*(pair if tall else pair[::-1])).reshape(-1)
        if dual:
            primal, weights = _meeting(compact, rows, push), found.weights
        else:
            # An interpolation is V/γ; the margin of a direction may be anything.
            scale = 1.0 if program.conic else _norm(start, compact) / positive_or_one(found.weights[-1])
            primal, weights = scale * point, _multipliers(compact, rows, found.slack, push)
        return jnp.where(skip, 0.0, primal), jnp.where(skip, start.weights, weights)

    first, last = (default_tolerance(dtype, share * INTERIOR_GAP) for share in GOALS)
    far = eqx.tree_at(lambda s: s.shares, state, FARTHER * shares)
    plans = jnp.asarray([first, last, first], dtype), jnp.array([False, False, True])
    (end, solved), ends = lax.scan(attempt, (state, skip), plans)
    primals, duals = jax.vmap(answer)(ends)
    return judge(
        program,
        compact,
        list(zip(primals, duals, strict=True)),
        steps=start.steps + end.steps,
        spent=~solved & (end.steps >= max_steps),
        tolerance=tolerance,
    )


def dense_rows(compact: Compact) -> Inexact[Array, "m d"]:
    """The elements as rows, zero where there is no constraint."""
    used = compact.inequality | compact.equality
    rows = compact.rows
    if isinstance(rows, DenseRows):
        return jnp.where(used[:, None], rows.rows, 0.0)
    return jnp.where(used[:, None], jax.vmap(rows.combine)(jnp.eye(len(used))).reshape(len(used), -1), 0.0)


def _norm(start: L1Start, compact: Compact) -> Float[Array, ""]:
    return positive_or_one(jnp.linalg.norm(compact.rows.combine(start.weights)))


def _dual_side(compact: Compact, start: L1Start, rows: Array, shape: tuple[int, ...]) -> _Side:
    constraints = Constraints(compact.inequality, compact.equality, compact.targets)
    pushed = jnp.linalg.norm(start.interior @ rows)
    weights = 0.5 * start.interior / positive_or_one(pushed)
    return _Side(rows.reshape(-1, *shape), constraints, weights, jnp.ones_like(weights), start.size)


def _primal_side(
    program: AbstractProgram, compact: Compact, start: L1Start, rows: Array, shape: tuple[int, ...]
) -> _Side:
    dtype = compact.targets.dtype
    coordinates, basis = real_coordinates(rows)
    values, vectors = free_directions(coordinates, compact.equality)
    free = values == 0
    directions = jnp.where(free[None, :], vectors, 0.0)
    last = jnp.zeros_like(rows[0]) if program.conic else compact.rows.combine(start.weights) / _norm(start, compact)
    elements = jnp.concatenate([directions.T @ basis, last.reshape(1, -1)])
    # Rows of size one: γ is between zero and one.
    largest = positive_or_one(jnp.max(jnp.linalg.norm(coordinates, axis=1)))
    seen = jnp.where(compact.inequality[:, None], coordinates @ directions / largest, 0.0)
    level = jnp.where(compact.inequality, -1.0, 0.0).astype(dtype)
    goal = jnp.zeros_like(elements[:, 0], dtype).at[-1].set(1.0)
    constraints = Constraints(
        compact.inequality, jnp.append(free, True), goal, jnp.concatenate([seen, level[:, None]], axis=1)
    )
    share = 1.0 / jnp.maximum(jnp.sum(compact.inequality), 1)
    slack = jnp.full(level.shape, share, dtype)
    at = -goal if program.conic else 0.0 * goal
    return _Side(elements.reshape(-1, *shape), constraints, at, slack, jnp.asarray(share, dtype))


def real_coordinates(rows: Inexact[Array, "m d"]) -> tuple[Float[Array, "m k"], Inexact[Array, "k d"]]:
    """The rows in real coordinates of a primal point, and the basis of these."""
    eye = jnp.eye(rows.shape[1], dtype=rows.dtype)
    if not jnp.iscomplexobj(rows):
        return rows, eye
    return jnp.concatenate([rows.real, rows.imag], axis=1), jnp.concatenate([eye, 1j * eye])


def free_directions(
    coordinates: Float[Array, "m k"], equality: Bool[Array, " m"]
) -> tuple[Float[Array, " k"], Float[Array, "k k"]]:
    """Eigenvalues, zero where the equalities leave a direction free, and eigenvectors of EᵀE."""
    rows = jnp.where(equality[:, None], coordinates, 0.0)
    values, vectors = linalg.eigh(rows.T @ rows)
    noise = len(values) * float(jnp.finfo(values.dtype).eps) * jnp.maximum(values[-1], 0.0)
    return jnp.where(values > noise, values, 0.0), vectors


def _multipliers(compact: Compact, rows: Array, slack: Float[Array, " m"], push: Array) -> Float[Array, " m"]:
    """λ with ρ = Σλ_k A_k: that of the inequalities is known up to the scale of the rows."""
    coordinates, basis = real_coordinates(rows)
    largest = positive_or_one(jnp.max(jnp.linalg.norm(coordinates, axis=1)))
    return balanced(compact, coordinates, slack / largest, jnp.real(jnp.conj(basis) @ push))


def balanced(
    compact: Compact, coordinates: Float[Array, "m k"], weights: Float[Array, " m"], push: Float[Array, " k"]
) -> Float[Array, " m"]:
    """λ with `push` = Σλ_k A_k, in real coordinates: `weights` of the inequalities, and those of the equalities by
    least squares."""
    weights = jnp.where(compact.inequality, weights, 0.0)
    left = push - weights @ coordinates
    values, vectors = free_directions(coordinates, compact.equality)
    inverse = jnp.where(values > 0, 1.0 / positive_or_one(values), 0.0)
    return weights + jnp.where(compact.equality[:, None], coordinates, 0.0) @ (vectors @ (inverse * (vectors.T @ left)))


def _meeting(compact: Compact, rows: Array, primal: Array) -> Array:
    """The nearest point that meets the equalities: the interior point leaves its residual there."""
    dense = DenseRows(rows)
    nearest, _ = replace(compact, rows=dense, targets=compact.targets - dense.values(primal)).least_norm()
    return primal + jnp.where(compact.equality, nearest, 0.0) @ rows
