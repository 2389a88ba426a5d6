"""Blocks of a study, cell by cell: python benchmarks/blocks.py [--count 1024] [--out FILE].

Each cell is one block of `TokenSelection`: its first run with an empty cache in memory, the same block again, and one
of other instances. What a crowded cell costs is its time over that of (5, 5, 4) in the same run.
"""

from collections import Counter
from typing import Any

import jax
import numpy as np
from _common import begun, clocked, factors_of, outcomes

from jaxflow.study import TokenSelection

CELLS = tuple(f"{name}:{sizes}" for name in ("W", "KQ") for sizes in ("5,5,4", "5,5,2", "10,6,3"))


def row(cell: str, count: int) -> dict[str, Any]:
    """Seconds and outcomes of a block."""
    block = TokenSelection().block_function(factors_of(cell), count)
    runs = [clocked(lambda s=s: block(jax.random.split(jax.random.key(s), count))) for s in (0, 0, 1)]
    found = runs[-1][0]
    return {
        "cell": cell,
        "instances": count,
        **{name: seconds.wall for name, (_, seconds) in zip(("first_s", "again_s", "other_s"), runs, strict=True)},
        "outcomes": outcomes(found["outcome"]),
        "worst_steps": int(np.max(found["num_steps"])),
    }


def many(cell: str, instances: int, size: int, seed: int) -> dict[str, Any]:
    """All outcomes of so many instances in blocks of `size`, and the seconds after the first block, which compiles."""
    run, root = TokenSelection().block_function(factors_of(cell), size), jax.random.key(seed)
    _, first = clocked(lambda: run(jax.random.split(jax.random.fold_in(root, 0), size)))
    ended, seconds = Counter(), 0.0
    for start in range(0, instances, size):
        keys = jax.random.split(jax.random.fold_in(root, 1 + start // size), size)
        found, spent = clocked(lambda keys=keys: run(keys))
        ended.update(outcomes(found["outcome"][: instances - start]))
        seconds += spent.wall
    return {
        "instances": instances,
        "first_block_s": first.wall,
        "seconds": seconds,
        "a_second": instances / seconds,
        "outcomes": dict(ended),
    }


if __name__ == "__main__":
    asked, record = begun(__doc__, "blocks", count=1024, only=CELLS)
    for cell in asked.only:
        new = row(cell, asked.count)
        name = f"{cell.split(':')[0]}:5,5,4"
        base = next((old for old in record.content["rows"] if old["cell"] == name), new)
        record.add(new | {"over_554": new["other_s"] / base["other_s"]})
