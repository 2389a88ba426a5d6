"""`reproduce tarzanagh2023 fig12`: Lemma 6, at least two and at most τ selected tokens."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxflow.papers.registry import AbstractFigure, Data, register_figure
from jaxflow.papers.tarzanagh2023.concave import draw_batch, draw_conditions, support_sizes
from jaxflow.papers.tarzanagh2023.concave_table import table
from jaxflow.papers.tarzanagh2023.lemma6_claims import claims_of_fig12
from jaxflow.plots import draw_token_histograms


class Size(NamedTuple):
    """For each τ, `trials` instances are trained, and `exact` more have the support of their target counted."""

    trials: int
    exact: int
    taus: tuple[int, ...] = (3, 5, 7, 9)
    T: int = 10
    d: int = 10


SIZES = {"quick": Size(20, 10_000), "paper": Size(100, 100_000), "large": Size(2000, 1_000_000)}


@register_figure(
    "tarzanagh2023",
    "fig12",
    title="Lemma 6: between two and τ selected tokens",
    run_times={
        "quick": "20 instances for each of 4 values of τ, under a minute",
        "paper": "100 instances for each of 4 values of τ, about a minute",
        "large": "2,000 instances for each of 4 values of τ, some minutes",
    },
)
class Figure12(AbstractFigure):
    r"""Figure 12 of Tarzanagh et al. (2023): heads and λ that satisfy (8), n = 1, T = d = 10.

    (a) λ, and (b) the number of selected tokens, for each τ; (c) how that number is distributed. Heads are drawn
    until $\tau\gamma^{gap}_\tau/2>\gamma^{gap}_1$, and λ uniformly between the two.
    """

    def compute(self, scale: str, seed: int, say: Callable[[str], None]) -> Data:
        return compute(SIZES[scale], seed, say)

    def draw(self, data: Data) -> Any:
        return draw_token_histograms(data)

    def claims(self, data: Data) -> tuple[list[Any], list[str]]:
        return claims_of_fig12(data)


def compute(size: Size, seed: int, say: Callable[[str], None]) -> Data:
    """The per-instance tables, arrays `(τ, trial, ...)`, and `(τ, exact)` for the exact counts alone."""
    key = jax.random.fold_in(jax.random.key(seed), 12)
    rows: list[Data] = []
    for tau in size.taus:
        key_condition, key_rest, key_exact = jax.random.split(jax.random.fold_in(key, tau), 3)
        say(f"τ = {tau}: flow, published descent and programs of {size.trials} instances")
        scores, lam, draws = draw_conditions(tau, size.T, size.d, jax.random.split(key_condition, size.trials))
        row = table(draw_batch(size.T, size.d, jax.random.split(key_rest, size.trials), lam, scores))
        row["draws"] = np.asarray(draws)
        say(f"τ = {tau}: the exact targets of {size.exact} instances")
        scores, lam, draws = draw_conditions(tau, size.T, size.d, jax.random.split(key_exact, size.exact))
        counts, near = support_sizes(np.asarray(scores)[:, : size.T], np.asarray(lam))
        row |= {"exact_size": counts, "exact_near_tie": near, "exact_draws": np.asarray(draws)}
        rows.append(row)
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]} | {"taus": np.asarray(size.taus)}
