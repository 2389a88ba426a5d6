"""Batches of 64 mixed lanes beside single calls: python benchmarks/batches.py [--lanes 64] [--only NAME ...]

Lanes and what is asked of them are in batch_lanes.py: ordinary instances and degenerate ones, NaN and infinities among
them. A batch is one compiled program under `vmap`; the single calls are another one, called lane by lane. Both have the
library's options for programs that run a few times. The best of three counts, of what takes 2 s or more the first one.
"""

from typing import Any

import batch_lanes as lanes
import jax
from _common import Record, best, settings

import jaxflow as jf
from jaxflow._core import quick_options


def row(name: str, count: int) -> dict[str, Any]:
    """Times and differences of one case."""
    case = lanes.CASES[name]
    instances = lanes.lanes(case, count)
    batch = lanes.stacked(instances)
    whole = jax.jit(jax.vmap(case.answer), compiler_options=quick_options()).lower(*batch).compile()
    single = jax.jit(case.answer, compiler_options=quick_options()).lower(*instances[0]).compile()
    found, together = best(lambda: whole(*batch), 3, 2.0)
    alone, times = zip(*(best(lambda one=one: single(*one), 3, 2.0) for one in instances), strict=True)
    apart = [seconds.wall for seconds in times]
    compared = lanes.compare(found, list(alone))
    return {
        "case": name,
        "lanes": count,
        "decided": compared.decided,
        "outcomes differ": len(compared.differing),
        "largest difference": compared.apart,
        "batch_s": together.wall,
        "singles_s": sum(apart),
        "slowest_s": max(apart),
        "ratio_to_singles": together.wall / sum(apart),
        "ratio_to_slowest": together.wall / (count * max(apart)),
    }


def main() -> None:
    asked = settings(__doc__, "batches", cached=True, lanes=64, only=tuple(lanes.CASES))
    jf.compilation_cache()
    record = Record(asked.out, same=("case",))
    for name in asked.only:
        record.add(row(name, asked.lanes))
    if any(found["outcomes differ"] for found in record.content["rows"] if found["case"] in asked.only):
        raise SystemExit("outcomes of a batch differ from those of single calls")


if __name__ == "__main__":
    main()
