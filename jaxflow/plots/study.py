"""Percentages of a study: stacked bars, curves with intervals, a heat map over two factors. From plain numbers."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxflow._core import Outcome
from jaxflow.plots.style import COLORS, check_names, new_figure

# Red, blue and teal as in figures 2, 5 and 6 of Tarzanagh et al. (2023), the rest told apart in any colour vision.
OUTCOME_COLORS = {
    Outcome.globally_optimal.name: "#D55E00",
    Outcome.locally_optimal.name: "#0072B2",
    Outcome.not_locally_optimal.name: "#009E9E",
    Outcome.finite_stationary_point.name: "#E69F00",
    Outcome.limit_point.name: "#F0E442",
    Outcome.infeasible_program.name: "#CC79A7",
    Outcome.ambiguous.name: "#999999",
    Outcome.undecided.name: "#CFCFCF",
    Outcome.failed.name: "#000000",
    Outcome.prediction_contradicted.name: "#7B4EA3",
    Outcome.selection_settled.name: "#56B4E9",
    Outcome.kkt_point.name: "#8C564B",
    Outcome.not_run.name: "#FFFFFF",
}

CURVE_COLORS = ("#0072B2", "#009E73", "#D55E00", "#CC79A7", "#E69F00", "#56B4E9", "#000000")

MARK_COLOR = "#5DA63A"

# More bars than this and their labels overlap.
LABELLED_BARS = 12


def draw_percentage_bars(data: Mapping[str, Any]) -> Any:
    r"""Stacked bars, a panel for each method (figure 5): the top of the second colour is "local, including global".

    **Arguments:** `data` with `x` `(k,)` (numbers or names) and `x_label`; `panels` `(p,)` titles; `names` `(m,)`
    from the bottom up (those of `Outcome` have their colours); `percentage` `(p, k, m)`; `denominator` `(p, k)`,
    shown over the bars. Optional: `colors` `(m,)`, for names that are no outcomes; `marks` `(p, k)` with
    `marks_label`, drawn as green bars beside the others (Assumption B.1 in figure 5), NaN where there are none;
    `outlines` `(p, k)` with `outlines_label`, drawn around the marks.
    """
    check_names(data, ["x", "panels", "names", "percentage", "denominator", "x_label"])
    x = np.asarray(data["x"])
    names = [str(name) for name in np.asarray(data["names"])]
    percentage, denominator = np.asarray(data["percentage"], float), np.asarray(data["denominator"])
    marks = np.asarray(data["marks"], float) if "marks" in data else None
    outlines = np.asarray(data["outlines"], float) if "outlines" in data else None
    standard = [OUTCOME_COLORS.get(name, CURVE_COLORS[at % len(CURVE_COLORS)]) for at, name in enumerate(names)]
    colors = [str(color) for color in np.asarray(data.get("colors", standard))]
    figure, axes = _panelled(data, 5.5, 6.0, 4.2, "percentage (instances above the bars)")
    places = np.arange(len(x))
    width, aside = (0.72, 0.0) if marks is None else (0.5, 0.13)
    edge: dict[str, Any] = {"edgecolor": "white", "linewidth": 0.4}
    for at, axis in enumerate(axes):
        bottom = np.zeros(len(x))
        for which, name in enumerate(names):
            height = np.nan_to_num(percentage[at, :, which])
            label = name.replace("_", " ") if at == 0 else None
            axis.bar(places - aside, height, width, bottom, color=colors[which], label=label, **edge)
            bottom += height
        if marks is not None:
            label = str(data.get("marks_label", "")) if at == 0 else None
            axis.bar(places + 0.25, marks[at], 0.2, color=MARK_COLOR, label=label)
        if outlines is not None:
            label = str(data.get("outlines_label", "")) if at == 0 else None
            axis.bar(places + 0.25, outlines[at], 0.2, fill=False, edgecolor=MARK_COLOR, linewidth=0.9, label=label)
        if len(x) <= LABELLED_BARS:
            for place, total in zip(places - aside, denominator[at], strict=True):
                axis.text(place, 101, f"{int(total):,}", ha="center", fontsize=6, color=COLORS["faint"])
        axis.set_xticks(places, [_text(value) for value in x], rotation=0 if len(x) <= LABELLED_BARS else 90)
        axis.set_ylim(0, 107)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return figure


def draw_percentage_curves(data: Mapping[str, Any]) -> Any:
    r"""Curves with their intervals, a panel for each group (figure 6).

    **Arguments:** `data` with `x` `(k,)` and `x_label`; `panels` `(p,)` titles; `curves` `(c,)` names;
    `percentage`, `low`, `high` `(p, c, k)`, NaN where a panel has no such curve; `y_label`. Optional: `dashed`
    `(c,)` Booleans and `color` `(c,)` integers, to draw the two parametrisations of one setting alike.
    """
    check_names(data, ["panels", "curves", "x", "percentage", "x_label", "y_label", "low", "high"])
    x, curves = np.asarray(data["x"]), [str(name) for name in np.asarray(data["curves"])]
    numeric = x.dtype.kind in "biuf"
    places = x.astype(float) if numeric else np.arange(len(x), dtype=float)
    dashed = np.asarray(data["dashed"], bool) if "dashed" in data else np.zeros(len(curves), bool)
    color = np.asarray(data["color"], int) if "color" in data else np.arange(len(curves))
    figure, axes = _panelled(data, 5.0, 6.0, 4.0, data["y_label"])
    for at, axis in enumerate(axes):
        for which, name in enumerate(curves):
            values = np.asarray(data["percentage"], float)[at, which]
            seen = np.isfinite(values)
            if not seen.any():
                continue
            this = CURVE_COLORS[color[which] % len(CURVE_COLORS)]
            low, high = (np.asarray(data[end], float)[at, which][seen] for end in ("low", "high"))
            axis.fill_between(places[seen], low, high, color=this, alpha=0.15, linewidth=0)
            style = "--" if dashed[which] else "-"
            axis.plot(places[seen], values[seen], style, color=this, marker="o", markersize=3, label=name)
        if not numeric:
            axis.set_xticks(places, [_text(value) for value in x])
        elif x.dtype.kind in "iu":
            axis.xaxis.get_major_locator().set_params(integer=True)
        axis.set_ylim(-2, 102)
        if axis.has_data():
            axis.legend(frameon=False, fontsize=8)
    return figure


def draw_heat_map(data: Mapping[str, Any]) -> Any:
    r"""One number over two factors, a panel for each value of a third; written into the cells where it fits.

    **Arguments:** `data` with `x` `(k,)`, `y` `(l,)`, `x_label`, `y_label`; `panels` `(p,)` titles; `value`
    `(p, l, k)`, NaN where there is no value; `value_label`. Optional: `range` `(2,)`, 0 to 100 by default.
    """
    check_names(data, ["x", "y", "panels", "value", "x_label", "y_label", "value_label"])
    x, y, value = np.asarray(data["x"]), np.asarray(data["y"]), np.asarray(data["value"], float)
    low, high = np.asarray(data.get("range", (0.0, 100.0)), float)
    figure, axes = _panelled(data, 4.6, 5.5, 4.0, data["y_label"])
    image = None
    for at, axis in enumerate(axes):
        axis.grid(False)
        image = axis.imshow(value[at], origin="lower", aspect="auto", vmin=low, vmax=high, cmap="viridis")
        axis.set_xticks(np.arange(len(x)), [_text(entry) for entry in x])
        axis.set_yticks(np.arange(len(y)), [_text(entry) for entry in y])
        if len(x) <= LABELLED_BARS and len(y) <= LABELLED_BARS:
            for (row, column), number in np.ndenumerate(value[at]):
                shade = "black" if number > (low + high) / 2 else "white"
                text = f"{number:.0f}" if np.isfinite(number) else "-"
                axis.text(column, row, text, ha="center", va="center", fontsize=7, color=shade)
    figure.colorbar(image, ax=list(axes), label=str(data["value_label"]))
    return figure


def _panelled(data: Mapping[str, Any], width: float, least: float, height: float, y_label: Any) -> tuple[Any, Any]:
    """A figure with a panel for each title, each of this width, and its row of axes."""
    panels = [str(name) for name in np.asarray(data["panels"])]
    figure, axes = new_figure(len(panels), width=max(width * len(panels), least), shared=True, height=height)
    for axis, title in zip(axes, panels, strict=True):
        axis.set_xlabel(str(data["x_label"]))
        axis.set_title(title, fontsize=10)
    axes[0].set_ylabel(str(y_label))
    return figure, axes


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float | np.floating) else str(value)
