"""One look for all figures. Nothing here touches Matplotlib's global state: no pyplot, no rcParams."""

import io
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jaxflow._core import as_path, check_kind, checked, require

# Okabe and Ito (2008): told apart with any colour vision. Blue and red as in Tarzanagh et al. (2023).
COLORS = {
    "combined": "#0072B2",
    "factored": "#D55E00",
    "diagonal": "#009E73",
    "program": "#000000",
    "faint": "#8C8C8C",
}

# Such colours for curves that are told apart by their order: each lighter than the one before, for prints in grey.
CURVES = ("#004B87", "#D55E00", "#3DBF9A", "#EDB4D2")

# Distances and gaps of the order of rounding, of either sign, are drawn here.
ROUNDING = 1e-16

# The symbols of the papers.
SYMBOLS = {"combined": r"$W$", "factored": r"$(K,Q)$", "diagonal": r"$\mathrm{diag}(k\odot q)$"}


def check_names(data: Any, names: Sequence[str]) -> None:
    """What a drawing reads. **Raises:** `ValueError` that names `data` and what it lacks."""
    check_kind("data", data, Mapping, "a mapping from names to numbers")
    missing = [name for name in names if name not in data]
    require(not missing, "data", f"lacks {', '.join(missing)}")


@checked(least={"columns": 1}, positive=["width", "height"])
def new_figure(columns: int, *, width: float = 11.0, height: float = 3.7, shared: bool = False) -> tuple[Any, Any]:
    """A figure and its row of axes (with common scales if `shared`), on the canvas that needs no display."""
    figure, axes = new_grid(1, columns, width=width, height=height, shared=shared)
    return figure, axes[0]


@checked(least={"rows": 1, "columns": 1}, positive=["width", "height"])
def new_grid(rows: int, columns: int, *, width: float, height: float, shared: bool = False) -> tuple[Any, Any]:
    """A figure and its rows and columns of axes, as `new_figure`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure = _shown()(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, sharex=shared, sharey=shared, squeeze=False)
    for axis in axes.ravel():
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(True, which="major", color="#E5E5E5", linewidth=0.6)
        axis.set_axisbelow(True)
    return figure, axes


@cache
def _shown() -> Any:
    from matplotlib.figure import Figure

    class Shown(Figure):
        """A figure that a notebook shows as the value of a cell, whether pyplot has been imported or not."""

        def _repr_png_(self) -> bytes:
            buffer = io.BytesIO()
            self.savefig(buffer, format="png", dpi=110)
            return buffer.getvalue()

    return Shown


def save_figure(figure: Any, *paths: Path) -> None:
    """Writes the figure to each path, in the format of its ending. The bytes do not depend on the date."""
    require(hasattr(figure, "savefig"), "figure", "expected a figure of Matplotlib", got=figure)
    for given in paths:
        path = as_path("paths", given)
        metadata = {"Date": None} if path.suffix == ".svg" else {}
        figure.savefig(path, dpi=160, metadata=metadata)
