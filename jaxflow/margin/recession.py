r"""Whether a linear classifier has a minimiser: the recession cone of its data, decided and certified.

For rows $a_k=y_k\nabla_\theta f_k$ of a model that is linear in its parameters, and a loss that falls to zero as
margins grow, the loss never rises along u exactly where $Au\ge0$. Goldman and Tucker (1956): there are u and λ with

$$s=Au\ge0,\qquad\lambda\ge0,\qquad A^\top\lambda=0,\qquad s+\lambda>0,\qquad s_k\lambda_k=0,$$

which split the rows into D, where s is positive, and S, where λ is. The loss has a minimiser exactly where D is empty
(Albert and Anderson 1984); otherwise the flow tends to infinity, the margins of D grow and those of S stay (Ji and
Telgarsky 2019, "The implicit bias of gradient descent on nonseparable data", Theorem 2.1).

Method: the self-dual embedding of Ye, Todd and Mizuno (1994). With $g=A^\top1$

$$\min n\theta\quad\text{s.t.}\quad s=Au+\theta1,\quad A^\top\lambda=\theta g,\quad1^\top\lambda+g^\top u=n,\quad
s,\lambda\ge0$$

starts on its central path at $u=0$, $\theta=1$, $s=\lambda=1$, its optimum is zero, and there
$\sum_k(s_k+\lambda_k)=n$: interior points tend to u and λ as above. A step factorises one matrix of the size of u.
Columns and rows are first divided by powers of two, which changes neither the partition nor a digit, and the columns
are made orthonormal.
"""

import enum
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxflow._core import AbstractPrinted, Code, checked, linalg, positive_or_one
from jaxflow._core.linalg import ROUNDED
from jaxflow.margin._linear_algebra import corrected_step, scaled_cholesky
from jaxflow.margin.mehrotra import MAX_STEPS

# Each halves the logarithms of what is left: after 12 a scale of 1e12 is one of 1.007.
SWEEPS = 12
# A sum of p products has p roundings at most, relative to the sum of their sizes (Higham 2002, §3.1). u was projected
# before: what is called zero is at most ten times that, what is called positive at least a thousand times.
ZERO, POSITIVE = 10.0, 1e3


class Separability(enum.IntEnum):
    """How labelled data can be separated (Albert and Anderson 1984).

    `overlapping`: the loss has a minimiser. `separable`: some u makes all margins positive. `quasi_separable`: some u
    makes some margins positive and leaves the others at zero, and no u does more. `unknown`: none of these was proved,
    to the roundings of the data.
    """

    unknown = 0
    overlapping = 1
    quasi_separable = 2
    separable = 3


class RecessionCone(AbstractPrinted):
    r"""The directions $Au\ge0$ in which no margin falls, with the proofs.

    - `separability`: which of the three cases it is, or `unknown`.
    - `growing`: D, the rows whose margins grow, Booleans `(n,)`; the others are S.
    - `direction`: u `(p,)` with $A_Du>0$ and $A_Su=0$ to roundings; zero where D is empty.
    - `weights`: λ `(n,)`, positive on S with $A_S^\top\lambda=0$ to roundings, zero on D.
    - `steps`: of the interior-point method.
    """

    separability: Code
    growing: Bool[Array, " n"]
    direction: Float[Array, " p"]
    weights: Float[Array, " n"]
    steps: Int[Array, ""]


@checked()
def recession_cone(rows: Float[Array, "n p"]) -> RecessionCone:
    r"""The recession cone $\{u:Au\ge0\}$ of the loss $\sum_k\ell(a_k^\top u)$, see `RecessionCone`.

    **Arguments:** `rows`: A `(n, p)`, labels times inputs. Columns may have any scale, and may be linearly dependent.

    **Returns:** a `RecessionCone`; the answer is the same under `jit` and `vmap`.

    Source: Goldman and Tucker (1956); Ji and Telgarsky (2019), Theorem 2.1.
    """
    finite = jnp.all(jnp.isfinite(rows))
    even, sizes, columns = _equilibrated(jnp.where(finite, rows, 0.0))
    matrices = _orthonormal(even)
    found = _follow(matrices)
    chosen, whole, balances, split = found.growing, found.whole, found.balances, found.split

    code = jnp.where(split, Separability.quasi_separable.value, Separability.unknown.value)
    code = jnp.where(split & jnp.all(chosen), Separability.separable.value, code)
    code = jnp.where(balances, Separability.overlapping.value, code)
    code = jnp.where(whole, Separability.separable.value, code)
    code = jnp.where(finite, code, Separability.unknown.value)
    overlapping, separable = code == Separability.overlapping, code == Separability.separable
    growing = jnp.where(overlapping, False, jnp.where(separable, True, chosen))
    direction = jnp.where(whole, matrices.back @ found.direction, found.there) / columns
    weights = jnp.where(separable, 0.0, jnp.where(overlapping, found.balanced, found.weights))
    return RecessionCone(
        separability=Code(code, Separability),
        growing=growing,
        direction=jnp.where(overlapping, 0.0, direction),
        weights=weights / sizes,
        steps=found.steps,
    )


