"""Made-up numbers for every statement of yun2021: some that confirm it, some that violate it or decide nothing."""

from typing import Any

import numpy as np

from jaxflow._core import Outcome
from jaxflow.papers.yun2021 import alpha_sweep, phase
from jaxflow.papers.yun2021.dual_form import DualNumbers, Pair
from jaxflow.papers.yun2021.ensemble import EnsembleNumbers, Limit
from jaxflow.papers.yun2021.filters import Filtered, FilterNumbers
from jaxflow.papers.yun2021.multiplier_direction import Path, PushNumbers
from jaxflow.papers.yun2021.phase import Diagram, PhaseNumbers
from tests.papers import test_yun2021

Data = dict[str, Any]


DIRECTIONS = np.ones((4, 2))


def regression() -> list[Data]:
    made_up = test_yun2021.made_up_regression
    wrong = made_up(0.1, 0.0)
    wrong["flow_end"] = wrong["flow_end"] + 1e-3
    return [one | {"directions": DIRECTIONS} for one in (made_up(1e-3, 0.1), wrong)]


def classification() -> list[Data]:
    aims = np.array([[0.2, 0.4], [0.0, 0.5], [1 / 3, 1 / 3]])
    unit = aims / np.linalg.norm(aims, axis=1, keepdims=True)
    end = np.broadcast_to(unit[:, None, None], (3, 1, 4, 2)).copy()
    apart = 0.2 * np.arange(4)[None, None, :, None, None] * np.array([1.0, 0.0])

    def data(off: float, spread: float, loss: float) -> Data:
        found: Data = {"program": aims, "flow_end": end + off, "descent_loss": np.full((3, 1, 4), loss)}
        found |= {"descent": np.repeat(end[..., None, :], 3, axis=-2) + spread * apart, "alphas": np.array([1.0])}
        found |= {"steps": np.asarray(2_000_000), "num_steps": np.full((3, 1, 4), 50)}
        return found | {"log_time": np.full((3, 1, 4), 1e30), "directions": DIRECTIONS}

    pairs = zip(regression(), (data(0.0, 1.0, 1e-5), data(1e-3, 0.0, 1e-3)), strict=True)
    return [
        {f"regression.{k}": v for k, v in a.items()} | {f"classification.{k}": v for k, v in b.items()}
        for a, b in pairs
    ]


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


def designed() -> list[Data]:
    def data(count: int, outcome: Outcome) -> Data:
        found: Data = {
            "designed": np.where(np.arange(4) < count, 1.0, 0.0),
            "diagonal": np.where(np.arange(4) < 3, 1.0, 0),
        }
        found |= {"accuracy_of": np.array([8, 4, 1]), "designed.outcome": np.asarray(outcome.value)}
        return found | {"designed.excess": np.asarray(0.0), "designed.flow_gap": np.asarray(0.0)}

    best = Outcome.globally_optimal
    return [data(1, best), data(4, best), data(1, Outcome.undecided)]


def sweep() -> list[Data]:
    alphas = np.geomspace(1e-4, 1e3, 25)
    small = np.clip(np.log(1.0 / alphas), 1.0, None)

    def data(power: float, error: float) -> Data:
        l1 = np.stack([1.0 + small**power] * 3)
        found: Data = {"alphas": alphas, "depths": np.asarray(alpha_sweep.DEPTHS), "best": np.array([1.0, 1.0])}
        found |= {"l1": l1, "l2": np.ones((3, 25)), "converged": np.ones((3, 25), bool)}
        return found | {"flows": np.array([[2, 0.1, 1.0, 1.0, error, 1.0]])}

    return [data(-1.0, 1e-12), data(1.0, 1.0)]


def bounds_data() -> list[Data]:
    def data(ratio: float) -> Data:
        part: Data = {"corrected": ratio, "printed": ratio, "printed_again": ratio, "start": 0.5, "gap": 1.0}
        found = {f"separable.{name}": np.full(2, value) for name, value in part.items()}
        found |= {f"{kind}.{name}": np.full(2, v) for kind in ("squared", "connected") for name, v in
                  (("ratio", ratio), ("gap", 1.0))}  # fmt: skip
        return found | {f"{kind}.followed": np.ones(2, bool) for kind in ("separable", "squared", "connected")}

    return [data(0.9), data(2.0)]


