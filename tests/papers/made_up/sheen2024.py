"""Numbers for every statement of sheen2024 that confirm it where a statement can be confirmed."""

from collections.abc import Callable
from typing import Any

import numpy as np

from jaxflow._core import Outcome
from jaxflow.margin import ProgramResult
from jaxflow.papers.sheen2024 import aligned_flows, diagonal_flows
from jaxflow.papers.sheen2024.assumptions import MULTIPLES, SIZES
from jaxflow.papers.sheen2024.diagonal_flows import LOG_TIMES
from jaxflow.papers.sheen2024.failures import AMOUNTS, SPREADS
from jaxflow.papers.sheen2024.failures import MULTIPLES as GAP_MULTIPLES
from jaxflow.papers.sheen2024.separability import score_gap_needed
from jaxflow.papers.table import Table
from tests.papers.made_up.records import programs

OPTIMAL, BEST = ProgramResult.optimal.value, Outcome.globally_optimal.value

# log t where it is beyond one.
LATE = np.maximum(LOG_TIMES, 1.0)
KAPPA = np.array([0.9, 0.5, 0.2])


def diagonal_flow(cells: int = 3, **changes: Any) -> Table:
    """Three instances a cell, `(cells, 3)`, that satisfy and show everything."""
    one, path = np.ones((cells, 3)), np.ones((cells, 3, LOG_TIMES.size))
    mu = path * LATE
    falling = 0.2 / np.log(mu + 2.0)
    entry = (np.log(mu) + 2.0) / np.log(np.maximum(mu, 2.0))
    fields: dict[str, Any] = {
        "diagonal": one, "equal": 0.0 * one, "small": one, "ok": one > 0, "selects": one.astype(int),
        "apart": 1e-10 * path, "identity": 1e-9 * path, "display": 1e-9 * path,
        "conserved": 1e-12 * path, "size": mu, "margin": mu, "gap": 1.0 / mu, "stationarity": falling,
        "slackness": falling, "predicted": falling, "beta": np.stack([mu, 0.0 * mu], axis=-1),
        "coefficients": np.stack([mu, 0.0 * mu], axis=-1), "averaged": np.stack([entry, 0.0 * entry], axis=-1),
        "instantaneous": np.stack([path, 0.0 * path], axis=-1), "result": OPTIMAL * one.astype(int),
        "program_gap": 1e-12 * one, "kappa": KAPPA * one, "weights_gap": mu ** -(1.0 - KAPPA)[:, None],
        "behind": 0.0 * one,
    }  # fmt: skip
    return Table(**fields | {name: np.broadcast_to(value, fields[name].shape) for name, value in
                                           changes.items()})  # fmt: skip


def diagonal_numbers(continued: float = 1e-7, **changes: Any) -> Table:
    """Flows, and their continuation with a duality gap."""
    one = np.ones((1, 3))
    return Table(
        flows=diagonal_flow(**changes), continued=Table(gap=continued * one, log_time=1e257 * one, optimal=one > 0)
    )


def diagonal() -> list[Table]:
    good = diagonal_numbers()
    bad = diagonal_numbers(
        1.0, apart=1e-7, identity=1e-5, size=1.0, gap=1.0, selects=np.array([1, -1, 1]), stationarity=0.4,
        slackness=0.1, weights_gap=1e-3, averaged=2.0 * good.flows.averaged,
    )  # fmt: skip
    return [good, bad, diagonal_numbers(ok=False)]


def printed() -> Table:
    """Multipliers for which the formula printed in A.7 is true, with 2/n once more."""
    return diagonal_numbers(averaged=diagonal_flows.SHAPE[0] / 2 * diagonal_flow().averaged)


