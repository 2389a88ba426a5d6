"""`reproduce tarzanagh2023 fig8`: (Gen-SVM) against descent for a nonlinear head."""

from collections.abc import Callable
from typing import Any

import numpy as np

from jaxflow.papers.registry import AbstractFigure, Data, register_figure
from jaxflow.papers.tarzanagh2023.composition import SIZES, compute
from jaxflow.papers.tarzanagh2023.composition_claims import figure8_claims
from jaxflow.plots import new_figure
from jaxflow.report import Claim


@register_figure(
    "tarzanagh2023",
    "fig8",
    title="Attention that composes tokens for a nonlinear head, and (Gen-SVM)",
    run_times={
        "quick": "200 instances for each of d = 4, 8, about two minutes",
        "paper": "10,000 instances for each of d = 4, 6, 8, 10, about seven minutes",
        "large": "50,000 instances for each of d = 4, 6, 8, 10, about twenty-five minutes on two cores",
    },
)
class Figure8(AbstractFigure):
    r"""Figure 8 of Tarzanagh et al. (2023): n = 3, T = 4, head $1^\top\mathrm{ReLU}(Vx)$, some label −1.

    Upper: $1-\mathrm{corr}$ of the published descent on W with $W^{mm}$ of (Gen-SVM), with
    $W^{SVMeq}=W^{fin}+\gamma\bar W^{mm}$ and with $W^{1token}$ of (Att-SVM) for the top tokens. Lower: with
    $W^{SVMeq}$ at the end, against the largest softmax of a masked token. Means are over the instances that the
    paper's filter keeps; the titles say how many those are. Below them, and not in the paper: how far descent with
    steps of 1e-2, 1e-3 and 1e-4 is from the gradient flow along its kinks.
    """

    def compute(self, scale: str, seed: int, say: Callable[[str], None]) -> Data:
        return compute(SIZES[scale], seed, say)

    def draw(self, data: Data) -> Any:
        return draw_composition(data)

    def claims(self, data: Data) -> tuple[list[Claim], list[str]]:
        return figure8_claims(data)


# Okabe and Ito (2008): the baselines, with the lines of the paper.
BASELINES = (
    ("one", "--", "#D55E00", r"$W^{1\mathrm{token}}$"),
    ("mm", ":", "#009E73", r"$W^{mm}$"),
    ("svmeq", "-", "#0072B2", r"$W^{\mathrm{SVMeq}}$"),
)
# A distance below rounding is drawn at rounding.
ROUNDING = 1e-16


def draw_composition(data: dict[str, np.ndarray]) -> Any:
    r"""Figure 8: above, 1 − corr with three baselines along the descent; in the middle, at its end, against the largest
    softmax of a masked token; kept instances only. Below, beside the figure of the paper: how far descent is from the
    gradient flow at equal times, against its step size. A column for each d.

    **Arguments:** `data` with `dimensions` `(k,)`, `steps` `(m,)`, `kept`, `log_masked` `(k, b)`,
    `tokens_selected` `(k, b, n)` and `svmeq`, `mm`, `one` `(k, b, m)`, NaN without a solution; `rates` `(r,)`,
    `descent_distance` `(k, f, r)` and `flow_met` `(k, f)`, the kinks that a flow slid on.
    """
    dimensions = data["dimensions"]
    columns = len(dimensions)
    figure, _ = new_figure(1, width=max(3.1 * columns, 7.0), height=8.6)
    figure.clear()
    axes = figure.subplots(3, columns, sharey="row", sharex="row", squeeze=False)
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(True, which="major", color="#E5E5E5", linewidth=0.6)
        axis.set_axisbelow(True)
    for column, d in enumerate(dimensions):
        kept = data["kept"][column]
        upper, lower, beside = axes[:, column]
        _draw_agreement(beside, data["rates"], data["descent_distance"][column], data["flow_met"][column] > 0)
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
    axes[2, 0].set_ylabel("distance of descent from the\ngradient flow, relative")
    return figure


def _draw_agreement(axis: Any, rates: np.ndarray, distance: np.ndarray, slides: np.ndarray) -> None:
    """One thin line a flow, their median, and a line of slope one through it."""
    for chosen, color, label in ((slides, "#56B4E9", "slides along kinks"), (~slides, "#E69F00", "does not")):
        lines = axis.plot(rates, distance[chosen].T, color=color, linewidth=0.6, alpha=0.5)
        if lines:
            lines[0].set_label(f"{label}: {chosen.sum()}")
    median = np.median(distance, axis=0)
    axis.plot(rates, median, "o-", color="#0072B2", markersize=4, label="median")
    axis.plot(
        rates, median[-1] * rates / rates[-1], color="#000000", linewidth=0.8, linestyle=(0, (1, 2)), label="slope 1"
    )
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel(r"step size $\eta$ of descent")
    axis.legend(frameon=False, fontsize=7, loc="upper left")
