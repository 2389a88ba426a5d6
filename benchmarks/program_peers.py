"""Max-margin programs a second, against the solvers one would use instead: python benchmarks/program_peers.py.

One run on one machine. Our batch is measured between two measurements of every peer, the faster of which is reported. A
peer gets tokens, queries and selected tokens, and its time includes stating the program, as ours does. Accuracy is that
of the weights that come back: their norm at margin one, against ours. Peers that are not installed have their row.
"""

from typing import Any

import jax
import numpy as np
from _common import batch_solver, best, clocked, counts, programs, spread
from _peers import begun, missing
from program_solvers import PEERS, Case, Peer, rows_of

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


def one_by_one(
    peer: Peer, case: Case, data: tuple[np.ndarray, ...], most: int, long: float
) -> tuple[Any, float, float]:
    """Answers, programs a second of wall clock, and a second of processor time."""
    solve = peer.prepare(case)
    solve(*(part[0] for part in data))  # imports, caches, the compilation of a parametrised problem
    answers: list[Any] = []

    def run() -> list[Any]:
        wall = 0.0
        for instance in zip(*data, strict=True):
            answer, seconds = clocked(solve, *instance)
            answers.append(answer)
            wall += seconds.wall
            if wall > long or len(answers) == most:
                break
        return answers

    _, seconds = clocked(run)
    return answers, len(answers) / seconds.wall, len(answers) / seconds.processor


def together(solve: Any, data: tuple[np.ndarray, ...], most: int) -> tuple[Any, float, float]:
    """As `one_by_one`, of a peer that takes a batch and has been compiled."""
    batch = tuple(part[:most] for part in data)
    (weights, status), seconds = best(lambda: solve(*batch), 3)
    answers = list(zip(np.asarray(weights), status, strict=True))
    return answers, len(answers) / seconds.wall, len(answers) / seconds.processor


def judged(case: Case, answers: Any, data: tuple[np.ndarray, ...], ours: Any) -> dict[str, Any]:
    """How far the answers' norms at margin one are from ours, and which answers are none."""
    differences, failures, infeasible = [], [], 0
    for i, (weights, status) in enumerate(answers):
        result = ProgramResult(int(ours.result[i]))
        if status == "infeasible" and result == ProgramResult.infeasible:
            infeasible += 1
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
    return {
        "difference": spread(differences),
        "failures": counts(failures) if failures else {},
        "agreed_infeasible": infeasible,
    }


def measure(case: Case, many: int, most: int, long: float, target: tuple[str, float]) -> list[dict[str, Any]]:
    """Our row and one for every peer that takes this norm."""
    tokens, selection = programs(1, many, *case.size)
    data = (np.asarray(tokens.tokens), np.asarray(tokens.queries), np.asarray(selection).argmax(-1))
    peers = [peer for peer in PEERS if case.norm in peer.norms]
    absent = {peer.name: missing(*peer.needs) for peer in peers}
    present = [peer for peer in peers if absent[peer.name] is None]
    batched = {peer.name: peer.prepare(case) for peer in present if peer.batched}
    compiled = {}
    for name, solve in batched.items():
        _, first = clocked(solve, *(part[:most] for part in data))
        compiled[name] = first.wall

    def round_of(peer: Peer) -> tuple[Any, float, float]:
        return together(batched[peer.name], data, most) if peer.batched else one_by_one(peer, case, data, most, long)

    before = {peer.name: round_of(peer) for peer in present}
    solve = batch_solver(case.norm)
    solution, first = clocked(lambda: solve(tokens, selection))
    _, later = best(lambda: solve(tokens, selection), 5, long)
    after = {peer.name: round_of(peer) for peer in present}

    found = jax.tree.map(np.asarray, solution)
    gaps = found.certificate.duality_gap[found.result == ProgramResult.optimal.value]
    common = {"norm": case.norm, "n_T_d": list(case.size)}
    rate, processor_rate = many / later.wall, many / later.processor
    table: list[dict[str, Any]] = [
        {
            **common,
            "method": "jaxflow",
            "settings": "vmapped, certified",
            "instances": many,
            "per_second": rate,
            "per_processor_second": processor_rate,
            "compile_s": first.wall - later.wall,
            "gap": spread(gaps),
            "results": counts([ProgramResult(int(code)).name for code in found.result]),
        }
    ]
    for peer in peers:
        row = {**common, "method": peer.name, "settings": peer.settings}
        if peer.name in before:
            answers, *_ = before[peer.name]
            rates = [np.array(found[1:]) for found in (before[peer.name], after[peer.name])]
            wall, processor = np.maximum(*rates)
            named = peer.name.startswith(target[0])
            row |= {
                "instances": len(answers),
                "per_second": float(wall),
                "per_processor_second": float(processor),
                "compile_s": compiled[peer.name] if peer.batched else None,
                "ratio": rate / float(wall),
                "processor_ratio": processor_rate / float(processor),
                "ratio_to_reach": target[1] if named else None,
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