def aligned_flow(cells: int, **changes: Any) -> Table:
    """Two instances a cell, `(cells, 2)`, that satisfy and show everything."""
    one, path = np.ones((cells, 2)), np.ones((cells, 2, aligned_flows.LOG_TIMES.size))
    fields: dict[str, Any] = dict.fromkeys(("equal", "small", "orthogonal", "parallel", "paired"), 0.1 * one)
    fields |= dict.fromkeys(("oracle", "program_gap", "lifted_gap", "lifted_residual"), 1e-13 * one)
    fields |= dict.fromkeys(("weights_excess", "flow_gap"), 1e-5 * path)
    fields |= {"ok": one > 0, "conserved": 1e-15 * path, "alignment": 1e-15 * path, "margin": path}
    # A sequence without a column keeps 1/3; all are at one in the end.
    attention = np.where(aligned_flows.LOG_TIMES > 12.0, 1.0, 1.0 / 3.0) * path
    fields |= {"attention": attention, "oracle_excess": 1e-10 * path, "velocity_excess": 1e-10 * path}
    fields |= {"result": OPTIMAL * one.astype(int)}
    return Table(**fields | {name: np.broadcast_to(value, fields[name].shape) for name, value in
                                          changes.items()})  # fmt: skip


def aligned_numbers(other: Any = 1e-14, apart: Any = 0.1, **changes: Any) -> Table:
    """All starts and kinds of data, and another optimum."""
    others = Table(excess=np.broadcast_to(other, (1, 2)), apart=np.broadcast_to(apart, (1, 2)))
    return Table(starts=aligned_flow(4, **changes), shapes=aligned_flow(2, **changes), others=others)


def aligned() -> list[Table]:
    bad = aligned_numbers(1e-2, alignment=1e-3, oracle_excess=1e-3, oracle=1e-2, lifted_gap=1e-2, attention=1.0)
    return [aligned_numbers(), bad, aligned_numbers(ok=False), aligned_numbers(small=-0.1)]


def limit_numbers(own: float = 1.0 + 1e-9, other: float = 1.3, **changes: Any) -> Table:
    """Two data sets with three limits, each the least in its own norm, `(3, 2)`."""
    one = np.ones((3, 2))
    ratio = np.where(np.eye(3)[:, None, :] > 0, own, other) * one[..., None]
    fields: dict[str, Any] = {
        "outcome": BEST * one.astype(int), "stationarity": 1e-9 * one, "certified_gap": 1e-10 * one, "log_norm": one,
        "size": one, "weights": one[..., None, None] * np.eye(3), "ratio": ratio,
        "results": OPTIMAL * np.ones((3, 2, 3), int), "separable": np.ones((3, 2, 3)), "equal": 0.0 * one,
    }  # fmt: skip
    return Table(
        limits=Table(**fields | {name: np.broadcast_to(value, fields[name].shape) for name, value in changes.items()})
    )


def failure_numbers(**changes: Any) -> Table:
    """Every cell of the experiment."""
    cells = {"gaps": len(GAP_MULTIPLES), "spreads": len(SPREADS), "random": 1}
    kinds = {kind: diagonal_flow(count, **changes) for kind, count in cells.items()}
    return Table(kinds, broken=aligned_flow(3 * len(AMOUNTS), alignment=0.1, velocity_excess=1e-2))


def assumption_numbers(general: Any = 0.1, diagonal: Any = 0.1, sign: float = 1.0) -> Table:
    """Four instances, and gaps about the bound of every size."""
    slack = np.tile(np.where(np.asarray(MULTIPLES) > 1.0, sign, -sign), (len(SIZES), 1))
    needed = np.array([score_gap_needed(*size) for size in SIZES])
    slacks = {"general": general, "diagonal": diagonal}
    slacks = {name: np.broadcast_to(np.asarray(value, float), (1, 4)) for name, value in slacks.items()}
    return Table(separability=Table(slacks), gaps=Table(slack=slack, needed=needed))


PROBES: dict[str, Callable[[], list[Any]]] = {
    "programs": lambda: programs(3),
    **dict.fromkeys(("equivalence", "multipliers", "rates"), lambda: [diagonal_numbers()]),
    "diagonal": lambda: [diagonal_numbers(), printed()],
    **dict.fromkeys(("alignment", "general"), lambda: [aligned_numbers()]),
    **dict.fromkeys(("norms", "divergence"), lambda: [limit_numbers()]),
    "failures": lambda: [failure_numbers(selects=code) for code in (1, -1)],
    "assumptions": lambda: [assumption_numbers()],
}
