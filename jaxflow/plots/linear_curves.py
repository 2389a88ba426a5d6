"""Curves and bars of the further figures for Yun et al. (2021)."""

from typing import Any

import numpy as np

from jaxflow.plots.style import new_figure

DEPTH_COLORS = {2: "#0072B2", 3: "#D55E00", 4: "#009E73"}
BARS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")


def draw_alpha_sweep(data: dict[str, np.ndarray]) -> Any:
    r"""$\|\rho^\infty\|_1$ and $\|\rho^\infty\|_2$ over their minima against α; lines: closed form, circles: flows."""
    figure, axes = new_figure(2, width=10.0, height=3.8)
    for p, axis in enumerate(axes, start=1):
        for row, depth in enumerate(data["depths"]):
            color = DEPTH_COLORS[int(depth)]
            axis.plot(data["alphas"], data[f"l{p}"][row] / data["best"][p - 1] - 1, color=color, label=rf"$L={depth}$")
            mine = data["flows"][(data["flows"][:, 0] == depth) & (data["flows"][:, 5] > 0)]
            axis.plot(mine[:, 1], mine[:, 1 + p] / data["best"][p - 1] - 1, "o", color=color, markerfacecolor="none")
        axis.set_xscale("log")
        axis.set_yscale("symlog", linthresh=1e-3)
        axis.set_ylim(bottom=0)
        axis.set_xlabel(r"initial scale $\alpha$")
        axis.set_ylabel(rf"$\|\rho^\infty\|_{p}\,/\,\min\|\rho\|_{p}-1$")
    axes[0].plot([], [], "o", color="#555555", markerfacecolor="none", label="flow")
    axes[0].legend(frameon=False, fontsize=9)
    return figure


def draw_designed(data: dict[str, np.ndarray]) -> Any:
    r"""Limit directions in the transformed space: the network designed for T, and the diagonal one."""
    figure, axes = new_figure(3, width=12.0, height=3.5)
    panels = (
        ("teacher", r"teacher, $T^{-\top}\beta$"),
        ("designed", r"network with $S=T$, $T^{-\top}\beta$"),
        ("diagonal", r"diagonal network, $T^{-\top}\beta$"),
    )
    for axis, (name, title), color in zip(axes, panels, BARS, strict=False):
        value = data[name] / np.linalg.norm(data[name])
        axis.bar(range(1, value.size + 1), value, color=color)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("component")
    axes[0].set_ylabel("direction")
    return figure
