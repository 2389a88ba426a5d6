"""Stable ranks and spectra of trained attention heads (figures 1, 4 to 7, 14 and 15 of Boix-Adserà et al. 2023)."""

from typing import Any, NamedTuple

import numpy as np

from jaxflow.plots.stages import SHADES
from jaxflow.plots.style import COLORS, new_figure, new_grid

PRODUCTS = {
    "KQ": (COLORS["combined"], r"$\Delta W_KW_Q^\top$"),
    "VO": (COLORS["factored"], r"$\Delta W_VW_O^\top$"),
}


class SpectrumPanel(NamedTuple):
    r"""$\sigma_i/\sigma_1$ of one head: `start` `(k,)`, what was `added` by `steps` `(m, k)`, `weights` at the end."""

    title: str
    start: np.ndarray
    weights: np.ndarray
    steps: np.ndarray
    added: np.ndarray


class LayerPanel(NamedTuple):
    """Stable ranks in one layer at `steps` `(m,)`: for KQ and VO what was `added` `(m, seeds, heads)`, and the mean
    of the `start`."""

    title: str
    steps: np.ndarray
    added: dict[str, np.ndarray]
    start: dict[str, float]


def draw_spectrum_panels(panels: list[SpectrumPanel]) -> Any:
    """Normalised spectra: the start red, what was added green, the darker the later, the weights at the end dashed."""
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure, grid = new_grid(rows, columns, width=4.2 * columns, height=3.2 * rows)
    for axis, panel in zip(grid.ravel(), panels, strict=False):
        axis.plot(_index(panel.start), panel.start, "-", color="#C1272D", linewidth=2, label="W(0)")
        axis.plot(_index(panel.weights), panel.weights, "--", color="#8C8C8C", linewidth=1.2, label="W(T)")
        for row, (step, values) in enumerate(zip(panel.steps, panel.added, strict=True)):
            shade = 0.8 * (1.0 - (row + 1) / len(panel.steps))
            axis.plot(_index(values), values, "-", color=(shade, 0.35 + 0.6 * shade, shade), label=f"ΔW, step {step}")
        axis.set_title(panel.title, fontsize=9)
        axis.set_ylim(0.0, 1.02)
        axis.legend(frameon=False, fontsize=7)
    _finish(grid, len(panels), "i", r"$\sigma_i/\sigma_1$")
    return figure


def draw_layer_ranks(panels: list[LayerPanel]) -> Any:
    """Stable rank against the step in every layer, mean and standard deviation over seeds and heads; dotted: the start,
    where it is not far above."""
    columns = min(4, len(panels))
    rows = -(-len(panels) // columns)
    figure, grid = new_grid(rows, columns, width=3.6 * columns, height=3.0 * rows)
    for axis, panel in zip(grid.ravel(), panels, strict=False):
        for part, added in panel.added.items():
            color, symbol = PRODUCTS[part]
            values = added.reshape(len(added), -1)
            _band(axis, panel.steps, values, color, f"{symbol}; W(0): {panel.start[part]:.3g}")
            if panel.start[part] < 2.0 * values.max():
                axis.axhline(panel.start[part], color=color, linestyle=":", linewidth=1.0)
        axis.set_title(panel.title, fontsize=9)
        axis.legend(frameon=False, fontsize=7)
    _finish(grid, len(panels), "step", r"stable rank $\|W\|_F^2/\|W\|_2^2$")
    return figure


def _finish(grid: Any, count: int, x: str, y: str) -> None:
    """Labels, and no axes where there is no panel."""
    for axis in grid.ravel()[count:]:
        axis.remove()
    for axis in grid.ravel()[:count]:
        axis.set_xlabel(x)
    for axis in grid[:, 0]:
        axis.set_ylabel(y)


def draw_rank_growth(data: dict[str, np.ndarray], prefixes: dict[str, str]) -> Any:
    """Stable rank in the last layer against the step, mean and standard deviation over heads and seeds.

    **Arguments:** `data` with `p_steps` `(m,)`, `p_KQ_rank` and `p_VO_rank` `(m, scales, seeds, layers, heads)` for
    each prefix p of `prefixes`, whose values are titles. The first scale is shown.
    """
    figure, axes = new_figure(len(prefixes), width=5.0 * len(prefixes), height=3.7)
    for axis, (prefix, title) in zip(axes, prefixes.items(), strict=True):
        for part, (color, symbol) in PRODUCTS.items():
            values = data[f"{prefix}_{part}_rank"][:, 0, :, -1]
            _band(axis, data[f"{prefix}_steps"], values.reshape(len(values), -1), color, symbol)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("step")
        axis.legend(frameon=False, fontsize=8)
    axes[0].set_ylabel(r"stable rank $\|W\|_F^2/\|W\|_2^2$")
    return figure


def draw_rank_by_scale(data: dict[str, np.ndarray]) -> Any:
    """Stable rank after training by layer for every initialisation scale; bars: standard deviation over seeds of
    the mean over heads. `data` as for `draw_rank_growth`, prefix `images`, and `images_scales`."""
    figure, axes = new_figure(2, width=9.0, height=3.7)
    for axis, (part, (_, symbol)) in zip(axes, PRODUCTS.items(), strict=True):
        values = data[f"images_{part}_rank"][-1].mean(axis=-1)
        layers = np.arange(values.shape[-1])
        for row, scale in enumerate(data["images_scales"]):
            shade = SHADES[-1 - 2 * row]
            offset = 0.06 * (row - 0.5 * (len(data["images_scales"]) - 1))
            mean, deviation = values[row].mean(axis=0), values[row].std(axis=0)
            axis.errorbar(layers + 1 + offset, mean, deviation, fmt="o", color=shade, capsize=3, label=f"{scale:g}")
        axis.set_xticks(layers + 1)
        axis.set_xlabel("layer")
        axis.set_title(f"stable rank of {symbol}", fontsize=10)
    axes[0].set_ylabel(r"stable rank $\|W\|_F^2/\|W\|_2^2$")
    axes[0].legend(frameon=False, fontsize=8, title="initialisation scale", title_fontsize=8)
    return figure


def draw_spectra(data: dict[str, np.ndarray]) -> Any:
    r"""$\sigma_i/\sigma_1$ against the step, for one head of the second layer, a column for each scale."""
    scales = data["images_scales"]
    figure, grid = new_grid(2, len(scales), width=3.3 * len(scales), height=5.6, shared=True)
    for row, (part, (color, symbol)) in enumerate(PRODUCTS.items()):
        for column, scale in enumerate(scales):
            axis = grid[row, column]
            spectrum = data[f"images_{part}_spectrum"][:, column, 0, 1, 0]
            axis.plot(data["images_steps"], spectrum[:, :10], color=color, linewidth=1.0)
            axis.set_title(f"{symbol}, scale {scale:g}", fontsize=9)
    for axis in grid[:, 0]:
        axis.set_ylabel(r"$\sigma_i/\sigma_1$")
    for axis in grid[-1]:
        axis.set_xlabel("step")
    return figure


def _band(axis: Any, x: np.ndarray, values: np.ndarray, color: str, label: str) -> None:
    mean, deviation = values.mean(axis=1), values.std(axis=1)
    axis.plot(x, mean, "-o", color=color, markersize=3, label=label)
    axis.fill_between(x, mean - deviation, mean + deviation, color=color, alpha=0.15, linewidth=0)


def _index(values: np.ndarray) -> np.ndarray:
    return np.arange(1, len(values) + 1)