def connected() -> list[Data]:
    alphas = np.array([0.3, 0.1, 0.03])

    def data(error: np.ndarray, residual: float) -> Data:
        found: Data = {"alphas": alphas, "depths": np.array([2])}
        for name in ("identity2", "random2"):
            found |= {f"{name}.error": error[None], f"{name}.followed": np.ones((1, 3), bool)}
            found |= {f"{name}.residual": np.full((1, 3), residual), f"{name}.last": np.ones((1, 3))}
        return found

    return [data(alphas**2, 1e-15), data(alphas[::-1], 1.0)]


def directions() -> list[Data]:
    good, bad = test_yun2021.direction_numbers(1e-7), test_yun2021.direction_numbers(0.5, least=-1.0)
    bad |= {name: np.zeros(3) for name in bad if name.endswith((".slope", ".exponent"))}
    return [good, bad, good | {name: -np.ones(3) for name in good if name.endswith(".slack")}]


def dual_forms() -> list[DualNumbers]:
    def data(error: float, ok: bool = True) -> DualNumbers:
        return DualNumbers(Pair(np.full((2, 2), error), np.full((2, 2), ok), np.full((2, 2), 1e-3)))

    return [data(1e-12), data(1.0), data(1e-12, False)]


def ensembles() -> list[EnsembleNumbers]:
    def data(error: float, outcome: Outcome = Outcome.limit_point) -> EnsembleNumbers:
        return EnsembleNumbers(Limit(np.full((1, 2), outcome.value), np.full((1, 2), error), np.ones((1, 2))))

    return [data(1e-12), data(1.0), data(1e-12, Outcome.failed)]


def points() -> list[Data]:
    def data(error: float, printed: float) -> Data:
        one: Data = {"error": error, "followed": True, "converged": True, "gap": 1e-15, "steps": 1, "printed": printed}
        names = ("diagonal2", "small2", "even", "sensing")
        found = {f"{name}.{what}": np.full(2, value) for name in names for what, value in one.items()}
        return found | {"depths": np.array([2])}

    return [data(1e-12, 1e-12), data(1.0, 1.0)]


def single() -> list[Data]:
    def data(error: float, along: float, slope: float) -> Data:
        found: Data = {"alphas": np.array([1e-4, 1e-2, 1.0])}
        for network in ("fully connected", "diagonal", "convolutional"):
            # Three data, each at three scales: parallel to x at the smallest ones.
            gaps = np.tile([along * 1e-8, along * 1e-4, 0.1], 3)
            found |= {f"{network}.error": np.full(9, error), f"{network}.followed": np.ones(9, bool)}
            found |= {f"{network}.slack": np.ones(9), f"{network}.along": 1.0 - gaps}
        sizes = np.tile(np.linspace(1.0, 300.0, 60), (3, 1))
        for length in (1, 2, 3):
            errors = np.exp(slope * 0.5 * sizes)[:, :, None] * np.ones(3)
            part: Data = {"errors": errors, "second": np.exp(slope * sizes), "sizes": sizes, "rate": np.full(3, -0.3)}
            part |= {"slack": np.ones(3), "filtered": np.full(3, error), "data": np.full(3, error)}
            part |= {"correlation": np.ones(3), "followed": np.ones(3, bool)}
            found |= {f"filter{length}.{name}": value for name, value in part.items()}
        return found | {"tie.rest": np.full(4, error), "tie.least": np.zeros(4), "tie.apart": np.ones(4)}

    return [data(1e-14, 1.0, -0.3), data(1.0, 1e6, -0.05)]


def structure() -> list[Data]:
    def data(bad: float, missing: float, plain: float) -> Data:
        found: Data = {name: np.full(2, bad) for name in ("real", "filters", "given")}
        found |= {name: np.full(2, missing) for name in ("short", "random")}
        found |= {"lemma.odd": np.full(2, bad), "lemma.slope": np.ones(2), "lemma.top": np.ones(2)}
        return found | {
            "kkt.conjugate": np.full(2, bad),
            "kkt.plain": np.full(2, plain),
            "kkt.solved": np.ones(2, bool),
        }

    return [data(0.0, 0.5, 0.0), data(1.0, 0.0, 1.0)]


PROBES = {
    "fig1": regression,
    "fig3": classification,
    "filters": filters,
    "phase-diagram": phases,
    "push": pushes,
    "designed-transform": designed,
    "alpha-sweep": sweep,
    "bounds": bounds_data,
    "connected": connected,
    "directions": directions,
    "dual-form": dual_forms,
    "ensemble": ensembles,
    "points": points,
    "single": single,
    "structure": structure,
}
