"""The numbers behind the pictures of a study, as plain arrays for `jaxflow.plots`."""

from typing import Any

import numpy as np

from jaxflow._core import as_boolean, check_name, require
from jaxflow.study.counting import outcomes_of, percentages, require_results
from jaxflow.study.tables import cells, factor_names

# What a page can show; a study with more cells is to be cut by its user.
MOST_PANELS = 6


KINDS = ("bars", "curves", "heat_map")


def plot(
    results: Any,
    kind: str = "bars",
    *,
    x: str | None = None,
    y: str | None = None,
    outcome: str = "globally_optimal",
    conditional: bool = False,
) -> Any:
    """A Matplotlib figure of a study's percentages.

    **Arguments:**

    - `results`: of a study, complete or not. `kind`: `"bars"`, every outcome stacked along one factor; `"curves"`, one
      outcome with its 95% intervals; `"heat_map"`, one outcome over two factors.
    - `x`, `y`: factors; None for those with most values.
    - `outcome`: for curves and heat maps. `conditional`: of the decided instances in place of all that ran (not for
      heat maps).

    **Raises:** `ValueError` for unknown kinds, factors or outcomes (with the nearest name), or too few factors.

    **Example:**

    ```python
    jf.study.plot(results)
    jf.study.plot(results, "curves", outcome="undecided")
    ```
    """
    from jaxflow.plots import draw_heat_map, draw_percentage_bars, draw_percentage_curves

    require_results(results)
    as_boolean("conditional", conditional)
    check_name("kind", kind, KINDS)
    names = factor_names(results)
    for argument, chosen in (("x", x), ("y", y)):
        if chosen is not None:
            check_name(argument, chosen, names)
    check_name("outcome", outcome, outcomes_of(results))
    x = picture_axis(results) if x is None else x
    if x is None:
        raise ValueError("x: a study without factors has no axis; look at `summary` or `percentages`")
    if kind == "bars":
        return draw_percentage_bars(bars(results, x, conditional=conditional))
    if kind == "curves":
        return draw_percentage_curves(curves(results, x, outcome, conditional=conditional))
    others = [name for name in names if name != x]
    require(bool(others), "y", "a heat map needs two factors")
    return draw_heat_map(heat_map(results, x, others[0] if y is None else y, outcome))


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
    titles, stacked = _panels(table, x)
    occurred = [name for name in table["outcome"].values.tolist() if bool((table["count"].sel(outcome=name) > 0).any())]
    percentage = stacked[prefix + "percentage"].sel(outcome=occurred).transpose("panel", x, "outcome").values
    return {
        "x": _plain(table[x].values),
        "x_label": np.asarray(x),
        "panels": np.asarray(titles[:MOST_PANELS]),
        "names": np.asarray([_literal(name) for name in occurred]),
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
    titles, stacked = _panels(table, x)
    found = {name: stacked[prefix + name].transpose("panel", x).values[None] for name in ("percentage", "low", "high")}
    return {
        "x": _plain(table[x].values),
        "x_label": np.asarray(x),
        "panels": np.asarray([""]),
        "curves": np.asarray([title or _literal(outcome) for title in titles]),
        "y_label": np.asarray(f"{outcome.replace('_', ' ')}, % of {'the decided' if conditional else 'all that ran'}"),
        **found,
    }


def heat_map(results: Any, x: str, y: str, outcome: str = "globally_optimal") -> dict[str, Any]:
    """The percentage of one outcome over two factors, a panel for each combination of the others.

    For `jaxflow.plots.draw_heat_map`.
    """
    require(x != y, "y", f"{x} is the other axis already")
    table = percentages(results).sel(outcome=outcome)
    titles, stacked = _panels(table, x, y)
    return {
        "x": _plain(table[x].values),
        "y": _plain(table[y].values),
        "x_label": np.asarray(x),
        "y_label": np.asarray(y),
        "panels": np.asarray(titles[:MOST_PANELS]),
        "value": stacked["percentage"].transpose("panel", y, x).values[:MOST_PANELS],
        "value_label": np.asarray(f"{outcome.replace('_', ' ')}, % of all that ran"),
    }


def _panels(table: Any, *axes: str) -> tuple[list[str], Any]:
    """A title for each combination of the other factors; the table with them stacked as `panel`."""
    dims = [str(dim) for dim in table["ran"].dims]
    for axis in axes:
        require(axis in dims, "x", f"{axis!r} is no factor of the study; its factors are {', '.join(dims)}")
    others = [name for name in dims if name not in axes]
    if not others:
        return [""], table.expand_dims("panel")
    # By position: values of different kinds make no common index.
    bare = table.drop_vars(others).stack(panel=others, create_index=False)
    told = (zip(others, cell, strict=True) for cell, _ in cells(table, tuple(others)))
    titles = [_literal(", ".join(f"{name}={value}" for name, value in cell)) for cell in told]
    return titles, bare


def _plain(values: np.ndarray) -> np.ndarray:
    """Strings of fixed width, which NumPy can save; numbers as they are."""
    return values if values.dtype.kind in "biuf" else np.asarray([_literal(str(value)) for value in values.tolist()])


def _literal(text: str) -> str:
    """A name as it is: between dollars Matplotlib would read a formula, and fail where it is none."""
    return text.replace("$", r"\$")