def _equilibrated(rows: Float[Array, "n p"]) -> tuple[Float[Array, "n p"], Float[Array, " n"], Float[Array, " p"]]:
    """Rows and columns divided by powers of two, so that no digit changes, and what they were divided by.

    Both by the roots of their largest entries, again and again (Ruiz 2001): the largest entries of all tend to one.
    """
    sizes = jnp.abs(rows)
    logs = jnp.where(sizes > 0, jnp.log2(positive_or_one(sizes)), -jnp.inf)

    def excess(by_row: Array, by_column: Array, axis: int) -> Array:
        largest = jnp.max(logs - by_row[:, None] - by_column[None, :], axis=axis, initial=-jnp.inf)
        return jnp.where(jnp.isfinite(largest), 0.5 * largest, 0.0)

    def sweep(_: Any, state: tuple[Array, Array]) -> tuple[Array, Array]:
        return state[0] + excess(*state, axis=1), state[1] + excess(*state, axis=0)

    start = jnp.zeros(rows.shape[0], rows.dtype), jnp.zeros(rows.shape[1], rows.dtype)
    by_row, by_column = (jnp.exp2(jnp.round(x)) for x in lax.fori_loop(0, SWEEPS, sweep, start))
    return rows / by_row[:, None] / by_column[None, :], by_row, by_column


class _Matrices(eqx.Module):
    """Equilibrated rows A, an orthonormal basis U of their column space, zero where there is no more of it, and T with
    U = A T."""

    rows: Float[Array, "n p"]
    basis: Float[Array, "n m"]
    back: Float[Array, "p m"]


def _orthonormal(rows: Float[Array, "n p"]) -> _Matrices:
    left, values, right = linalg.svd(rows)
    least = rank_tolerance(rows.shape, rows.dtype) * jnp.max(values, initial=0.0)
    live = values > least
    back = right.T * jnp.where(live, 1.0 / jnp.where(live, values, 1.0), 0.0)[None, :]
    return _Matrices(rows, jnp.where(live[None, :], left, 0.0), back)


def rank_tolerance(shape: tuple[int, ...], dtype: jnp.dtype) -> float:
    """Singular values below this share of the largest are roundings of a matrix (LAPACK's bound)."""
    return max(shape) * float(jnp.finfo(dtype).eps)


class _Found(eqx.Module):
    """The end of the interior point, and what is proved there: u, and whether it separates (`whole`); λ of all rows,
    and whether it balances them; the rows that s chooses, `growing`, with u and λ of their partition, and whether these
    prove it (`split`)."""

    steps: Int[Array, ""]
    direction: Float[Array, " m"]
    whole: Bool[Array, ""]
    balanced: Float[Array, " n"]
    balances: Bool[Array, ""]
    growing: Bool[Array, " n"]
    there: Float[Array, " p"]
    weights: Float[Array, " n"]
    split: Bool[Array, ""]


