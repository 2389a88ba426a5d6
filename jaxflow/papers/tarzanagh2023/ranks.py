"""Figure 4 of tarzanagh2023 and the check of Lemma 1: ranks of the solutions of (Att-SVM) and (Att-SVM*)."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxflow._core import linalg, positive_or_one
from jaxflow.data import TokenData, random_tokens
from jaxflow.margin import numerical_rank
from jaxflow.papers.drawing import dress, shade
from jaxflow.papers.experiment import Dataset, Mask, Part, Statement, Table, checksum_key, constants, mapped, register
from jaxflow.papers.tarzanagh2023.programs import PROGRAMS, feasible, optimal_program, solved
from jaxflow.papers.tarzanagh2023.protocol import figure_key
from jaxflow.papers.tarzanagh2023.shapes import panels_by_shape
from jaxflow.papers.tarzanagh2023.verify.instances import instance, padded

# Appendix F: a singular value counts above this, absolutely.
RANK_ABOVE = 1e-7
# Rows of a certified solution leave the span of the queries by rounding only.
INSIDE = 1e-8


SHAPES = ((5, 5), (10, 5), (15, 5), (5, 10), (5, 15))
# `trials` instances for each (n, T) of `shapes` and each d of `dimensions`.
SIZE = Table(trials=100, shapes=SHAPES, dimensions=(1, 2, 3, 4, 5, 10, 15, 20))
SIZES = {
    "quick": SIZE.replace(trials=20, shapes=SHAPES[:2], dimensions=(1, 2, 4, 10)),
    "paper": SIZE,
    "large": SIZE.replace(trials=10_000),
}
# Of the check: d below and above n.
CHECK_SIZE = Table(trials=200, shapes=((3, 4), (5, 5)), dimensions=(2, 3, 5, 8))
CHECKED = {
    "quick": CHECK_SIZE.replace(trials=40, shapes=((3, 4),)),
    "paper": CHECK_SIZE,
    "large": CHECK_SIZE.replace(trials=5000),
}

# The program of a norm for instances of one size n, T, d, brought to the width of the widest.
Cell = tuple[str, int, int, int, int]


def bounds(grid: Table, of: Callable[[Any, Any], Any]) -> np.ndarray:
    """A function of n and d, of each cell `(c, 1)`."""
    n, d = np.meshgrid(grid.shapes[:, 0], grid.dimensions, indexing="ij")
    return of(n, d).reshape(-1, 1)


def both(numbers: Table, of: Callable[[Table], np.ndarray]) -> np.ndarray:
    """Something of the instances of both programs, `(2, c, b)`."""
    return np.stack([of(numbers.frobenius), of(numbers.nuclear)])


def solve_all(keys: Array, cell: Cell) -> Table:
    """The programs of one norm for the optimal tokens of random instances.

    `result` (`ProgramResult`); `rank` by the published count and `relative_rank`, −1 without a solution; the share of
    the solution that is `outside` of the span of the queries.
    """
    # Zeros up to one width let one compiled solver serve every d.
    norm, *sizes = cell
    given = _draw_all(*sizes, keys)
    return _solve_all(norm, given.data, given.head)


@mapped(static=4)
def _draw_all(n: int, T: int, d: int, widest: int, key: Any) -> Table:
    return padded(instance(*random_tokens(key, n, T, d)), (n, T, widest))


@mapped(static=1)
def _solve_all(norm: str, data: TokenData, head: Any) -> Table:
    _, solution = optimal_program(data, head, norm)
    known = solved(solution.result.value)
    weights = jnp.where(known, solution.primal, 0.0)
    rank = numerical_rank(weights)
    # The published count; solutions have norms of one and more, so that it asks less of zeros than the relative one.
    published = jnp.sum(linalg.singular_values(weights) > RANK_ABOVE)
    # Orthonormal columns spanning the queries.
    basis, _ = linalg.qr(data.queries.T)
    outside = weights - (weights @ basis) @ basis.T
    total = jnp.linalg.norm(weights)
    return Table(
        result=solution.result.value,
        rank=jnp.where(known, published, -1),
        relative_rank=jnp.where(known, rank, -1),
        outside=jnp.linalg.norm(outside) / positive_or_one(total),
    )


def _dataset(name: str, sizes: dict[str, Table], draw_from: Callable[[int], Any]) -> Dataset:
    def cells(norm: str, scale: str) -> dict[str, Cell]:
        size = sizes[scale]
        found = [(n, T, d) for n, T in size.shapes for d in size.dimensions]
        return {"n = {}, T = {}, d = {}".format(*one): (norm, *one, max(size.dimensions)) for one in found}

    def key_of(seed: int, cell: Cell) -> Any:
        _, n, T, d, _ = cell
        return jax.random.fold_in(jax.random.fold_in(draw_from(seed), 100 * n + T), d)

    # The pairs (n, T), `shapes` `(s, 2)`, and the `dimensions` d `(k,)`; a cell is one of each.
    parts: dict[str, Any] = {"grid": constants(sizes, "shapes", "dimensions")}
    trials = {scale: size.trials for scale, size in sizes.items()}
    for norm in PROGRAMS:
        parts[norm] = Part(solve_all, partial(cells, norm), trials, block=200, draw_from=key_of, way="as a block")
    return Dataset("tarzanagh2023", name, parts)


RANKS = _dataset("fig4", SIZES, figure_key(4))
CHECK = _dataset(
    "ranks", CHECKED, lambda seed: figure_key(4)(jax.random.randint(checksum_key("ranks")(seed), (), 0, 2**30))
)


def _posed(numbers: Table) -> Mask:
    return both(numbers, lambda one: feasible(one.result))


def _bounded(source: str, says: str, bound: Callable[[Any, Any], Any]) -> Statement[Table]:
    def above(numbers: Table) -> np.ndarray:
        return both(numbers, lambda one: np.where(solved(one.result), one.rank - bounds(numbers.grid, bound), np.nan))

    return Statement(source=source, says=says, inside=_posed, residual=above)


def _fewer(numbers: Table) -> np.ndarray:
    """By how much the rank of (Att-SVM*) is larger; NaN unless both are solved."""
    nuclear, frobenius = numbers.nuclear, numbers.frobenius
    return np.where(solved(nuclear.result) & solved(frobenius.result), nuclear.rank - frobenius.rank, np.nan)


def _leaves(one: Table) -> np.ndarray:
    return np.where(solved(one.result), one.outside, np.nan)


STATEMENTS: list[Statement[Table]] = [
    _bounded(
        "Lemma 1",
        "Any optimal solution of (Att-SVM) or (Att-SVM*) is at most rank n.",
        lambda n, d: n + np.zeros_like(d),
    ),
    _bounded("Figure 4", "Both figures confirm ranks of W^mm and W^mm_* are bounded by max(n, d).", np.maximum),
    _bounded("Lemma 1, with columns instead of rows", "(not in print) The rank is at most min(n, d).", np.minimum),
    Statement(
        source="Lemma 1",
        says="The row space of W^mm or W^mm_* lies within span({z_i}).",
        inside=_posed,
        residual=lambda n: both(n, _leaves),
        bound=(INSIDE, "share of a solution outside of it"),
    ),
    Statement(
        source="§2.1",
        says="The nuclear norm objective inherently encourages a low-rank solution.",
        inside=lambda n: feasible(n.frobenius.result) & feasible(n.nuclear.result),
        residual=_fewer,
    ),
]


def _lemma1(norm: str, program: str) -> Statement[Table]:
    """Both sentences of the lemma about one program."""

    def leaves(numbers: Table) -> np.ndarray:
        one = getattr(numbers, norm)
        return np.where(one.rank > bounds(numbers.grid, np.minimum), np.inf, _leaves(one))

    return Statement(
        source="Lemma 1",
        says=f"solutions of {program} have rank ≤ n (so ≤ min(n, d)) and rows within span{{z_i}}",
        inside=lambda n: feasible(getattr(n, norm).result),
        residual=leaves,
        bound=(INSIDE, "share outside of the span"),
    )


def _notes(numbers: Table) -> list[str]:
    differ = int(np.sum(both(numbers, lambda one: one.rank != one.relative_rank)))
    return [
        "max(n, d) is no bound at all for d x d matrices; the numbers confirm the sharper min(n, d) of Lemma 1.",
        f"A singular value counts above 1e-7, as published; above 1e-8 of the largest instead {differ} ranks differ.",
    ]


def draw_ranks(numbers: Table) -> Any:
    r"""Mean rank, with the range over the instances, of $W^{mm}$ (solid) and $W^{mm}_\star$ (dashed) against d.

    (a) T = 5, n in {5, 10, 15}; (b) n = 5, T in {5, 10, 15}; m = d. Tokens, queries and head uniform on the unit
    sphere. Programs that are infeasible (d small against n and T − 1, and always where d = 1: tokens are then
    ±v, and an optimal one has a twin) are counted, and have no rank.
    """
    shapes, dimensions = numbers.grid.shapes, numbers.grid.dimensions
    figure, panels = panels_by_shape(shapes, "nT")
    lines = ((numbers.frobenius, "-o", r"W^{mm}"), (numbers.nuclear, "--s", r"W^{mm}_\star"))
    for axis, title, curves in panels:
        for row, color, shape in curves:
            for one, line, symbol in lines:
                rank = one.rank.reshape(len(shapes), len(dimensions), -1)[row]
                rank = np.where(rank >= 0, rank, np.nan)
                some = ~np.isnan(rank).all(axis=1)
                x, rank = dimensions[some], rank[some]
                label = f"${symbol}$, {shape}"
                axis.plot(x, np.nanmean(rank, axis=1), line, color=color, markersize=4, label=label)
                shade(axis, x, np.nanmin(rank, axis=1), np.nanmax(rank, axis=1), color, 0.12)
        dress(axis, title + "; bands: smallest to largest", "$d$", legend=8, xticks=dimensions)
    panels[0][0].set_ylabel("rank")
    return figure


register(
    RANKS,
    "fig4",
    title="Ranks of the solutions of (Att-SVM) and (Att-SVM*) for the optimal tokens",
    statements=STATEMENTS,
    notes=_notes,
    draw=draw_ranks,
)
register(CHECK, "ranks", title="Lemma 1", statements=[_lemma1(norm, program) for norm, program in PROGRAMS.items()])
