"""What the drawings of experiments share: how a panel is labelled, and a line with a band around it."""

from typing import Any

import numpy as np


def dress(
    axis: Any, title: str = "", x: str = "", y: str = "", *, log: str = "", legend: int = 0, size: int = 10, **more: Any
) -> None:
    """Labels one panel; what is not given stays as it is.

    **Arguments:** `title`, in letters of this `size`; labels `x` and `y`; `log`: the axes that are logarithmic, "x",
    "y" or "xy"; `legend`: the size of its letters, 0 for none; `more`: other properties of the axis, as `xlim`.
    """
    given = {"xlabel": x, "ylabel": y, "xscale": "x" in log and "log", "yscale": "y" in log and "log"}
    axis.set(**{name: value for name, value in given.items() if value}, **more)
    if title:
        axis.set_title(title, fontsize=size)
    if legend:
        axis.legend(frameon=False, fontsize=legend)


def shade(axis: Any, x: Any, low: Any, high: Any, color: Any, alpha: float = 0.15) -> None:
    """The band between two curves, without an edge."""
    axis.fill_between(x, low, high, color=color, alpha=alpha, linewidth=0)


def quantile_band(axis: Any, x: Any, values: np.ndarray, color: Any, alpha: float = 0.15) -> None:
    """The band from 10% to 90% of the values `(b, m)` at each x; NaN is left out."""
    low, high = np.nanquantile(values, [0.1, 0.9], axis=0)
    shade(axis, x, low, high, color, alpha)


def kept_axes(grid: np.ndarray, count: int) -> np.ndarray:
    """The first `count` axes of a grid, row by row; the others are removed from the figure."""
    for axis in grid.ravel()[count:]:
        axis.remove()
    return grid.ravel()[:count]
