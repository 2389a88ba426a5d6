"""`reproduce tarzanagh2023 fig4`: ranks of the solutions of (Att-SVM) and (Att-SVM*)."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxflow._core import linalg
from jaxflow.data import TokenData, optimal_tokens, random_tokens
from jaxflow.margin import ProgramResult, attention_svm, numerical_rank, solve
from jaxflow.models import token_scores
from jaxflow.papers.registry import AbstractFigure, Data, register_figure
from jaxflow.papers.tarzanagh2023.rank_claims import claims_of
from jaxflow.plots import CURVES, new_figure

NORMS = ("frobenius", "nuclear")

# Appendix F: a singular value counts above this, absolutely.
RANK_ABOVE = 1e-7


class Size(NamedTuple):
    """Instances of one scale: `trials` for each (n, T) of `shapes` and each d of `dimensions`."""

    trials: int
    shapes: tuple[tuple[int, int], ...] = ((5, 5), (10, 5), (15, 5), (5, 10), (5, 15))
    dimensions: tuple[int, ...] = (1, 2, 3, 4, 5, 10, 15, 20)


SIZES = {
    "quick": Size(20, shapes=((5, 5), (10, 5)), dimensions=(1, 2, 4, 10)),
    "paper": Size(100),
    "large": Size(10_000),
}


@register_figure(
    "tarzanagh2023",
    "fig4",
    title="Ranks of the solutions of (Att-SVM) and (Att-SVM*) for the optimal tokens",
    run_times={
        "quick": "20 instances for each of 8 sizes, about a minute",
        "paper": "100 instances for each of 40 sizes, some minutes",
        "large": "10,000 instances for each of 40 sizes, hours on two cores",
    },
)
class Figure4(AbstractFigure):
    r"""Figure 4 of Tarzanagh et al. (2023): rank range of $W^{mm}$ and $W^{mm}_\star$ of the optimal tokens, m = d.

    (a) T = 5, n in {5, 10, 15}; (b) n = 5, T in {5, 10, 15}. Tokens, queries and head uniform on the unit
    sphere. Programs that are infeasible (d small against n and T − 1, and always where d = 1: tokens are then
    ±v, and an optimal one has a twin) are counted, and have no rank. A rank counts singular values above 1e-7, as
    published.
    """

    def compute(self, scale: str, seed: int, say: Callable[[str], None]) -> Data:
        return compute(SIZES[scale], seed, say)

    def draw(self, data: Data) -> Any:
        return draw_ranks(data)

    def claims(self, data: Data) -> tuple[list[Any], list[str]]:
        return claims_of(data)


def compute(size: Size, seed: int, say: Callable[[str], None]) -> Data:
    """Arrays `(shape, dimension, trial)` for each norm: result, ranks, gap, how far rows leave the queries' span."""
    key = jax.random.fold_in(jax.random.key(seed), 4)
    widest = max(size.dimensions)
    data: Data = {"shapes": np.asarray(size.shapes), "dimensions": np.asarray(size.dimensions)}
    table: dict[str, list[list[np.ndarray]]] = {}
    for n, T in size.shapes:
        say(f"n = {n}, T = {T}: {size.trials} instances for each d of {', '.join(map(str, size.dimensions))}")
        row: dict[str, list[np.ndarray]] = {}
        for d in size.dimensions:
            keys = jax.random.split(jax.random.fold_in(jax.random.fold_in(key, 100 * n + T), d), size.trials)
            # Zeros up to one width let one compiled solver serve every d.
            tokens, queries, labels, heads = jax.jit(jax.vmap(partial(_draw, n, T, d, widest)))(keys)
            for norm in NORMS:
                for name, value in _solve_all(norm, tokens, queries, labels, heads).items():
                    row.setdefault(f"{norm}_{name}", []).append(np.asarray(value))
        for name, values in row.items():
            table.setdefault(name, []).append(values)
    return data | {name: np.asarray(values) for name, values in table.items()}


