"""Max-margin programs a second, against the solvers one would use instead: python benchmarks/program_peers.py.

One run on one machine. Our batch is measured between two measurements of every peer, the faster of which is reported. A
peer gets tokens, queries and selected tokens, and its time includes stating the program, as ours does. Accuracy is that
of the weights that come back: their norm at margin one, against ours. Peers that are not installed have their row.
"""

import time
from typing import Any

import jax
import numpy as np
from _common import Row, batch_solver, best, counts, programs, spread
from _peers import begun, missing
from program_solvers import PEERS, Case, rows_of

from jaxflow.margin import ProgramResult

# Case, instances in our batch, what to reach: ours over which peer's rate, by which factor.
CASES: list[tuple[Case, int, tuple[str, float]]] = [
    (Case("frobenius", (5, 5, 10)), 5000, ("DAQP", 1.0)),
    (Case("frobenius", (6, 8, 10)), 2000, ("DAQP", 1.0)),
    (Case("nuclear", (6, 8, 10)), 1000, ("Clarabel", 100.0)),
    (Case("nuclear", (5, 5, 20)), 1000, ("Clarabel", 100.0)),
    (Case("l1", (5, 5, 10)), 2000, ("CVXPY", 100.0)),
]
# Instances for a peer, and seconds after which it starts no other: both are enough for a rate to 10%.
MOST, LONG = 300, 2.0


def norm_of(norm: str, weights: np.ndarray) -> float:
    """The norm that the program minimises."""
    if norm == "nuclear":
        return float(np.linalg.svd(weights, compute_uv=False).sum())
    return float(np.abs(weights).sum() if norm == "l1" else np.linalg.norm(weights))


def at_margin_one(norm: str, rows: np.ndarray, weights: np.ndarray) -> float:
    """The norm of the weights once their smallest margin is one; infinite where a margin is not positive."""
    margin = float(np.min(rows @ weights.ravel()))
    return norm_of(norm, weights) / margin if margin > 0 else np.inf


def one_by_one(solve: Any, data: tuple[np.ndarray, ...], long: float) -> tuple[list[Any], float]:
    """Answers, and programs a second."""
    solve(*(part[0] for part in data))  # imports, caches, the compilation of a parametrised problem
    answers: list[Any] = []
    start = time.perf_counter()
    for instance in zip(*data, strict=True):
        answers.append(solve(*instance))
        if time.perf_counter() - start > long:
            break
    return answers, len(answers) / (time.perf_counter() - start)


def together(solve: Any, data: tuple[np.ndarray, ...]) -> tuple[list[Any], float]:
    """As `one_by_one`, of a peer that takes a batch and has been compiled."""
    (weights, status), seconds = best(lambda: solve(*data), 3)
    return list(zip(np.asarray(weights), status, strict=True)), len(status) / seconds.wall


def judged(case: Case, answers: Any, data: tuple[np.ndarray, ...], ours: Any) -> Row:
    """How far the answers' norms at margin one are from ours, and which answers are none."""
    differences, failures = [], []
    for i, (weights, status) in enumerate(answers):
        result = ProgramResult(int(ours.result[i]))
        if status == "infeasible" and result == ProgramResult.infeasible:
            continue
        if weights is None or status != "optimal":
            failures.append(status)
            continue
        if result != ProgramResult.optimal:
            failures.append(f"optimal where ours is {result.name}")
            continue
        rows = rows_of(case.norm, *(part[i] for part in data))
        size = at_margin_one(case.norm, rows, weights)
        mine = at_margin_one(case.norm, rows, np.asarray(ours.primal[i]))
        if np.isfinite(size):
            differences.append(abs(size / mine - 1))
        else:
            failures.append("no margin")
    return {"difference": spread(differences), "failures": counts(failures)}


def measure(case: Case, many: int, most: int, long: float, target: tuple[str, float]) -> list[Row]:
    """Our row and one for every peer that takes this norm."""
    tokens, selection = programs(1, many, *case.size)
    data = (np.asarray(tokens.tokens), np.asarray(tokens.queries), np.asarray(selection).argmax(-1))
    few = tuple(part[:most] for part in data)
    peers = [peer for peer in PEERS if case.norm in peer.norms]
    absent = {peer.name: missing(*peer.needs) for peer in peers}
    present = {peer: peer.prepare(case) for peer in peers if absent[peer.name] is None}
    for peer, solve in present.items():
        if peer.batched:
            solve(*few)

    def measured() -> dict[str, tuple[list[Any], float]]:
        return {
            peer.name: together(solve, few) if peer.batched else one_by_one(solve, few, long)
            for peer, solve in present.items()
        }

    before = measured()
    solve = batch_solver(case.norm)
    solution = jax.block_until_ready(solve(tokens, selection))
    _, later = best(lambda: solve(tokens, selection), 5, long)
    after = measured()

    found = jax.tree.map(np.asarray, solution)
    gaps = found.certificate.duality_gap[found.result == ProgramResult.optimal.value]
    common, rate = {"norm": case.norm, "n_T_d": list(case.size)}, many / later.wall
    ours = {"method": "jaxflow", "settings": "vmapped, certified", "instances": many}
    table: list[Row] = [{**common, **ours, "per_second": rate, "gap": spread(gaps)}]
    for peer in peers:
        row = {**common, "method": peer.name, "settings": peer.settings}
        if peer.name in before:
            answers, first = before[peer.name]
            faster = max(first, after[peer.name][1])
            row |= {
                "instances": len(answers),
                "per_second": faster,
                "ratio": rate / faster,
                "ratio_to_reach": target[1] if peer.name.startswith(target[0]) else None,
                **judged(case, answers, data, found),
            }
        else:
            row |= {"not_installed": absent[peer.name]}
        table.append(row)
    return table


if __name__ == "__main__":
    asked, record = begun(__doc__, "program_peers")
    for case, many, target in CASES:
        if asked.only in f"{case.norm} {case.size}":
            many, most = max(20, int(many * asked.scale)), max(4, int(MOST * asked.scale))
            record.add(*measure(case, many, min(most, many), LONG * asked.scale, target))
