"""The page of benchmarks, written from their results: python benchmarks/page.py > docs/benchmarks.md.

No number of that page is typed: a test holds the page to what this prints. Its words, tables and columns are in
page.toml, which calls the forms, rows and facts of this file by their names.
"""

import json
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
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


def share(found: list[float]) -> str:
    """`198 [96, 100]`: a number of instances, and an interval of their share in percent."""
    return f"{count(found[0])} [{100.0 * found[1]:.0f}, {100.0 * found[2]:.0f}]"


def place(environment: Row) -> str:
    """Where and when something was measured."""
    words = [environment.get("processor", environment["machine"]), f"{environment['cpu_count']} cores"]
    words += [] if environment.get("device", "cpu") == "cpu" else [environment["device"]]
    words += [f"JAX {environment['versions']['jax']}"]
    words += [environment["started"][:10]] if "started" in environment else []
    if "load_average" in environment:
        words += [f"load average {environment['load_average']:.1f} at the start"]
    return ", ".join(words)


def grown(readings: list[Row]) -> str:
    """`0.1 → 0.012`: the median at the first and at the last reading."""
    return " → ".join(rounded(readings[at]["median"]) for at in (0, -1))


def others(ended: dict[str, int]) -> str:
    """Programs that are neither solved nor certified to have no solution."""
    return count(sum(ended.values()) - ended["optimal"] - ended["infeasible"])


def failed(row: Row) -> str:
    """`2 of 300`: answers of a peer that are none."""
    return f"{sum(row.get('failures', {}).values())} of {count(row.get('instances', 0))}"


def one_undecided(row: Row) -> str:
    """Instances that one of two ways leaves undecided."""
    return str(sum(len(row[way]["one_undecided"]) for way in ("jit", "vmap", "study", "replay")))


FORMS: dict[str, Callable[[Any], str]] = {
    "": str,
    "absent": lambda _: "not installed",
    "count": count,
    "ended": ended,
    "failed": failed,
    "grown": grown,
    "length": lambda found: str(len(found)),
    "ms": lambda number: rounded(1e3 * number),
    "one_undecided": one_undecided,
    "others": others,
    "over_the_others": lambda row: rounded(row["seconds"] / row["seconds_old"]),
    "positive": lambda row: str(row["positive"]) if row["flow"] == "U U" else "",
    "potential": lambda row: f"{row['p']}, Schatten" if row.get("norm") else str(row["p"]),
    "power": power,
    "rounded": rounded,
    "seconds": lambda number: f"{number:.0f}" if number >= 100 else f"{number:.2g}",
    "share": share,
    "sizes": lambda numbers: ", ".join(map(str, numbers)),
    "tokens": lambda size: str(size[0] * size[1]),
}


def masked_rows(found: Row) -> Iterable[Row]:
    """One row for each model and content of the hidden tokens, over all numbers of them."""
    for model, hidden in dict.fromkeys((row["model"], row["hidden"]) for row in found["rows"]):
        rows = [row for row in found["rows"] if (row["model"], row["hidden"]) == (model, hidden)]
        sums = {name: sum(row[name] for row in rows) for name in ("variants", "other_outcomes", "other_tokens")}
        extra, difference = [row["extra"] for row in rows], max(row["difference"] for row in rows)
        yield {"model": model, "hidden": hidden, "extra": extra, **sums, "difference": difference}


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
            "times": " to ".join(rounded(1e3 * seconds) for seconds in (min(times), max(times))),
            "why": ", ".join(dict.fromkeys(why for row in some for why in row["failures"])),
        }


VERDICTS = ("right", "undecided", "unverified", "wrong")


def referee_rows(found: Row) -> Iterable[Row]:
    """The rows of each model, and their sums."""
    for model in dict.fromkeys(row["model"] for row in found["rows"]):
        rows = [row for row in found["rows"] if row["model"] == model]
        yield from rows
        sums = {word: sum(row[word] for row in rows) for word in ("instances", *VERDICTS)}
        yield {"model": f"**{model}**", "kind": "all", **sums}


def referee_facts(found: Row) -> Row:
    """What was judged, and the totals."""
    total = {word: sum(row[word] for row in found["rows"]) for word in VERDICTS}
    regular = [row for row in found["rows"] if row["regular"]]
    share = sum(row["undecided"] for row in regular) / sum(row["instances"] for row in regular)
    shares = {f"{row['model']}, {row['kind']}": row["undecided"] / row["instances"] for row in regular}
    over = ", ".join(f"{name} ({100 * share:.2g}%)" for name, share in shares.items() if share > 0.01)
    return total | {
        "judged": count(sum(total.values())),
        "undecided": count(total["undecided"]),
        "share": f"{100 * share:.2g}",
        "over": f" Regular kinds with more than 1% undecided: {over}." if over else "",
    }


def studies_facts(found: Row) -> Row:
    """Where the last way was measured."""
    own = found.get("own_environment")
    return {"own_place": f" ({place(own)})" if own else ""}


ROWS = {"far_flows": far_flows, "flow_ratios": flow_ratios, "masked_rows": masked_rows, "referee_rows": referee_rows}
FACTS = {"referee": referee_facts, "studies": studies_facts}


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


def section(table: dict[str, Any], results: Path) -> str:
    """A table with its title, its text, and the script that wrote its record."""
    record, text = table["record"], table["text"]
    script, path = table.get("script", f"benchmarks/{record}.py"), results / f"{record}.json"
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


def written(results: Path) -> str:
    """The page of a folder of records."""
    page = tomllib.loads((HERE / "page.toml").read_text(encoding="utf-8"))
    sections = [section(table, results) for table in page["table"]]
    return "\n\n".join([page["head"].strip(), *sections, page["tail"].strip()]) + "\n"


if __name__ == "__main__":
    print(written(HERE / "results"), end="")
