r"""Programs in the ℓ1 norm of a real or complex vector, by an interior point on the dual.

The dual of $\min\sum_j|\rho_j|$ s.t. $\langle A_k,\rho\rangle\ge1$ (or $=b_k$) is
$$\max_\lambda\sum_kb_k\lambda_k\quad\text{s.t.}\quad c_j(\lambda)=1-|a_j|^2\ge0,\quad a=\sum_k\lambda_kA_k,$$
with $\lambda_k\ge0$ for inequalities. With multipliers $y_j\ge0$ the primal is $\rho_j=2y_ja_j$, and

$$\langle A_k,\rho\rangle-w_k=b_k,\qquad y_jc_j=\mu,\qquad w_k\lambda_k=\mu .$$

Written with $|a_j|^2$ real and complex vectors are one case: a real vector gives a linear program, a complex
one (a Fourier transform) a second-order cone program. Method: Newton steps with Mehrotra's
predictor-corrector (`mehrotra`), then Newton's method on the identified support and active set, which for real
vectors is the vertex itself. Real programs try the simplex method first (`l1_vertex`), whose vertex counts where it
certifies and is the only solution.
"""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Inexact, Int

from jaxflow._core import linalg, positive_or_one
from jaxflow.margin._linear_algebra import step_to_boundary, where_needed
from jaxflow.margin.certificate import FARKAS_MULTIPLE, Solution
from jaxflow.margin.conclude import INTERIOR_GAP, Candidate, closest, default_tolerance, judge
from jaxflow.margin.l1_vertex import find_vertex
from jaxflow.margin.mehrotra import AbstractRoom, Constraints, Interior, Move, follow
from jaxflow.margin.min_norm_point import interior_weights, min_norm_point
from jaxflow.margin.program import AbstractProgram, Compact, DenseRows

# The interior point takes 8 to 16 steps (3,000 random programs), and one stuck program keeps a whole batch waiting:
# with a budget of 50 that one cost three times as much as all others together, and got no further.
MAX_STEPS = 25


def _inner(rows: Inexact[Array, "m d"], point: Inexact[Array, " d"]) -> Float[Array, "m d"]:
    """Re(conj(A_kj) point_j)."""
    return jnp.real(jnp.conj(rows) * point[None, :])


class VectorRoom(AbstractRoom):
    """The room $c_j=1-|a_j|^2$, a vector, with the multiplier y."""

    def __init__(self, rows: Inexact[Array, "m d"]):
        self.rows, self.size = rows, rows.shape[1]

    def combine(self, weights: Array) -> Array:
        return weights @ self.rows

    def inner(self, left: Array, right: Array) -> Array:
        return jnp.real(jnp.conj(left) * right)

    def values(self, point: Array, shares: Array) -> Array:
        return 2 * jnp.real(jnp.conj(self.rows) @ (point * shares))

    def schur(self, point: Array, shares: Array, inverse: Array) -> Array:
        slope = 2 * _inner(self.rows, point)
        own = 2 * jnp.real((jnp.conj(self.rows) * shares[None, :]) @ self.rows.T)
        return own + (slope * (shares * inverse)[None, :]) @ slope.T

    def one(self, dtype: Any) -> Array:
        return jnp.ones(self.size, dtype)

    def times(self, left: Array, right: Array) -> Array:
        return left * right

    def inverse(self, room: Array) -> Array:
        return 1.0 / room

    def longest(self, room: Array, shares: Array, move: Move) -> Array:
        # The root of c + t·Δc − t²|Δa|² = 0, without cancellation.
        root = jnp.sqrt(move.room**2 + 4 * move.square * room) - move.room
        to_room = jnp.min(jnp.where(root > 0, 2 * room / positive_or_one(root), jnp.inf))
        return jnp.minimum(to_room, step_to_boundary(shares, move.shares, jnp.ones(self.size, bool)))

    def power(self, affine: Array) -> int:
        return 3


