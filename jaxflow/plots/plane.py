"""Paths in the plane beside the directions of their programs (figure 1 of Tarzanagh et al. 2023)."""

from typing import Any, NamedTuple

import numpy as np

from jaxflow.plots.style import new_figure, new_grid

# Okabe and Ito (2008): the two sequences' tokens, and their queries' paths.
TOKENS = ("#009E73", "#E69F00")
PATHS = ("#D55E00", "#0072B2")


class PlanePanel(NamedTuple):
    r"""One instance, trained one way.

    - `title`, `symbol`: what is trained.
    - `tokens`, `optimal`: of each sequence, `(k, 2)`.
    - `flow`, `descent` `(point, 2, 2)`: $Wz_i$ along the flow and the descent.
    - `solid`, `dashed` `(2, 2)`: $W^{mm}z_i$ of (Att-SVM) and (Att-SVM*).
    """

    title: str
    symbol: str
    tokens: tuple[np.ndarray, ...]
    optimal: tuple[np.ndarray, ...]
    flow: np.ndarray
    descent: np.ndarray
    solid: np.ndarray
    dashed: np.ndarray


def draw_plane(panels: list[PlanePanel]) -> Any:
    r"""Tokens, the optimal ones as stars; lines $W^{mm}z_i$ (solid) and $W^{mm}_\star z_i$ (dashed); curves $W(t)z_i$.

    Two panels a row. Lengths of the curves are drawn as $r\mapsto\log(1+r)$, which keeps directions.
    """
    if not panels:
        return new_figure(1, width=5.0, height=4.8)[0]
    figure, grid = new_grid((len(panels) + 1) // 2, 2, width=10.0, height=4.7 * ((len(panels) + 1) // 2))
    for axis, panel in zip(grid.ravel(), panels, strict=False):
        _draw(axis, panel)
    figure.suptitle(
        "green, orange: tokens of $X_1$, $X_2$, optimal ones starred; red, blue: $z_1$, $z_2$, curves by the flow,\n"
        "dots by the published descent; grey: (Att-SVM) solid, (Att-SVM*) dashed; radii as log(1 + r)",
        fontsize=9,
    )
    return figure


def _draw(axis: Any, panel: PlanePanel) -> None:
    axis.set_title(panel.title, fontsize=10)
    axis.set_aspect("equal", adjustable="datalim")
    axis.set_xlabel(r"first coordinate of $x_{it}$, " + panel.symbol + r"$z_i$")
    axis.set_ylabel("second coordinate")
    for i, color in enumerate(PATHS):
        axis.plot(*panel.tokens[i].T, "o", color=TOKENS[i], markersize=5)
        axis.plot(*panel.optimal[i].T, "*", color=TOKENS[i], markersize=13, markeredgecolor="black")
        path, steps = _shrunk(panel.flow[:, i]), _shrunk(panel.descent[:, i])
        reach = np.linalg.norm(path, axis=-1).max()
        for ray, line in ((panel.solid[i], "-"), (panel.dashed[i], "--")):
            end = 1.15 * reach * ray / np.linalg.norm(ray)
            axis.plot([0, end[0]], [0, end[1]], line, color="#8C8C8C", linewidth=1.2)
        axis.plot(*path.T, color=color, linewidth=2)
        axis.annotate("", path[-1], path[-2], arrowprops={"arrowstyle": "-|>", "color": color, "lw": 2})
        axis.plot(*steps.T, ".", color=color, markersize=3)
        axis.annotate(rf"$z_{i + 1}$", 1.05 * path[-1], color=color)


def _shrunk(points: np.ndarray) -> np.ndarray:
    radius = np.linalg.norm(points, axis=-1, keepdims=True)
    return points * np.log1p(radius) / np.where(radius > 0, radius, 1.0)
