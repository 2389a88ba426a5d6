"""Paths in the plane beside the directions of their programs (figure 1 of Tarzanagh et al. 2023)."""

from typing import Any

import numpy as np

from jaxflow.plots.style import new_figure

# Okabe and Ito (2008): the two sequences' tokens, and their queries' paths.
TOKENS = ("#009E73", "#E69F00")
PATHS = ("#D55E00", "#0072B2")


def draw_plane(data: dict[str, np.ndarray]) -> Any:
    r"""Tokens, the optimal ones as stars; lines $W^{mm}z_i$ (solid) and $W^{mm}_\star z_i$ (dashed); curves $W(t)z_i$.

    Lengths of the curves are drawn as $r\mapsto\log(1+r)$, which keeps directions. Of the instances on which both
    flows settled on the same tokens with both programs solved, the one is drawn whose two programs differ most.

    **Arguments:** `data` as `jaxflow.papers.tarzanagh2023.fig1.compute` returns it.
    """
    figure, axes = new_figure(2, width=10.0, height=4.8)
    chosen = _instance_to_draw(data)
    for axis, kind, symbol in zip(axes, ("combined", "factored"), (r"$W$", r"$KQ^\top$"), strict=True):
        axis.set_title(f"training {symbol}; dots: the published descent", fontsize=10)
        axis.set_aspect("equal", adjustable="datalim")
        axis.set_xlabel(r"first coordinate of $x_{it}$, " + symbol + r"$z_i$")
        axis.set_ylabel("second coordinate")
        if chosen is None:
            continue
        for i in range(2):
            tokens, best = data["tokens"][chosen, i], data["optimal"][chosen, i]
            axis.plot(*tokens[~best].T, "o", color=TOKENS[i], markersize=5)
            axis.plot(*tokens[best].T, "*", color=TOKENS[i], markersize=13, markeredgecolor="black")
            reached = data[f"{kind}_flow_reached"][chosen]
            path = _shrunk(data[f"{kind}_flow_path"][chosen][reached][:, i])
            steps = _shrunk(data[f"{kind}_descent_path"][chosen][:, i])
            reach = np.linalg.norm(path, axis=-1).max()
            for name, line in (("frobenius", "-"), ("nuclear", "--")):
                ray = data[f"{kind}_flow_{name}_direction"][chosen, i]
                end = 1.15 * reach * ray / np.linalg.norm(ray)
                axis.plot([0, end[0]], [0, end[1]], line, color="#8C8C8C", linewidth=1.2)
            axis.plot(*path.T, color=PATHS[i], linewidth=2)
            axis.annotate("", path[-1], path[-2], arrowprops={"arrowstyle": "-|>", "color": PATHS[i], "lw": 2})
            axis.plot(*steps.T, ".", color=PATHS[i], markersize=3)
            axis.annotate(rf"$z_{i + 1}$", 1.05 * path[-1], color=PATHS[i])
    figure.suptitle(
        "tokens of $X_1$ (green), $X_2$ (orange), optimal ones starred; grey: (Att-SVM) solid, "
        r"(Att-SVM$_\star$) dashed; radii as $\log(1+r)$",
        fontsize=9,
    )
    return figure


def _shrunk(points: np.ndarray) -> np.ndarray:
    radius = np.linalg.norm(points, axis=-1, keepdims=True)
    return points * np.log1p(radius) / np.where(radius > 0, radius, 1.0)


def _instance_to_draw(data: dict[str, np.ndarray]) -> int | None:
    good = np.ones(len(data["tokens"]), bool)
    for kind in ("combined", "factored"):
        good &= data[f"{kind}_flow_settled"]
        good &= data[f"{kind}_flow_frobenius_solved"] & data[f"{kind}_flow_nuclear_solved"]
    same = (data["combined_flow_selection"] == data["factored_flow_selection"]).all(axis=(1, 2))
    if not (good & same).any():
        return None
    rays = [data[f"combined_flow_{name}_direction"].reshape(len(good), -1) for name in ("frobenius", "nuclear")]
    rays = [ray / np.maximum(np.linalg.norm(ray, axis=1, keepdims=True), 1e-300) for ray in rays]
    return int(np.argmax(np.where(good & same, -np.sum(rays[0] * rays[1], axis=1), -np.inf)))
