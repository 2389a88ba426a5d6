"""Numbers for every statement of yun2021 that confirm it where a statement can be confirmed."""

from typing import Any

import numpy as np

from jaxflow._core import Outcome
from jaxflow.papers.table import Table
from jaxflow.papers.yun2021 import limit_directions, phase
from jaxflow.papers.yun2021.fully_connected import STARTS
from jaxflow.papers.yun2021.loss_bounds import D
from tests.papers.made_up.records import filled, programs


def regression(off: float, spread: float, end: float = 0.0, slack: float = 1.0, scales: int = 2) -> Table:
    """Four starts at each of two scales, whose limits spread more at the larger one."""
    limit = np.zeros((3, 1, scales, 4, 2)) + 0.5
    limit[:, :, -1, 0, 0] += spread
    path = np.repeat(limit[..., None, :], 3, axis=-2)
    return Table(flow=path, descent=path + off, end=limit + end, limit=limit, slack=np.full((3, 1, scales, 4), slack))


def classification(off: float = 0.0, spread: float = 1.0, loss: float = 1e-5, steps: int = 2_000_000) -> Table:
    """The program's directions, and ends of gradient descent that differ from start to start."""
    aims = np.array([[0.2, 0.4], [0.0, 0.5], [1 / 3, 1 / 3]])
    program = np.broadcast_to(aims[:, None, None, None], (3, 1, 3, 4, 2))
    end = program / np.linalg.norm(program, axis=-1, keepdims=True)
    apart = 0.2 * spread * np.arange(4)[None, None, None, :, None, None] * np.array([1.0, 0.0])
    path = np.repeat(end[..., None, :], 3, axis=-2)
    one = np.ones(end.shape[:-1])
    return Table(
        flow=path,
        descent=path + apart,
        end=end,
        program=program,
        off=off * one,
        log_time=1e30 * one,
        steps=50 * one,
        loss=loss * one,
        descent_steps=steps * one.astype(int),
    )


def figure_3() -> list[Table]:
    return [Table(regression=regression(1e-3, 0.1, scales=1), classification=classification())]


def filters() -> list[Table]:
    aims, three = np.eye(8), np.ones(3)
    ends = Table(beta=aims[:3], error=0.0 * three, rate=-three, size=300.0 * three)
    given = {"x": np.ones(8), "correlation": np.asarray(1.0), "lengths": np.array([1, 2, 8])}
    return [Table(limits=Table(ends.named | given, l2=aims[0], filtered=aims[1], dft=aims[2]))]


def phases() -> list[Table]:
    # From one at a loss near one to 2e-2 at 1e-100, like a power of log(1/loss).
    logs = phase.LOG_LOSSES
    falling = np.log(np.maximum(-logs, 1.0)) / np.log(-logs[-1])
    error = np.broadcast_to(np.exp(np.log(2e-2) * falling), (3, 3, logs.size))
    return [Table(diagram=Table(alphas=np.array([1e-3, 1.0, 10.0]), error=error))]


def pushes() -> list[Table]:
    drift, sizes = (np.tile(x, (4, 3, 1)) for x in (np.exp(-np.linspace(0, 30, 48)), np.linspace(0, 15, 48)))
    return [Table(paths=Table(drift=drift, sizes=sizes, ok=np.ones((4, 3), bool)))]


def designed() -> list[Table]:
    shown = np.stack([np.arange(4) < 1, np.arange(4) < 3]).astype(float)[:, None]
    teacher = np.broadcast_to(np.array([1.0, 0.0, 0.0, 0.0]), (2, 1, 4))
    best = np.full((2, 1), Outcome.globally_optimal.value)
    return [
        Table(
            limits=Table(
                components=shown, teacher=teacher, outcome=best, flow_gap=np.zeros((2, 1)), excess=np.zeros((2, 1))
            )
        )
    ]


def sweep() -> list[Table]:
    alphas, one = np.geomspace(1e-4, 1e3, 25), np.ones((3, 1, 25))
    curves = Table(alphas=alphas * one, l1=one / np.clip(np.log(1.0 / alphas), 1.0, None), l2=0.0 * one, found=one > 0)
    return [Table(curves=curves, flows=filled(Table, (1, 1, 1), alphas=0.1, l1=1.0, l2=1.0, error=1e-12, found=True))]


