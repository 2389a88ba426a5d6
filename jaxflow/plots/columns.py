"""Misalignment against the number of columns of K and Q (figure 10 of Tarzanagh et al. 2023)."""

from typing import Any

import numpy as np

from jaxflow.plots.style import new_figure

# Okabe and Ito (2008), in the order of the curves.
CURVES = ("#0072B2", "#009E73", "#D55E00", "#CC79A7")


def draw_columns(data: dict[str, np.ndarray]) -> Any:
    r"""Mean of $1-\mathrm{corr}(W^{mm}_{\star,\alpha},KQ^\top)$ against m: flow solid, descent dashed, floor dotted.

    **Arguments:** `data` with `shapes` `(s, 2)` of n and T, `columns` `(k,)`, and for p in flow and descent
    `p_misalignment`, `p_floor`, `p_rank` (−1 without solution) and `p_settled`, each `(s, k, b)`.
    """
    shapes, columns = data["shapes"], data["columns"]
    fixed_n, fixed_T = shapes[0]
    panels = [
        ([i for i, (n, _) in enumerate(shapes) if n == fixed_n], "T", 1, rf"(a) $n={fixed_n}$"),
        ([i for i, (_, T) in enumerate(shapes) if T == fixed_T], "n", 0, rf"(b) $T={fixed_T}$"),
    ]
    panels = [panel for panel in panels if len(panel[0]) > 1] or panels[:1]
    figure, axes = new_figure(len(panels), width=5.2 * len(panels), height=4.0, shared=True)
    for axis, (rows, varied, index, title) in zip(axes, panels, strict=True):
        for color, row in zip(CURVES, rows, strict=False):
            value = shapes[row][index]
            for way, line in (("flow", "-o"), ("descent", "--s")):
                mean = _mean(data, way, "misalignment", row)
                axis.plot(columns, mean, line, color=color, markersize=4, label=rf"{way}, ${varied}={value}$")
            axis.plot(columns, np.maximum(_mean(data, "flow", "floor", row), 1e-16), ":", color=color, linewidth=1)
        axis.set_yscale("log")
        axis.set_ylim(bottom=1e-4)
        axis.set_xlabel(r"$m$")
        axis.set_xticks(columns)
        axis.set_title(title + "; dotted: what rank m allows", fontsize=10)
        axis.legend(frameon=False, fontsize=8)
    axes[0].set_ylabel(r"$1-\mathrm{corr}(W^{mm}_{\star,\alpha},\,KQ^\top)$")
    return figure


def _mean(data: dict[str, np.ndarray], way: str, name: str, row: int) -> np.ndarray:
    kept = data[f"{way}_settled"][row] & (data[f"{way}_rank"][row] >= 0)
    values = np.where(kept, data[f"{way}_{name}"][row], 0.0)
    count = kept.sum(axis=1)
    return np.where(count > 0, values.sum(axis=1) / np.maximum(count, 1), np.nan)