def polish(
    rows: Inexact[Array, "m d"], compact: Compact, weights: Float[Array, " m"], shares: Float[Array, " d"]
) -> tuple[Float[Array, " m"], Float[Array, " d"]]:
    """Newton's method on |a_j| = 1 over the support and equal margins over the active set."""
    inequality, equality, targets = compact.inequality, compact.equality, compact.targets
    (m, d), dtype = rows.shape, targets.dtype
    a = weights @ rows
    largest, heaviest = jnp.max(shares), jnp.max(jnp.where(inequality, weights, 0.0), initial=0.0)
    margins = 2 * jnp.sum(_inner(rows, shares * a), axis=1)
    support = shares / positive_or_one(largest) > 1.0 - jnp.abs(a) ** 2
    active = inequality & (weights / positive_or_one(heaviest) > margins - 1.0)
    active = active | equality
    # A vertex has as many active constraints as unknowns, so that of more rows only the heaviest can matter.
    unknowns = 2 * d if jnp.iscomplexobj(rows) else d
    everything = weights
    if m > unknowns:
        weight = jnp.where(equality, jnp.inf, jnp.where(active, weights, -1.0))
        kept = lax.top_k(weight, unknowns)[1]
        rows, targets, weights, active = rows[kept], targets[kept], weights[kept], active[kept]
        inequality, m = inequality[kept], unknowns
    else:
        kept = jnp.arange(m)
    inside, on = support.astype(dtype), active.astype(dtype)

    def newton(_: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        weights, shares = state
        a = weights @ rows
        slope = 2 * _inner(rows, a) * on[:, None] * inside[None, :]
        bend = 2 * jnp.real((jnp.conj(rows) * shares[None, :]) @ rows.T) * on[:, None] * on[None, :]
        matrix = jnp.block([[jnp.diag(1 - inside), slope.T], [slope, bend + jnp.diag(1 - on)]])
        reached = 2 * jnp.sum(_inner(rows, shares * a), axis=1)
        right = jnp.concatenate([inside * (1.0 - jnp.abs(a) ** 2), on * (targets - reached)])
        finite = jnp.all(jnp.isfinite(matrix))
        matrix = jnp.where(finite, matrix, jnp.eye(m + d, dtype=dtype))
        change = linalg.solve(matrix, right[:, None])[:, 0]
        return weights + on * change[d:], shares + inside * change[:d]

    # From an interior point at 1e-11 two steps reach rounding.
    better, parts = lax.fori_loop(0, 2, newton, (weights * on, shares * inside))
    fine = jnp.all(jnp.isfinite(better)) & jnp.all(jnp.isfinite(parts))
    fine = fine & jnp.all(jnp.where(inequality, better, 0.0) >= 0) & jnp.all(parts >= 0)
    better = jnp.zeros_like(everything).at[kept].set(better)
    return jnp.where(fine, better, everything), jnp.where(fine, parts, shares)


class L1Start(eqx.Module):
    """The scale of ρ, a dual start, and weights that prove infeasibility where `infeasible`."""

    size: Float[Array, ""]
    interior: Float[Array, " m"]
    weights: Float[Array, " m"]
    infeasible: Bool[Array, ""]
    trivial: Bool[Array, ""]
    steps: Int[Array, ""]


def begin(program: AbstractProgram, compact: Compact) -> L1Start:
    """Feasibility and scale from the same program in the ℓ2 norm."""
    if program.conic:
        start = min_norm_point(compact, start=True)
        near = start.primal
        margins = jnp.where(compact.inequality, compact.rows.values(near), jnp.inf)
        margin = jnp.min(margins, initial=jnp.inf)
        size = jnp.max(jnp.abs(near)) / jnp.where((margin > 0) & jnp.isfinite(margin), margin, 1.0)
        interior = interior_weights(compact, start)
        return L1Start(size, interior, start.weights, start.zero, ~jnp.any(compact.inequality), start.steps)
    weights, consistent = compact.least_norm()
    size, zero = jnp.max(jnp.abs(compact.rows.combine(weights))), jnp.zeros((), int)
    return L1Start(size, jnp.zeros_like(weights), weights, ~consistent, consistent & (size == 0), zero)


def weighted_l1(
    rows: Inexact[Array, "m d"], compact: Compact, start: L1Start, max_steps: int
) -> tuple[Interior, tuple[Array, Array]]:
    """The interior point on the dual, with shares y such that ρ = 2ya, and its polished (weights, shares), for any rows
    with the constraints of `compact`."""
    d, dtype = rows.shape[1], compact.targets.dtype
    skip = start.infeasible | start.trivial
    constraints = Constraints(compact.inequality, compact.equality, compact.targets)
    rows = jnp.where(constraints.used[:, None], rows, 0.0)
    pushed = jnp.max(jnp.abs(start.interior @ rows))
    weights = 0.5 * start.interior / positive_or_one(pushed)
    shares, status = jnp.full((d,), 0.5, dtype) * start.size, jnp.where(skip, 1, 0)
    state = Interior(jnp.zeros((), int), weights, shares, jnp.ones_like(weights), status)
    tolerance = default_tolerance(dtype, 0.1 * INTERIOR_GAP)
    end = follow(VectorRoom(rows), constraints, state, max_steps=max_steps, tolerance=tolerance)
    weights, shares = jnp.where(skip, start.weights, end.weights), jnp.where(skip, 0.0, end.shares)
    return replace(end, weights=weights, shares=shares), polish(rows, compact, weights, shares)


def solve_l1(program: AbstractProgram, compact: Compact, tolerance: float, max_steps: int | None) -> Solution:
    r"""$\min\sum_j|\rho_j|$ of a margin or interpolation program."""
    assert isinstance(compact.rows, DenseRows)
    rows, dtype = compact.rows.rows, compact.targets.dtype
    max_steps = MAX_STEPS if max_steps is None else max_steps
    if jnp.iscomplexobj(rows) or rows.size == 0:
        best, steps, spent = _by_interior_point(program, compact, max_steps)
        return judge(program, compact, best, steps=steps, spent=spent, tolerance=tolerance)

    vertex = find_vertex(rows, compact.inequality, compact.equality, compact.targets)
    best = closest(program, compact, [(jnp.where(vertex.ray, 0.0, vertex.primal), vertex.weights)])
    # A vertex is the answer where its certified gap is a hundredth of what counts as solved; a ray where its Farkas
    # residual is a fifth of what counts as a proof. All others are for the interior point.
    proof, goal = best.certificate, min(tolerance, default_tolerance(dtype, 0.01 * INTERIOR_GAP))
    solved = vertex.unique & (jnp.abs(proof.duality_gap) <= goal) & (proof.feasibility <= goal)
    impossible = program.conic & (proof.farkas <= 0.2 * FARKAS_MULTIPLE * float(jnp.finfo(dtype).eps))
    known = vertex.end & jnp.where(vertex.ray, impossible, solved)

    # A lane that is proved gets an empty program.
    def turn(needed: Bool[Array, ""]) -> tuple[Candidate, Array, Array]:
        inner, steps, spent = _by_interior_point(program, _emptied(compact, ~needed), max_steps)
        return _better(inner, best, vertex.unique, tolerance), steps, spent

    answer, steps, spent = where_needed(~known, turn, (best, vertex.pivots, jnp.asarray(False)))
    return judge(program, compact, answer, steps=steps, spent=spent, tolerance=tolerance)


def _better(inner: Candidate, vertex: Candidate, unique: Bool[Array, ""], tolerance: float) -> Candidate:
    """What proves more. Where there are many solutions the interior point's, in their middle, if it is one."""
    ours, theirs = vertex.certificate, inner.certificate
    gap, other = jnp.abs(ours.duality_gap), jnp.abs(theirs.duality_gap)
    solved = (other <= tolerance) | theirs.proves_infeasible
    closer = gap + ours.feasibility < other + theirs.feasibility
    closer = closer | (ours.proves_infeasible & ~jnp.isfinite(other))
    # The gap decides what is solved, broken equalities much later.
    closer = jnp.where(solved, unique & closer & (gap <= other), closer)
    return jax.tree.map(lambda a, b: jnp.where(closer, a, b), vertex, inner)


def _emptied(compact: Compact, where: Bool[Array, ""]) -> Compact:
    """No constraint `where`."""
    names = ("rows", "inequality", "equality", "targets")
    parts = {name: getattr(compact, name) for name in names}
    return replace(compact, **jax.tree.map(lambda x: jnp.where(where, jnp.zeros_like(x), x), parts))


def _by_interior_point(
    program: AbstractProgram, compact: Compact, max_steps: int
) -> tuple[Candidate, Int[Array, ""], Bool[Array, ""]]:
    """The better one of the interior point and its polished neighbour, steps, and whether they were too few."""
    assert isinstance(compact.rows, DenseRows)
    start = begin(program, compact)
    point, polished = weighted_l1(compact.rows.rows, compact, start, max_steps)
    pairs = [(point.weights, point.shares), polished]
    candidates = [(2 * shares * compact.rows.combine(weights), weights) for weights, shares in pairs]
    spent = (point.status != 1) & (point.steps >= max_steps)
    return closest(program, compact, candidates), start.steps + point.steps, spent
