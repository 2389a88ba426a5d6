"""What stays in memory of many calls: python benchmarks/memory.py [--calls 10000] [--shapes 50]

One process calls `find_limit` on instances of several shapes, in rounds: each round takes every shape once, with new
numbers. Linux gives a process 65,530 memory maps, and every compiled program takes some. Counted after the first rounds
and then ten times: maps, resident memory, programs compiled so far (or read from the cache on disk), and live arrays.
"""

from itertools import product
from pathlib import Path
from typing import Any

import jax
from _common import begun

import jaxflow as jf

# JAX's own name for a program that was compiled or read back.
COMPILED = "/jax/core/compile/backend_compile_duration"


def call(shape: tuple[int, int, int], seed: int) -> None:
    """One limit."""
    data, head = jf.data.random_tokens(jax.random.key(seed), *shape)
    model = jf.models.CombinedAttention.init(jax.random.key(seed + 1), data, head)
    jax.block_until_ready(jf.find_limit(jf.EmpiricalRisk(data, "logistic"), model, throw=False).outcome.value)


if __name__ == "__main__":
    asked, record = begun(__doc__, "memory", cached=True, calls=10_000, shapes=50)
    jf.compilation_cache()
    compiled = [0]

    def heard(event: str, duration_secs: float, **kwargs: Any) -> None:
        compiled[0] += event == COMPILED

    jax.monitoring.register_event_duration_secs_listener(heard)
    shapes = list(product(range(2, 7), range(3, 8), (3, 4)))[: asked.shapes]
    rounds = max(2, asked.calls // len(shapes))
    looked = {0, 1, *(round(rounds * k / 10) - 1 for k in range(1, 11))}
    for k in range(rounds):
        for i, shape in enumerate(shapes):
            call(shape, 1000 * k + i)
        if k not in looked:
            continue
        status = Path("/proc/self/status").read_text().splitlines()
        record.add(
            {
                "calls": (k + 1) * len(shapes),
                "maps": len(Path("/proc/self/maps").read_bytes().splitlines()),
                "resident_mb": next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1024,
                "programs": compiled[0],
                "live_arrays": len(jax.live_arrays()),
            },
            shapes=len(shapes),
        )
