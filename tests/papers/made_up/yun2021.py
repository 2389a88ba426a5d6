"""Numbers for every statement of yun2021 that confirm it where a statement can be confirmed."""

from typing import Any

import numpy as np

from jaxflow._core import Outcome
from jaxflow.papers.table import Table
from jaxflow.papers.yun2021 import limit_directions, phase
from jaxflow.papers.yun2021.fully_connected import STARTS
from jaxflow.papers.yun2021.loss_bounds import D
from tests.papers.made_up.records import filled, programs


def regression(off: float = 1e-3, spread: float = 0.1, end: float = 0.0, slack: float = 1.0, scales: int = 2) -> Table:
    """Four starts at each of two scales, whose limits spread more at the larger one."""
    limit = np.zeros((3, 1, scales, 4, 2)) + 0.5
    limit[:, :, -1, 0, 0] += spread
    path = np.repeat(limit[..., None, :], 3, axis=-2)
    return Table(flow=path, descent=path + off, end=limit + end, limit=limit, slack=np.full((3, 1, scales, 4), slack))


def classification(off: float = 0.0, spread: float = 1.0, loss: float = 1e-5, steps: int = 2_000_000) -> Table:
    """The program's directions, and ends of gradient descent that differ from start to start."""
    program = np.array([[0.2, 0.4], [0.0, 0.5], [1 / 3, 1 / 3]])[:, None, None, None]
    end = program / np.linalg.norm(program, axis=-1, keepdims=True)
    apart = 0.2 * spread * np.arange(4)[:, None, None] * np.array([1.0, 0.0])
    path = np.repeat(np.broadcast_to(end, (3, 1, 3, 4, 2))[..., None, :], 3, axis=-2)
    directions = {"flow": path, "descent": path + apart, "end": end, "program": program}
    return filled((3, 1, 3, 4), **directions, off=off, log_time=1e30, steps=50.0, loss=loss, descent_steps=steps)


def figure_3(**changes: Any) -> list[Table]:
    return [Table(regression=regression(scales=1), classification=classification(**changes))]


def filters() -> list[Table]:
    aims = np.eye(8)
    ends = filled((3,), error=0.0, rate=-1.0, size=300.0, beta=aims[:3])
    given = {"x": np.ones(8), "correlation": np.asarray(1.0), "lengths": np.array([1, 2, 8])}
    return [Table(limits=Table(ends.named | given, l2=aims[0], filtered=aims[1], dft=aims[2]))]


def phases() -> list[Table]:
    # From one at a loss near one to 2e-2 at 1e-100, like a power of log(1/loss).
    logs = phase.LOG_LOSSES
    falling = np.log(np.maximum(-logs, 1.0)) / np.log(-logs[-1])
    error = np.broadcast_to(np.exp(np.log(2e-2) * falling), (3, 3, logs.size))
    return [Table(diagram=Table(alphas=np.array([1e-3, 1.0, 10.0]), error=error))]


def pushes(flows: int = 3) -> list[Table]:
    drift, sizes = np.exp(-np.linspace(0, 30, 48)), np.linspace(0, 15, 48)
    return [Table(paths=filled((4, flows), "ok", each={"drift": drift, "sizes": sizes}))]


def designed() -> list[Table]:
    shown = np.stack([np.arange(4) < 1, np.arange(4) < 3]).astype(float)[:, None]
    each = {"teacher": np.eye(4)[0]}
    return [Table(limits=filled((2, 1), "outcome", each=each, components=shown, flow_gap=0.0, excess=0.0))]


def sweep() -> list[Table]:
    alphas = np.geomspace(1e-4, 1e3, 25)
    curves = filled((3, 1, 25), "found", alphas=alphas, l1=1.0 / np.clip(np.log(1.0 / alphas), 1.0, None), l2=0.0)
    return [Table(curves=curves, flows=filled((1, 1, 1), "found", alphas=0.1, l1=1.0, l2=1.0, error=1e-12))]


