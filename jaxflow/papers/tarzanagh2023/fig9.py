"""`reproduce tarzanagh2023 fig9`: how many tokens a concave head selects, and what (Gen-SVM) says of W."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxflow.papers.registry import AbstractFigure, Data, register_figure
from jaxflow.papers.tarzanagh2023.concave import draw_batch
from jaxflow.papers.tarzanagh2023.concave_claims import claims_of_fig9
from jaxflow.papers.tarzanagh2023.concave_table import table
from jaxflow.plots import COLORS, new_figure


class Size(NamedTuple):
    """Instances of one scale: the same `trials` heads, tokens and starts for every λ."""

    trials: int
    lambdas: tuple[float, ...]
    T: int = 10
    d: int = 10


# The paper's figure goes past λ = 2; its grid is not given, this one is ours.
GRID = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 2.2, 2.5, 3.0)

SIZES = {
    "quick": Size(20, (0.0, 0.1, 0.3, 0.6, 1.0, 1.5, 2.0, 2.5)),
    "paper": Size(100, GRID),
    "large": Size(2000, GRID),
}


@register_figure(
    "tarzanagh2023",
    "fig9",
    title="Several selected tokens under a concave head, against λ",
    run_times={
        "quick": "20 instances for each of 8 values of λ, under a minute",
        "paper": "100 instances for each of 18 values of λ, about a minute",
        "large": "2,000 instances for each of 18 values of λ, about half an hour on two cores",
    },
)
class Figure9(AbstractFigure):
    r"""Figure 9 of Tarzanagh et al. (2023): n = 1, T = d = 10, $h(x)=v^\top x-\lambda\|x\|^2$, $\ell(x)=-x$, Y = 1.

    (a) tokens selected against λ: exactly (the support of $s^\star$), and by the published criterion and protocol;
    (b) 1 − corr of W with $W^{mm}$ of (Gen-SVM) and with $W^{SVMeq}$ against λ, (c) against their number.
    """

    def compute(self, scale: str, seed: int, say: Callable[[str], None]) -> Data:
        return compute(SIZES[scale], seed, say)

    def draw(self, data: Data) -> Any:
        return draw_token_counts(data)

    def claims(self, data: Data) -> tuple[list[Any], list[str]]:
        return claims_of_fig9(data)


def compute(size: Size, seed: int, say: Callable[[str], None]) -> Data:
    """The per-instance tables, arrays `(λ, trial, ...)`."""
    keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), 9), size.trials)
    rows: list[Data] = []
    for lam in size.lambdas:
        say(f"λ = {lam}: flow, published descent and programs of {size.trials} instances")
        rows.append(table(draw_batch(size.T, size.d, keys, jnp.full(size.trials, lam))))
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]} | {"lambdas": np.asarray(size.lambdas)}


# A distance below rounding is drawn at rounding.
ROUNDING = 1e-16
FLOW, DESCENT = COLORS["combined"], COLORS["factored"]


def draw_token_counts(data: dict[str, np.ndarray]) -> Any:
    r"""Tokens selected against λ; 1 − corr(W, $W^{mm}$) (dotted) and 1 − corr(W, $W^{SVMeq}$) (solid).

    **Arguments:** `data` with `lambdas` `(l,)`, `size` `(l, b)` (the exact support) and, for p in flow and descent,
    `p_selected`, `p_kept`, `p_corr_direction`, `p_corr_combined` `(l, b)`.
    """
    figure, axes = new_figure(3, width=12.5, height=4.0)
    x = data["lambdas"]
    axis = axes[0]
    low, high = data["size"].min(axis=1), data["size"].max(axis=1)
    axis.fill_between(x, low, high, color=COLORS["faint"], alpha=0.2, linewidth=0)
    axis.plot(x, data["size"].mean(axis=1), "-", color="black", label=r"$|\mathrm{supp}\,s^\star|$, all instances")
    kept = data["descent_kept"]
    axis.plot(x, _mean(data["descent_selected"], kept), "s--", color=DESCENT, markersize=4, label="descent, survivors")
    axis.plot(
        x, _mean(data["flow_selected"], data["flow_kept"]), "o--", color=FLOW, markersize=4, label="flow, survivors"
    )
    axis.set_ylabel("number of selected tokens")
    axis.set_ylim(0, data["scores"].shape[-1] + 0.5)
    share = axis.twinx()
    share.spines["top"].set_visible(False)
    for name, color in (("flow", FLOW), ("descent", DESCENT)):
        share.plot(x, data[f"{name}_kept"].mean(axis=1), ":", color=color, linewidth=1.2)
    share.set_ylim(0, 1.05)
    share.set_ylabel("share kept by the filter (dotted)")
    axis.set_xlabel(r"$\lambda$")
    axis.set_title("(a) tokens selected; band: smallest to largest", fontsize=10)
    axis.legend(frameon=False, fontsize=8, loc="lower right")
    _draw_fit(axes[1], data, x, [np.arange(len(x)) == i for i in range(len(x))])
    axes[1].set_xlabel(r"$\lambda$")
    axes[1].set_title(r"(b) predictivity against $\lambda$", fontsize=10)
    numbers = np.arange(1, data["scores"].shape[-1] + 1)
    _draw_fit(axes[2], data, numbers, list(numbers))
    axes[2].set_xlabel("number of selected tokens")
    axes[2].set_xticks(numbers)
    axes[2].set_title("(c) predictivity against their number", fontsize=10)
    # Room for the legend above the curves.
    low, high = axes[1].get_ylim()
    axes[1].set_ylim(low, high * (high / low) ** 0.6)
    axes[1].legend(frameon=False, fontsize=8, loc="upper left")
    return figure


def _draw_fit(axis: Any, data: dict[str, np.ndarray], x: np.ndarray, groups: list[Any]) -> None:
    """Means over groups of instances: rows of the λ grid (Boolean arrays), or numbers of selected tokens."""
    for name, color, which in (("flow", FLOW, "all"), ("descent", DESCENT, "survivors")):
        counts = data["size"] if name == "flow" else data["descent_selected"]
        inside = data["flow_good"] if name == "flow" else data["descent_kept"]
        for quantity, line, symbol in (("combined", "-", r"W^{SVMeq}"), ("direction", ":", r"W^{mm}")):
            values = np.maximum(1.0 - data[f"{name}_corr_{quantity}"], ROUNDING)
            members = [
                inside & ~np.isnan(values) & (group[:, None] if isinstance(group, np.ndarray) else counts == group)
                for group in groups
            ]
            means = np.array([values[member].mean() if member.any() else np.nan for member in members])
            axis.plot(
                x, means, line, marker=".", color=color, label=rf"$1-\mathrm{{corr}}(W,{symbol})$, {name}, {which}"
            )
    axis.set_yscale("log")


def _mean(values: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Row by row over the mask; NaN where it is empty."""
    count = mask.sum(axis=1)
    return np.where(count > 0, np.sum(values * mask, axis=1) / np.maximum(count, 1), np.nan)
