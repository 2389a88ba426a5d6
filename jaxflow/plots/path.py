"""One flow: its path, and its distance from the limit."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxflow.plots.style import COLORS, ROUNDING, check_names, new_figure


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