def bounds(printed: float = 0.9) -> list[Table]:
    separable = filled((1, 2), "ok", corrected=0.9, printed=printed, start=0.5, gap=1.0)
    start = filled((1, 2), each={"layers": np.full((2, D), 0.5), "matrix": np.eye(D)})
    squared, stuck = filled((2, 2), "ok", ratio=0.9, gap=1.0), filled((1, 2), "ok", loss=1.5, gap=0.0)
    return [Table(separable=separable, squared=squared, datum=Table(separable.named | start.named), stuck=stuck)]


def connected(error: Any = None) -> list[Table]:
    alphas = np.array([0.3, 0.1, 0.03])
    exact = np.array([scheme == "identity" for _, scheme in STARTS])[:, None, None]
    error = np.where(exact, 1e-14, alphas**2) if error is None else error
    ends = filled((len(STARTS), 1, 3), alphas=alphas, error=error, residual=1e-15, followed=True, last=1.0)
    return [Table(approaches=ends)]


def directions(gap: float = 1e-7, **changes: Any) -> Table:
    """Three instances of each network."""
    rates = {"log_loss": -1e3, "exponent": 0.5, "predicted": 0.5, "slope": -1.0, "start": 1.0}
    rates |= dict.fromkeys(("flow_gap", "singular", "share", "apart", "drift"), gap)
    more = {"stationarity": 1e-9, "least_multiplier": 0.0, "program_gap": 1e-13}
    return Table(limits=filled((len(limit_directions.KINDS), 3), "outcome", **rates | more | changes))


def single() -> list[Table]:
    # Three data, each at three scales: parallel to x at the smallest ones.
    gaps, alphas = np.array([1e-8, 1e-4, 0.1]), np.array([1e-4, 1e-2, 1.0])
    ends = filled((3, 3, 3), alphas=alphas, error=1e-14, along=1.0 - gaps, slack=1.0, followed=True)
    sizes = np.linspace(1.0, 300.0, 60)
    each = {"errors": np.exp(-0.15 * sizes)[:, None] * np.ones(3), "second": np.exp(-0.3 * sizes), "sizes": sizes}
    turns = filled((3, 3), "ok", each=each, rate=-0.3, slack=1.0, filtered=1e-14, datum=1e-14, log_loss=-1e3)
    return [Table(ends=ends, turns=turns, tie=filled((1, 4), apart=1.0, rest=1e-14, least=0.0))]


def structure() -> list[Table]:
    fixed = Table(
        full=np.zeros(4), short=np.full(2, 0.5), given=np.zeros(4), odd=np.zeros(5), slope=np.ones(5), top=np.ones(5)
    )
    drawn = Table(residual=np.array([[0.0, 0.0], [0.5, 0.5]]))
    return [Table(drawn=drawn, fixed=fixed, programs=filled((1, 2), "ok", conjugate=0.0, plain=0.0))]


def points() -> list[Table]:
    cells = {"diagonal": 9, "small": 1, "transformed": 3, "even": 1, "sensing": 1}
    return [
        Table({part: filled((count, 2), "ok", error=1e-12, printed=1e-12, gap=1e-15) for part, count in cells.items()})
    ]


def ensemble() -> Table:
    return Table(limits=filled((1, 2), outcome=Outcome.limit_point.value, error=1e-12, steps=1.0))


PROBES = {
    "programs": lambda: programs(6),
    "fig1": lambda: [Table(regression=regression())],
    "fig3": figure_3,
    "filters": filters,
    "phase-diagram": phases,
    "push": pushes,
    "designed-transform": designed,
    "alpha-sweep": sweep,
    "bounds": bounds,
    "connected": connected,
    "directions": lambda: [directions()],
    "dual-form": lambda: [Table(pairs=filled((2, 2), "ok", error=1e-12, least=1e-3))],
    "ensemble": lambda: [ensemble()],
    "points": points,
    "single": single,
    "structure": structure,
}
