"""Dense factorisations that a batch on CPU calls for few matrices at a time.

jaxlib's CPU kernels (seen in 0.10.2) hand the matrices of a large batch to the thread pool that XLA runs the program
on, and wait. Where as many such calls wait as the pool has threads, nothing moves any more: one program with several
of them hangs, and two at a time do. Whether a call is large is decided by Eigen's cost model: below 2.1e5 estimated
operations (measured: 8 Cholesky factors of size 42 stay, 16 go; 3 LU factors stay, 4 go), and always for one matrix,
it is computed where it is made. Under `vmap` the functions here therefore become a loop of calls of at most `WORK`
operations on CPU; every other device gets its batched kernel. The bits are those of single calls.

Forward-mode derivatives pass through; reverse mode does not (JAX has none for a rule of its own under `vmap`).
"""

import math
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax
import optimistix
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Inexact, Int

from jaxflow._core.lanes import looped_on_cpu
from jaxflow._core.trees import positive_or_one

# Rows of a matrix that is factorised, or only eliminated, in plain operations, which a batch does all at once: LAPACK
# takes longer to be called than to answer.
TINY, SMALL = 6, 12

# Estimated operations of a batched call on CPU: a quarter of those from which its kernel waits for the pool.
WORK = 5e4

# What is left of a number of order one after a hundred thousand roundings, or of a product of a few matrices: singular
# values below this share of the largest belong to no range, and gradients below this share of the multipliers are zero.
ROUNDED = 1e-10

# Iterations of a Newton's method with a rule that ends it: some tens reach any minimum of doubles, and what has not
# come to an end after this many does not.
NEWTON_STEPS = 200


def doublings(dtype: Any) -> int:
    """Steps of a method that doubles the digits, from the first of them to all: 6 in double precision."""
    return int(jnp.finfo(dtype).nmant).bit_length()


