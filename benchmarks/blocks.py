"""Blocks of a study, cell by cell: python benchmarks/blocks.py [--count 1024] [--out FILE].

Each cell is one block of `TokenSelection`: its first run with an empty cache in memory, the same block again, and one
of other instances. What a crowded cell costs is its time over that of (5, 5, 4) in the same run.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from _common import RESULTS, configure, counts, environment, print_table, write

import jaxflow as jf
from jaxflow.study import TokenSelection

CELLS = tuple(f"{name}:{sizes}" for name in ("W", "KQ") for sizes in ("5,5,4", "5,5,2", "10,6,3"))


def row(cell: str, count: int) -> dict[str, Any]:
    """Seconds and outcomes of a block."""
    name, sizes = cell.split(":")
    n, T, d = (int(x) for x in sizes.split(","))
    block = TokenSelection().block_function({"n": n, "T": T, "d": d, "parametrization": name}, count)
    seconds, found = [], {}
    for seed in (0, 0, 1):
        keys, begun = jax.random.split(jax.random.key(seed), count), time.perf_counter()
        found = {word: np.asarray(value) for word, value in block(keys).items()}
        seconds.append(time.perf_counter() - begun)
    return {
        "cell": cell,
        "instances": count,
        "first_s": seconds[0],
        "again_s": seconds[1],
        "other_s": seconds[2],
        "outcomes": counts([jf.Outcome(int(code)).name for code in found["outcome"]]),
        "worst_steps": int(np.max(found["num_steps"])),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=1024)
    parser.add_argument("--only", nargs="*", default=CELLS)
    parser.add_argument("--out", type=Path, default=RESULTS / "blocks.json")
    args = parser.parse_args()
    configure()
    rows: list[dict[str, Any]] = []
    for cell in args.only:
        rows.append(row(cell, args.count))
        name = cell.split(":")[0]
        base = next((r for r in rows if r["cell"] == f"{name}:5,5,4"), rows[-1])
        rows[-1]["over_554"] = rows[-1]["other_s"] / base["other_s"]
        write(args.out, {"environment": environment(), "rows": rows})
    columns = ["cell", "instances", "first_s", "again_s", "other_s", "over_554", "worst_steps"]
    print_table("Blocks of a study", columns, [[found[c] for c in columns] for found in rows])


if __name__ == "__main__":
    main()
