"""Flags what got slower between two records: python benchmarks/compare.py OLD NEW.

OLD and NEW are result files, or folders of them; files of a folder are matched by their names. Rows are matched by the
fields that say what was measured, and compared by their ratios: those within one run hardly depend on the machine. A
ratio of ours over a peer's rate, or of a peer's time over ours, is better when it is larger. The exit code is 1 if a
ratio fell by more than the factor, or if a row with one is gone.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# What says which measurement a row is. Everything else is a result of it.
IDENTITY = (
    *("norm", "model", "parametrization", "n_T_d", "n", "T", "d"),
    *("method", "way", "peer", "log_time", "error"),
)
# All of them better when they are larger.
RATIOS = ("ratio", "time_over_engine")


def rows(content: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every row of a record with the path to its list."""
    if isinstance(content, dict):
        for name, part in content.items():
            yield from rows(part, f"{path}/{name}")
    if isinstance(content, list):
        for part in content:
            if isinstance(part, dict):
                yield path, part


def identity(path: str, row: dict[str, Any]) -> str:
    """The list that the row is in and its identifying fields; a statistic of the same name is no such field."""
    fields = {name: row[name] for name in IDENTITY if name in row and not isinstance(row[name], dict)}
    return f"{path} {json.dumps(fields, sort_keys=True)}"


def measured(record: Path) -> dict[str, float]:
    """The ratios of a record by what they are of; none of a file that is not there."""
    found = {}
    content = json.loads(record.read_text(encoding="utf-8")) if record.exists() else {}
    for path, row in rows(content):
        for name in RATIOS:
            if isinstance(row.get(name), int | float):
                key = f"{identity(path, row)} {name}"
                if key in found:
                    raise ValueError(f"two rows are told apart by none of the identifying fields: {key}")
                found[key] = float(row[name])
    return found


def regressions(old: Path, new: Path, factor: float) -> list[str]:
    """A line for each ratio that fell by more than `factor`, or is gone, also with its whole file."""
    if old.is_dir() != new.is_dir():
        raise ValueError("OLD and NEW: expected two files or two folders")
    found = []
    for name in sorted(path.name for path in old.glob("*.json")) if old.is_dir() else [""]:
        before, later = (measured(path / name if name else path) for path in (old, new))
        for key, value in before.items():
            if key not in later:
                found.append(f"{name}{key}: {value:.3g} before, not measured now")
            elif later[key] * factor < value:
                found.append(f"{name}{key}: {value:.3g} before, {later[key]:.3g} now")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--factor", type=float, default=1.5, help="how much worse a ratio may be")
    asked = parser.parse_args()
    if asked.factor < 1:
        parser.error("--factor: expected at least 1")
    found = regressions(asked.old, asked.new, asked.factor)
    for line in found:
        print(line)
    print(f"{len(found)} ratios are worse by a factor of more than {asked.factor:g}, or gone")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
