"""Curves and bars of the further figures for Yun et al. (2021)."""

from typing import Any

import numpy as np

from jaxflow.plots.linear_plane import NETWORK_STYLES
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


def draw_filters(data: dict[str, np.ndarray]) -> Any:
    r"""The limit direction of β for each filter length k, and how far it is from three known directions."""
    figure, axes = new_figure(2, width=11.0, height=3.9)
    lengths, d = data["lengths"], data["x"].shape[0]
    left, right = axes
    shown = [k for k in (1, 2, 3, d) if k in lengths]
    width = 0.8 / len(shown)
    for i, (k, color) in enumerate(zip(shown, BARS, strict=False)):
        beta = data["beta"][list(lengths).index(k)]
        left.bar(
            np.arange(1, d + 1) + (i - 0.5 * (len(shown) - 1)) * width, beta, width, color=color, label=rf"$k_1={k}$"
        )
    left.set_xlabel("$j$")
    left.set_ylabel(r"$[\beta]_j/\|\beta\|$")
    left.set_xticks(range(1, d + 1))
    left.legend(frameon=False, fontsize=9, ncols=2)
    names = {
        "l2": (r"$x$ ($\ell_2$ max-margin)", "-o"),
        "filtered": ("Corollary 4", "--s"),
        "dft": (r"DFT $\ell_1$", "-.^"),
    }
    for (name, (label, line)), color in zip(names.items(), BARS, strict=False):
        off = np.linalg.norm(data["beta"] - data[f"aim.{name}"][None], axis=1)
        right.plot(lengths, np.maximum(off, 1e-16), line, color=color, label=label)
    right.set_yscale("log")
    right.set_xlabel(r"filter length $k_1$")
    right.set_ylabel("distance of unit vectors")
    right.set_xticks(lengths)
    right.legend(frameon=False, fontsize=9)
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


def draw_phase(data: dict[str, np.ndarray]) -> Any:
    r"""Distance of β's direction from its limit, over the loss at which training ends and the scale α."""
    from matplotlib.colors import LogNorm

    figure, axes = new_figure(3, width=13.0, height=3.9, shared=True)
    image = None
    for axis, network, error in zip(axes, NETWORK_STYLES, data["error"], strict=True):
        image = axis.pcolormesh(
            data["log_losses"] / np.log(10.0),
            data["alphas"],
            error,
            norm=LogNorm(1e-3, 2.0),
            cmap="cividis",
            shading="nearest",
        )
        lines = axis.contour(
            data["log_losses"] / np.log(10.0),
            data["alphas"],
            error,
            levels=[0.01, 0.1, 0.5],
            colors="white",
            linewidths=0.8,
        )
        axis.clabel(lines, fontsize=7)
        axis.axvline(-5.0, color="white", linestyle=":", linewidth=1.2)
        axis.grid(False)
        axis.set_yscale("log")
        axis.invert_xaxis()
        axis.set_title(network, fontsize=10)
        axis.set_xlabel(r"$\log_{10}$ of the final loss (dotted: the paper's)")
    axes[0].set_ylabel(r"initial scale $\alpha$")
    figure.colorbar(image, ax=list(axes), label=r"$\|\beta/\|\beta\|-\beta^\infty\|$")
    return figure
