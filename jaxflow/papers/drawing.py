"""What the drawings of experiments share: how a panel is labelled, a line with a band around it, counts as bars."""

from typing import Any

import numpy as np

from jaxflow.plots import COLORS, new_grid
from jaxflow.study import wilson


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


def row_means(values: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Row by row over the mask; NaN where it is empty."""
    count, total = mask.sum(axis=1), np.where(mask, values, 0.0).sum(axis=1)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def new_panels(count: int, columns: int, width: float, height: float, y: str) -> tuple[Any, np.ndarray]:
    """A figure of so many panels of one size, row by row in at most so many columns, and their axes; `y` labels the
    first column."""
    columns = min(columns, count)
    rows = -(-count // columns)
    figure, grid = new_grid(rows, columns, width=width * columns, height=height * rows)
    for axis in grid[:, 0]:
        axis.set_ylabel(y)
    for axis in grid.ravel()[count:]:
        axis.remove()
    return figure, grid.ravel()[:count]


def of(count: Any, total: Any) -> str:
    """A count of a total with its interval."""
    low, high = (100.0 * float(x) for x in wilson(count, total))
    return f"{count} of {total} (Wilson 95% [{low:.0f}, {high:.0f}]%)"


def share_and_error(count: Any, total: Any) -> tuple[np.ndarray, np.ndarray]:
    """Percentages, and how far their intervals reach below and above."""
    share, (low, high) = count / np.maximum(total, 1), wilson(count, total)
    return 100.0 * share, 100.0 * np.maximum(np.stack([share - low, high - share]), 0.0)


def look_of_errors() -> Any:
    """How intervals are drawn."""
    return {"fmt": "none", "color": COLORS["program"], "capsize": 2, "linewidth": 0.9}
