"""A million certified limits: python benchmarks/million.py [--instances 1000000] [--factors 100000].

Random instances with n = T = 5, d = 10 in the default blocks of the device: selected, certified, and their programs
solved, W first and (K, Q) after. Compilation is timed apart. On an accelerator a profile of one block says where time
goes (--trace FOLDER, for TensorBoard or Perfetto). Written to results/million.json, one row for each device and
parametrisation; a row of fewer instances says how many.
"""

import argparse
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import numpy as np
from _common import RESULTS, configure, environment, print_table, write

import jaxflow as jf
from jaxflow.study import TokenSelection
from jaxflow.study.shapes import device_shapes

OUT: Path = RESULTS / "million.json"
SHAPE = {"n": 5, "T": 5, "d": 10}
SEED = 11


def row(parametrization: str, instances: int, trace: Path | None) -> dict[str, Any]:
    """All outcomes of that many instances, and the seconds after the first block, which compiles."""
    size = min(instances, device_shapes().block)
    run = TokenSelection().block_function({**SHAPE, "parametrization": parametrization}, size)
    root = jax.random.key(SEED)
    start = time.perf_counter()
    run(jax.random.split(jax.random.fold_in(root, 0), size))
    first, outcomes, gaps = time.perf_counter() - start, Counter(), []
    if trace is not None:
        with jax.profiler.trace(str(trace / parametrization)):
            run(jax.random.split(jax.random.fold_in(root, 0), size))
    start, blocks = time.perf_counter(), -(-instances // size)
    for block in range(blocks):
        found = run(jax.random.split(jax.random.fold_in(root, 1 + block), size))
        wanted = min(size, instances - block * size)
        outcomes.update(jf.Outcome(int(code)).name for code in found["outcome"][:wanted])
        gaps.append(np.nanmax(np.where(np.isfinite(found["program_gap"]), found["program_gap"], np.nan)[:wanted]))
    seconds = time.perf_counter() - start
    return {
        "device": jax.devices()[0].device_kind,
        "parametrization": parametrization,
        **SHAPE,
        "instances": instances,
        "block": size,
        "first_block_s": first,
        "seconds": seconds,
        "a_second": instances / seconds,
        "largest_program_gap": float(max(gaps)),
        "outcomes": dict(outcomes),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--instances", type=int, default=1_000_000, help="of W")
    parser.add_argument("--factors", type=int, default=100_000, help="instances of (K, Q)")
    parser.add_argument("--trace", type=Path, help="folder for profiles")
    asked = parser.parse_args()
    configure()
    old = json.loads(OUT.read_text(encoding="utf-8"))["rows"] if OUT.exists() else []
    for parametrization, instances in (("W", asked.instances), ("KQ", asked.factors)):
        new = row(parametrization, instances, asked.trace)
        same = (new["device"], parametrization)
        old = [other for other in old if (other["device"], other["parametrization"]) != same] + [new]
        write(OUT, {"environment": environment(), "rows": old})
    columns = ["device", "parametrization", "instances", "seconds", "a_second", "outcomes"]
    print_table("Certified limits", columns, [[line[name] for name in columns] for line in old])


if __name__ == "__main__":
    main()
