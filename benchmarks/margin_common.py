"""What the margin benchmarks share: instances, timing, and the record of where they ran."""

import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from jaxflow import data as jd
from jaxflow.margin import attention_svm, solve
from jaxflow.models import token_scores

RESULTS = Path(os.environ.get("JAXFLOW_RESULTS", Path(__file__).parent / "results"))
# Chunks small enough for the caches of one core; a chunk waits for its slowest program.
CHUNK = 16
CHUNK_L1 = 20


def instances(seed: int, count: int, n: int, T: int, d: int) -> tuple[jd.TokenData, jax.Array, jax.Array]:
    """`count` random instances, the masks of their optimal tokens, and their heads."""

    def one(key: jax.Array) -> tuple[jd.TokenData, jax.Array, jax.Array]:
        data, head = jd.random_tokens(key, n, T, d)
        return data, jd.optimal_tokens(token_scores(data, head), data.visible), head

    return jax.vmap(one)(jax.random.split(jax.random.key(seed), count))


def batch_solver(norm: Any) -> Callable:
    """A compiled function (data, selections) -> solutions, in chunks."""
    return jax.jit(
        lambda data, selection: jax.lax.map(
            lambda pair: solve(attention_svm(pair[0], pair[1], norm)),
            (data, selection),
            batch_size=CHUNK_L1 if norm == "l1" else CHUNK,
        )
    )


def timed(run: Callable[[], Any], repeats: int) -> tuple[Any, float, float]:
    """(answer, seconds of the first run with compilation, median seconds of later runs)."""
    start = time.perf_counter()
    answer = jax.block_until_ready(run())
    first = time.perf_counter() - start
    later = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(run())
        later.append(time.perf_counter() - start)
    return answer, first, statistics.median(later) if later else float("nan")


def environment() -> dict[str, Any]:
    """Versions and hardware, beside every number."""
    packages = ("jax", "jaxlib", "equinox", "numpy", "cvxpy", "clarabel")
    return {
        "versions": {name: version(name) for name in packages},
        "python": platform.python_version(),
        "cpu_count": os.cpu_count(),
        "load_average_at_start": os.getloadavg()[0],
        "machine": platform.machine(),
        "device": jax.devices()[0].device_kind,
        "x64": bool(jnp.asarray(1.0).dtype == jnp.float64),
    }


def write(name: str, rows: list[dict[str, Any]]) -> None:
    """Writes results/NAME.json and prints each row."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps({"environment": environment(), "rows": rows}, indent=1) + "\n")
    for row in rows:
        print(json.dumps(row))