def bounds() -> list[Table]:
    separable = filled(Table, (1, 2), corrected=0.9, printed=0.9, start=0.5, gap=1.0, ok=True)
    squared, stuck = (filled(Table, shape, gap=gap, ok=True, **{name: value}) for shape, gap, name, value in
                      (((2, 2), 1.0, "ratio", 0.9), ((1, 2), 0.0, "loss", 1.5)))  # fmt: skip
    start = {"layers": np.full((1, 2, 2, D), 0.5), "matrix": np.broadcast_to(np.eye(D), (1, 2, D, D))}
    return [Table(separable=separable, squared=squared, datum=Table(separable.named | start), stuck=stuck)]


def connected() -> list[Table]:
    alphas, one = np.array([0.3, 0.1, 0.03]), np.ones((len(STARTS), 1, 3))
    exact = np.array([scheme == "identity" for _, scheme in STARTS])[:, None, None]
    return [
        Table(
            approaches=Table(
                alphas=alphas * one,
                error=np.where(exact, 1e-14, alphas**2),
                residual=1e-15 * one,
                followed=one > 0,
                last=one,
            )
        )
    ]


def direction(gap: float, least: float = 0.0, start: float = 1.0, **changes: Any) -> Table:
    """Three instances of each network."""
    one = np.ones((len(limit_directions.KINDS), 3))
    fields: dict[str, Any] = {
        "outcome": np.full(one.shape, Outcome.globally_optimal.value), "start": start, "flow_gap": gap,
        "stationarity": 1e-9, "least_multiplier": least, "program_gap": 1e-13, "singular": gap, "share": gap,
        "apart": gap, "drift": gap, "log_loss": -1e3, "exponent": 0.5, "predicted": 0.5, "slope": -1.0,
    }  # fmt: skip
    made = {name: value * one.astype(np.asarray(value).dtype) for name, value in (fields | changes).items()}
    return Table(limits=Table(**made))


def single() -> list[Table]:
    one, two = np.ones((3, 3, 3)), np.ones((3, 3))
    # Three data, each at three scales: parallel to x at the smallest ones.
    gaps = np.array([1e-8, 1e-4, 0.1])
    ends = Table(
        alphas=np.array([1e-4, 1e-2, 1.0]) * one, error=1e-14 * one, along=1.0 - gaps * one, slack=one, followed=one > 0
    )
    sizes = np.linspace(1.0, 300.0, 60) * np.ones((3, 3, 1))
    errors = np.exp(-0.15 * sizes)[..., None] * np.ones(3)
    turns = Table(
        errors=errors,
        second=np.exp(-0.3 * sizes),
        sizes=sizes,
        rate=-0.3 * two,
        slack=two,
        filtered=1e-14 * two,
        datum=1e-14 * two,
        log_loss=-1e3 * two,
        ok=two > 0,
    )
    return [Table(ends=ends, turns=turns, tie=filled(Table, (1, 4), apart=1.0, rest=1e-14, least=0.0))]


def structure() -> list[Table]:
    fixed = Table(
        full=np.zeros(4), short=np.full(2, 0.5), given=np.zeros(4), odd=np.zeros(5), slope=np.ones(5), top=np.ones(5)
    )
    drawn = Table(residual=np.array([[0.0, 0.0], [0.5, 0.5]]))
    return [Table(drawn=drawn, fixed=fixed, programs=filled(Table, (1, 2), conjugate=0.0, plain=0.0, ok=True))]


def points() -> list[Table]:
    cells = {"diagonal": 9, "small": 1, "transformed": 3, "even": 1, "sensing": 1}
    values = {"error": 1e-12, "printed": 1e-12, "gap": 1e-15, "ok": True}
    return [Table({part: filled(Table, (count, 2), **values) for part, count in cells.items()})]


PROBES = {
    "programs": lambda: programs(6),
    "fig1": lambda: [Table(regression=regression(1e-3, 0.1))],
    "fig3": figure_3,
    "filters": filters,
    "phase-diagram": phases,
    "push": pushes,
    "designed-transform": designed,
    "alpha-sweep": sweep,
    "bounds": bounds,
    "connected": connected,
    "directions": lambda: [direction(1e-7)],
    "dual-form": lambda: [Table(pairs=filled(Table, (2, 2), error=1e-12, ok=True, least=1e-3))],
    "ensemble": lambda: [
        Table(limits=filled(Table, (1, 2), outcome=Outcome.limit_point.value, error=1e-12, steps=1.0))
    ],
    "points": points,
    "single": single,
    "structure": structure,
}
