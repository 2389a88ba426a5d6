"""Numbers for every statement of yun2021 that confirm it where a statement can be confirmed."""

from typing import Any

import numpy as np

from jaxflow._core import Outcome
from jaxflow.papers.yun2021 import limit_directions, phase
from jaxflow.papers.yun2021.alpha_sweep import Curve, Flows, SweepNumbers
from jaxflow.papers.yun2021.decompositions import Alignment, Fixed, Residual, StructureNumbers
from jaxflow.papers.yun2021.designed import Components, DesignedNumbers
from jaxflow.papers.yun2021.dual_form import DualNumbers, Pair
from jaxflow.papers.yun2021.ensemble import EnsembleNumbers, Limit
from jaxflow.papers.yun2021.filters import Filtered, FilterNumbers
from jaxflow.papers.yun2021.fully_connected import STARTS, Approach, ConnectedNumbers
from jaxflow.papers.yun2021.limit_points import Point, PointNumbers
from jaxflow.papers.yun2021.loss_bounds import BoundNumbers, Ratio, Separable
from jaxflow.papers.yun2021.multiplier_direction import Path, PushNumbers
from jaxflow.papers.yun2021.one_datum import DatumNumbers, Ends, Tie, Turns
from jaxflow.papers.yun2021.phase import Diagram, PhaseNumbers
from jaxflow.papers.yun2021.plane import Classification, Plane1, Plane3, Regression
from tests.papers.made_up.records import filled, programs


def regression(off: float, spread: float, end: float = 0.0, slack: float = 1.0, scales: int = 2) -> Regression:
    """Four starts at each of two scales, whose limits spread more at the larger one."""
    limit = np.zeros((3, 1, scales, 4, 2)) + 0.5
    limit[:, :, -1, 0, 0] += spread
    path = np.repeat(limit[..., None, :], 3, axis=-2)
    return Regression(path, path + off, limit + end, limit, np.full((3, 1, scales, 4), slack))


def classification(off: float = 0.0, spread: float = 1.0, loss: float = 1e-5, steps: int = 2_000_000) -> Classification:
    """The program's directions, and ends of gradient descent that differ from start to start."""
    aims = np.array([[0.2, 0.4], [0.0, 0.5], [1 / 3, 1 / 3]])
    program = np.broadcast_to(aims[:, None, None, None], (3, 1, 3, 4, 2))
    end = program / np.linalg.norm(program, axis=-1, keepdims=True)
    apart = 0.2 * spread * np.arange(4)[None, None, None, :, None, None] * np.array([1.0, 0.0])
    path = np.repeat(end[..., None, :], 3, axis=-2)
    one = np.ones(end.shape[:-1])
    return Classification(
        path, path + apart, end, program, off * one, 1e30 * one, 50 * one, loss * one, steps * one.astype(int)
    )


def figure_3() -> list[Plane3]:
    return [Plane3(regression(1e-3, 0.1, scales=1), classification())]


def filters() -> list[FilterNumbers]:
    aims, three = np.eye(8), np.ones(3)
    ends = (aims[:3], 0.0 * three, -three, 300.0 * three)
    given = (np.ones(8), np.asarray(1.0), np.array([1, 2, 8]))
    return [FilterNumbers(Filtered(*given, *ends, l2=aims[0], filtered=aims[1], dft=aims[2]))]


def phases() -> list[PhaseNumbers]:
    # From one at a loss near one to 2e-2 at 1e-100, like a power of log(1/loss).
    logs = phase.LOG_LOSSES
    falling = np.log(np.maximum(-logs, 1.0)) / np.log(-logs[-1])
    error = np.broadcast_to(np.exp(np.log(2e-2) * falling), (3, 3, logs.size))
    return [PhaseNumbers(Diagram(np.array([1e-3, 1.0, 10.0]), error))]


def pushes() -> list[PushNumbers]:
    drift, sizes = (np.tile(x, (4, 3, 1)) for x in (np.exp(-np.linspace(0, 30, 48)), np.linspace(0, 15, 48)))
    return [PushNumbers(Path(drift, sizes, np.ones((4, 3), bool)))]


def designed() -> list[DesignedNumbers]:
    shown = np.stack([np.arange(4) < 1, np.arange(4) < 3]).astype(float)[:, None]
    teacher = np.broadcast_to(np.array([1.0, 0.0, 0.0, 0.0]), (2, 1, 4))
    best = np.full((2, 1), Outcome.globally_optimal.value)
    return [DesignedNumbers(Components(shown, teacher, best, np.zeros((2, 1)), np.zeros((2, 1))))]


