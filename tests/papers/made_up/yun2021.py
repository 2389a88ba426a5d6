"""Made-up numbers for every statement of yun2021: some that confirm it, some that violate it or decide nothing."""

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
from tests.papers.made_up.cross_check import programs


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


def figure_1() -> list[Plane1]:
    good, wrong = regression(1e-3, 0.1), regression(0.1, 0.0, end=1e-3)
    return [Plane1(good), Plane1(wrong)]


def figure_3() -> list[Plane3]:
    good = Plane3(regression(1e-3, 0.1, scales=1), classification())
    return [good, Plane3(regression(0.1, 0.0, end=1e-3, scales=1), classification(1e-3, 0.0, 1e-3))]


def filters() -> list[FilterNumbers]:
    aims = np.eye(8)

    def data(off: float, rate: float = -1.0) -> FilterNumbers:
        beta = np.stack([aims[0], aims[1], aims[2]]) + off * aims[3]
        ends = (beta, np.full(3, off), np.full(3, rate), np.full(3, 300.0))
        return FilterNumbers(
            Filtered(np.ones(8), np.asarray(1.0), np.array([1, 2, 8]), *ends, l2=aims[0], filtered=aims[1], dft=aims[2])
        )

    return [data(0.0), data(0.5), data(1e-3, 0.0)]


def phases() -> list[PhaseNumbers]:
    logs = phase.LOG_LOSSES

    def data(end: float) -> PhaseNumbers:
        # From one at a loss near one to `end` at 1e-100, like a power of log(1/loss).
        x = np.log(np.maximum(-logs, 1.0)) / np.log(-logs[-1])
        error = np.broadcast_to(np.exp(np.log(end) * x), (3, 3, logs.size))
        return PhaseNumbers(Diagram(np.array([1e-3, 1.0, 10.0]), error))

    return [data(2e-2), data(0.5)]


def pushes() -> list[PushNumbers]:
    def data(drift: np.ndarray, ok: bool = True) -> PushNumbers:
        sizes = np.tile(np.linspace(0, 15, drift.size), (4, 3, 1))
        return PushNumbers(Path(np.tile(drift, (4, 3, 1)), sizes, np.full((4, 3), ok)))

    falling = np.exp(-np.linspace(0, 30, 48))
    return [data(falling), data(np.linspace(0.0, 0.2, 48)), data(falling, False)]


def designed() -> list[DesignedNumbers]:
    def data(count: int, outcome: Outcome) -> DesignedNumbers:
        shown = np.stack([np.arange(4) < count, np.arange(4) < 3]).astype(float)[:, None]
        teacher = np.broadcast_to(np.array([1.0, 0.0, 0.0, 0.0]), (2, 1, 4))
        return DesignedNumbers(
            Components(shown, teacher, np.full((2, 1), outcome.value), np.zeros((2, 1)), np.zeros((2, 1)))
        )

    best = Outcome.globally_optimal
    return [data(1, best), data(4, best), data(1, Outcome.undecided)]


def sweep() -> list[SweepNumbers]:
    alphas = np.geomspace(1e-4, 1e3, 25)
    small = np.clip(np.log(1.0 / alphas), 1.0, None)

    def data(power: float, error: float) -> SweepNumbers:
        one = np.ones((3, 1, 25))
        curves = Curve(alphas * one, small**power * one, 0.0 * one, one > 0)
        flow = np.ones((1, 1, 1))
        return SweepNumbers(curves, Flows(0.1 * flow, flow, flow, error * flow, flow > 0))

    return [data(-1.0, 1e-12), data(1.0, 1.0)]


def bounds() -> list[BoundNumbers]:
    def data(ratio: float, ok: bool = True) -> BoundNumbers:
        one, two = np.ones((1, 2)), np.ones((2, 2))
        separable = Separable(ratio * one, ratio * one, ratio * one, 0.5 * one, one, np.full((1, 2), ok))
        return BoundNumbers(separable, Ratio(ratio * two, two, np.full((2, 2), ok)))

    return [data(0.9), data(2.0), data(0.9, False)]


