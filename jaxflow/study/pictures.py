"""The numbers behind the pictures of a study, as plain arrays for `jaxflow.plots`."""

from typing import Any

import numpy as np

from jaxflow._core import Outcome, require
from jaxflow.study.counting import percentages
from jaxflow.study.tables import as_text, factor_names

# What a page can show; a study with more cells is to be cut by its user.
MOST_PANELS = 6


def picture_axis(results: Any) -> str | None:
    """The factor that a picture has along its x axis: the numeric one with most values, else the longest."""
    names = factor_names(results)
    by_size = sorted(names, key=lambda name: (results[name].dtype.kind in "iuf", results.sizes[name]), reverse=True)
    return by_size[0] if by_size else None


def bars(results: Any, x: str, *, conditional: bool = False) -> dict[str, np.ndarray]:
    """Percentages of every outcome that occurred along `x`, a panel for each combination of the other factors.

    For `jaxflow.plots.draw_percentage_bars`. At most `MOST_PANELS` panels; the others are left out, and
    `left_out` counts them.
    """
    table = percentages(results)
    prefix, denominator = ("given_", "given") if conditional else ("", "ran")
    others, titles, stacked = _panels(table, x)
    occurred = [code.name for code in Outcome if code and bool((table["count"].sel(outcome=code.name) > 0).any())]
    percentage = stacked[prefix + "percentage"].sel(outcome=occurred).transpose("panel", x, "outcome").values
    return {
        "x": _plain(table[x].values),
        "x_label": np.asarray(x),
        "panels": np.asarray(titles[:MOST_PANELS]),
        "names": np.asarray(occurred),
        "percentage": percentage[:MOST_PANELS],
        "denominator": stacked[denominator].transpose("panel", x).values[:MOST_PANELS],
        "left_out": np.asarray(max(len(titles) - MOST_PANELS, 0)),
    }


def curves(results: Any, x: str, outcome: str = "globally_optimal", *, conditional: bool = False) -> dict[str, Any]:
    """The percentage of one outcome along `x` with its intervals, a curve for each combination of other factors.

    For `jaxflow.plots.draw_percentage_curves`.
    """
    table = percentages(results).sel(outcome=outcome)
    prefix = "given_" if conditional else ""
    _, titles, stacked = _panels(table, x)
    found = {name: stacked[prefix + name].transpose("panel", x).values[None] for name in ("percentage", "low", "high")}
    return {
        "x": _plain(table[x].values),
        "x_label": np.asarray(x),
        "panels": np.asarray([""]),
        "curves": np.asarray([title or outcome for title in titles]),
        "y_label": np.asarray(f"{outcome.replace('_', ' ')}, % of {'the decided' if conditional else 'all that ran'}"),
        **found,
    }


def heat_map(results: Any, x: str, y: str, outcome: str = "globally_optimal") -> dict[str, Any]:
    """The percentage of one outcome over two factors, a panel for each combination of the others.

    For `jaxflow.plots.draw_heat_map`.
    """
    require(x != y, "y", f"{x} is the other axis already")
    table = percentages(results).sel(outcome=outcome)
    _, titles, stacked = _panels(table, x, y)
    return {
        "x": _plain(table[x].values),
        "y": _plain(table[y].values),
        "x_label": np.asarray(x),
        "y_label": np.asarray(y),
        "panels": np.asarray(titles[:MOST_PANELS]),
        "value": stacked["percentage"].transpose("panel", y, x).values[:MOST_PANELS],
        "value_label": np.asarray(f"{outcome.replace('_', ' ')}, % of all that ran"),
    }


def _panels(table: Any, *axes: str) -> tuple[list[str], list[str], Any]:
    """The other factors; a title for each of their combinations; the table with them stacked as `panel`."""
    dims = [str(dim) for dim in table["ran"].dims]
    for axis in axes:
        require(axis in dims, "x", f"{axis!r} is no factor of the study; its factors are {', '.join(dims)}")
    others = [name for name in dims if name not in axes]
    if not others:
        return others, [""], table.expand_dims("panel")
    # By position: values of different kinds make no common index.
    bare = table.drop_vars(others).stack(panel=others, create_index=False)
    shape = [table.sizes[name] for name in others]
    titles = [
        ", ".join(f"{name}={as_text(table[name].values.tolist()[at])}" for name, at in zip(others, index, strict=True))
        for index in (np.unravel_index(flat, shape) for flat in range(int(np.prod(shape))))
    ]
    return others, titles, bare


def _plain(values: np.ndarray) -> np.ndarray:
    """Strings of fixed width, which NumPy can save; numbers as they are."""
    return values if values.dtype.kind in "biuf" else np.asarray([str(value) for value in values.tolist()])