def _follow(matrices: _Matrices) -> _Found:
    """The predictor-corrector on the embedding, until a case is proved or θ is rounding."""
    basis = matrices.basis
    n, m = basis.shape
    dtype = basis.dtype
    eps = float(jnp.finfo(dtype).eps)
    pull = jnp.sum(basis, axis=0)
    dead = jnp.all(basis == 0, axis=0)
    everywhere = jnp.ones(n, bool)

    def body(carry: tuple) -> tuple:
        found, (u, theta, weights, s), _ = carry
        ratio = weights / s
        matrix = (basis * ratio[:, None]).T @ basis + jnp.diag(jnp.where(dead, 1.0, 0.0))
        factor, scale = scaled_cholesky(matrix, eps)
        seen = basis.T @ ratio
        off = theta * pull - basis.T @ weights
        short = n - jnp.sum(weights) - pull @ u

        def solve(right: Array) -> Array:
            return scale * linalg.cholesky_solve(factor, scale * right)

        border = solve(seen + pull)
        pivot = jnp.sum(ratio) - (seen - pull) @ border

        def direction(target: Array) -> tuple[Array, Array, Array, Array]:
            share = target / s
            first = solve(basis.T @ share - off)
            level = (jnp.sum(share) - short - (seen - pull) @ first) / pivot
            change = first - level * border
            change_s = basis @ change + level
            return change, level, share - ratio * change_s, change_s

        state, moved = corrected_step(direction, (u, theta, weights, s), everywhere)
        u, _, weights, s = state
        # s and λ sum to n: the larger of the two is told from the smaller where their product is above this.
        last = (jnp.mean(s * weights) <= ROUNDED**2) | ~moved | (found.steps + 1 == MAX_STEPS)
        # Whether u makes every margin positive beyond doubt.
        whole = _lifts(matrices, u, everywhere, jnp.ones((), dtype))
        # Each proof excludes the others, and takes longer than a step: it is tried where the numbers say so, and at the
        # end. The first partition that is proved is the one that there is. Later ones have the roundings of smaller
        # numbers.
        chosen = s > weights
        some = jnp.any(chosen)
        balanced, balances = _unless(whole | (some & ~last), lambda: _balance(matrices, weights, everywhere))
        settled = last | (some & ~jnp.all(chosen) & jnp.all(chosen == found.growing))
        parted = _unless(whole | balances | ~settled, lambda: _split(matrices, u, weights, chosen))
        new = _Found(found.steps + 1, u, whole, balanced, balances, chosen, *parted)
        return new, state, whole | balances | new.split | last

    ones, no = jnp.ones(n, dtype), jnp.asarray(False)
    state = jnp.zeros(m, dtype), jnp.ones((), dtype), ones, ones
    there = jnp.zeros(len(matrices.back), dtype)
    begun = _Found(jnp.zeros((), int), state[0], no, ones, no, ~everywhere, there, ones, no)
    return lax.while_loop(lambda carry: ~carry[2], body, (begun, state, no))[0]


def _unless(settled: Bool[Array, ""], proof: Callable[[], Any]) -> Any:
    """`proof()`, which takes long, or zeros where the case is settled without it."""
    shapes = jax.eval_shape(proof)
    return lax.cond(settled, lambda: jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes), proof)


def _split(
    matrices: _Matrices, u: Float[Array, " m"], multipliers: Float[Array, " n"], chosen: Bool[Array, " n"]
) -> tuple[Float[Array, " p"], Float[Array, " n"], Bool[Array, ""]]:
    """u that moves no margin but the `chosen` ones, λ on the others, and whether both prove this partition."""
    seen, unsure = _seen_by(matrices, ~chosen)
    # Without its part in the rows of `seen`; twice, because what the first leaves is its rounding.
    left = u - seen.T @ (seen @ u)
    left = left - seen.T @ (seen @ left)
    weights, held = _balance(matrices, multipliers, ~chosen, seen)
    # What a correction has brought to zero is a rounding of the others.
    rounding = len(weights) * float(jnp.finfo(weights.dtype).eps) * jnp.max(weights, initial=0.0)
    positive = jnp.all(chosen | (weights > POSITIVE * rounding))
    return matrices.back @ left, weights, jnp.any(chosen) & held & positive & _lifts(matrices, left, chosen, unsure)


def _lifts(
    matrices: _Matrices, u: Float[Array, " m"], growing: Bool[Array, " n"], unsure: Float[Array, ""]
) -> Bool[Array, ""]:
    """Whether u, known to `unsure` roundings, makes the margins of the rows `growing` positive, and all others zero to
    roundings."""
    rows, back = matrices.rows, matrices.back
    there = back @ u
    margins, roundings = rows @ there, rows.shape[1] * float(jnp.finfo(rows.dtype).eps)
    # Of u as a whole: what was projected away is a rounding of the entries that are left.
    zero = ZERO * roundings * jnp.sum(jnp.abs(rows), axis=1) * jnp.max(jnp.abs(there), initial=0.0)
    most = jnp.abs(rows) @ jnp.sum(jnp.abs(back), axis=1) * jnp.max(jnp.abs(u), initial=0.0)
    return jnp.all(jnp.where(growing, margins > POSITIVE * unsure * roundings * most, jnp.abs(margins) <= zero))


def orthonormal_columns(
    rows: Float[Array, "n m"], chosen: Bool[Array, " n"] | None = None
) -> tuple[Float[Array, "n k"], Float[Array, "m k"]]:
    """An orthonormal basis U of the column space, zero where there is no more of it, and T with U = `rows` T.

    The scales of the columns do not matter. `chosen`: the rows that count, all by default; the others are zero in U.
    """
    columns = _size(rows, axis=0)
    found = _orthonormal(_only(rows, chosen) / columns[None, :])
    return found.basis, found.back / columns[:, None]


