"""The rank of updates that suffices (beyond Boix-Adserà et al. 2023)."""

from typing import Any

import numpy as np

from jaxflow.plots.stages import SHADES
from jaxflow.plots.style import COLORS, new_figure

WAYS = {"lora": ("-o", "adapters"), "cut": ("--s", "cut down")}


def draw_sufficient_rank(data: dict[str, np.ndarray], allowed: float) -> Any:
    """Loss by rank relative to that of full training (bars: smallest to largest), and the smallest rank that
    suffices against the stable rank.

    **Arguments:** `data` with `scales`, `ranks`, `full_loss` and `stable_rank` `(scale, seed)`, and for `lora` and
    `cut` `_loss` `(scale, seed, rank)` and `_sufficient` `(scale, seed)`; `allowed`: the ratio that suffices.
    """
    from matplotlib.ticker import LogFormatter, StrMethodFormatter

    figure, axes = new_figure(3, width=13.0, height=3.9)
    ranks = data["ranks"]
    for axis, (way, (line, name)) in zip(axes, WAYS.items(), strict=False):
        for row, scale in enumerate(data["scales"]):
            ratio = data[f"{way}_loss"][row] / data["full_loss"][row][:, None]
            middle = np.median(ratio, axis=0)
            spread = np.stack([middle - ratio.min(axis=0), ratio.max(axis=0) - middle])
            x = np.arange(len(ranks)) + 0.08 * (row - 1)
            axis.errorbar(x, middle, spread, fmt=line, color=SHADES[-1 - 2 * row], capsize=2, markersize=4,
                          label=f"scale {scale:g}")  # fmt: skip
        axis.axhline(allowed, color=COLORS["program"], linewidth=0.8, linestyle=":", label="suffices below")
        axis.set_yscale("log")
        axis.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        # Between powers of ten only where few of them are in sight.
        axis.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(1.0, 0.5)))
        axis.set_xticks(np.arange(len(ranks)), [str(rank) for rank in ranks])
        axis.set_xlabel("rank $r$ of every head's update")
        axis.set_title(f"loss / loss of full training ({name})", fontsize=10)
    axes[0].legend(frameon=False, fontsize=8)
    last = axes[-1]
    for way, (line, name) in WAYS.items():
        places = np.searchsorted(ranks, data[f"{way}_sufficient"])
        for row in range(len(data["scales"])):
            # Side by side: many runs share a rank.
            y = places[row] + (0.08 if way == "lora" else -0.08)
            last.plot(data["stable_rank"][row], y, line[-1], color=SHADES[-1 - 2 * row], markersize=5, alpha=0.8,
                      label=name if row == 0 else None, fillstyle="full" if way == "lora" else "none")  # fmt: skip
    last.set_yticks(np.arange(len(ranks) + 1), [*(str(rank) for rank in ranks), "none"])
    last.set_ylim(-0.5, len(ranks) + 0.5)
    last.set_xlabel(r"stable rank $\|\Delta W\|_F^2/\|\Delta W\|_2^2$, mean")
    last.set_title("smallest rank that suffices", fontsize=10)
    last.legend(frameon=False, fontsize=8)
    return figure
