"""Made-up numbers for every statement of boix2023: some that confirm it, some that violate it or decide nothing."""

from collections.abc import Callable
from typing import Any

import numpy as np

from jaxflow.papers.boix2023 import fig4
from jaxflow.papers.boix2023.verify import decay
from jaxflow.theory import StageResult
from tests.papers import test_boix2023, test_boix2023_outside, test_boix2023_practical

Data = dict[str, Any]

# Stable ranks after training by scale and seed: lower from a smaller start.
ORDERED = [[1.6, 1.6], [1.5, 1.5]]


def perturbed(prefix: str) -> list[Data]:
    def data(end: float, noise: float = 1.0) -> Data:
        found = test_boix2023.perturbed_data([noise] * 2, [end] * 2, [True, True])
        return {prefix + name[1:]: value for name, value in found.items()} | {"d": np.asarray(1)}

    return [data(0.01), data(0.9), data(0.0, 0.0)]


def both_panels() -> list[Data]:
    pairs = zip(perturbed("p"), perturbed("e"), strict=True)
    return [one | other for one, other in pairs]


def questions() -> list[Data]:
    times = np.array([[1.0, 2.0, 3.0]] * 2)

    def data(passed: np.ndarray) -> Data:
        found: Data = {"count": np.full(2, 3), "square_count": np.full(2, 3), "diverges": np.zeros(2, int)}
        found |= {"times": times, "square_times": times, "adam": passed}
        return found | {"crossings": np.stack([passed, passed], axis=1)}

    return [data(times), data(times[:, ::-1]), data(np.where(times > 2.5, np.nan, times))]


def stages_figure() -> list[Data]:
    made_up = test_boix2023.made_up
    far = made_up(error=9e-4) | {"losses_0": np.linspace(1.0, 0.0, 9)}
    return [made_up(), far, made_up(distance=1e-3, swap=True), made_up(jump=True)]


def entries() -> list[Data]:
    made_up = test_boix2023.entries_made_up
    return [
        made_up((0.8, 0.2, 0.05, 0.0125)),
        made_up((0.8, 0.2, 0.8, 0.2)),
        made_up((0.8, 0.2, 0.05, 0.0125)) | {"succeeded": np.zeros(4, bool)},
    ]


def ranks_growth() -> list[Data]:
    def all_of(change: Callable[[Data], Data], published: bool) -> Data:
        found: Data = {}
        for prefix in fig4.PREFIXES:
            found |= change(test_boix2023_practical.ranks(ORDERED, prefix, published=published))
        return found

    worse = test_boix2023_practical.worse
    return [all_of(dict, True), all_of(dict, False), all_of(worse, False)]


def small_scales() -> list[Data]:
    """Met and not met, by the paper's networks and by ours."""
    ranks, worse = test_boix2023_practical.both_networks, test_boix2023_practical.worse
    falling = [[1.6, 1.6], [1.7, 1.7]]
    both = [ranks(numbers, published) for numbers in (ORDERED, falling) for published in (True, False)]
    small = both[1] | {name: np.full_like(x, 0.9) for name, x in both[1].items() if name.endswith("_rank")}
    return [*both, worse(both[0]), worse(both[1]), small]


def lora() -> list[Data]:
    def many(needed: list[int]) -> Data:
        """Nine runs: three of each, so that a correlation of nine has a small p-value."""
        ranks = np.array([0, 1, 2, 4, 8, 16])
        enough = ranks >= np.array(needed)[None, :, None]
        data: Data = {"ranks": ranks, "scales": np.array([1.0]), "steps": np.array(10)}
        data |= {"full_loss": np.ones((1, len(needed))), "full_accuracy": np.ones((1, len(needed)))}
        for way in ("lora", "cut"):
            data |= {f"{way}_loss": np.where(enough, 1.05, 1.2), f"{way}_accuracy": np.where(enough, 0.998, 0.9)}
        stable = np.linspace(1.0, 16.0, len(needed)).reshape(1, -1, 1, 1)
        return data | {"KQ_rank": stable, "VO_rank": stable}

    rising = [0, 0, 1, 1, 2, 4, 8, 8, 16]
    return [many(rising), many(rising[::-1]), many([1] * 9)]


def stages_check() -> list[Data]:
    verified = test_boix2023.verified
    far = {"measured": verified()["measured"] + 0.5, "distance": np.full((1, 2, 3, 2), 1e-2)}
    far |= {"entering": np.full((1, 2), 2), "drift": np.full((1, 2), 1e-3)}
    lost = verified(failed=np.ones((1, 2), bool), drift=np.full((1, 2), np.nan))
    return [verified(), verified(**far), lost]


def decays() -> list[Data]:
    n = 3
    times = np.full((n, decay.STAGES), np.nan)
    times[:, :2] = 1.0, 3.0
    coordinates = np.full((n, decay.STAGES), -1)
    coordinates[:, :2] = 0, 1
    results = np.full((n, decay.STAGES), int(StageResult.finished))
    good: Data = {"times": times, "coordinates": coordinates, "results": results, "crossings": times}
    good |= {"distance": np.where(np.isnan(times), np.nan, 1e-6), "excess": np.zeros(n), "failed": np.zeros(n, bool)}
    swapped = good | {"crossings": -times, "excess": np.ones(n)}
    lost = good | {"crossings": np.full_like(times, np.nan), "excess": np.full(n, np.nan), "failed": np.ones(n, bool)}
    return [good, swapped, lost]


def heads_data() -> list[Data]:
    def data(apart: bool, good: bool = True) -> Data:
        parts = (np.broadcast_to(x, (3, 2, *x.shape)) for x in test_boix2023_outside.path_of(apart))
        times, singular, gradient = parts
        return {"times": times, "singular": singular, "log_gradient": gradient, "good": np.full((3, 2), good)}

    return [data(True), data(False), data(True, good=False)]


def supports() -> list[Data]:
    learned = np.array([[int(StageResult.learned)] * 2 + [int(StageResult.finished)]])
    support = np.array([[[True, False], [True, True], [True, True]]])
    order = np.array([[0, 1, -1]])

    def data(second: float, coordinates: np.ndarray = order) -> Data:
        """Two products enter; at the smaller α the second one at this rescaled time, at the larger one at 3."""
        times = np.array([[[1.0, 3.0, np.nan], [1.0, second, np.nan]]])
        found: Data = {"results": learned, "support": support, "residuals": np.zeros((1, 3))}
        found |= {"coordinates": order, "times": np.array([[1.0, 3.0, np.inf]])}
        found |= {"flow_coordinates": np.stack([order, coordinates], axis=1), "flow_times": times}
        return found | {"flow_inside": np.ones(1, bool), "flow_failed": np.zeros(1, bool)}

    # Later by a share of log(1/α); by the same time; in another order at the other scale, which decides nothing.
    return [data(2.9), data(1.2), data(2.9, order[:, [1, 0, 2]])]


PROBES = {
    "fig1": small_scales,
    "fig5": small_scales,
    "fig14": small_scales,
    "fig15": small_scales,
    "fig3": both_panels,
    "fig6": small_scales,
    "outside": questions,
    "fig2": stages_figure,
    "fig4": ranks_growth,
    "fig7": small_scales,
    "fig8": entries,
    "fig9": entries,
    "fig10": lambda: perturbed("p"),
    "fig11": lambda: perturbed("p"),
    "lora": lora,
    "stages": stages_check,
    "supports": supports,
    "decay": decays,
    "heads": heads_data,
}
