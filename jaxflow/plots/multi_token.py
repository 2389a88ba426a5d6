"""Several selected tokens: their number and what programs say of W (figures 9 and 12 of Tarzanagh et al. 2023)."""

from typing import Any

import numpy as np

from jaxflow.plots.style import COLORS, new_figure

# A distance below rounding is drawn at rounding.
ROUNDING = 1e-16

# Okabe and Ito (2008), one for each τ.
TAUS = ("#0072B2", "#009E73", "#D55E00", "#CC79A7")

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
    for i, (tau, color) in enumerate(zip(taus, TAUS, strict=False)):
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
