"""Work and precision on this machine: python benchmarks/run.py --scale quick.

Two tables: limits by the flow and by gradient descent; integration by clock and solver. Failures are rows,
or counted in them. Compilation is timed apart; only times of one run should be compared.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import clocks
import limits
from _common import RESULTS, configure, environment, write

ALL_SOLVERS = ["Tsit5", "Dopri8", "Kvaerno3", "Kvaerno5", "KenCarp5"]
QUICK: dict[str, Any] = {
    "limits": {"cases": [("W", (6, 8, 10)), ("W", (5, 5, 4))], "count": 8, "repeats": 1},
    "clocks": {
        "size": (3, 4, 4),
        "targets": [("arc_length", 1e3)],
        "clocks": ["log_time", "arc_length", "log_arc_length"],
        "solvers": ["Tsit5", "Kvaerno5"],
        "coordinates": ["scores"],
        "max_steps": 2000,
    },
}
FULL: dict[str, Any] = {
    "limits": {
        "cases": [("W", (6, 8, 10)), ("W", (5, 5, 4)), ("KQ", (5, 5, 4)), ("KQ", (6, 8, 10))],
        "count": 100,
        "repeats": 1,
    },
    "clocks": {
        "size": (6, 8, 10),
        "targets": [("log_time", 20.0), ("arc_length", 1e3), ("arc_length", 1e6), ("arc_length", 1e9)],
        "clocks": ["physical_time", "log_time", "arc_length", "log_arc_length", "loss_time"],
        "solvers": ALL_SOLVERS,
        "coordinates": ["weights", "scores"],
        "max_steps": 5000,
    },
}
SCALES = {"quick": QUICK, "full": FULL}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", choices=SCALES, default="quick")
    parser.add_argument("--only", choices=("limits", "clocks"), help="one of the two tables")
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/run_SCALE.json")
    arguments = parser.parse_args()
    configure()
    started = time.perf_counter()
    content: dict[str, Any] = {"scale": arguments.scale, "environment": environment()}
    out = arguments.out or RESULTS / f"run_{arguments.scale}.json"
    for name, part in (("limits", limits), ("clocks", clocks)):
        if arguments.only in (None, name):
            content[name] = []
            for row in part.rows(**SCALES[arguments.scale][name]):
                content[name].append(row)
                content["seconds"] = time.perf_counter() - started
                write(out, content)  # after each row: a long run that is interrupted keeps what it has
            part.show(content[name])
    print(f"\n{out}, {content['seconds']:.0f} s")


if __name__ == "__main__":
    main()
