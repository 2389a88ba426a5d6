r"""`reproduce tarzanagh2023 fig11`: $W^{SVMeq}$ against descent by dimension and by threshold."""

from collections.abc import Callable
from typing import Any

import numpy as np

from jaxflow.papers.registry import AbstractFigure, Data, register_figure
from jaxflow.papers.tarzanagh2023.composition import SIZES, compute
from jaxflow.papers.tarzanagh2023.composition_claims import EXPONENTS, by_threshold, figure11_claims
from jaxflow.plots import new_figure
from jaxflow.report import Claim


@register_figure(
    "tarzanagh2023",
    "fig11",
    title="The SVM-equivalence of figure 8 by dimension and by the threshold of masked tokens",
    run_times={
        "quick": "200 instances for each of d = 4, 8, under a minute",
        "paper": "10,000 instances for each of d = 4, 6, 8, 10, about four minutes",
        "large": "50,000 instances for each of d = 4, 6, 8, 10, about twenty minutes on two cores",
    },
)
class Figure11(AbstractFigure):
    r"""Figure 11 of Tarzanagh et al. (2023), from the instances of figure 8.

    (a) the mean of $1-\mathrm{corr}(W,W^{SVMeq})$ along the descent for each d; (b) at its end, over the instances
    whose masked tokens all have softmax below Γ; (c), which is not in the paper, how many of all those are.
    """

    def compute(self, scale: str, seed: int, say: Callable[[str], None]) -> Data:
        return compute(SIZES[scale], seed, say)

    def draw(self, data: Data) -> Any:
        return draw_thresholds(curves(data))

    def claims(self, data: Data) -> tuple[list[Claim], list[str]]:
        return figure11_claims(data)


def curves(data: Data) -> Data:
    """What is drawn: means over kept instances, NaN where none is."""
    dimensions, below_mean, _, below_count = by_threshold(data)
    kept = data["kept"][..., None]
    count = np.maximum(kept.sum(axis=1), 1)
    mean = np.sum(np.where(kept, data["svmeq"], 0.0), axis=1) / count
    return {
        "dimensions": dimensions,
        "steps": data["steps"],
        "mean": np.where(kept.any(axis=1), mean, np.nan),
        "trials": np.asarray(data["kept"].shape[1]),
        "exponents": EXPONENTS,
        "below_mean": below_mean,
        "below_count": below_count,
    }


# Okabe and Ito (2008), one for each dimension.
DIMENSION_COLORS = ("#0072B2", "#009E73", "#D55E00", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
# A distance below rounding is drawn at rounding.
ROUNDING = 1e-16


def draw_thresholds(curves: dict[str, np.ndarray]) -> Any:
    r"""Figure 11: (a) $1-\mathrm{corr}(W,W^{SVMeq})$ along the descent; (b) at its end for the instances whose masked
    tokens all have softmax below Γ; (c) the share of all instances that these are.

    **Arguments:** `dimensions` `(k,)`, `steps` `(m,)`, `mean` `(k, m)`, `trials`, `exponents` `(g,)` of Γ,
    `below_mean` and `below_count` `(k, g)`.
    """
    figure, axes = new_figure(3)
    gamma = 10.0 ** curves["exponents"]
    for row, (color, d) in enumerate(zip(DIMENSION_COLORS, curves["dimensions"], strict=False)):
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
