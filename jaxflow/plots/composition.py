"""Compositions of tokens and how well (Gen-SVM) predicts them (figures 8 and 11 of Tarzanagh et al. 2023)."""

from typing import Any

import numpy as np

from jaxflow.plots.style import new_figure

# Okabe and Ito (2008): the baselines, with the lines of the paper, and the dimensions.
BASELINES = (
    ("one", "--", "#D55E00", r"$W^{1\mathrm{token}}$"),
    ("mm", ":", "#009E73", r"$W^{mm}$"),
    ("svmeq", "-", "#0072B2", r"$W^{\mathrm{SVMeq}}$"),
)
CURVES = ("#0072B2", "#009E73", "#D55E00", "#CC79A7", "#E69F00", "#56B4E9", "#000000")

# A distance below rounding is drawn at rounding.
ROUNDING = 1e-16


def draw_composition(data: dict[str, np.ndarray]) -> Any:
    r"""Figure 8: above, 1 − corr with three baselines along the descent; below, at its end, against the largest
    softmax of a masked token. A column for each d, kept instances only.

    **Arguments:** `data` with `dimensions` `(k,)`, `steps` `(m,)`, `kept`, `log_masked` `(k, b)`,
    `tokens_selected` `(k, b, n)` and `svmeq`, `mm`, `one` `(k, b, m)`, NaN without a solution.
    """
    dimensions = data["dimensions"]
    columns = len(dimensions)
    figure, _ = new_figure(1, width=max(3.1 * columns, 7.0), height=6.0)
    figure.clear()
    axes = figure.subplots(2, columns, sharey="row", sharex="row", squeeze=False)
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(True, which="major", color="#E5E5E5", linewidth=0.6)
        axis.set_axisbelow(True)
    for column, d in enumerate(dimensions):
        kept = data["kept"][column]
        upper, lower = axes[:, column]
        for name, line, color, label in BASELINES:
            values = data[name][column][kept]
            values = values[~np.isnan(values[:, -1])]
            if len(values):
                mean = np.maximum(values.mean(axis=0), ROUNDING)
                upper.plot(data["steps"], mean, line, color=color, label=label)
        upper.set_yscale("log")
        upper.set_xlabel("iterations")
        upper.set_title(rf"$d={d}$: {kept.sum():,} kept of {kept.size:,}", fontsize=10)
        several = np.any(data["tokens_selected"][column] > 1, axis=-1)
        distance = np.maximum(data["svmeq"][column][:, -1], ROUNDING)
        for chosen, color, marker, label in (
            (kept & several, "#0072B2", "o", "some set of several tokens"),
            (kept & ~several, "#E69F00", "^", "one token each"),
        ):
            lower.plot(
                10.0 ** data["log_masked"][column][chosen],
                distance[chosen],
                marker,
                color=color,
                markersize=3,
                alpha=0.5,
                markeredgewidth=0,
                label=f"{label}: {chosen.sum():,}",
            )
        lower.set_xscale("log")
        lower.set_yscale("log")
        lower.set_xlabel(r"$\max_{i,\,\tau\in\bar{O}_i}\ s_{i\tau}$")
        lower.legend(frameon=False, fontsize=7, loc="upper left", markerscale=1.5)
    axes[0, 0].legend(frameon=False, fontsize=8)
    axes[0, 0].set_ylabel(r"mean of $1-\mathrm{corr}(W,\cdot)$")
    axes[1, 0].set_ylabel(r"$1-\mathrm{corr}(W,\,W^{\mathrm{SVMeq}})$")
    return figure


def draw_thresholds(curves: dict[str, np.ndarray]) -> Any:
    r"""Figure 11: (a) $1-\mathrm{corr}(W,W^{SVMeq})$ along the descent; (b) at its end for the instances whose masked
    tokens all have softmax below Γ; (c) the share of all instances that these are.

    **Arguments:** `dimensions` `(k,)`, `steps` `(m,)`, `mean` `(k, m)`, `trials`, `exponents` `(g,)` of Γ,
    `below_mean` and `below_count` `(k, g)`.
    """
    figure, axes = new_figure(3)
    gamma = 10.0 ** curves["exponents"]
    for row, (color, d) in enumerate(zip(CURVES, curves["dimensions"], strict=False)):
        label = rf"$d={d}$"
        axes[0].plot(curves["steps"], np.maximum(curves["mean"][row], ROUNDING), color=color, label=label)
        axes[1].plot(gamma, np.maximum(curves["below_mean"][row], ROUNDING), ".-", color=color, label=label)
        share = 100 * curves["below_count"][row] / int(curves["trials"])
        axes[2].plot(gamma, share, ".-", color=color, label=label)
    # The paper's 0.99.
    for axis in axes[:2]:
        axis.axhline(0.01, color="#000000", linewidth=0.8, linestyle=(0, (1, 2)))
        axis.set_yscale("log")
        axis.set_ylabel(r"mean of $1-\mathrm{corr}(W,\,W^{\mathrm{SVMeq}})$")
    axes[0].set_xlabel("iterations")
    for axis in axes[1:]:
        axis.set_xscale("log")
        axis.set_xlabel(r"$\Gamma$")
    axes[2].set_ylabel("% of all instances")
    axes[2].set_ylim(bottom=0)
    titles = ("(a) kept instances", r"(b) kept, masked softmax $<\Gamma$", "(c) how many these are")
    for axis, title in zip(axes, titles, strict=True):
        axis.set_title(title, fontsize=10)
    axes[0].legend(frameon=False, fontsize=8)
    return figure
