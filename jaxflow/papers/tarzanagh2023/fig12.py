"""`reproduce tarzanagh2023 fig12`: Lemma 6, at least two and at most τ selected tokens."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxflow.papers.registry import AbstractFigure, Data, register_figure
from jaxflow.papers.tarzanagh2023.concave import draw_batch, draw_conditions, support_sizes
from jaxflow.papers.tarzanagh2023.concave_table import table
from jaxflow.papers.tarzanagh2023.lemma6_claims import claims_of_fig12
from jaxflow.plots import COLORS, CURVES, new_figure


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


FLOW, DESCENT = COLORS["combined"], COLORS["factored"]


def draw_token_histograms(data: dict[str, np.ndarray]) -> Any:
    r"""λ, the number of selected tokens and its distribution, for each τ of condition (8).

    **Arguments:** `data` with `taus` `(k,)`, `lam`, `size`, `flow_selected`, `descent_selected` `(k, b)`, and
    `exact_size` `(k, m)`.
    """
    figure, axes = new_figure(3, width=12.5, height=4.0)
    taus, T = data["taus"], data["scores"].shape[-1]
    axes[0].boxplot(list(data["lam"]), positions=taus, widths=0.8, showfliers=True, medianprops={"color": FLOW})
    axes[0].set_ylabel(r"$\lambda$")
    axes[0].set_title(r"(a) $\lambda$ in $(\gamma^{gap}_1,\ \tau\gamma^{gap}_\tau/2)$", fontsize=10)
    axes[1].plot(taus, taus, "--", color=COLORS["faint"], label=r"bounds of Lemma 6: 2 and $\tau$")
    axes[1].plot(taus, np.full(len(taus), 2), "--", color=COLORS["faint"])
    for name, color, shift, label in (
        ("size", "black", -0.15, r"$|\mathrm{supp}\,s^\star|$"),
        ("flow_selected", FLOW, 0.0, "flow"),
        ("descent_selected", DESCENT, 0.15, "descent"),
    ):
        mean = data[name].mean(axis=1)
        spread = np.stack([mean - data[name].min(axis=1), data[name].max(axis=1) - mean])
        axes[1].errorbar(taus + shift, mean, spread, fmt="o", color=color, markersize=4, capsize=3, label=label)
    axes[1].set_ylabel("number of selected tokens")
    axes[1].set_title("(b) their number; bars: smallest to largest", fontsize=10)
    axes[1].legend(frameon=False, fontsize=8)
    for axis in axes[:2]:
        axis.set_xlabel(r"$\tau$")
        axis.set_xticks(taus)
    numbers = np.arange(1, T + 1)
    width = 0.8 / len(taus)
    for i, (tau, color) in enumerate(zip(taus, CURVES, strict=False)):
        place = numbers + (i - (len(taus) - 1) / 2) * width
        shares = [np.mean(data["flow_selected"][i] == number) for number in numbers]
        exact = [np.mean(data["exact_size"][i] == number) for number in numbers]
        axes[2].bar(place, shares, width, color=color, alpha=0.7, label=rf"$\tau={tau}$")
        axes[2].plot(place, exact, "k_", markersize=5)
    axes[2].plot([], [], "k_", label=rf"exact, {data['exact_size'].shape[1]:,} instances")
    axes[2].set_xlabel("number of selected tokens")
    axes[2].set_ylabel("share of instances")
    axes[2].set_xticks(numbers)
    axes[2].set_title("(c) distribution of their number: flow (bars)", fontsize=10)
    axes[2].legend(frameon=False, fontsize=8)
    return figure
