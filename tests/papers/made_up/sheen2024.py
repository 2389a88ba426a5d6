"""Made-up numbers for every statement of sheen2024: some that confirm it, some that violate it or decide nothing."""

from typing import Any

import numpy as np

from jaxflow._core import Outcome
from jaxflow.margin import ProgramResult
from jaxflow.papers.sheen2024.verify import diagonal
from tests.papers import test_sheen2024

OPTIMAL, INFEASIBLE = ProgramResult.optimal.value, ProgramResult.infeasible.value

Data = dict[str, Any]


def equivalence() -> list[Data]:
    times = np.asarray(diagonal.LOG_TIMES)

    def data(error: float, power: float, ok: bool = True) -> Data:
        shape = (1, 3, times.size)
        size = np.broadcast_to(np.maximum(times, 1.0) ** power, shape)
        found: Data = {"log_times": times, "omegas": np.ones(1), "ok": np.full((1, 3), ok), "size": size}
        found |= {name: np.full(shape, error) for name in ("apart", "identity", "conserved")}
        return found | {"diagonal": np.ones((1, 3)), "margin": size, "steps": np.ones((1, 3))}

    return [data(1e-10, 1.0), data(1e-3, 0.1), data(1e-10, 1.0, ok=False)]


def multipliers() -> list[Data]:
    good = test_sheen2024.multiplier_numbers(1e-6)
    shape = (2, 4, 7)
    bad = good | {"slackness": np.full(shape, 0.1), "gap": np.full(shape, 1e-2), "stationarity": np.full(shape, 0.4)}
    return [good, bad]


def alignment() -> list[Data]:
    def data(error: float, slack: float = 0.1) -> Data:
        shape = (3, 2, 7)
        found: Data = {"log_times": test_sheen2024.TIMES, "starts": np.array(["unbalanced", "balanced", "misaligned"])}
        found |= {"L": np.array(3), "d": np.array(4), "ok": np.ones((3, 2), bool), "narrow_columns": np.array(1)}
        parts = ("alignment", "weights_excess", "velocity_excess", "oracle_excess")
        found |= {name: np.full(shape, error) for name in parts}
        found |= {"narrow_ok": np.ones(2, bool), "narrow_trained": np.ones((2, 2)), "narrow_attention": np.ones((2, 7))}
        parts = ("equal", "small", "orthogonal", "parallel", "paired")
        return found | {name: np.full(2, slack) for name in parts}

    return [data(1e-15), data(1e-3), data(1e-15, -0.1)]


def norms_data() -> list[Data]:
    def data(own: float, other: float, good: bool = True) -> Data:
        found: Data = {"kinds": np.array(["combined", "factored", "diagonal"]), "all_good": np.full(2, good)}
        result = OPTIMAL if good else INFEASIBLE
        for column, kind in enumerate(("combined", "factored", "diagonal")):
            ratio = np.full((2, 3), other)
            ratio[:, column] = own
            found |= {f"{kind}_ratio": ratio, f"{kind}_gap": np.full(2, 1e-10)}
            found |= {f"{kind}_outcome": np.full(2, Outcome.globally_optimal.value)}
            found |= {f"{kind}_results": np.full((2, 3), result)}
        return found

    return [data(1.0 + 1e-9, 1.3), data(1.1, 1.0), data(1.0, 1.3, good=False)]


def failures() -> list[Data]:
    def data(selects: int) -> Data:
        found: Data = {"multiples": np.array([1.0]), "spreads": np.array([0.1]), "amounts": np.array([0.1])}
        for name in ("gap", "spread", "random"):
            found |= {f"{name}_ok": np.ones((1, 2), bool), f"{name}_diagonal": np.full((1, 2), 0.1)}
            found |= {f"{name}_selects": np.full((1, 2), selects), f"{name}_small": np.ones((1, 2))}
            found |= {f"{name}_weights_gap": np.full((1, 2, 7), 1e-3)}
            for part in ("share", "low", "high", "open", "assumed", "total", "wrong", "right"):
                found[f"{name}_{part}"] = np.full(1, 1.0)
        for part in range(3):
            found |= {f"broken{part}_ok": np.ones((1, 2), bool), f"broken{part}_alignment": np.full((1, 2, 7), 0.1)}
        return found | {"broken": np.full((3, 1, 3), 1e-2)}

    return [data(1), data(-1), data(0)]


def rates_data() -> list[Data]:
    times = test_sheen2024.TIMES
    gaps = times[None] ** -np.array([0.1, 0.5, 0.8])[:, None]
    data: Data = {"log_times": times, "inside": np.ones(3, bool), "hypotheses": np.ones(3, bool)}
    data |= {"kappa": np.array([0.9, 0.5, 0.2]), "weights_gap": gaps, "exponent": np.array([0.1, 0.5, 0.8])}
    data |= {"behind": np.zeros(3)}
    return [data, data | {"exponent": data["exponent"] + 1.0}]


def diagonal_check() -> list[Data]:
    good = test_sheen2024.diagonal_numbers()
    m = len(diagonal.LOG_TIMES)
    bad = test_sheen2024.diagonal_numbers(
        apart=np.full((3, m), 1e-7), identity=np.full((3, m), 1e-5), size=np.ones((3, m)), gap=np.ones((3, m)),
        selects=np.array([1, -1, 1]), stationarity=np.full((3, m), 0.4), far_gap=np.ones(3),
    )  # fmt: skip
    bad["averaged"] = 2.0 * bad["averaged"]
    return [good, bad]


def divergence() -> list[Data]:
    rest, best = Outcome.finite_stationary_point.value, Outcome.globally_optimal.value

    def data(outcome: int) -> Data:
        found: Data = {"outcome": np.full(2, outcome), "stationarity": np.full(2, 1e-9), "size": np.ones(2)}
        return found | {"log_norm": np.ones(2), "equal": np.zeros(2), "separable": np.ones(2), "diagonal": np.ones(2)}

    return [data(best), data(rest), data(Outcome.undecided.value)]


def general_check() -> list[Data]:
    good = test_sheen2024.general_numbers()
    worse = {name: np.full_like(value, 1e-2) for name, value in good.items() if name.endswith(("alignment", "gap"))}
    worse |= {name: np.full_like(value, 1e-2) for name, value in good.items() if name.endswith(("_excess", "oracle"))}
    return [good, good | worse]


def sheen_assumptions() -> list[Data]:
    sizes, multiples = np.array([[2, 3], [3, 5]]), np.array([0.5, 0.99, 1 - 1e-9, 1 + 1e-9, 1.01, 2.0])
    small = np.tile(np.where(multiples > 1, 1.0, -1.0), (2, 1))
    data: Data = {"general": np.full(3, 0.1), "diagonal": np.full(3, 0.1), "small": small, "sizes": sizes}
    data |= {"multiples": multiples, "needed": np.array([1.4, 5.5])}
    return [data, data | {"diagonal": np.zeros(3), "small": -small}]


PROBES = {
    "equivalence": equivalence,
    "multipliers": multipliers,
    "alignment": alignment,
    "norms": norms_data,
    "failures": failures,
    "rates": rates_data,
    "assumptions": sheen_assumptions,
    "diagonal": diagonal_check,
    "divergence": divergence,
    "general": general_check,
}
