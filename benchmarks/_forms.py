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


def share(found: list[float]) -> str:
    """`198 [96, 100]`: a number of instances, and an interval of their share in percent."""
    return f"{count(found[0])} [{100.0 * found[1]:.0f}, {100.0 * found[2]:.0f}]"


FORMS: dict[str, Callable[[Any], str]] = {
    "count": count,
    "rounded": rounded,
    "power": power,
    "ended": ended,
    "ms": milliseconds,
    "seconds": lambda number: f"{number:.0f}" if number >= 100 else f"{number:.2g}",
    "sizes": sizes,
    "share": share,
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


def grown(norm: str) -> Callable[[Row], str]:
    """`0.1 → 0.012`: the median excess in a norm at the first and at the last reading."""
    return lambda row: " → ".join(rounded(row["excess"][norm][at]["median"]) for at in (0, -1))


def others(row: Row) -> str:
    """Programs that are neither solved nor certified to have no solution."""
    ended = row["results"]
    return count(sum(ended.values()) - ended["optimal"] - ended["infeasible"])


def flow_ratios(found: Row) -> Iterable[Row]:
    """One row for each case and error, with each peer's ratio under its name."""
    shown, far = (1e-3, 1e-5, 1e-7), max(row["log_time"] for row in found["ratios"])
    cases: dict[Any, Row] = {}
    for row in found["ratios"]:
        if row["log_time"] != far and row["error"] in shown:
            key = (row["model"], *row["n_T_d"], row["log_time"], row["error"])
            cases.setdefault(key, dict(row))[row["peer"]] = "none" if row["ratio"] is None else rounded(row["ratio"])
    return cases.values()


def far_flows(found: Row) -> Iterable[Row]:
    """What each method answers at the far time, over all cases."""
    far = max(row["log_time"] for row in found["ratios"])
    asked = [row for row in found["rows"] if row.get("log_time") == far and "answered" in row]
    for method in dict.fromkeys(row["method"] for row in asked):
        some = [row for row in asked if row["method"] == method]
        times = [row["s_per_instance"] for row in some]
        yield {
            "method": method,
            "answered": f"{sum(row['answered'] for row in some)} of {sum(row['instances'] for row in some)}",
            "error": max((row["error"]["median"] for row in some if row["error"]["median"] is not None), default=None),
            "times": f"{milliseconds(min(times))} to {milliseconds(max(times))}",
            "why": ", ".join(dict.fromkeys(why for row in some for why in row["failures"])),
        }
