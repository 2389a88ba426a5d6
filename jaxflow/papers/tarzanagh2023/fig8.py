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
        "quick": "200 instances for each of d = 4, 8, under a minute",
        "paper": "10,000 instances for each of d = 4, 6, 8, 10, about four minutes",
        "large": "50,000 instances for each of d = 4, 6, 8, 10, about twenty minutes on two cores",
    },
)
class Figure8(AbstractFigure):
    r"""Figure 8 of Tarzanagh et al. (2023): n = 3, T = 4, head $1^\top\mathrm{ReLU}(Vx)$, some label −1.

    Upper: $1-\mathrm{corr}$ of the published descent on W with $W^{mm}$ of (Gen-SVM), with
    $W^{SVMeq}=W^{fin}+\gamma\bar W^{mm}$ and with $W^{1token}$ of (Att-SVM) for the top tokens. Lower: with
    $W^{SVMeq}$ at the end, against the largest softmax of a masked token. Means are over the instances that the
    paper's filter keeps; the titles say how many those are.
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
