"""Numbers, tables and sections as the page of benchmarks writes them."""

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

RESULTS = Path(os.environ.get("JAXFLOW_RESULTS", Path(__file__).resolve().parent / "results"))


def results(name: str) -> dict[str, Any]:
    """The record of a benchmark."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def section(title: str | None, text: str, table: str, found: dict[str, Any], script: str, load: bool = False) -> str:
    """A heading, a sentence, a table, and where it was measured; with the load at its start, if asked for."""
    place = found["environment"]
    versions = place["versions"]
    day = f", {place['started'][:10]}" if "started" in place else ""
    where = f"{place.get('processor', place['machine'])}, {place['cpu_count']} cores, JAX {versions['jax']}{day}"
    if load:
        where += f", load average {place['load_average']:.1f} at the start"
    parts = [f"## {title}" if title else "", text, table, f"*`benchmarks/{script}`; {where}.*"]
    return "\n\n".join(part for part in parts if part)


def markdown(columns: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> str:
    """A table."""
    lines = [columns, ("---",) * len(columns), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def sizes(row: dict[str, Any]) -> str:
    """n, T, d."""
    return ", ".join(map(str, row["n_T_d"] if "n_T_d" in row else [row[name] for name in ("n", "T", "d")]))


def ended(outcomes: dict[str, int]) -> str:
    """`73 globally optimal, 27 locally optimal`."""
    return ", ".join(f"{number} {name.replace('_', ' ')}" for name, number in outcomes.items())


def count(number: float) -> str:
    """`10,000`."""
    return f"{int(number):,}"


def rounded(number: float) -> str:
    """Three digits at most."""
    return f"{number:,.0f}" if abs(number) >= 100 else f"{number:.3g}"


def maybe(form: Callable[[float], str], number: float | None) -> str:
    """The number in its form, or nothing."""
    return "" if number is None else form(number)


def milliseconds(number: float) -> str:
    """Three digits of thousandths, without a unit."""
    return rounded(1e3 * number)


def seconds(number: float) -> str:
    """Three digits, without a unit."""
    return f"{number:.0f}" if number >= 100 else f"{number:.2g}"


def power(number: float) -> str:
    """One digit and a power of ten."""
    return f"{number:.0e}" if number else "0"