def sweep() -> list[SweepNumbers]:
    alphas, one = np.geomspace(1e-4, 1e3, 25), np.ones((3, 1, 25))
    curves = Curve(alphas * one, one / np.clip(np.log(1.0 / alphas), 1.0, None), 0.0 * one, one > 0)
    return [SweepNumbers(curves, filled(Flows, (1, 1, 1), 0.1, 1.0, 1.0, 1e-12, True))]


def bounds() -> list[BoundNumbers]:
    separable = filled(Separable, (1, 2), 0.9, 0.9, 0.5, 1.0, True)
    return [BoundNumbers(separable, filled(Ratio, (2, 2), 0.9, 1.0, True))]


def connected() -> list[ConnectedNumbers]:
    alphas, one = np.array([0.3, 0.1, 0.03]), np.ones((4, 1, 3))
    exact = np.array([scheme == "identity" for _, scheme in STARTS])[:, None, None]
    return [ConnectedNumbers(Approach(alphas * one, np.where(exact, 1e-14, alphas**2), 1e-15 * one, one > 0, one))]


def direction(gap: float, least: float = 0.0, start: float = 1.0, **changes: Any) -> limit_directions.DirectionNumbers:
    """Three instances of each network."""
    one = np.ones((len(limit_directions.KINDS), 3))
    fields: dict[str, Any] = {
        "outcome": np.full(one.shape, Outcome.globally_optimal.value), "start": start, "flow_gap": gap,
        "stationarity": 1e-9, "least_multiplier": least, "program_gap": 1e-13, "singular": gap, "share": gap,
        "apart": gap, "drift": gap, "exponent": 0.5, "predicted": 0.5, "slope": -1.0,
    }  # fmt: skip
    made = {name: value * one.astype(np.asarray(value).dtype) for name, value in (fields | changes).items()}
    return limit_directions.DirectionNumbers(limit_directions.Direction(**made))


def single() -> list[DatumNumbers]:
    one, two = np.ones((3, 3, 3)), np.ones((3, 3))
    # Three data, each at three scales: parallel to x at the smallest ones.
    gaps = np.array([1e-8, 1e-4, 0.1])
    ends = Ends(np.array([1e-4, 1e-2, 1.0]) * one, 1e-14 * one, 1.0 - gaps * one, one, one > 0)
    sizes = np.linspace(1.0, 300.0, 60) * np.ones((3, 3, 1))
    errors = np.exp(-0.15 * sizes)[..., None] * np.ones(3)
    turns = Turns(errors, np.exp(-0.3 * sizes), sizes, -0.3 * two, two, 1e-14 * two, 1e-14 * two, two > 0)
    return [DatumNumbers(ends, turns, filled(Tie, (1, 4), 1.0, 1e-14, 0.0))]


def structure() -> list[StructureNumbers]:
    fixed = Fixed(np.zeros(4), np.full(2, 0.5), np.zeros(4), np.zeros(5), np.ones(5), np.ones(5))
    drawn = Residual(np.array([[0.0, 0.0], [0.5, 0.5]]))
    return [StructureNumbers(drawn, fixed, filled(Alignment, (1, 2), 0.0, 0.0, True))]


def points() -> list[PointNumbers]:
    return [PointNumbers(*(filled(Point, (cells, 2), 1e-12, 1e-12, 1e-15, True) for cells in (9, 1, 1, 1)))]


PROBES = {
    "programs": lambda: programs(6),
    "fig1": lambda: [Plane1(regression(1e-3, 0.1))],
    "fig3": figure_3,
    "filters": filters,
    "phase-diagram": phases,
    "push": pushes,
    "designed-transform": designed,
    "alpha-sweep": sweep,
    "bounds": bounds,
    "connected": connected,
    "directions": lambda: [direction(1e-7)],
    "dual-form": lambda: [DualNumbers(filled(Pair, (2, 2), 1e-12, True, 1e-3))],
    "ensemble": lambda: [EnsembleNumbers(filled(Limit, (1, 2), Outcome.limit_point.value, 1e-12, 1.0))],
    "points": points,
    "single": single,
    "structure": structure,
}
