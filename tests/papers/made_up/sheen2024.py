"""Numbers for every statement of sheen2024 that confirm it where a statement can be confirmed."""

from collections.abc import Callable
from typing import Any

import numpy as np

from jaxflow.papers.sheen2024 import aligned_flows, diagonal_flows
from jaxflow.papers.sheen2024.diagonal_flows import LOG_TIMES
from jaxflow.papers.sheen2024.failures import AMOUNTS, SPREADS
from jaxflow.papers.sheen2024.failures import MULTIPLES as GAP_MULTIPLES
from jaxflow.papers.sheen2024.separability import MULTIPLES, SIZES, score_gap_needed
from jaxflow.papers.table import Table
from tests.papers.made_up.records import OPTIMAL, changed, filled, programs

# log t where it is beyond one.
LATE = np.maximum(LOG_TIMES, 1.0)
KAPPA = np.array([0.9, 0.5, 0.2])


def with_all(flows: Table, changes: dict[str, Any]) -> Table:
    """The same flows with other columns, one value or one for each instance."""
    return changed(flows, *changes.items())


def diagonal_flow(cells: int = 3, **changes: Any) -> Table:
    """Three instances a cell, `(cells, 3)`, that satisfy and show everything."""
    mu = LATE
    falling, entry = 0.2 / np.log(mu + 2.0), (np.log(mu) + 2.0) / np.log(np.maximum(mu, 2.0))
    # Of two entries of the weights the first grows.
    first = {"beta": mu, "coefficients": mu, "averaged": entry, "instantaneous": mu**0}
    paths = {name: np.stack([column, 0.0 * column], axis=-1) for name, column in first.items()}
    paths |= dict.fromkeys(("stationarity", "slackness", "predicted"), falling) | dict.fromkeys(("size", "margin"), mu)
    paths |= {name: small * mu**0 for name, small in (("apart", 1e-10), ("identity", 1e-9), ("display", 1e-9))}
    paths |= {"conserved": 1e-12 * mu**0, "gap": 1.0 / mu}
    by_kappa = {"kappa": KAPPA, "weights_gap": mu ** -(1.0 - KAPPA)[None, :, None]}
    one = {"diagonal": 1.0, "equal": 0.0, "small": 1.0, "selects": 1, "program_gap": 1e-12, "behind": 0.0}
    return with_all(filled((cells, 3), "ok result", each=paths, **one, **by_kappa), changes)


def diagonal_numbers(continued: float = 1e-7, **changes: Any) -> Table:
    """Flows, and their continuation with a duality gap."""
    ends = filled((1, 3), gap=continued, log_time=1e257, optimal=True)
    return Table(flows=diagonal_flow(**changes), continued=ends)


def printed() -> Table:
    """Multipliers for which the formula printed in A.7 is true, with 2/n once more."""
    return diagonal_numbers(averaged=diagonal_flows.SHAPE[0] / 2 * diagonal_flow().averaged)


def aligned_flow(cells: int, **changes: Any) -> Table:
    """Two instances a cell, `(cells, 2)`, that satisfy and show everything."""
    times = aligned_flows.LOG_TIMES
    slacks = dict.fromkeys(("equal", "small", "orthogonal", "parallel", "paired"), 0.1)
    solved = dict.fromkeys(("oracle", "program_gap", "lifted_gap", "lifted_residual"), 1e-13)
    sizes = {"weights_excess": 1e-5, "flow_gap": 1e-5, "conserved": 1e-15, "alignment": 1e-15, "margin": 1.0}
    sizes |= {"oracle_excess": 1e-10, "velocity_excess": 1e-10}
    # A sequence without a column keeps 1/3; all are at one in the end.
    paths = {"attention": np.where(times > 12.0, 1.0, 1.0 / 3.0)}
    paths |= {name: np.full(times.shape, size) for name, size in sizes.items()}
    return with_all(filled((cells, 2), "ok result", each=paths, **slacks, **solved), changes)


def aligned_numbers(other: float = 1e-14, apart: float = 0.1, **changes: Any) -> Table:
    """All starts and kinds of data, and another optimum."""
    others = filled((1, 2), excess=other, apart=apart)
    return Table(starts=aligned_flow(4, **changes), shapes=aligned_flow(2, **changes), others=others)


def limit_numbers(own: float = 1.0 + 1e-9, other: float = 1.3, **changes: Any) -> Table:
    """Two data sets with three limits, each the least in its own norm, `(3, 2)`."""
    each = {"weights": np.eye(3), "results": np.full(3, OPTIMAL), "separable": np.ones(3)}
    ratio = np.where(np.eye(3), own, other)[:, None]
    ends = {"stationarity": 1e-9, "certified_gap": 1e-10, "log_norm": 1.0, "size": 1.0, "equal": 0.0}
    return Table(limits=with_all(filled((3, 2), "outcome", each=each, **ends, ratio=ratio), changes))


def failure_numbers(**changes: Any) -> Table:
    """Every cell of the experiment."""
    cells = {"gaps": len(GAP_MULTIPLES), "spreads": len(SPREADS), "random": 1}
    kinds = {kind: diagonal_flow(count, **changes) for kind, count in cells.items()}
    return Table(kinds, broken=aligned_flow(3 * len(AMOUNTS), alignment=0.1, velocity_excess=1e-2))


def assumption_numbers(general: Any = 0.1, diagonal: Any = 0.1, sign: float = 1.0) -> Table:
    """Four instances, and gaps about the bound of every size."""
    slack = np.tile(np.where(np.asarray(MULTIPLES) > 1.0, sign, -sign), (len(SIZES), 1))
    gaps = Table(slack=slack, needed=np.array([score_gap_needed(*size) for size in SIZES]))
    return Table(separability=filled((1, 4), general=general, diagonal=diagonal), gaps=gaps)


PROBES: dict[str, Callable[[], list[Any]]] = {
    "programs": lambda: programs(3),
    **dict.fromkeys(("equivalence", "multipliers", "rates"), lambda: [diagonal_numbers()]),
    "diagonal": lambda: [diagonal_numbers(), printed()],
    **dict.fromkeys(("alignment", "general"), lambda: [aligned_numbers()]),
    **dict.fromkeys(("norms", "divergence"), lambda: [limit_numbers()]),
    "failures": lambda: [failure_numbers(selects=code) for code in (1, -1)],
    "assumptions": lambda: [assumption_numbers()],
}