def connected() -> list[ConnectedNumbers]:
    alphas = np.array([0.3, 0.1, 0.03])

    def data(random: np.ndarray, identity: float, residual: float) -> ConnectedNumbers:
        one = np.ones((4, 1, 3))
        exact = np.array([scheme == "identity" for _, scheme in STARTS])[:, None, None]
        error = np.where(exact, identity, random)
        return ConnectedNumbers(Approach(alphas * one, error, residual * one, one > 0, one))

    return [data(alphas**2, 1e-14, 1e-15), data(alphas[::-1], 1e-3, 1.0)]


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


def directions() -> list[limit_directions.DirectionNumbers]:
    bad = direction(0.5, least=-1.0, slope=0.0, exponent=0.0)
    return [direction(1e-7), bad, direction(1e-7, start=-1.0)]


def dual_forms() -> list[DualNumbers]:
    def data(error: float, ok: bool = True) -> DualNumbers:
        return DualNumbers(Pair(np.full((2, 2), error), np.full((2, 2), ok), np.full((2, 2), 1e-3)))

    return [data(1e-12), data(1.0), data(1e-12, False)]


def ensembles() -> list[EnsembleNumbers]:
    def data(error: float, outcome: Outcome = Outcome.limit_point) -> EnsembleNumbers:
        return EnsembleNumbers(Limit(np.full((1, 2), outcome.value), np.full((1, 2), error), np.ones((1, 2))))

    return [data(1e-12), data(1.0), data(1e-12, Outcome.failed)]


def points() -> list[PointNumbers]:
    def data(error: float, printed: float, ok: bool = True) -> PointNumbers:
        def part(cells: int) -> Point:
            one = np.ones((cells, 2))
            return Point(error * one, printed * one, 1e-15 * one, np.full(one.shape, ok))

        return PointNumbers(part(9), part(1), part(1), part(1))

    return [data(1e-12, 1e-12), data(1.0, 1.0), data(1e-12, 1e-12, False)]


def single() -> list[DatumNumbers]:
    def data(error: float, along: float, slope: float) -> DatumNumbers:
        one = np.ones((3, 3, 3))
        # Three data, each at three scales: parallel to x at the smallest ones.
        gaps = np.array([along * 1e-8, along * 1e-4, 0.1])
        ends = Ends(np.array([1e-4, 1e-2, 1.0]) * one, error * one, 1.0 - gaps * one, one, one > 0)
        sizes = np.linspace(1.0, 300.0, 60) * np.ones((3, 3, 1))
        two, errors = np.ones((3, 3)), np.exp(slope * 0.5 * sizes)[..., None] * np.ones(3)
        turns = Turns(errors, np.exp(slope * sizes), sizes, -0.3 * two, two, error * two, error * two, two > 0)
        return DatumNumbers(ends, turns, Tie(np.ones((1, 4)), np.full((1, 4), error), np.zeros((1, 4))))

    return [data(1e-14, 1.0, -0.3), data(1.0, 1e6, -0.05)]


def structure() -> list[StructureNumbers]:
    def data(bad: float, missing: float, plain: float) -> StructureNumbers:
        drawn = Residual(np.array([[bad, bad], [missing, missing]]))
        fixed = Fixed(np.full(4, bad), np.full(2, missing), np.full(4, bad), np.full(5, bad), np.ones(5), np.ones(5))
        programs = Alignment(np.full((1, 2), bad), np.full((1, 2), plain), np.ones((1, 2), bool))
        return StructureNumbers(drawn, fixed, programs)

    return [data(0.0, 0.5, 0.0), data(1.0, 0.0, 1.0)]


PROBES = {
    "programs": lambda: programs(6),
    "fig1": figure_1,
    "fig3": figure_3,
    "filters": filters,
    "phase-diagram": phases,
    "push": pushes,
    "designed-transform": designed,
    "alpha-sweep": sweep,
    "bounds": bounds,
    "connected": connected,
    "directions": directions,
    "dual-form": dual_forms,
    "ensemble": ensembles,
    "points": points,
    "single": single,
    "structure": structure,
}
