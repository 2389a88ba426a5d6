"""Draws the two pictures of the page from what flow_peers.py and scaling.py saved: python benchmarks/pictures.py."""

import json
import tempfile
from operator import itemgetter
from pathlib import Path
from typing import Any

from _common import RESULTS
from matplotlib.ticker import LogLocator, StrMethodFormatter
from PIL import Image

from jaxflow.plots import COLORS, CURVES, new_grid, save_figure

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
# A colour for each library, a marker for each method of it; the markers alone tell all methods apart, too.
FAMILIES = {
    "jaxflow": CURVES[0],
    "vmap(diffeqsolve)": CURVES[1],
    "SciPy": CURVES[2],
    "torchode": CURVES[3],
    "torchdiffeq": COLORS["program"],
}
MARKERS = "osD^v<>PX*dph"
LABELS = {"KQ": "(K, Q)", "devices": "host devices", "dask": "Dask workers"}
# Part of scaling.json, what tells its curves apart, against what its cost is drawn, and how that axis is named.
PANELS: tuple[tuple[str, Any, Any, str], ...] = (
    ("batches", "parametrization", itemgetter("batch"), "instances"),
    ("dimensions", "parametrization", lambda row: row["n_T_d"][2], "d (dashed: after the reduction)"),
    ("tokens", "parametrization", lambda row: row["n_T_d"][0] * row["n_T_d"][1], "n T"),
    ("accuracies", "parametrization", itemgetter("log_log_time_median"), "log log t reached"),
    ("initial_scales", None, lambda row: -row["log_alpha"], "log 1/α"),
    ("workers", "executor", itemgetter("workers"), "workers of one core"),
)


def work_precision(found: dict[str, Any]) -> Any:
    """A panel for each model and size: seconds an instance against the median relative error, to the nearer time."""
    far = max(row["log_time"] for row in found["rows"] if "log_time" in row)
    near = [row for row in found["rows"] if row.get("error_of_all") is not None and row["log_time"] != far]
    cases = list(dict.fromkeys((row["model"], tuple(row["n_T_d"])) for row in near))
    methods = list(dict.fromkeys(row["method"] for row in near))
    columns = -(-len(cases) // 3)
    figure, axes = new_grid(3, columns, width=3.0 * columns, height=9.5, shared=True)
    for axis in axes.flat[len(cases) :]:
        axis.set_axis_off()
    for axis, (model, size) in zip(axes.flat, cases, strict=False):
        for method, marker in zip(methods, MARKERS, strict=False):
            some = [row for row in near if (row["model"], tuple(row["n_T_d"]), row["method"]) == (model, size, method)]
            axis.loglog(
                [row["error_of_all"] for row in some],
                [row["s_per_instance"] for row in some],
                color=FAMILIES[method.split(",")[0]], marker=marker, markersize=4,
                linewidth=1.6 if "jaxflow" in method else 0.9, label=method,
            )  # fmt: skip
        # A tick is a path in the file, and minor ones say nothing here.
        axis.minorticks_off()
        sizes = "(n, T, d)" if len(size) == 3 else "(n, d)"
        axis.set_title(f"{LABELS.get(model, model)}, {sizes} = {size}", fontsize=9)
    for axis in axes[-1]:
        axis.set_xlabel("relative error of W, or of β")
    for axis in axes[:, 0]:
        axis.set_ylabel("seconds an instance")
    axes[0, 0].invert_xaxis()
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    return figure


def scaling(found: dict[str, Any]) -> Any:
    """A panel for each part."""
    figure, axes = new_grid(2, 3, width=10.0, height=6.2)
    for axis, (part, kind, across, horizontal) in zip(axes.flat, PANELS, strict=True):
        rows = found[part]["rows"]
        kinds = list(dict.fromkeys(row[kind] for row in rows)) if kind else [None]
        for color, marker, name in zip(CURVES, MARKERS, kinds, strict=False):
            some = sorted((row for row in rows if name is None or row[kind] == name), key=across)
            label = "diagonal network" if name is None else LABELS.get(name, name)
            places, heights = [across(row) for row in some], [_height(row) for row in some]
            axis.plot(places, heights, color=color, marker=marker, markersize=4, label=label)
            if part == "dimensions":
                after = [1e3 * row["seconds_after_the_reduction"] for row in some]
                axis.plot(places, after, color=color, linestyle="--", linewidth=0.9)
        if part == "workers":
            axis.set_xticks(sorted({row["workers"] for row in rows}))
            axis.set_ylim(bottom=0)
        else:
            axis.set_yscale("log")
            axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
            if part != "tokens":
                axis.set_xscale("log")
            axis.minorticks_off()
        axis.set_xlabel(horizontal)
        axis.set_ylabel("instances a second" if part == "workers" else "ms an instance")
        axis.legend(frameon=False, fontsize=8)
    return figure


def _height(row: dict[str, Any]) -> float:
    """Instances a second, or milliseconds an instance."""
    return row.get("a_second") or row.get("ms_an_instance") or 1e3 * row["seconds"]


def save_pixels(figure: Any, out: Path) -> None:
    """As pixels: the letters alone, as outlines, are more than a picture of the documentation may have."""
    with tempfile.TemporaryDirectory() as folder:
        pixels = Path(folder) / "picture.png"
        save_figure(figure, pixels)
        with Image.open(pixels) as image:
            image.convert("RGB").save(out, quality=70, method=6)


if __name__ == "__main__":
    for draw, record, name in ((work_precision, "flow_peers", "work-precision"), (scaling, "scaling", "scaling")):
        content = json.loads((RESULTS / f"{record}.json").read_text(encoding="utf-8"))
        save_pixels(draw(content), IMAGES / f"{name}.webp")
