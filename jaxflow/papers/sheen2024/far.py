"""The diagonal flow far beyond log t = 1e6, where constraints with small multipliers have become active."""

from typing import Any

import numpy as np

from jaxflow._core import Outcome
from jaxflow.limits import find_limit
from jaxflow.losses import Exponential
from jaxflow.papers.registry import Data
from jaxflow.papers.sheen2024.diagonal_paths import Cell, draw
from jaxflow.risk import EmpiricalRisk
from jaxflow.study import settled_selections
from jaxflow.theory import unbalanced_start


def far_certificates(cell: Cell, keys: Any) -> Data:
    r"""Where `find_limit` ends (limiting dynamics, to $\log\log t$ of some 600), `(b,)` each.

    - `far_gap`: the duality gap of the flow's own multipliers with its velocity (or weights).
    - `far_log_time`: log t there; `far_optimal`: whether the optimal tokens are selected for good.
    """
    found = []
    for key in keys:
        data, head, omega = draw(cell, key)
        # β(t) is the same whichever factor starts at zero.
        model, _ = unbalanced_start(omega, head)
        limit = find_limit(EmpiricalRisk(data, Exponential()), model, throw=False)
        # Which tokens, however close the direction has come: its gap stands beside it.
        chosen = settled_selections(limit.settled_outcome, limit.selection_status) == Outcome.globally_optimal
        found.append((limit.flow_certificate.duality_gap, limit.trajectory.final.log_time, chosen))
    gaps, times, optimal = (np.asarray(column) for column in zip(*found, strict=True))
    return {"far_gap": gaps, "far_log_time": times, "far_optimal": optimal}
