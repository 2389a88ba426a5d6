"""A study as tables: outcomes by cell, and the spread of every number that was kept."""

import html
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxflow._core import Outcome
from jaxflow.study.counting import decode, outcomes_of, require_results


@dataclass(frozen=True)
class Table:
    """Rows of text under column names. `print` it; a notebook shows it as HTML."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""

    def __str__(self) -> str:
        lines = [self.columns, *self.rows]
        widths = [max(len(line[at]) for line in lines) for at in range(len(self.columns))]
        shown = ["  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True)) for line in lines]
        return "\n".join(
            [self.title, shown[0], "-" * len(shown[0]), *shown[1:], *([self.caption] * bool(self.caption))]
        )

    def _repr_html_(self) -> str:
        return self.to_html()

    def to_html(self) -> str:
        """The same as an HTML table."""
        head = "".join(f"<th>{html.escape(name)}</th>" for name in self.columns)
        body = "".join("<tr>" + "".join(f"<td>{html.escape(text)}</td>" for text in row) + "</tr>" for row in self.rows)
        caption = f"<caption>{html.escape(self.title)}</caption>"
        below = f"<p>{html.escape(self.caption)}</p>" if self.caption else ""
        return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{below}"


def summary(results: Any) -> Table:
    """Outcomes of each cell, counted: every instance is in exactly one column.

    **Example:**

    ```python
    print(jf.study.summary(results))
    ```
    """
    require_results(results)
    names, known = factor_names(results), outcomes_of(results)
    counted = []
    for cell, selected in cells(results, names):
        codes = selected["outcome"].values
        counted.append((cell, {name: int((codes == code).sum()) for name, code in known.items()}, codes.size))
    occurred = [name for name in known if any(counts[name] for _, counts, _ in counted)]
    rows = tuple((*cell, *(str(counts[name]) for name in occurred), str(total)) for cell, counts, total in counted)
    columns = (*names, *occurred, "instances")
    return Table("Outcomes", columns, rows, "Every instance is in exactly one column of outcomes.")


def quantities(results: Any) -> Table:
    """Median, smallest and largest of every real number that was kept, by cell; values that are not finite are
    counted."""
    require_results(results)
    names = factor_names(results)
    reals = [
        str(name)
        for name, array in results.data_vars.items()
        if array.dtype.kind == "f" and array.dims == (*names, "trial")
    ]
    rows = []
    for cell, selected in cells(results, names):
        ran = selected["outcome"].values != Outcome.not_run.value
        for name in reals:
            values = selected[name].values[ran]
            finite = values[np.isfinite(values)]
            numbers = [f"{f(finite):.3g}" if finite.size else "-" for f in (np.median, np.min, np.max)]
            rows.append((*cell, name, *numbers, str(values.size - finite.size), str(values.size)))
    columns = (*names, "quantity", "median", "least", "largest", "not finite", "of")
    return Table("Quantities", columns, tuple(rows), "Median, least and largest are of the finite values.")


def to_dataframe(results: Any) -> Any:
    """One row an instance, as a `pandas.DataFrame`: factors, `trial`, outcomes and other codes by name, numbers.

    A small array of an instance becomes one column an entry, `direction_0`, `direction_1`. Every instance has a row,
    `not_run` ones too.

    **Example:**

    ```python
    rows = jf.study.to_dataframe(results)
    assert len(rows) == 20  # one an instance
    ```
    """
    import xarray

    require_results(results)
    axes = (*factor_names(results), "trial")
    columns: dict[str, Any] = {}
    for name, array in results.data_vars.items():
        coded = (decode(array) if "flag_meanings" in array.attrs else array).reset_coords(drop=True)
        inner = {dim: size for dim, size in coded.sizes.items() if dim not in axes}
        for index in np.ndindex(*inner.values()):
            entry = coded.isel(dict(zip(inner, index, strict=True)), drop=True)
            columns["_".join(map(str, (name, *index)))] = entry
    return xarray.Dataset(columns).to_dataframe(dim_order=axes).reset_index()


def factor_names(results: Any) -> tuple[str, ...]:
    """The axes of a study but for the trials, in order."""
    return tuple(str(dim) for dim in results["outcome"].dims if dim != "trial")


def cells(results: Any, names: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Each combination of the factors `names` as text, with its part of a Dataset."""
    for index in itertools.product(*(range(results.sizes[name]) for name in names)):
        selected = results.isel(dict(zip(names, index, strict=True)))
        yield tuple(as_text(selected[name].values.item()) for name in names), selected


def as_text(value: Any) -> str:
    """A factor's value as in a table."""
    return f"{value:g}" if isinstance(value, float) else str(value)
