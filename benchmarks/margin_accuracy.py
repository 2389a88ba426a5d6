"""Certified gaps and ranks over many random instances: python benchmarks/margin_accuracy.py [--count
10000]."""

import argparse

import jax
import numpy as np
from margin_common import batch_solver, instances, timed, write

from jaxflow.margin import ProgramResult, enumerate_selections, numerical_rank

SIZES = [(5, 5, 10), (6, 8, 10), (5, 5, 20)]
# The published sizes below Theorem 1's d >= max(T - 1, n), where many programs are infeasible.
SMALL = [(5, 5, 2), (5, 5, 3), (10, 5, 5)]
GAP = {"frobenius": 1e-12, "nuclear": 1e-10, "l1": 1e-10}


def gap_row(norm: str, size: tuple[int, int, int], count: int) -> dict:
    n, T, d = size
    data, selection, _ = instances(0, count, n, T, d)
    run = batch_solver(norm)
    solution, first, later = timed(lambda: run(data, selection), 1)
    result = np.asarray(solution.result)
    gap = np.abs(np.asarray(solution.certificate.duality_gap))
    feasible = result != ProgramResult.infeasible.value
    row = {
        "benchmark": "certified gap",
        "norm": norm,
        "n_T_d": list(size),
        "instances": count,
        "results": {item.name: int((result == item.value).sum()) for item in ProgramResult if item.value},
        "gap_target": GAP[norm],
        "share_of_feasible_within_target": float((gap[feasible] <= GAP[norm]).mean()) if feasible.any() else None,
        "largest_gap_of_optimal": float(gap[result == ProgramResult.optimal.value].max(initial=0.0)),
        "largest_farkas_residual_of_infeasible": float(
            np.asarray(solution.certificate.farkas)[~feasible].max(initial=0.0)
        ),
        "largest_iterations": int(solution.iterations.max()),
        "first_run_s": first,
        "later_run_s": later,
    }
    if norm != "l1":
        solved = result == ProgramResult.optimal.value
        ranks = np.asarray(jax.lax.map(numerical_rank, solution.primal, batch_size=1000))[solved]
        row["rank_histogram"] = np.bincount(ranks, minlength=min(n, d) + 1).tolist()
        row["rank_bound_min_n_d_violations"] = int((ranks > min(n, d)).sum())
    return row


def enumeration_row() -> dict:
    data, _, heads = instances(3, 6, 5, 5, 4)
    ones = [jax.tree.map(lambda leaf, i=i: leaf[i], (data, heads)) for i in range(6)]
    _, first, _ = timed(lambda: enumerate_selections(*ones[0]).status.value, 0)
    times, local = [], []
    for one in ones:
        enumeration, _, later = timed(lambda one=one: enumerate_selections(*one), 3)
        times.append(later)
        local.append(int(enumeration.locally_optimal.sum()))
    return {
        "benchmark": "all selections of one instance",
        "n_T_d": [5, 5, 4],
        "selections": 3125,
        "first_run_s": first,
        "median_later_s": float(np.median(times)),
        "slowest_instance_s": max(times),
        "locally_optimal": local,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    count = parser.parse_args().count
    jax.config.update("jax_enable_x64", True)
    rows = [gap_row(norm, size, count) for norm in ("frobenius", "nuclear") for size in SIZES]
    rows += [gap_row("l1", size, count // 5) for size in SIZES]
    rows += [gap_row(norm, size, count // 5) for norm in ("frobenius", "nuclear") for size in SMALL]
    rows.append(enumeration_row())
    write("margin_accuracy", rows)


if __name__ == "__main__":
    main()