def null_space(rows: Float[Array, "n m"], chosen: Bool[Array, " n"] | None = None) -> Float[Array, "m m"]:
    """An orthonormal basis, in its rows, of the u with `rows` u = 0; zero where there is no more of it. n ≥ m.

    The rank is that of columns of one size, so that a small scale is not taken for a dependence. `chosen`: the rows
    that count, all by default.
    """
    columns = _size(rows, axis=0)
    scaled = _only(rows, chosen) / columns[None, :]
    scaled = scaled / _size(scaled, axis=1)[:, None]
    values, right = linalg.right_svd(scaled)
    least = rank_tolerance(rows.shape, rows.dtype) * jnp.max(values, initial=0.0)
    vectors = jnp.where((values <= least)[:, None], right, 0.0) / columns[None, :]
    size = jnp.linalg.norm(vectors, axis=1, keepdims=True)
    vectors = vectors / positive_or_one(size)
    _, values, right = linalg.svd(vectors)
    return jnp.where((values > rank_tolerance(vectors.shape, rows.dtype))[:, None], right, 0.0)


def _only(rows: Float[Array, "n m"], chosen: Bool[Array, " n"] | None) -> Float[Array, "n m"]:
    """The chosen rows, zero for others. A column keeps the size that it has in all rows: in the coordinates of a span,
    what some rows have of a column may be the rounding of a zero, and in its own size would be data."""
    return rows if chosen is None else jnp.where(chosen[:, None], rows, 0.0)


def _size(rows: Float[Array, "n p"], axis: int) -> Float[Array, " k"]:
    """The power of two of the largest entry, one where all are zero."""
    largest = jnp.max(jnp.abs(rows), axis=axis, initial=0.0)
    _, exponent = jnp.frexp(largest)
    return jnp.where(largest > 0, jnp.ldexp(jnp.ones_like(largest), exponent), 1.0)


def _seen_by(matrices: _Matrices, still: Bool[Array, " n"]) -> tuple[Float[Array, "m m"], Float[Array, ""]]:
    """An orthonormal basis, in its rows, of what moves the margins of the rows `still`, zero where there is no more.

    And how many roundings it may be off: one over the least singular value of these rows (Wedin 1972).
    """
    rows, basis = (jnp.where(still[:, None], x, 0.0) for x in (matrices.rows, matrices.basis))
    values, right = linalg.right_svd(basis)
    # The rank is that of the rows. The basis has as many roundings as their condition is large (Wedin 1972): what is
    # dependent in the rows has singular values of that size in it.
    sizes = linalg.singular_values(rows)
    rank = jnp.sum(sizes > rank_tolerance(rows.shape, rows.dtype) * jnp.max(sizes, initial=0.0))
    live = (jnp.arange(values.size) < rank) & (values > 0)
    return jnp.where(live[:, None], right, 0.0), 1.0 / jnp.min(jnp.where(live, values, 1.0), initial=1.0)


def _balance(
    matrices: _Matrices, weights: Float[Array, " n"], still: Bool[Array, " n"], seen: Float[Array, "m m"] | None = None
) -> tuple[Float[Array, " n"], Bool[Array, ""]]:
    r"""The nearest λ with $A^\top\lambda=0$ on the rows `still` in the metric of $1/\lambda$; whether it is a proof.

    With a residual $r=A^\top\lambda$, $\lambda-U(T^\top r)$ has none on all rows: such a λ proves it where that
    changes no sign. On some of the rows, whose directions are `seen`, r has to be a rounding and one more step small.
    """
    basis, rows = matrices.basis if seen is None else matrices.basis @ seen.T, matrices.rows
    eps = float(jnp.finfo(rows.dtype).eps)
    root = jnp.sqrt(jnp.where(still, weights, 0.0))
    half = root[:, None] * basis
    matrix = half.T @ half
    size = jnp.diagonal(matrix)
    dead = jnp.all(basis == 0, axis=0)
    scale = 1.0 / jnp.sqrt(jnp.where(dead | (size == 0), 1.0, size))
    factor = linalg.cholesky(matrix * scale[:, None] * scale[None, :] + jnp.diag(jnp.where(dead, 1.0, eps)))

    def correction(point: Array) -> Array:
        return root * (half @ (scale * linalg.cholesky_solve(factor, scale * (basis.T @ point))))

    found = lax.fori_loop(0, 3, lambda _, point: point - correction(point), root**2)
    left = rows.T @ found
    rounding = len(rows) * eps * (jnp.abs(rows).T @ jnp.abs(found))
    if seen is None:
        change = jnp.abs(basis @ (matrices.back.T @ left)) + jnp.abs(basis) @ (jnp.abs(matrices.back).T @ rounding)
    else:
        change = 2.0 * jnp.abs(correction(found))
    fine = (seen is None) | jnp.all(jnp.abs(left) <= ZERO * rounding)
    return found, fine & jnp.all(jnp.where(still, found > change, True))
