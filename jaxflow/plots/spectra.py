"""Stable ranks and spectra of trained attention heads (figures 4 to 7 of Boix-Adserà et al. 2023)."""

from typing import Any

import numpy as np

from jaxflow.plots.stages import SHADES
from jaxflow.plots.style import COLORS, new_figure, new_grid

PRODUCTS = {
    "KQ": (COLORS["combined"], r"$\Delta W_KW_Q^\top$"),
    "VO": (COLORS["factored"], r"$\Delta W_VW_O^\top$"),
}


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
    r"""Normalised singular values $\sigma_i/\sigma_1$ against the step, for one head, a column for each scale."""
    scales = data["images_scales"]
    figure, grid = new_grid(2, len(scales), width=3.3 * len(scales), height=5.6, shared=True)
    for row, (part, (color, symbol)) in enumerate(PRODUCTS.items()):
        for column, scale in enumerate(scales):
            axis = grid[row, column]
            spectrum = data[f"images_{part}_spectrum"][:, column, 0]
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
