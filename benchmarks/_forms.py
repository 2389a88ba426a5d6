"""How numbers of the page of benchmarks are written."""

from collections.abc import Callable
from typing import Any


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
