"""What stays in memory of many calls: python benchmarks/memory.py [--calls 10000] [--shapes 50]

One process calls `find_limit` on instances of several shapes, in rounds: each round takes every shape once, with new
numbers. Linux gives a process 65,530 memory maps, and every compiled program takes some. Counted after the first rounds
and then ten times: maps, resident memory, programs compiled so far (or read from the cache on disk), and live arrays.
Written to results/memory.json.
"""

import argparse
import time
from itertools import product
from pathlib import Path
from typing import Any

import jax
from _common import RESULTS, environment, print_table, write

import jaxflow as jf

OUT: Path = RESULTS / "memory.json"
# JAX's own name for a program that was compiled or read back.
COMPILED = "/jax/core/compile/backend_compile_duration"


def resident_mb() -> float:
    """Resident memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def maps() -> int:
    """Memory maps."""
    return len(Path("/proc/self/maps").read_bytes().splitlines())


def call(shape: tuple[int, int, int], seed: int) -> str:
    """One limit, and how it ended."""
    n, T, d = shape
    data, head = jf.data.random_tokens(jax.random.key(seed), n, T, d)
    model = jf.models.CombinedAttention.init(jax.random.key(seed + 1), data, head)
    return str(jf.find_limit(jf.EmpiricalRisk(data, "logistic"), model, throw=False).outcome)


def main() -> None:
    """Calls, counts and writes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--shapes", type=int, default=50)
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    jf.compilation_cache()
    compiled = [0]

    def heard(event: str, duration_secs: float, **kwargs: Any) -> None:
        compiled[0] += event == COMPILED

    jax.monitoring.register_event_duration_secs_listener(heard)
    shapes = list(product(range(2, 7), range(3, 8), (3, 4)))[: arguments.shapes]
    rounds = max(2, arguments.calls // len(shapes))
    looked = {0, 1, *(round(rounds * k / 10) - 1 for k in range(1, 11))}
    machine, start = environment(), time.perf_counter()
    rows: list[dict[str, Any]] = []
    for k in range(rounds):
        for i, shape in enumerate(shapes):
            call(shape, 1000 * k + i)
        if k in looked:
            row = {
                "calls": (k + 1) * len(shapes),
                "maps": maps(),
                "resident_mb": resident_mb(),
                "programs": compiled[0],
                "live_arrays": len(jax.live_arrays()),
                "seconds": time.perf_counter() - start,
            }
            rows.append(row)
            print(row, flush=True)
            write(OUT, {"environment": machine, "shapes": len(shapes), "rows": rows})
    print_table(f"{len(shapes)} shapes", list(rows[0]), [list(row.values()) for row in rows])


if __name__ == "__main__":
    main()
