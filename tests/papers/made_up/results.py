"""Made-up numbers that confirm each statement of the results."""

import numpy as np

from jaxflow._core import Outcome
from jaxflow.papers.results import hypotheses, multistart, rate_law
from jaxflow.papers.table import Table
from tests.papers.made_up.records import filled


def multistarts() -> list[Table]:
    shape = (len(multistart.SHAPES), 2, 3)
    found = filled(Table, shape, kkt=1e-7, bound=2.0, flow=Outcome.undecided.value)
    # Each start selects tokens of its own, so that every value is the least one of its tokens.
    alone = {"tokens": np.broadcast_to(np.arange(3), shape), "value": np.broadcast_to([2.0, 3.0, 4.0], shape)}
    return [Table(starts=Table(found.named | alone))]


def rates() -> list[Table]:
    times, shape = rate_law.LOG_TIMES, (len(rate_law.FAMILIES), 4)
    gaps = np.broadcast_to(times**-0.5, (*shape, len(times)))
    columns = filled(Table, shape, predicted=0.5, behind=1e-6, ok=True, solved=True)
    return [Table(flows=Table(columns.named | {"gaps": gaps}))]


def assumptions() -> list[Table]:
    shape = (len(hypotheses.CELLS), 3)
    values = {"small": 1.0, "feasible": True, "flow": Outcome.globally_optimal.value, "log_time": 1e8}
    found = filled(Table, shape, **values, attention=1.0 - 1e-9, empty=False)
    assumed = [one for one, _, _ in hypotheses.CELLS.values()]
    slacks = {name: np.array([[0.1 * (held in one)] * 3 for one in assumed]) for name, held in HELD.items()}
    return [Table(flows=Table(found.named | slacks))]


HELD = {"B1": "B.1", "D": "D"}


def adams() -> list[Table]:
    aims = np.broadcast_to(np.array([0.1, 0.4, 0.9]), (1, 2, 3))
    times, steps = np.broadcast_to(np.array([1.0, 2.0, 3.0]), (1, 2, 3)), np.sqrt(0.5 * aims) / 1e-3
    coordinates = np.broadcast_to(np.arange(3), (1, 2, 3))
    off = np.zeros((1, 2))
    return [Table(runs=Table(times=times, coordinates=coordinates, aims=aims, learned=steps, off=off))]


PROBES = {"multistart": multistarts, "rates": rates, "hypotheses": assumptions, "adam-order": adams}
