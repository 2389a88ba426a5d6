"""The page of benchmarks, written from their results: python benchmarks/page.py > docs/benchmarks.md.

No number of that page is typed: a test holds the page to what this prints. Its words, tables and columns are in
page.toml, and the forms of numbers in _forms.py.
"""

import json
import os
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from _forms import FACTS, FORMS, ROWS, Row, place

HERE = Path(__file__).resolve().parent
RESULTS = Path(os.environ.get("JAXFLOW_RESULTS", HERE / "results"))


def cell(row: Row, show: str) -> str:
    """What a column shows of a row; nothing where the row has no such field."""
    if "{" in show:
        try:
            return show.format_map(row)
        except KeyError:
            return ""
    for one in show.split(" or "):
        field, _, form = one.partition("|")
        value: Any = row
        for name in field.split(".") if field else ():
            value = value.get(name) if isinstance(value, dict) else None
        if value is not None:
            return FORMS[form](value)
    return ""


def markdown(columns: dict[str, str], rows: Iterable[Row]) -> str:
    """A table."""
    lines = [list(columns), ["---"] * len(columns)]
    lines += [[cell(row, show) for show in columns.values()] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def section(table: dict[str, Any]) -> str:
    """A table with its title, its text, and the script that wrote its record."""
    record, text = table["record"], table["text"]
    script, path = table.get("script", f"benchmarks/{record}.py"), RESULTS / f"{record}.json"
    title = [f"## {table['title']}"] if "title" in table else []
    if not path.exists():
        return "\n\n".join([*title, text, f"*`{script}`*: **not measured yet**."])
    found = json.loads(path.read_text(encoding="utf-8"))
    if record == "scaling":
        found = found[script.split()[-1]]
    facts = FACTS[table["facts"]](found) if "facts" in table else found
    rows = ROWS[table["rows"]](found) if "rows" in table else found["rows"]
    source = f"*`{script}`; {place(found['environment'])}.*"
    return "\n\n".join([*title, text.format_map(facts), markdown(table["columns"], rows), source])


if __name__ == "__main__":
    page = tomllib.loads((HERE / "page.toml").read_text(encoding="utf-8"))
    print("\n\n".join([page["head"].strip(), *map(section, page["table"]), page["tail"].strip()]))
