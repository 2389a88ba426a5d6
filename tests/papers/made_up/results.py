"""Made-up numbers that confirm each statement of the results."""

import numpy as np

from jaxflow._core import Outcome
from jaxflow.papers.results import hypotheses, multistart, rate_law
from jaxflow.papers.table import Table
from tests.papers.made_up.records import filled


def multistarts() -> list[Table]:
    # Each start selects tokens of its own, so that every value is the least one of its tokens.
    alone = {"tokens": np.arange(3), "value": np.array([2.0, 3.0, 4.0])}
    shape = (len(multistart.SHAPES), 2, 3)
    return [Table(starts=filled(shape, kkt=1e-7, bound=2.0, flow=Outcome.undecided.value, **alone))]


def rates() -> list[Table]:
    times = rate_law.LOG_TIMES
    gaps = {"gaps": times**-0.5}
    return [Table(flows=filled((len(rate_law.FAMILIES), 4), "ok solved", each=gaps, predicted=0.5, behind=1e-6))]


def assumptions() -> list[Table]:
    cells = [assumed for assumed, _, _ in hypotheses.CELLS.values()]
    slacks = {name: [[0.1 * (held in cell)] for cell in cells] for name, held in (("B1", "B.1"), ("D", "D"))}
    ends = {"flow": Outcome.globally_optimal.value, "log_time": 1e8, "attention": 1.0 - 1e-9}
    return [Table(flows=filled((len(cells), 3), "empty", small=1.0, feasible=True, **ends, **slacks))]


def adams() -> list[Table]:
    aims, times = np.array([0.1, 0.4, 0.9]), np.array([1.0, 2.0, 3.0])
    stages = {"times": times, "coordinates": np.arange(3), "aims": aims, "learned": np.sqrt(0.5 * aims) / 1e-3}
    return [Table(runs=filled((1, 2), each=stages, off=0.0))]


PROBES = {"multistart": multistarts, "rates": rates, "hypotheses": assumptions, "adam-order": adams}
