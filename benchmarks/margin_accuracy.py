"""Certified gaps over many random programs: python benchmarks/margin_accuracy.py [--count 10000]."""

from typing import Any

import numpy as np
from _common import batch_solver, begun, programs

from jaxflow.margin import ProgramResult

SIZES = [(5, 5, 10), (6, 8, 10), (5, 5, 20)]
# The published sizes below Theorem 1's d >= max(T - 1, n), where many programs are infeasible.
SMALL = [(5, 5, 2), (5, 5, 3), (10, 5, 5)]
BOTH = ("frobenius", "nuclear")
CASES = [(norm, size, 1.0) for norm in BOTH for size in SIZES]
CASES += [("l1", size, 0.2) for size in SIZES] + [(norm, size, 0.2) for norm in BOTH for size in SMALL]


def row(norm: str, size: tuple[int, int, int], count: int) -> dict[str, Any]:
    """How the programs ended, and the largest gaps."""
    solution = batch_solver(norm)(*programs(0, count, *size))
    result = np.asarray(solution.result)
    gaps = np.abs(np.asarray(solution.certificate.duality_gap))
    return {
        "norm": norm,
        "n_T_d": list(size),
        "instances": count,
        "results": {item.name: int((result == item.value).sum()) for item in ProgramResult if item.value},
        "largest_gap_of_optimal": float(gaps[result == ProgramResult.optimal.value].max(initial=0.0)),
    }


if __name__ == "__main__":
    asked, record = begun(__doc__, "margin_accuracy", count=10_000)
    for norm, size, share in CASES:
        record.add(row(norm, size, max(1, int(share * asked.count))))
