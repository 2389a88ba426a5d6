"""How long whole commands took: python benchmarks/run_times.py OUT ... --cache empty --load "nothing beside it".

Collects the seconds that `jaxflow reproduce` and `jaxflow verify` write into their manifests into
results/run_times.json, one row for each command and scale; a later run of the same command replaces its row. They are
those of all attempts at the numbers that a command reads: numbers that two commands share are in the seconds of both.
What a manifest cannot know is said by the caller: whether the compilation cache was empty, and what else the machine
did.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from _common import RESULTS, environment, print_table, write

TARGET = RESULTS / "run_times.json"


def row_of(path: Path, cache: str, load: str) -> dict[str, Any]:
    """One row from one manifest."""
    found = json.loads(path.read_text())
    arguments = found["arguments"]
    command = " ".join(str(part) for part in (arguments["paper"], arguments.get("figure", "verify")))
    return {
        "command": command,
        "scale": arguments["scale"],
        "seconds": found["seconds"],
        "cpu_seconds": found.get("cpu_seconds"),
        "cache": cache,
        "load": load,
        "commit": found["commit"],
        "jax": found["packages"]["jax"],
    }


def main() -> None:
    """Reads folders of finished runs and merges their rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path, help="folders that hold *-manifest.json")
    parser.add_argument("--cache", choices=("empty", "filled"), required=True, help="the compilation cache at start")
    parser.add_argument("--load", required=True, help="what else ran on the machine")
    given = parser.parse_args()
    known = json.loads(TARGET.read_text())["commands"] if TARGET.exists() else []
    rows = {(row["command"], row["scale"]): row for row in known}
    for folder in given.folders:
        for path in sorted(folder.glob("*-manifest.json")):
            row = row_of(path, given.cache, given.load)
            rows[row["command"], row["scale"]] = row
    ordered = [rows[key] for key in sorted(rows)]
    columns = ["command", "scale", "seconds", "cpu_seconds", "cache", "load"]
    print_table("whole commands", columns, [[row[name] for name in columns] for row in ordered])
    write(TARGET, {"environment": environment(), "commands": ordered})


if __name__ == "__main__":
    main()
