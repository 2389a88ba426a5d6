"""Batches of 64 mixed lanes beside single calls: python benchmarks/batches.py [--lanes 64] [--only NAME ...]

Lanes and what is asked of them are in batch_lanes.py: ordinary instances and degenerate ones, NaN and infinities among
them. A batch is one compiled program under `vmap`; the single calls are another one, called lane by lane. Both have the
library's options for programs that run a few times. The best of three counts, of what takes long the only one. Written
to results/batches.json.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import batch_lanes as lanes
import jax
import numpy as np
from _common import RESULTS, environment, print_table, write

import jaxflow as jf
from jaxflow._core import quick_options

OUT: Path = RESULTS / "batches.json"
REPEATS = 3
# Seconds from which a run is not repeated.
LONG = 2.0


def row_of(name: str, count: int) -> dict[str, Any]:
    """Times and differences of one case."""
    case = lanes.CASES[name]
    instances = lanes.lanes(case, count)
    batch = lanes.stacked(instances)
    whole = jax.jit(jax.vmap(case.answer), compiler_options=quick_options()).lower(*batch).compile()
    single = jax.jit(case.answer, compiler_options=quick_options()).lower(*instances[0]).compile()
    found, together = best_of(lambda: whole(*batch))
    alone, apart = zip(*(best_of(lambda one=one: single(*one)) for one in instances), strict=True)
    compared = lanes.compare(found, list(alone))
    return {
        "case": name,
        "lanes": count,
        "decided": compared.decided,
        "outcomes differ": len(compared.differing),
        "largest difference": compared.apart,
        "batch_s": together,
        "singles_s": sum(apart),
        "slowest_s": max(apart),
        "ratio_to_singles": together / sum(apart),
        "ratio_to_slowest": together / (count * max(apart)),
    }


def best_of(run: Callable[[], Any]) -> tuple[Any, float]:
    """The answer, and the least number of seconds until it was there."""
    least, answer = float("inf"), None
    for _ in range(REPEATS):
        start = time.perf_counter()
        answer = jax.block_until_ready(run())
        least = min(least, time.perf_counter() - start)
        if least > LONG:
            break
    return answer, least


def main() -> None:
    """Measures the cases and writes the record after each; those of `--only` replace theirs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lanes", type=int, default=64)
    parser.add_argument("--only", nargs="+", choices=list(lanes.CASES), default=list(lanes.CASES))
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    jf.compilation_cache()
    kept: list[dict[str, Any]] = []
    if OUT.exists() and len(arguments.only) < len(lanes.CASES):
        kept = json.loads(OUT.read_text())["rows"]
    machine = environment()
    for name in arguments.only:
        kept = [row for row in kept if row["case"] != name] + [row_of(name, arguments.lanes)]
        kept.sort(key=lambda row: list(lanes.CASES).index(row["case"]))
        write(OUT, {"environment": machine, "rows": kept})
        print(name, flush=True)
    columns = ["case", "decided", "outcomes differ", "largest difference", "batch_s", "singles_s", "ratio_to_singles"]
    print_table(f"batches of {arguments.lanes}", columns, [[row[name] for name in columns] for row in kept])
    if any(row["outcomes differ"] for row in kept) or not np.all([np.isfinite(row["batch_s"]) for row in kept]):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
