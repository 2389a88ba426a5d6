"""find_limit for (K, Q): time, steps, failures and the flow's own gap, and how the time depends on d and m.

python benchmarks/factors.py [--count 100] [--general 5] [--out results/factors.json]
"""

import argparse
import statistics
import time
from functools import partial
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
from _common import RESULTS, configure, counts, environment, write

import jaxflow as jf
from jaxflow.limits.method import accurate_solver

SEED = 2024


def instance(key: Any, n: int, T: int, d: int) -> tuple[Any, Any]:
    """Random tokens on the sphere, the published start of K and Q, m = d."""
    data, head = jf.data.random_tokens(key, n, T, d, score_gap=0.1)
    model = jf.models.FactoredAttention.init(jax.random.fold_in(key, 1), data, head)
    return jf.EmpiricalRisk(data, jf.losses.Logistic()), model


def rows_of(size: tuple[int, int, int], count: int, method: Any = None) -> list[dict[str, Any]]:
    """One row an instance, compiled once for all of them; the first run is not timed."""
    draw = eqx.filter_jit(partial(instance, n=size[0], T=size[1], d=size[2]))
    keys = jax.random.split(jax.random.key(SEED), count)
    find = eqx.filter_jit(lambda risk, model: jf.find_limit(risk, model, method=method, throw=False))
    jax.block_until_ready(find(*draw(keys[0])))
    rows = []
    for key in keys:
        given = jax.block_until_ready(draw(key))
        start = time.perf_counter()
        limit = jax.block_until_ready(find(*given))
        seconds = time.perf_counter() - start
        stats = limit.trajectory.stats
        rows.append(
            {
                "seconds": seconds,
                "outcome": str(limit.outcome),
                "steps": int(stats["num_steps"]),
                "rejected": int(stats["num_rejected_steps"]),
                "failed_solves": int(stats["num_failed_solves"]),
                "own_gap": float(limit.flow_certificate.duality_gap),
                "excess": float(limit.excess),
                "program_gap": float(limit.program_solution.certificate.duality_gap),
                "slack": float(limit.rate.predicted),
                "log_log_time": float(limit.trajectory.final.log_log_time),
            }
        )
    return rows


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What the rows say together."""
    seconds, steps = [r["seconds"] for r in rows], [r["steps"] for r in rows]
    gaps = [r["own_gap"] for r in rows]
    return {
        "instances": len(rows),
        "outcomes": counts([r["outcome"] for r in rows]),
        "seconds_median": statistics.median(seconds),
        "seconds_worst": max(seconds),
        "steps_median": statistics.median(steps),
        "steps_worst": max(steps),
        "failed_solves_share": sum(r["failed_solves"] for r in rows) / sum(steps),
        "own_gap_median": statistics.median(gaps),
        "own_gap_worst": max(gaps),
        "own_gap_1e-8": sum(g <= 1e-8 for g in gaps),
        "own_gap_1e-6": sum(g <= 1e-6 for g in gaps),
        "program_gap_worst": max(r["program_gap"] for r in rows),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--general", type=int, default=5, help="instances by Newton's method for the weights")
    parser.add_argument("--dimensions", type=int, nargs="*", default=[10, 100, 1000])
    parser.add_argument("--out", type=Path, default=RESULTS / "factors.json")
    arguments = parser.parse_args()
    configure()
    content: dict[str, Any] = {"environment": environment()}
    rows = rows_of((6, 8, 10), arguments.count)
    content["(6,8,10)"] = {**summary(rows), "open": [r for r in rows if not r["own_gap"] <= 1e-8]}
    print(content["(6,8,10)"], flush=True)
    content["dimensions"] = {d: summary(rows_of((5, 5, d), 10)) for d in arguments.dimensions}
    print({d: row["seconds_median"] for d, row in content["dimensions"].items()}, flush=True)
    if arguments.general:
        general = summary(rows_of((6, 8, 10), arguments.general, jf.Staged(solver=accurate_solver())))
        content["(6,8,10), Newton for the weights"] = general
        content["ratio_of_medians"] = general["seconds_median"] / content["(6,8,10)"]["seconds_median"]
        print(general, content["ratio_of_medians"])
    write(arguments.out, content)


if __name__ == "__main__":
    main()
