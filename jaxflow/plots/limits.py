"""Limits that were found: the gaps of the weights, and the flow's direction against the program's optimum."""

from typing import Any

import numpy as np

from jaxflow.plots.style import COLORS, ROUNDING, SYMBOLS, check_names, new_figure

# What is drawn of each parametrisation.
PARTS = ("certified", "log_times", "gaps", "log_log_time", "excess", "flow_gap")

NORMS = {"combined": r"\|W\|_F", "factored": r"\|W\|_\star", "diagonal": r"\|k\odot q\|_1"}


def draw_limits(data: dict[str, np.ndarray]) -> Any:
    r"""A panel for each parametrisation: gaps, on a logarithmic scale, against $\log_{10}\log t$ on another.

    (Combined weights are followed to log t = 1e5, factors to 1e257.)

    **Arguments:** `data` with, for p in combined, factored and diagonal: `p_certified` `(b,)` Boolean;
    `p_log_times`, `p_gaps` `(b, m)`: the weights' own excess $N(W)/(\mu\,\mathrm{opt})-1$ along the path;
    `p_log_log_time`, `p_excess`, `p_flow_gap` `(b,)`: at the end; instances whose excess is not finite are left out.
    """
    check_names(data, [f"{kind}_{name}" for kind in SYMBOLS for name in PARTS])
    figure, axes = new_figure(3, shared=True, height=4.0)
    for axis, kind in zip(axes, SYMBOLS, strict=True):
        color, kept = COLORS[kind], np.isfinite(data[f"{kind}_excess"])
        for times, gaps in zip(data[f"{kind}_log_times"][kept], data[f"{kind}_gaps"][kept], strict=True):
            axis.plot(np.log10(times), np.maximum(gaps, ROUNDING), color=color, alpha=0.55, linewidth=1.0)
        end = data[f"{kind}_log_log_time"][kept] / np.log(10.0)
        own = data[f"{kind}_flow_gap"][kept]
        finite = np.isfinite(own)
        axis.plot(
            end[finite], np.maximum(own, ROUNDING)[finite], "o", color=color, markersize=5, markerfacecolor="none"
        )
        excess = np.maximum(data[f"{kind}_excess"][kept], ROUNDING)
        axis.plot(end, excess, "D", color=COLORS["program"], markersize=4)
        axis.axhline(1e-8, color=COLORS["faint"], linewidth=0.8, linestyle=":")
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_ylim(ROUNDING / 3, 3.0)
        axis.set_xlabel(r"$\log_{10}\,\log t$")
        axis.xaxis.set_major_formatter("{x:g}")
        certified = f"{int(data[f'{kind}_certified'].sum())} of {len(kept)} certified"
        axis.set_title(rf"{SYMBOLS[kind]}: least ${NORMS[kind]}$, {certified}", fontsize=10)
    left = axes[0]
    left.set_ylabel("relative duality gap")
    below = {"color": COLORS["faint"], "fontsize": 7, "transform": left.get_yaxis_transform()}
    left.text(0.02, 1.4e-8, "counts as certified below", **below)
    from matplotlib.lines import Line2D

    grey, excess = COLORS["faint"], "excess of the flow's direction over the program's optimum"
    handles = [
        Line2D([], [], color=grey, label=r"the weights' excess $N(W)/(\mu\,\mathrm{opt})-1$ along the flow"),
        Line2D([], [], color=grey, marker="o", markerfacecolor="none", linestyle="", label="the flow's own gap"),
        Line2D([], [], color=COLORS["program"], marker="D", markersize=4, linestyle="", label=excess),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return figure