def _few_at_a_time(operations: Callable[..., float]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """For functions of arrays, the first a matrix; its leading axes, and those that `vmap` adds, are one batch, cut on
    CPU into calls of at most `WORK` operations, of which one matrix with its right side takes `operations(m, r)`."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        def width(*stacks: Array) -> int | None:
            count, m = stacks[0].shape[:2]
            most = max(1, int(WORK // operations(m, math.prod(stacks[-1].shape[1:]) / m)))
            return None if most == 1 else _even(count, most)

        single = looped_on_cpu(function, width)

        @wraps(function)
        def call(matrix: Array, *rest: Array) -> Any:
            mapped = single
            for _ in range(matrix.ndim - 2):
                mapped = jax.vmap(mapped)
            return mapped(matrix, *rest)

        return call

    return decorate


def _even(count: int, most: int) -> int:
    """A divisor of `count`, at most `most`; where all are far below, `most`, and the last call has fewer."""
    divisor = max(size for size in range(1, most + 1) if count % size == 0)
    return divisor if 2 * divisor > min(most, count) else min(most, count)


# Three of m² are for moving the numbers, in Eigen's estimate too. What takes much longer than to be called is called
# for one matrix.
_square = _few_at_a_time(lambda m, r: m**2 * (r + 1) / 2)
_one_at_a_time = _few_at_a_time(lambda m, r: math.inf)


def cholesky(matrix: Float[Array, "m m"]) -> Float[Array, "m m"]:
    """The lower factor L of `matrix` = L Lᵀ, of which the lower triangle is read; with NaN where there is none."""
    m = len(matrix)
    if m > TINY:
        return _cholesky(matrix)
    columns = []
    for j in range(m):
        column = matrix[:, 0] / jnp.sqrt(matrix[0, 0])
        columns.append(jnp.pad(column, (j, 0)))
        matrix = matrix[1:, 1:] - column[1:, None] * column[None, 1:]
    return jnp.stack(columns, axis=1)


@_few_at_a_time(lambda m, r: m**3 / 3 + 3 * m**2)
def _cholesky(matrix: Float[Array, "m m"]) -> Float[Array, "m m"]:
    return lax.linalg.cholesky(matrix, symmetrize_input=False)


def definite(matrix: Float[Array, "m m"]) -> Bool[Array, ""]:
    """Whether a symmetric matrix is positive definite: whether it has a Cholesky factor. NaN is not.

    Many lengths of a step are tried that way.
    """
    m = len(matrix)
    if m > SMALL:
        return jnp.all(jnp.isfinite(jnp.diagonal(cholesky(matrix))))
    found = jnp.asarray(True)
    for _ in range(m):
        pivot = matrix[0, 0]
        found = found & (pivot > 0)
        row = matrix[0, 1:]
        matrix = matrix[1:, 1:] - row[:, None] * (row / jnp.where(pivot > 0, pivot, 1.0))[None, :]
    return found


def cholesky_solve(factor: Float[Array, "m m"], right: Float[Array, "m *r"]) -> Float[Array, "m *r"]:
    """Solves L Lᵀ x = right for the lower `factor` L."""
    if len(factor) > TINY:
        return _cholesky_solve(factor, right)
    # Lᵀ read backwards is lower, too.
    return lower_solve(factor[::-1, ::-1].T, lower_solve(factor, right)[::-1])[::-1]


@_square
def _cholesky_solve(factor: Float[Array, "m m"], right: Float[Array, "m *r"]) -> Float[Array, "m *r"]:
    return _substituted(factor, _substituted(factor, right), transpose_a=True)


def _substituted(factor: Array, right: Array, lower: bool = True, **options: bool) -> Array:
    columns = right.reshape(len(factor), -1)
    return lax.linalg.triangular_solve(factor, columns, left_side=True, lower=lower, **options).reshape(right.shape)


def lower_solve(factor: Float[Array, "m m"], right: Float[Array, "m *r"]) -> Float[Array, "m *r"]:
    """Solves L x = right for the lower `factor` L."""
    if len(factor) > TINY:
        return _lower_solve(factor, right)
    rows = []
    for j in range(len(factor)):
        row = right[0] / factor[j, j]
        rows.append(row)
        column = factor[j + 1 :, j]
        right = right[1:] - (column * row if right.ndim == 1 else column[:, None] * row[None, :])
    return jnp.stack(rows)


@_square
def _lower_solve(factor: Float[Array, "m m"], right: Float[Array, "m *r"]) -> Float[Array, "m *r"]:
    return _substituted(factor, right)


def solve(matrix: Inexact[Array, "m m"], right: Inexact[Array, "m *r"]) -> Inexact[Array, "m *r"]:
    """Solves `matrix` x = right by an LU factorisation with partial pivoting."""
    return lu_solve(lu_factor(matrix), right)


def leading_solve(
    matrix: Inexact[Array, "m m"], right: Inexact[Array, " m"], count: Int[Array, ""]
) -> Inexact[Array, " m"]:
    """`solve` of a matrix that is the identity beyond its first `count` rows and columns: in the smallest of a few
    sizes that has them."""
    sizes = [len(matrix)]
    while sizes[-1] > TINY:
        sizes.append(sizes[-1] // 4)

    def block(size: int) -> Array:
        return right.at[:size].set(solve(matrix[:size, :size], right[:size]))

    fits = jnp.sum(count <= jnp.asarray(sizes)) - 1
    return lax.switch(jnp.maximum(fits, 0), [partial(block, size) for size in sizes])


@_one_at_a_time
def solve_where(matrix: Inexact[Array, "m m"], right: Inexact[Array, "m *r"], wanted: Any) -> Inexact[Array, "m *r"]:
    """`solve` where `wanted`, zeros elsewhere: a lane of a batch that has nothing to solve costs nothing on CPU."""
    return lax.cond(wanted, jnp.linalg.solve, lambda _, right: jnp.zeros_like(right), matrix, right)


@_one_at_a_time
def lstsq(matrix: Inexact[Array, "m n"], right: Inexact[Array, " m"]) -> Inexact[Array, " n"]:
    """The x of least norm among those that minimise ‖`matrix` x − right‖."""
    return jnp.linalg.lstsq(matrix, right)[0]


@_one_at_a_time
def qr(matrix: Inexact[Array, "m n"]) -> tuple[Inexact[Array, "m k"], Inexact[Array, "k n"]]:
    """Q with k = min(m, n) orthonormal columns and the upper R with `matrix` = Q R."""
    q, r = jnp.linalg.qr(matrix)
    return q, r


@_one_at_a_time
def svd(matrix: Inexact[Array, "m n"]) -> tuple[Inexact[Array, "m k"], Float[Array, " k"], Inexact[Array, "k n"]]:
    """U, s, Vᵀ with k = min(m, n) singular values in falling order."""
    u, s, vt = jnp.linalg.svd(matrix, full_matrices=False)
    return u, s, vt


@_one_at_a_time
def right_svd(matrix: Inexact[Array, "m n"]) -> tuple[Float[Array, " k"], Inexact[Array, "k n"]]:
    """s and Vᵀ of `svd`; of tall matrices those of the factor R, and no vector of m entries is formed."""
    m, n = matrix.shape
    # From two to one on LAPACK itself takes R first.
    core = jnp.linalg.qr(matrix, mode="r") if m > 2 * n else matrix
    _, s, vt = jnp.linalg.svd(core, full_matrices=False)
    return s, vt


@_one_at_a_time
def singular_values(matrix: Inexact[Array, "m n"]) -> Float[Array, " k"]:
    """The min(m, n) singular values in falling order."""
    return jnp.linalg.svd(matrix, compute_uv=False)


@_one_at_a_time
def eigh(matrix: Inexact[Array, "m m"]) -> tuple[Float[Array, " m"], Inexact[Array, "m m"]]:
    """Eigenvalues of a symmetric matrix in rising order, and its eigenvectors as columns."""
    values, vectors = jnp.linalg.eigh(matrix)
    return values, vectors


@_one_at_a_time
def eigvalsh(matrix: Inexact[Array, "m m"]) -> Float[Array, " m"]:
    """Eigenvalues of a symmetric matrix in rising order."""
    return jnp.linalg.eigvalsh(matrix)


def lu_factor(matrix: Inexact[Array, "m m"]) -> tuple[Inexact[Array, "m m"], Int[Array, " m"]]:
    """The LU factors with partial pivoting and the order of the rows, for `lu_solve`."""
    lu, pivots = _lu(matrix)
    return lu, lax.linalg.lu_pivots_to_permutation(pivots, matrix.shape[-1])


@_few_at_a_time(lambda m, r: 2 * m**3 / 3 + 3 * m**2)
def _lu(matrix: Inexact[Array, "m m"]) -> tuple[Inexact[Array, "m m"], Int[Array, " m"]]:
    lu, pivots, _ = lax.linalg.lu(matrix)
    return lu, pivots


@_square
def _lu_solve(lu: Inexact[Array, "m m"], right: Array) -> Array:
    return _substituted(lu, _substituted(lu, right, unit_diagonal=True), lower=False)


@_square
def _lu_solve_transposed(lu: Inexact[Array, "m m"], right: Array) -> Array:
    half = _substituted(lu, right, lower=False, transpose_a=True)
    return _substituted(lu, half, transpose_a=True, unit_diagonal=True)


def lu_solve(
    factors: tuple[Inexact[Array, "m m"], Int[Array, " m"]], right: Inexact[Array, "m *r"]
) -> Inexact[Array, "m *r"]:
    """Solves `matrix` x = right with the factors of `lu_factor`."""
    return _lu_solve(factors[0], right[factors[1]])


def _lu_solved_transposed(factors: tuple[Array, Array], right: Array) -> Array:
    solution = _lu_solve_transposed(factors[0], right)
    return jnp.zeros_like(solution).at[factors[1]].set(solution)


class _Factors(eqx.Module):
    """What `LU` keeps between solves; shapes of the unknowns and of the right side as flattened trees."""

    lu: Array
    order: Array
    unknowns: Any = eqx.field(static=True)
    rights: Any = eqx.field(static=True)
    transposed: bool = eqx.field(static=True)


class LU(lineax.AbstractLinearSolver):
    """`lineax.LU` by `lu_factor` and its solves: for square nonsingular operators, of every root finder here."""

    def init(self, operator: lineax.AbstractLinearOperator, options: dict[str, Any]) -> _Factors:
        if operator.in_size() != operator.out_size():
            raise ValueError("operator: LU solves square systems")
        shapes = [_flat(operator.in_structure()), _flat(operator.out_structure())]
        return _Factors(*lu_factor(operator.as_matrix()), *shapes, transposed=False)

    def compute(self, state: _Factors, vector: Any, options: dict[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
        right = ravel_pytree(vector)[0]
        if state.transposed:
            solution = _lu_solved_transposed((state.lu, state.order), right)
        else:
            solution = lu_solve((state.lu, state.order), right)
        leaves, tree = state.unknowns
        zeros = jax.tree.unflatten(tree, [jnp.zeros(x.shape, x.dtype) for x in leaves])
        return ravel_pytree(zeros)[1](solution), lineax.RESULTS.successful, {}

    def transpose(self, state: _Factors, options: dict[str, Any]) -> tuple[_Factors, dict[str, Any]]:
        return _Factors(state.lu, state.order, state.rights, state.unknowns, not state.transposed), {}

    def conj(self, state: _Factors, options: dict[str, Any]) -> tuple[_Factors, dict[str, Any]]:
        conjugated = _Factors(state.lu.conj(), state.order, state.unknowns, state.rights, state.transposed)
        return conjugated, {}

    def assume_full_rank(self) -> bool:
        return True


def _flat(structure: Any) -> tuple[tuple[Any, ...], Any]:
    leaves, tree = jax.tree.flatten(structure)
    return tuple(leaves), tree


class _Newton(optimistix.Newton):
    """Newton's method that ends where the last change of a `stage` is within its tolerance."""

    # Tolerances may be arrays.
    rtol: Any
    atol: Any

    def terminate(self, fn: Any, y: Any, args: Any, options: Any, state: Any, tags: Any) -> Any:
        return _within(self, y, args, state)


class _Chord(optimistix.Chord):
    """Newton's method with one Jacobian: that of the first point, or one that is handed to it. Diffrax hands the one of
    the second stage to all stages of a step, whose Jacobians are alike where its error is small. Without `residual` it
    ends as `_Newton` does, and if `relative` by an absolute tolerance that is relative to the size of the state."""

    rtol: Any
    atol: Any
    residual: bool = eqx.field(static=True, default=True)
    relative: bool = eqx.field(static=True, default=False)

    def init(self, fn: Any, y: Any, args: Any, options: Any, f_struct: Any, aux_struct: Any, tags: Any) -> Any:
        known = options.get("init_state")
        return super().init(fn, y, args, options, f_struct, aux_struct, tags) if known is None else known

    def terminate(self, fn: Any, y: Any, args: Any, options: Any, state: Any, tags: Any) -> Any:
        if self.residual:
            return super().terminate(fn, y, args, options, state, tags)
        # Changes fall by the same factor θ each time: those to come add up to θ/(1 − θ) of the last one (Hairer and
        # Wanner 1996, IV.8).
        theta = state.diffsize / state.diffsize_prev
        left = jnp.where((state.step > 1) & (theta < 0.5), theta / (1.0 - theta), 1.0)
        return _within(self, y, args, state, left, self.relative)


def _within(finder: Any, rate: Any, args: Any, state: Any, left: Any = 1.0, relative: bool = False) -> tuple[Any, Any]:
    """Whether `left` times the last change of a stage is within the tolerances of a root finder, whatever the residual
    is.

    The unknown is a rate, which has no scale of its own: in log t, where an entry rests, it is all rounding, t times
    that of the gradient. From some t on no residual was small and no rate known to its tolerance, and every step was
    rejected (a matrix times its transpose, fitted to known entries, at log t of 20: `undecided` after 2,000 failed
    solves, 4 of 6; three layers from a start of 1e-12, at their first saddle)."""
    # What Diffrax hands to a root finder that wants to know of the stage $y+d\,h\,f$.
    _, d, _, _, _, y, _, h = args

    least = finder.atol * positive_or_one(finder.norm(y)) if relative else finder.atol

    def share(rate: Any, change: Any, y: Any) -> Any:
        # Not Diffrax's closed product of a rate with a step: it refuses values with another sharding.
        return d * h * change / (least + finder.rtol * jnp.abs(y + d * h * rate))

    change = jax.tree.map(share, rate, state.diff, y)
    failed = state.result != optimistix.RESULTS.successful
    return failed | (left * finder.norm(change) < 1.0), state.result


def newton(
    rtol: Any, atol: Any, norm: Callable[[Any], Array] = optimistix.max_norm, *, residual: bool = True
) -> optimistix.Newton:
    """Newton's method whose linear systems `LU` solves. It ends where the last change is within its tolerance and, with
    `residual`, the residual within `atol`."""
    return (optimistix.Newton if residual else _Newton)(rtol, atol, norm=norm, linear_solver=LU())


def chord(
    rtol: Any,
    atol: Any,
    norm: Callable[[Any], Array] = optimistix.max_norm,
    *,
    residual: bool = True,
    relative: bool = False,
) -> optimistix.Chord:
    """`newton` with one Jacobian for a step of an implicit method of Diffrax, factorised once by `LU`; `relative`: the
    absolute tolerance is one of a state of size one."""
    return _Chord(rtol, atol, norm=norm, linear_solver=LU(), residual=residual, relative=relative)
