"""Draws docs/images/scaling.webp from what scaling.py saved: python benchmarks/scaling_picture.py."""

import argparse
import json
from pathlib import Path
from typing import Any

from _common import RESULTS
from matplotlib.ticker import LogLocator, StrMethodFormatter
from work_precision import save_pixels

from jaxflow.plots import CURVES, new_grid

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "images" / "scaling.webp"
LABELS = {"W": "W", "KQ": "(K, Q)", "devices": "host devices", "dask": "Dask workers"}
MARKERS = "osD^"
# Part, what tells its curves apart, what is drawn against what, and how the axes are named.
PANELS = (
    ("batches", "parametrization", "batch", "ms_an_instance", "instances", "ms an instance"),
    ("dimensions", "parametrization", "d", "ms", "d (dashed: after the reduction)", "ms an instance"),
    ("tokens", "parametrization", "nT", "ms", "n T", "ms an instance"),
    ("accuracies", "parametrization", "log_log_time_median", "ms_an_instance", "log log t reached", "ms an instance"),
    ("initial_scales", None, "minus_log_alpha", "ms", "log 1/α", "ms an instance"),
    ("workers", "executor", "workers", "a_second", "workers of one core", "instances a second"),
)


def draw(found: dict[str, Any]) -> Any:
    """A panel for each part."""
    figure, axes = new_grid(2, 3, width=10.0, height=6.2)
    for axis, (part, kind, across, up, horizontal, vertical) in zip(axes.flat, PANELS, strict=True):
        rows = [_completed(row) for row in found[part]["rows"]]
        kinds = list(dict.fromkeys(row[kind] for row in rows)) if kind else [None]
        for color, marker, name in zip(CURVES, MARKERS, kinds, strict=False):
            some = sorted((row for row in rows if name is None or row[kind] == name), key=lambda row: row[across])
            axis.plot(
                [row[across] for row in some], [row[up] for row in some],
                color=color, marker=marker, markersize=4, label=LABELS.get(name or "", "diagonal network"),
            )  # fmt: skip
            if part == "dimensions":
                after = [1e3 * row["seconds_after_the_reduction"] for row in some]
                axis.plot([row[across] for row in some], after, color=color, linestyle="--", linewidth=0.9)
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
        axis.set_ylabel(vertical)
        axis.legend(frameon=False, fontsize=8)
    return figure


def _completed(row: dict[str, Any]) -> dict[str, Any]:
    """With what follows from its numbers."""
    more: dict[str, Any] = {}
    if "n_T_d" in row:
        n, T, d = row["n_T_d"]
        more = {"nT": n * T, "d": d}
    if "log_alpha" in row:
        more = {"minus_log_alpha": -row["log_alpha"]}
    if "n_T_d" in row or "log_alpha" in row:
        more["ms"] = 1e3 * row["seconds"]
    return row | more


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--results", type=Path, default=RESULTS / "scaling.json")
    parser.add_argument("--out", type=Path, default=PICTURE)
    asked = parser.parse_args()
    save_pixels(draw(json.loads(asked.results.read_text(encoding="utf-8"))), asked.out)


if __name__ == "__main__":
    main()
