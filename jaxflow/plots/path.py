"""One flow: its path, and its distance from the limit; the limits of many."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxflow.plots.style import COLORS, ROUNDING, SYMBOLS, check_names, new_figure

# What `draw_limits` draws of each parametrisation.
PARTS = ("certified", "log_times", "gaps", "log_log_time", "excess", "flow_gap")

NORMS = {"combined": r"\|W\|_F", "factored": r"\|W\|_\star", "diagonal": r"\|k\odot q\|_1"}


def draw_path(data: Mapping[str, Any]) -> Any:
    r"""Norm, gradient and direction along one path, against $\log t$ ($\log\log t$ where that overflows).

    **Arguments:** `data` with `(m,)` arrays `log_time`, `log_log_time`, `log_norm`, `log_gradient_norm`, and `turning`:
    the distance of the direction from the last one.
    """
    check_names(data, ["log_time", "log_log_time", "log_norm", "log_gradient_norm", "turning"])
    figure, axes = new_figure(3, height=3.2)
    time, label = np.asarray(data["log_time"], float), r"$\log t$"
    if not np.all(np.isfinite(time)):
        time, label = np.asarray(data["log_log_time"], float), r"$\log\log t$"
    panels = (
        (r"$\log\|\theta\|$", np.asarray(data["log_norm"])),
        (r"$\log\|\nabla L\|$", np.asarray(data["log_gradient_norm"])),
        ("distance to the last direction", np.maximum(np.asarray(data["turning"]), ROUNDING)),
    )
    for axis, (title, values) in zip(axes, panels, strict=True):
        axis.plot(time, values, color=COLORS["combined"], marker=".", markersize=4, linewidth=1.2)
        axis.set_xlabel(label)
        axis.set_title(title, fontsize=10)
    # The last direction is at distance zero from itself, which a logarithmic axis does not show.
    turning = panels[-1][1]
    if np.any(turning > ROUNDING):
        axes[2].set_yscale("log")
        axes[2].set_ylim(bottom=0.5 * float(turning[turning > ROUNDING].min()))
    return figure


def draw_limit(data: Mapping[str, Any]) -> Any:
    r"""A limit, and the distance of the flow from it along the path.

    **Arguments:** `data` with `log_times`, `gaps` `(m,)` of the way (NaN where it had ended) and `gap_label`; `limit`,
    a vector or a matrix, with `limit_label`; `title`. Optional: `program`, of the same shape as a vector `limit`: the
    optimum of the predicted program, drawn beside it.
    """
    check_names(data, ["log_times", "gaps", "gap_label", "limit", "limit_label", "title"])
    figure, (left, right) = new_figure(2, width=9.0, height=3.6)
    times, gaps = np.asarray(data["log_times"], float), np.asarray(data["gaps"], float)
    kept = np.isfinite(times) & np.isfinite(gaps) & (times > 0)
    if kept.any():
        left.plot(times[kept], np.maximum(gaps[kept], ROUNDING), color=COLORS["combined"], marker=".", linewidth=1.2)
        left.set_xscale("log")
        left.set_yscale("log")
    else:
        left.text(0.5, 0.5, "the path was not kept", transform=left.transAxes, ha="center", color=COLORS["faint"])
    left.set_xlabel(r"$\log t$")
    left.set_title(str(data["gap_label"]), fontsize=10)
    limit = np.asarray(data["limit"], float)
    if limit.ndim == 2:
        size = float(np.max(np.abs(limit), initial=0.0)) or 1.0
        shown = right.imshow(limit, cmap="RdBu_r", vmin=-size, vmax=size)
        right.grid(False)
        right.set_xticks([])
        right.set_yticks([])
        figure.colorbar(shown, ax=right)
    else:
        flat = limit.ravel()
        right.stem(np.arange(flat.size), flat, basefmt=" ", label="the flow")
        if "program" in data:
            right.plot(
                np.asarray(data["program"]).ravel(), "x", color=COLORS["factored"], label="the program's optimum"
            )
            right.legend(frameon=False, fontsize=8)
        right.set_xlabel("entry")
    right.set_title(str(data["limit_label"]), fontsize=10)
    figure.suptitle(str(data["title"]), fontsize=10)
    return figure


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
