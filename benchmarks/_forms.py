"""How numbers and rows of the page of benchmarks are written."""

from collections.abc import Callable, Iterable
from typing import Any

Row = dict[str, Any]


def count(number: float) -> str:
    """`10,000`."""
    return f"{int(number):,}"


def rounded(number: float) -> str:
    """Three digits at most."""
    return f"{number:,.0f}" if abs(number) >= 100 else f"{number:.3g}"


def power(number: float) -> str:
    """One digit and a power of ten."""
    return f"{number:.0e}" if number else "0"


def ended(outcomes: dict[str, int]) -> str:
    """`73 globally optimal, 27 locally optimal`."""
    return ", ".join(f"{number} {name.replace('_', ' ')}" for name, number in outcomes.items())


def milliseconds(number: float) -> str:
    """Three digits of thousandths, without a unit."""
    return rounded(1e3 * number)


def sizes(numbers: list[int]) -> str:
    """`5, 5, 4`."""
    return ", ".join(map(str, numbers))


FORMS: dict[str, Callable[[Any], str]] = {
    "count": count,
    "rounded": rounded,
    "power": power,
    "ended": ended,
    "ms": milliseconds,
    "seconds": lambda number: f"{number:.0f}" if number >= 100 else f"{number:.2g}",
    "sizes": sizes,
    "length": lambda found: str(len(found)),
    "": str,
}


def masked_rows(found: Row) -> Iterable[Row]:
    """One row for each model and content of the hidden tokens, over all numbers of them."""
    for model, hidden in dict.fromkeys((row["model"], row["hidden"]) for row in found["rows"]):
        rows = [row for row in found["rows"] if (row["model"], row["hidden"]) == (model, hidden)]
        sums = {name: sum(row[name] for row in rows) for name in ("variants", "other_outcomes", "other_tokens")}
        extra = [row["extra"] for row in rows]
        yield {
            "model": model,
            "hidden": hidden,
            "extra": extra,
            **sums,
            "difference": max(row["difference"] for row in rows),
        }
