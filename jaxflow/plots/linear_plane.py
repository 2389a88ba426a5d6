"""Paths of linear coefficients in the plane (figures 1 and 3 of Yun et al. 2021)."""

from typing import Any

import numpy as np

from jaxflow.plots.style import new_figure

# Okabe and Ito (2008); a line style each, for the same reason.
NETWORK_STYLES = {
    "fully connected": ("#0072B2", "-"),
    "diagonal": ("#D55E00", "--"),
    "convolutional": ("#009E73", "-."),
}
# Halves of the window around the origin.
WINDOW = 1.5


def draw_linear_plane(panels: list[tuple[str, dict[str, np.ndarray], int]]) -> Any:
    r"""$\beta(\Theta(t))$ of three networks from common starts.

    **Arguments:** `panels`: title, data, and which α. The data hold `flow` `(networks, α, z̄, saves, 2)`, `descent`
    alike, `program` `(networks, 2)`, `inputs`, `targets`, and for regression `limit` `(networks, α, z̄, 2)`.
    """
    figure, axes = new_figure(len(panels), width=4.5 * len(panels), height=4.5)
    explained: set[bool] = set()
    for axis, (title, data, which) in zip(axes, panels, strict=True):
        regression = "limit" in data
        _background(axis, data, regression)
        for i, (network, (color, line)) in enumerate(NETWORK_STYLES.items()):
            for j in range(data["flow"].shape[2]):
                path = data["flow"][i, which, j]
                axis.plot(*path[np.isfinite(path).all(axis=1)].T, line, color=color, linewidth=1.4)
                descent = data["descent"][i, which, j]
                axis.plot(*descent[-1], marker="x", color=color, markersize=7, linestyle="none", zorder=4)
                if regression:
                    end = data["limit"][i, which, j]
                    axis.plot(*end, marker="o", markerfacecolor="none", markeredgecolor=color, markersize=10, zorder=5)
            if not regression:
                aim = data["program"][i] / np.linalg.norm(data["program"][i])
                axis.plot(*np.stack([0 * aim, 10 * aim]).T, color=color, linewidth=5, alpha=0.22, zorder=1)
            axis.plot([], [], line, color=color, label=f"{network}")
        starts = data["alphas"][which] ** 2 * data["directions"]
        axis.plot(*starts.T, "o", color="black", markersize=4, zorder=6, label=r"$\alpha^2\bar z_j$")
        # One legend for all regressions, one for all classifications: paths may pass where it stands.
        if regression not in explained:
            _legend(axis, regression)
        explained.add(regression)
        axis.set_xlabel(r"$[\beta]_1$")
        axis.set_ylabel(r"$[\beta]_2$")
        axis.set_title(title, fontsize=10)
        axis.set_aspect("equal")
    return figure


def _background(axis: Any, data: dict[str, np.ndarray], regression: bool) -> None:
    if regression:
        (x,), (y,) = data["inputs"], data["targets"]
        first = np.array([-WINDOW, WINDOW])
        axis.plot(first, (y - x[0] * first) / x[1], color="#F0E442", linewidth=6, zorder=0, label=r"$x^\top\beta=y$")
        axis.set_xlim(-1.0, 1.25)
        axis.set_ylim(-1.0, 1.25)
    else:
        descent = data["descent"][..., -1, :]
        size = 1.12 * float(np.max(np.abs(descent)))
        axis.set_xlim(-0.35 * size, size)
        axis.set_ylim(-0.35 * size, size)


def _legend(axis: Any, regression: bool) -> None:
    axis.plot([], [], "x", color="#555555", label="gradient descent, end")
    if regression:
        axis.plot([], [], "o", markerfacecolor="none", color="#555555", markersize=9, label="Theorem 5")
    else:
        axis.plot([], [], color="#555555", linewidth=5, alpha=0.3, label="max-margin direction")
    axis.legend(frameon=True, framealpha=0.85, edgecolor="none", fontsize=7, loc="lower right")
