"""Stages of incremental learning against rescaled time (figures 2, 3 and 8 to 11 of Boix-Adserà et al. 2023)."""

from typing import Any

import numpy as np

from jaxflow.plots.style import COLORS, new_figure, new_grid

# Dark to light along one hue, so that the order of the scales is read off the lightness.
SHADES = ("#BFD9EC", "#93BFDF", "#66A5D1", "#3A8BC4", "#1F6FA8", "#0F5080", "#062F4F", "#000000")

PARTS = {
    "KQ": (COLORS["combined"], r"\mathrm{diag}(w_K)\,\mathrm{diag}(w_Q)"),
    "VO": (COLORS["factored"], r"\mathrm{diag}(w_V)\,\mathrm{diag}(w_O)"),
}

TIME = r"rescaled time $t/\log(1/\alpha)$"


def alpha_symbol(log_alpha: float) -> str:
    """α in mathematical notation."""
    power = log_alpha / np.log(10.0)
    return rf"e^{{{log_alpha:.0f}}}" if power < -400 else rf"10^{{{power:.0f}}}"


def draw_stages(data: dict[str, np.ndarray], shown: int) -> Any:
    """(a) The loss for every α over the predicted staircase; (b) entries for the α in row `shown`.

    **Arguments:** `data` with `log_alphas` `(a,)`, for each row i `times_i` `(m,)`, `losses_i` `(m,)`, `products_i`
    `(m, 2d)`; `stage_times` `(k,)`, `stage_losses` `(k,)`, `stage_products` `(k, 2d)`, `initial_loss`, `until`, `d`.
    """
    figure, (left, right) = new_figure(2, width=12.0, height=4.2)
    rows = range(len(data["log_alphas"]))
    for row in rows:
        shade = SHADES[-1 - int(round((len(rows) - 1 - row) * (len(SHADES) - 1) / max(1, len(rows) - 1)))]
        label = rf"$\alpha={alpha_symbol(float(data['log_alphas'][row]))}$"
        left.plot(data[f"times_{row}"], data[f"losses_{row}"], color=shade, linewidth=1.2, label=label)
    times, losses = _staircase(data, np.asarray(data["stage_losses"]), float(data["initial_loss"]))
    left.plot(times, losses, "--", color=COLORS["factored"], linewidth=1.0, label="Algorithm 1")
    left.set_ylabel(r"loss $\mathcal{L}$")
    left.set_title("(a) loss", fontsize=10)
    left.legend(frameon=False, fontsize=8)
    draw_entries_on(right, data, shown, ("KQ", "VO"))
    right.set_title(rf"(b) entries at $\alpha={alpha_symbol(float(data['log_alphas'][shown]))}$", fontsize=10)
    right.set_ylabel("entry")
    for axis in (left, right):
        axis.set_xlabel(TIME)
        axis.set_xlim(0.0, float(data["until"]))
    return figure


def draw_entries(data: dict[str, np.ndarray], part: str) -> Any:
    """One panel for each α with the entries of `KQ` or `VO`; `data` as for `draw_stages`."""
    rows = len(data["log_alphas"])
    columns = min(4, rows)
    figure, grid = new_grid(-(-rows // columns), columns, width=3.4 * columns, height=2.9 * -(-rows // columns))
    axes = grid.ravel()
    for row, axis in enumerate(axes[:rows]):
        draw_entries_on(axis, data, row, (part,), legend=row == 0)
        axis.set_title(rf"$\alpha={alpha_symbol(float(data['log_alphas'][row]))}$", fontsize=10)
        axis.set_xlim(0.0, float(data["until"]))
    for axis in axes[rows:]:
        axis.set_visible(False)
    for axis in grid[:, 0]:
        axis.set_ylabel(rf"entries of ${PARTS[part][1]}$", fontsize=9)
    for axis in axes[max(0, rows - columns) : rows]:
        axis.set_xlabel(TIME)
    return figure


def draw_entries_on(
    axis: Any, data: dict[str, np.ndarray], row: int, parts: tuple[str, ...], legend: bool = True
) -> None:
    """Entries (solid) over the predicted staircases (dashed), and lines at the predicted times."""
    d = int(data["d"])
    for time in data["stage_times"]:
        axis.axvline(time, color="#D9D9D9", linewidth=0.7, zorder=0)
    for part in parts:
        color, symbol = PARTS[part]
        span = slice(0, d) if part == "KQ" else slice(d, 2 * d)
        lines = axis.plot(data[f"times_{row}"], data[f"products_{row}"][:, span], color=color, linewidth=1.0)
        lines[0].set_label(rf"${symbol}$")
        for values in np.asarray(data["stage_products"])[:, span].T:
            if values.any():
                times, steps = _staircase(data, values, 0.0)
                axis.plot(times, steps, "--", color="#000000", linewidth=0.7)
    axis.plot([], [], "--", color="#000000", linewidth=0.7, label="Algorithm 1")
    if legend:
        axis.legend(frameon=False, fontsize=8)


def draw_perturbations(data: dict[str, np.ndarray], prefixes: tuple[str, ...], titles: tuple[str, ...]) -> Any:
    """One panel for each perturbation: perturbed entries (solid) and unperturbed ones (dashed).

    **Arguments:** `data` with `d` and for each prefix `p_times`, `p_products` (perturbed) and `p_plain_times`,
    `p_plain_products`.
    """
    figure, axes = new_figure(len(prefixes), width=max(3.3 * len(prefixes), 7.0), height=3.4)
    d = int(data["d"])
    for axis, prefix, title in zip(axes, prefixes, titles, strict=True):
        for part, (color, symbol) in PARTS.items():
            span = slice(0, d) if part == "KQ" else slice(d, 2 * d)
            lines = axis.plot(data[f"{prefix}_times"], data[f"{prefix}_products"][:, span], color=color, linewidth=1.0)
            lines[0].set_label(rf"${symbol}$")
            plain = data[f"{prefix}_plain_products"][:, span]
            axis.plot(data[f"{prefix}_plain_times"], plain, "--", color="#000000", linewidth=0.6)
        axis.plot([], [], "--", color="#000000", linewidth=0.6, label="unperturbed")
        low, high = axis.get_ylim()
        if high - low < 0.1:
            # Nothing to be seen: not at a scale of rounding either.
            axis.set_ylim(min(low, -0.1), max(high, 0.1))
        axis.set_title(title, fontsize=10)
        axis.set_xlabel(TIME, fontsize=8)
    axes[0].set_ylabel("entry")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return figure


def _staircase(data: dict[str, np.ndarray], values: np.ndarray, start: float) -> tuple[np.ndarray, np.ndarray]:
    times = np.concatenate([[0.0], np.repeat(data["stage_times"], 2), [float(data["until"])]])
    return times, np.repeat(np.concatenate([[start], values]), 2)
