"""Draws docs/images/work-precision.webp from what flow_peers.py saved: python benchmarks/work_precision.py."""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from _common import RESULTS
from PIL import Image

from jaxflow.plots import COLORS, CURVES, new_grid, save_figure

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "images" / "work-precision.webp"
# A colour for each library, a marker for each method of it; the markers alone tell all methods apart, too.
FAMILIES = {
    "jaxflow": CURVES[0],
    "vmap(diffeqsolve)": CURVES[1],
    "SciPy": CURVES[2],
    "torchode": CURVES[3],
    "torchdiffeq": COLORS["program"],
}
MARKERS = "osD^v<>PX*dph"
LABELS = {"W": "W", "KQ": "(K, Q)"}


def draw(rows: list[dict[str, Any]]) -> Any:
    """A panel for each model and size: seconds an instance against the median relative error, to the nearer time."""
    far = max(row["log_time"] for row in rows if "log_time" in row)
    near = [row for row in rows if row.get("error_of_all") is not None and row["log_time"] != far]
    cases = list(dict.fromkeys((row["model"], tuple(row["n_T_d"])) for row in near))
    methods = list(dict.fromkeys(row["method"] for row in near))
    columns = -(-len(cases) // 3)
    figure, axes = new_grid(3, columns, width=3.0 * columns, height=9.5, shared=True)
    for axis in axes.flat[len(cases) :]:
        axis.set_axis_off()
    for axis, (model, size) in zip(axes.flat, cases, strict=False):
        for method, marker in zip(methods, MARKERS, strict=False):
            some = [row for row in near if (row["model"], tuple(row["n_T_d"]), row["method"]) == (model, size, method)]
            color = FAMILIES[method.split(",")[0]]
            axis.loglog(
                [row["error_of_all"] for row in some],
                [row["s_per_instance"] for row in some],
                color=color, marker=marker, markersize=4, linewidth=1.6 if "jaxflow" in method else 0.9, label=method,
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


def save_pixels(figure: Any, out: Path) -> None:
    """As pixels: the letters alone, as outlines, are more than a picture of the documentation may have."""
    with tempfile.TemporaryDirectory() as folder:
        pixels = Path(folder) / "picture.png"
        save_figure(figure, pixels)
        with Image.open(pixels) as image:
            image.convert("RGB").save(out, quality=70, method=6)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--results", type=Path, default=RESULTS / "flow_peers.json")
    parser.add_argument("--out", type=Path, default=PICTURE)
    asked = parser.parse_args()
    save_pixels(draw(json.loads(asked.results.read_text(encoding="utf-8"))["rows"]), asked.out)


if __name__ == "__main__":
    main()
