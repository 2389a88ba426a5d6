"""A study as one HTML file without other files: counts, their denominators, and the manifest."""

import base64
import html
import io
import json
from pathlib import Path
from typing import Any

from jaxflow import study
from jaxflow._core import as_boolean, as_path
from jaxflow.plots import study as plots
from jaxflow.report.outputs import refuse_existing
from jaxflow.study import counting, pictures
from jaxflow.study.pairs import comparisons
from jaxflow.study.tables import Table, as_text, cells, factor_names, quantities, summary

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; font-size: 13px; }
caption { text-align: left; font-weight: 600; padding: .3rem 0; }
th, td { border-bottom: 1px solid #ddd; padding: .2rem .6rem; text-align: right; vertical-align: top; }
th { border-bottom: 2px solid #888; } td:first-child, th:first-child { text-align: left; }
figure { margin: 1rem 0; } img { max-width: 100%; } figcaption, p.note { color: #555; font-size: 13px; }
.scroll { overflow-x: auto; } .warn { background: #fff3d6; padding: .5rem 1rem; } pre { white-space: pre-wrap; }
"""


def write_study_report(store_path: str | Path, out: str | Path, *, overwrite: bool = False) -> Path:
    """Writes the report of a store, complete or not (the report states which).

    **Returns:** the file. **Raises:** `FileExistsError` unless `overwrite`; as `jaxflow.study.status`.

    **Example:**

    ```python
    print(jf.report.write_study_report("draws.zarr", "draws.html", overwrite=True))
    ```
    """
    target = as_path("out", out)
    as_boolean("overwrite", overwrite)
    refuse_existing([target], overwrite)
    text = study_html(store_path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8")
    return target


def study_html(store_path: str | Path) -> str:
    """The report as text: figures, tables, definitions, manifest."""
    status = study.status(store_path)
    with study.open_results(store_path) as results:
        _load(results)
    name = html.escape(status.plan.experiment["name"])
    ran = sum(status.counts.values())
    # The folder of one machine says nothing to a reader.
    told = str(status).replace(str(status.path), status.path.name)
    parts = [f"<h1>{name}</h1>", f"<pre>{html.escape(told)}</pre>"]
    if not status.complete:
        parts.append('<p class="warn">This study is not complete; all numbers are of what has run so far.</p>')
    if status.mixed:
        parts.append(f'<p class="warn">Results of several versions or devices: {html.escape(status.mixed)}</p>')
    if ran:
        parts += ["<h2>Outcomes</h2>", *_figures(results), _scroll(summary(results))]
        parts += ["<h2>Percentages</h2>", _scroll(percentage_table(results)), "<h2>Quantities</h2>"]
        parts += [_scroll(quantities(results)), *map(_scroll, comparisons(results))]
    parts += ["<h2>Definitions</h2>", _definitions(results)]
    parts += ["<h2>How it came to be</h2>", _manifest(results.attrs)]
    head = f'<meta charset="utf-8"><title>{name}: a study</title><style>{STYLE}</style>'
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head><body>\n' + "\n".join(parts) + "\n</body></html>\n"


def _load(results: Any) -> None:
    """Reads what has one number an instance. Nothing else is shown, and larger arrays may not fit into memory."""
    shown = [array for array in results.data_vars.values() if array.dims == results["outcome"].dims]
    size = sum(array.nbytes for array in shown)
    # A million instances take a hundredth of it.
    if size > 16 * 2**30:
        raise ValueError(f"store: a report of it would read {size / 2**30:,.0f} GiB at once; look at parts of it")
    for array in shown:
        array.load()


def percentage_table(results: Any) -> Table:
    """Every outcome that occurred in a cell: of all that ran, and of the decided, with intervals."""
    table, names = counting.percentages(results), factor_names(results)
    rows = []
    for cell, selected in cells(table, names):
        for code in table["outcome"].values.tolist():
            row = selected.sel(outcome=code)
            if int(row["count"]) == 0:
                continue
            decided = code in table.attrs["given"].split(", ")
            conditional = _interval(row, "given_") if decided else "-"
            count = f"{int(row['count']):,}"
            rows.append(
                (*cell, code, count, _interval(row, ""), f"{int(row['ran']):,}", conditional, f"{int(row['given']):,}")
            )
    columns = (*names, "outcome", "count", "% of all that ran", "ran", "% of the decided", "decided")
    caption = (
        f"Brackets: Wilson intervals at {100 * table.attrs['confidence']:g}%. Decided: ended in one of "
        f"{table.attrs['given'].replace('_', ' ')}."
    )
    return Table("Percentages, unconditional and conditional", columns, tuple(rows), caption)


def _interval(row: Any, prefix: str) -> str:
    low, middle, high = (float(row[prefix + name]) for name in ("low", "percentage", "high"))
    return f"{middle:.1f} [{low:.1f}, {high:.1f}]"


def _figures(results: Any) -> list[str]:
    x = pictures.picture_axis(results)
    if x is None:
        return []
    data = pictures.bars(results, x)
    note = f" {int(data['left_out'])} more panels are left out." if int(data["left_out"]) else ""
    found = [_figure(plots.draw_percentage_bars(data), f"Outcomes, % of all instances that ran (number above).{note}")]
    if "globally_optimal" in data["names"]:
        curve = plots.draw_percentage_curves(pictures.curves(results, x))
        found.append(_figure(curve, "Globally optimal, % of all instances that ran; bands: Wilson intervals at 95%."))
        numeric = [n for n in factor_names(results) if results[n].dtype.kind in "iuf" and results.sizes[n] > 1]
        other = next((n for n in numeric if n != x), None)
        if other is not None and x in numeric:
            drawn = plots.draw_heat_map(pictures.heat_map(results, x, other))
            found.append(_figure(drawn, "Globally optimal, % of all instances that ran."))
    return found


def _figure(figure: Any, caption: str) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130)
    data = base64.b64encode(buffer.getvalue()).decode()
    text = html.escape(caption)
    return f'<figure><img alt="{text}" src="data:image/png;base64,{data}"><figcaption>{text}</figcaption></figure>'


def _scroll(table: Table) -> str:
    return f'<div class="scroll">{table.to_html()}</div>'


def _definitions(results: Any) -> str:
    known = counting.outcomes_of(results)
    own = {name: f"an outcome of the experiment's own, code {code}" for name, code in known.items()}
    told = {code.name: text for code, text in counting.DEFINITIONS.items() if known.get(code.name) == code.value}
    rows = list((own | told).items())
    rows += [
        (str(name), str(array.attrs["long_name"]))
        for name, array in results.data_vars.items()
        if "long_name" in array.attrs
    ]
    rows += [("ran", "every instance but those not run yet"), ("decided", "ran, and ended in a decided outcome")]
    return Table("What the names mean", ("name", "meaning"), tuple(rows)).to_html()


def _manifest(attributes: Any) -> str:
    found = json.loads(attributes.get("manifest") or "{}")
    rows = [
        (name, as_text(value) if not isinstance(value, dict | list) else json.dumps(value))
        for name, value in found.items()
    ]
    return Table("Manifest", ("what", "value"), tuple(rows)).to_html()
