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
from jaxflow.plots import draw_ranks

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
