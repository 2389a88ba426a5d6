"""Ranks of max-margin solutions against d (figure 4 of Tarzanagh et al. 2023)."""

from typing import Any

import numpy as np

from jaxflow.plots.style import new_figure

# Okabe and Ito (2008), in the order of the curves.
CURVES = ("#0072B2", "#009E73", "#D55E00", "#CC79A7")


def draw_ranks(data: dict[str, np.ndarray]) -> Any:
    r"""Mean rank, with the range over the instances, of $W^{mm}$ (solid) and $W^{mm}_\star$ (dashed) against d.

    **Arguments:** `data` with `shapes` `(s, 2)` of n and T, `dimensions` `(k,)`, and for p in frobenius and
    nuclear `p_rank` `(s, k, b)`, −1 where there is no solution.
    """
    shapes, dimensions = data["shapes"], data["dimensions"]
    fixed_T, fixed_n = shapes[0][1], shapes[0][0]
    panels = [
        ([i for i, (_, T) in enumerate(shapes) if T == fixed_T], "n", rf"(a) $T={fixed_T}$"),
        ([i for i, (n, _) in enumerate(shapes) if n == fixed_n], "T", rf"(b) $n={fixed_n}$"),
    ]
    panels = [panel for panel in panels if len(panel[0]) > 1] or panels[:1]
    figure, axes = new_figure(len(panels), width=5.2 * len(panels), height=4.0, shared=True)
    for axis, (rows, varied, title) in zip(axes, panels, strict=True):
        for color, row in zip(CURVES, rows, strict=False):
            for norm, line in (("frobenius", "-o"), ("nuclear", "--s")):
                symbol = r"W^{mm}" if norm == "frobenius" else r"W^{mm}_\star"
                rank = np.where(data[f"{norm}_rank"][row] >= 0, data[f"{norm}_rank"][row], np.nan)
                some = ~np.isnan(rank).all(axis=1)
                x, rank = dimensions[some], rank[some]
                value = shapes[row][0 if varied == "n" else 1]
                axis.plot(
                    x,
                    np.nanmean(rank, axis=1),
                    line,
                    color=color,
                    markersize=4,
                    label=rf"${symbol}$, ${varied}={value}$",
                )
                axis.fill_between(
                    x, np.nanmin(rank, axis=1), np.nanmax(rank, axis=1), color=color, alpha=0.12, linewidth=0
                )
        axis.set_xlabel(r"$d$")
        axis.set_xticks(dimensions)
        axis.set_title(title + "; bands: smallest to largest", fontsize=10)
        axis.legend(frameon=False, fontsize=8)
    axes[0].set_ylabel("rank")
    return figure