def _draw(n: int, T: int, d: int, widest: int, key: Any) -> tuple[Any, Any, Any, Any]:
    data, head = random_tokens(key, n, T, d)

    def pad(x: Any) -> Any:
        return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, widest - d)])

    return pad(data.tokens), pad(data.queries), data.labels, pad(head)


@partial(jax.jit, static_argnums=0)
def _solve_all(norm: str, tokens: Any, queries: Any, labels: Any, heads: Any) -> dict[str, Any]:
    return jax.vmap(partial(_solve_one, norm))(tokens, queries, labels, heads)


def _solve_one(norm: str, tokens: Any, queries: Any, labels: Any, head: Any) -> dict[str, Any]:
    data = TokenData(tokens, queries, labels)
    scores = token_scores(data, head)
    solution = solve(attention_svm(data, optimal_tokens(scores, data.visible), norm))
    solved = solution.result == ProgramResult.optimal
    weights = jnp.where(solved, solution.primal, 0.0)
    rank = numerical_rank(weights)
    # The published count; solutions have norms of one and more, so that it asks less of zeros than the relative one.
    published = jnp.sum(linalg.singular_values(weights) > RANK_ABOVE)
    # Orthonormal columns spanning the queries.
    basis, _ = linalg.qr(queries.T)
    outside = weights - (weights @ basis) @ basis.T
    total = jnp.linalg.norm(weights)
    return {
        "result": solution.result.value,
        "rank": jnp.where(solved, published, -1),
        "relative_rank": jnp.where(solved, rank, -1),
        "gap": solution.certificate.duality_gap,
        "outside": jnp.linalg.norm(outside) / jnp.where(total > 0, total, 1.0),
    }


def draw_ranks(data: dict[str, np.ndarray]) -> Any:
    r"""Mean rank, with the range over the instances, of $W^{mm}$ (solid) and $W^{mm}_\star$ (dashed) against d.

    **Arguments:** `data` with `shapes` `(s, 2)` of n and T, `dimensions` `(k,)`, and for p in frobenius and
    nuclear `p_rank` `(s, k, b)`, −1 where there is no solution.
    """
    shapes, dimensions = data["shapes"], data["dimensions"]
    fixed_T, fixed_n = shapes[0][1], shapes[0][0]
    panels = [
        ([i for i, (_, T) in enumerate(shapes) if T == fixed_T], "n", rf"(a) $T={fixed_T}$"),
        ([i for i, (n, _) in enumerate(shapes) if n == fixed_n], "T", rf"(b) $n={fixed_n}$"),
    ]
    panels = [panel for panel in panels if len(panel[0]) > 1] or panels[:1]
    figure, axes = new_figure(len(panels), width=5.2 * len(panels), height=4.0, shared=True)
    for axis, (rows, varied, title) in zip(axes, panels, strict=True):
        for color, row in zip(CURVES, rows, strict=False):
            for norm, line in (("frobenius", "-o"), ("nuclear", "--s")):
                symbol = r"W^{mm}" if norm == "frobenius" else r"W^{mm}_\star"
                rank = np.where(data[f"{norm}_rank"][row] >= 0, data[f"{norm}_rank"][row], np.nan)
                some = ~np.isnan(rank).all(axis=1)
                x, rank = dimensions[some], rank[some]
                value = shapes[row][0 if varied == "n" else 1]
                axis.plot(
                    x,
                    np.nanmean(rank, axis=1),
                    line,
                    color=color,
                    markersize=4,
                    label=rf"${symbol}$, ${varied}={value}$",
                )
                axis.fill_between(
                    x, np.nanmin(rank, axis=1), np.nanmax(rank, axis=1), color=color, alpha=0.12, linewidth=0
                )
        axis.set_xlabel(r"$d$")
        axis.set_xticks(dimensions)
        axis.set_title(title + "; bands: smallest to largest", fontsize=10)
        axis.legend(frameon=False, fontsize=8)
    axes[0].set_ylabel("rank")
    return figure
