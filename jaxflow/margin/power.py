r"""Programs in the ℓp or the Schatten norm, p > 1, by an interior point on the program itself or on its dual.

With 1/p + 1/q = 1 the program has, up to scale, the solutions of

$$\min_\rho\tfrac1p\|\rho\|_p^p\ \text{ s.t. the constraints},\qquad
\min_\lambda\tfrac1q\big\|\sum_k\lambda_kA_k\big\|_q^q-\sum_kb_k\lambda_k\ \text{ s.t. }\lambda_k\ge0\text{ of
inequalities,}$$

and $\sum_k\lambda_kA_k=\nabla\frac1p\|\rho\|_p^p$. The one whose exponent is at least two has continuous second
derivatives, and is solved: the program where p ≥ 2, with equalities eliminated, else the dual. Both are

$$\min_xF(Bx+o)-c^\top x\quad\text{s.t.}\quad s=Gx-h\ge0,\qquad F(v)=\tfrac1r\|v\|_r^r,\quad r=\max(p,q).$$

In a Schatten norm F is of singular values (`jaxflow.margin.potential`), and for p ≥ 2 the program is solved among the
matrices in the joint ranges of its elements.

Method: Mehrotra's predictor-corrector for this convex program, with a search along each step, because F is far from
quadratic where r is large.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxflow._core import all_finite, linalg, positive_or_one
from jaxflow.margin._linear_algebra import refined_solve, scaled_cholesky, step_to_boundary
from jaxflow.margin.balls import balanced, dense_rows, free_directions, real_coordinates
from jaxflow.margin.certificate import Solution
from jaxflow.margin.conclude import INTERIOR_GAP, default_tolerance, judge
from jaxflow.margin.l1 import begin
from jaxflow.margin.mehrotra import MAX_STEPS
from jaxflow.margin.norms import Lp, Schatten
from jaxflow.margin.potential import AbstractPotential, moduli, potential_of
from jaxflow.margin.program import AbstractProgram, Compact

# The share of what counts as solved at which the gap, and Newton's decrement relative to the value, end the method.
SHARE = 1e-2
# Margins at the start of the program itself, in units of the least one: inside, and not far.
INSIDE = 1.2


class _Smooth(eqx.Module):
    """F(Bx + o) − c·x. `flat`: B has orthonormal columns; H is as small in some directions as F is flat there."""

    basis: Float[Array, "v m"]
    offset: Float[Array, " v"]
    goal: Float[Array, " m"]
    potential: AbstractPotential
    flat: bool = eqx.field(static=True)

    def point(self, x: Float[Array, " m"]) -> Float[Array, " v"]:
        """Bx + o."""
        return self.basis @ x + self.offset

    def slope(self, x: Float[Array, " m"]) -> Float[Array, " m"]:
        """The gradient by x."""
        return self.basis.T @ self.potential.map(self.point(x)) - self.goal

    def curvature(self, x: Float[Array, " m"]) -> Float[Array, "m m"]:
        """The Hessian by x."""
        return self.basis.T @ self.potential.bent(self.point(x), self.basis)


def _system(
    smooth: _Smooth, matrix: Float[Array, "c m"], on: Float[Array, " c"], x: Array, weights: Array, slack: Array
) -> Callable[[Array, Array], tuple[Array, Array]]:
    r"""How to solve $Hu-G^\top v=f$, $Gu+\frac swv=g$ for u and v: by a factor of $H+G^\top\frac wsG$, or, with `flat`
    directions, in which H is far below the roundings of that sum, by one of the whole matrix."""
    hessian = smooth.curvature(x)
    if not smooth.flat:
        ratio = on * weights / slack
        whole = hessian + (matrix.T * ratio[None, :]) @ matrix
        # Dependent rows of equalities have a gradient in the range of H.
        factor, scale = scaled_cholesky(whole, 10 * float(jnp.finfo(x.dtype).eps))

        def small(f: Array, g: Array) -> tuple[Array, Array]:
            u = refined_solve(whole, factor, scale, f + matrix.T @ (ratio * g))
            return u, ratio * (g - matrix @ u)

        return small
    curved, seen = jnp.diagonal(hessian), on[:, None] * matrix
    dead = jnp.where(curved > 0, 0.0, 1.0)
    low = jnp.where(on > 0, slack / weights, 1.0)
    scale = jnp.concatenate([1.0 / jnp.sqrt(curved + dead), 1.0 / jnp.sqrt(low)])
    whole = jnp.block([[hessian + jnp.diag(dead), -seen.T], [seen, jnp.diag(low)]]) * scale[:, None] * scale[None, :]
    factors = linalg.lu_factor(whole)

    def large(f: Array, g: Array) -> tuple[Array, Array]:
        right = jnp.concatenate([f, on * g]) * scale
        found = linalg.lu_solve(factors, right)
        found = scale * (found + linalg.lu_solve(factors, right - whole @ found))
        return found[: len(f)], found[len(f) :]

    return large


class _State(NamedTuple):
    """A point x, the multipliers and the slack of its constraints, and Newton's decrement before the last step.
    `status` is zero under way, one at the end, two where no step was possible."""

    x: Float[Array, " m"]
    weights: Float[Array, " c"]
    slack: Float[Array, " c"]
    decrement: Float[Array, ""]
    steps: Int[Array, ""]
    status: Int[Array, ""]


def _follow(
    smooth: _Smooth,
    matrix: Float[Array, "c m"],
    level: Float[Array, " c"],
    inequality: Bool[Array, " c"],
    begun: tuple[Float[Array, " m"], Bool[Array, ""]],
    max_steps: int,
) -> _State:
    """From a point with Gx > h; multipliers w of the constraints fit the gradient there as those of a centre do."""
    on = inequality.astype(smooth.goal.dtype)
    count = jnp.maximum(jnp.sum(on), 1.0)
    goal = default_tolerance(on.dtype, SHARE * INTERIOR_GAP)

    def body(state: _State) -> _State:
        x, weights, slack = state.x, state.weights, state.slack
        held = jnp.where(inequality, weights, 1.0)
        slope, solve = smooth.slope(x), _system(smooth, matrix, on, x, held, slack)
        off = matrix.T @ (on * weights) - slope
        product = on * slack * weights
        mean = jnp.sum(product) / count

        def direction(target: Array) -> tuple[Array, Array, Array]:
            change, change_weights = solve(off, on * (target / held - slack))
            return change, change_weights, on * (matrix @ change)

        def longest(changes: tuple[Array, ...]) -> list[Array]:
            return [step_to_boundary(y, dy, inequality) for y, dy in zip((weights, slack), changes[1:], strict=True)]

        first = direction(jnp.zeros_like(slack))
        to_weights, to_slack = (jnp.minimum(1.0, end) for end in longest(first))
        left = jnp.sum(on * (weights + to_weights * first[1]) * (slack + to_slack * first[2])) / count
        centre = mean * jnp.clip(left / positive_or_one(mean), 0.0, 1.0) ** 3

        def rise(changes: tuple[Array, ...], share: Array) -> Array:
            """How the barrier function rises along a step."""
            barrier = jnp.sum(on * changes[2] / (slack + share * changes[2]))
            return smooth.slope(x + share * changes[0]) @ changes[0] - centre * barrier

        # The second-order correction is left out where with it the barrier function does not fall.
        plain, corrected = direction(on * centre), direction(on * (centre - first[1] * first[2]))
        falls = rise(corrected, 0.0 * centre) < 0
        changes = jax.tree.map(lambda a, b: jnp.where(falls, a, b), corrected, plain)
        most = 0.5 * jnp.abs(rise(changes, 0.0 * centre))
        dual, whole = (jnp.minimum(1.0, 0.995 * end) for end in longest(changes))
        # A share of the way that is a rounding is none.
        share = lax.while_loop(
            lambda share: ~(rise(changes, share) <= most) & (share > jnp.finfo(x.dtype).eps),
            lambda share: 0.5 * share,
            whole,
        )
        dual = jnp.where(share < whole, jnp.minimum(dual, share), dual)
        fine = (share > 0) & all_finite(changes)
        shares = (share, dual, share)
        after = [jnp.where(fine, y + a * dy, y) for y, a, dy in zip((x, weights, slack), shares, changes, strict=True)]
        # The gap and Newton's decrement before the step, which the step has made smaller.
        value = jnp.sum(smooth.point(x) * smooth.potential.map(smooth.point(x)))
        decrement = jnp.sqrt(jnp.maximum(off @ solve(off, jnp.zeros_like(slack))[0], 0.0) * value)
        # Whose last steps are Newton's: it falls to roundings, which are larger where F is flat, and no further.
        ended = (decrement <= goal * value) | ((decrement <= goal**0.5 * value) & (decrement > 0.5 * state.decrement))
        ended = ended & (jnp.sum(product) <= goal * value)
        status = jnp.where(fine, jnp.where(ended, 1, 0), 2)
        return _State(after[0], after[1], after[2], decrement, state.steps + 1, status)

    x, skip = begun
    slack = jnp.where(inequality, matrix @ x - level, 1.0)
    usable = jnp.all(slack > 0)
    pull = matrix.T @ (on / slack)
    centre = jnp.maximum(pull @ smooth.slope(x) / positive_or_one(pull @ pull), SHARE)
    status = jnp.where(skip | ~usable, jnp.where(skip, 1, 2), 0)
    state = _State(x, on * centre / slack, slack, jnp.full((), jnp.inf, x.dtype), jnp.zeros((), int), status)
    return lax.while_loop(lambda s: (s.status == 0) & (s.steps < max_steps), body, state)


def _refined(smooth: _Smooth, end: _State, primal: Float[Array, " v"]) -> Float[Array, " v"]:
    r"""The primal point ∇F at the end on the dual side, by Newton steps of its own: a sum over λ has the roundings
    of λ, which is large where margins are thin."""
    ratio = end.weights / end.slack
    hessian = smooth.curvature(end.x) + jnp.diag(ratio)
    factor, scale = scaled_cholesky(hessian, 10 * float(jnp.finfo(primal.dtype).eps))

    def better(_: Any, primal: Array) -> Array:
        left = smooth.goal + end.weights - smooth.basis.T @ primal
        change = smooth.basis @ refined_solve(hessian, factor, scale, left)
        return primal + smooth.potential.bent(smooth.point(end.x), change[:, None])[:, 0]

    return lax.fori_loop(0, 2, better, primal)


def _away(rows: Float[Array, "m v"], shape: tuple[int, ...]) -> Float[Array, "v v"]:
    """What is zero at the matrices in the joint ranges of the elements: others have no smaller norm, and at these F is
    flat."""

    def onto(stack: Array) -> Array:
        u, s, _ = linalg.svd(stack.reshape(len(stack), -1))
        u = jnp.where(s > max(stack.shape) * jnp.finfo(s.dtype).eps * s[0], u, 0.0)
        return u @ u.T

    elements = rows.reshape(-1, *shape)
    left, right = onto(elements.transpose(1, 0, 2)), onto(elements.transpose(2, 0, 1))
    away = jnp.eye(rows.shape[1], dtype=rows.dtype) - jnp.kron(left, right)
    # Where the ranges are all there is, nothing is left but roundings.
    return jnp.where(jnp.abs(away) > linalg.ROUNDED, away, 0.0)


def solve_power(
    program: AbstractProgram, compact: Compact, norm: Lp | Schatten, tolerance: float, max_steps: int | None
) -> Solution:
    r"""$\min\|\rho\|_p$, p > 1, of any program in entries, of a matrix in singular values."""
    max_steps = MAX_STEPS if max_steps is None else max_steps
    start = begin(program, compact)
    skip = start.infeasible | start.trivial
    rows = dense_rows(compact)
    coordinates, basis = real_coordinates(rows)
    inequality, targets = compact.inequality, compact.targets
    parts, p = 2 if jnp.iscomplexobj(rows) else 1, norm.p
    own = potential_of(norm, program.primal_zero.shape, parts)
    # In units of the largest entry of the solution in the l2 norm.
    near = jnp.real(jnp.conj(basis) @ (start.weights @ rows))
    size = positive_or_one(start.size)
    near = near / positive_or_one(jnp.max(moduli(near, parts)))
    scaled = coordinates * size
    if p >= 2:
        held, fixed = scaled, compact.equality
        if isinstance(norm, Schatten):
            away = _away(scaled, program.primal_zero.shape)
            held, fixed = jnp.concatenate([scaled, away]), jnp.concatenate([fixed, jnp.ones(len(away), bool)])
        values, vectors = free_directions(held, fixed)
        free = jnp.where((values == 0)[None, :], vectors, 0.0)
        offset = jnp.zeros_like(near) if program.conic else near
        smooth = _Smooth(free, offset, jnp.zeros_like(values), own, True)
        seen, level = scaled @ free, jnp.where(inequality, 1.0, 0.0)
        x = INSIDE * (free.T @ near) if program.conic else jnp.zeros_like(values)
    else:
        q = p / (p - 1)
        smooth = _Smooth(scaled.T, jnp.zeros_like(near), targets, own.conjugate, False)
        seen, level = jnp.eye(len(targets), dtype=targets.dtype), jnp.zeros_like(targets)
        # The best multiple of a point inside: t^(q - 1) <v, F'(v)> = <c, x>.
        x = start.interior if program.conic else start.weights
        x = x / positive_or_one(jnp.max(moduli(smooth.point(x), parts)))
        push = smooth.point(x) @ smooth.potential.map(smooth.point(x))
        x = x * (jnp.maximum(targets @ x, 0.0) / positive_or_one(push)) ** (1 / (q - 1))
    end = _follow(smooth, seen, level, inequality, (x, skip), max_steps)
    point = smooth.point(end.x)
    push = smooth.potential.map(point)
    if p >= 2:
        primal, weights = size * (point @ basis), balanced(compact, coordinates, end.weights * size, push)
    else:
        primal, weights = size * (_refined(smooth, end, push) @ basis), end.x
    primal, weights = jnp.where(skip, 0.0, primal), jnp.where(skip, start.weights, weights)
    spent = (end.status == 0) & (end.steps >= max_steps)
    return judge(program, compact, [(primal, weights)], steps=start.steps + end.steps, spent=spent, tolerance=tolerance)
