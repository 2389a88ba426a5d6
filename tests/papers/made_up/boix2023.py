"""Numbers for every statement of boix2023 that confirm it where a statement can be confirmed, and variants."""

from typing import Any

import jax
import numpy as np

from jaxflow.papers.boix2023 import beyond_assumptions
from jaxflow.papers.table import Table
from jaxflow.theory import StageResult
from tests.papers.made_up.records import filled

# Stable ranks after training by scale and seed: lower from a smaller start.
ORDERED = [[1.6, 1.6], [1.5, 1.5]]
FALLING = [[1.6, 1.6], [1.7, 1.7]]


def boxed(record: Any) -> Any:
    """One cell and one trial."""
    return jax.tree.map(lambda value: np.asarray(value)[None, None], record)


def toy(
    error: float = 1e-5, jump: bool = False, straight: bool = False, late: tuple[float, ...] = (0.8, 0.2, 0.05, 1e-4)
) -> Table:
    """Three stages of four products from four scales, which come later by shares `late` at each; `error`: at the
    smallest; a `jump` brings two products at once, a `straight` loss falls at one rate."""
    times, log_alphas = np.array([1.0, 2.0, 3.0]), np.append(-np.log(100.0) * 4.0 ** np.arange(3), -10_000.0)
    products = np.array([[0, 0, 1.0, 0], [0, 0, 1.0, 1.0], [1.0, 0, 1.0, 1.0]])
    if jump:
        products[1] = [1.0, 1.0, 1.0, 0.0]
    # Late by 1/log(1/α), if the last one is late by 1e-5.
    crossings = times * (1.0 + np.append(0.1 / -log_alphas[:-1], error)[:, None])
    grid = np.linspace(0.0, 4.0, 4001)
    before = np.concatenate([np.zeros((1, 4)), products])
    # The entries of every scale step up a share later than predicted.
    paths = [
        before[np.searchsorted(times * (1.0 + share * np.array([0.3, 0.1, 0.05])), grid, side="right")]
        for share in late
    ]
    # From plateau to plateau, or at one rate.
    steps = np.interp(grid, [1.0, 1.1, 2.0, 2.1, 3.0, 3.1], [1.0, 0.6, 0.6, 0.3, 0.3, 0.0])
    stages = Table(
        filled((3,), losses=1.0, gaps=1.0, curvatures=1.0, leaving=np.inf).named,
        times=times,
        next=np.array([2.0, 3.0, 5.0]),
        coordinates=np.array([2, 3, 0]),
        products=products,
        slacks=np.array([0.1, 0.2, np.inf, 0.3]),
        initial_loss=1.0,
        until=4.0,
    )
    losses = np.linspace(1.0, 0.0, grid.size) if straight else steps
    each = {"times": grid, "losses": losses, "plateaus": products, "distances": np.zeros(3), "effort": np.ones(3)}
    by_scale = {"log_alpha": log_alphas[:, None], "products": np.stack(paths)[:, None], "crossings": crossings[:, None]}
    followed = filled((4, 1), "ok steps", each=each, **by_scale, accepted=1)
    return Table(stages=boxed(stages), paths=followed)


def noise() -> Table:
    """Two windows of either kind, and room for one more."""
    two, each = np.array([1.0, 1.0, np.nan]), dict.fromkeys(("times", "plain_times"), np.linspace(0.0, 1.0, 4))
    each |= dict.fromkeys(("products", "plain_products"), np.ones((4, 2)))
    sizes = {"start": two, "noise": two, "end": 0.01 * two, "allowed": 0.05 * two}
    return Table(noise=filled((2, 1, 3), each=each, **sizes, followed=True))


def spectrum(rank: np.ndarray) -> np.ndarray:
    """Two normalised singular values with these stable ranks, between one and two, and two zeros."""
    second = np.sqrt(np.clip(rank - 1.0, 0.0, 1.0))
    return np.stack([np.ones_like(second), second, 0 * second, 0 * second], axis=-1)


def training(by_scale: list[list[float]], published: bool, *, start: float = 1.9, backwards: bool = False) -> Table:
    """All four sets of runs: four measurements of each (scale, seed), two layers of two heads. The last rank is given,
    the others are lower.

    The singular values grow to their last values one after another; `backwards` in time, from a start of rank one,
    ranks fall and singular values vanish in order."""
    last = np.asarray(by_scale)[None, :, :, None, None]
    lower = np.array([0.3, 0.2, 0.1, 0.0])[:, None, None, None, None]
    values = np.broadcast_to(last - lower, (4, *last.shape[1:3], 2, 2))
    first = np.full(values.shape, 1.0 if backwards else start)
    # Of half of their last value: the first from the first measurement, the second from the second, and so on.
    growth = np.where(np.arange(4)[:, None] >= np.arange(4)[None, :], 1.0, 0.1)[:, None, None, None, None, :]
    grown = np.maximum(spectrum(values), 0.01) * growth
    own = spectrum(first)[..., :2]
    if backwards:
        values, grown = values[::-1], grown[::-1]
    one = np.ones(values.shape)
    parts = {"rank": values, "initial": first, "weights": first, "spectrum": grown, "initial_spectrum": own}
    parts |= {"weights_spectrum": own, "top": one, "initial_top": one}
    both = {name: np.stack([part, part]) for name, part in parts.items()}
    given = {"steps": np.array([1, 2, 3, 4]), "losses": one[..., 0, 0], "scales": np.array([1.0, 0.1])}
    return Table(dict.fromkeys(("adam", "sgd", "network", "text"), boxed(Table(both, **given, published=published))))


def networks() -> list[Table]:
    """Met and not met, by the paper's networks and by ours; and much lower ranks than at the start."""
    both = [training(numbers, published) for numbers in (ORDERED, FALLING) for published in (True, False)]
    worse = [training(ORDERED, published, backwards=True) for published in (True, False)]
    low = [training([[0.9, 0.9], [0.8, 0.8]], published) for published in (True, False)]
    return [*both, *worse, *low]


def bounded(needed: list[int], tried: tuple[int, ...] = (0, 1, 2, 4, 8, 16)) -> Table:
    """Runs of one scale with rising stable ranks in which these ranks suffice."""
    enough = np.array(tried) >= np.array(needed)[None, :, None]
    one = np.ones((1, len(needed)))
    loss, accuracy = np.where(enough, 1.05, 1.2), np.where(enough, 0.998, 0.9)
    stable = np.linspace(1.0, 16.0, len(needed)).reshape(1, -1, 1, 1)
    runs: dict[str, Any] = {"scales": np.array([1.0]), "ranks": np.array(tried), "steps": 10}
    runs |= {"full_loss": one, "full_accuracy": one, "KQ_rank": stable, "VO_rank": stable}
    runs |= dict.fromkeys(("lora_loss", "cut_loss"), loss) | dict.fromkeys(("lora_accuracy", "cut_accuracy"), accuracy)
    return Table(runs=boxed(Table(runs)))


def small() -> Table:
    """Two stages of two instances of either family at three scales, each later than predicted by 1/log(1/α)."""
    predicted, late = np.ones((2, 2, 1)) * [1.0, 2.0], np.array([1e-1, 1e-2, 1e-3])[:, None]
    measured = predicted[:, :, None, :] + late
    entries = {"distance": 1e-9, "stays": 2.8, "weight": 2.0, "others": 0.1}
    entries |= {"length": np.array([3.0, 30.0, 30.0])[:, None], "factor": np.array([0.4, 4.0, 4.0])[:, None]}
    columns = filled((2, 2, 3, 2), **entries, measured=measured, opens=measured, exponent=late).named
    return Table(
        flows=Table(columns, **filled((2, 2), "inside ok", predicted=predicted, entering=1, drift=1e-14).named)
    )


def orders() -> list[Table]:
    times = np.broadcast_to([1.0, 2.0, 3.0], (1, 2, 3))

    def learned(scales: int) -> Table:
        return Table(count=np.full((1, 2), 3), times=times, passed=np.repeat(times[:, :, None], scales, axis=2))

    return [Table(tails=learned(2), adam=learned(1))]


def decay() -> Table:
    """Three instances of two stages."""
    times, coordinates = (
        np.full((1, 3, beyond_assumptions.STAGES), np.nan),
        np.full((1, 3, beyond_assumptions.STAGES), -1),
    )
    times[..., :2], coordinates[..., :2] = (1.0, 3.0), (0, 1)
    stages = {
        "times": times,
        "coordinates": coordinates,
        "passed": times,
        "distance": np.where(times > 0, 1e-6, np.nan),
    }
    results = np.full(times.shape, int(StageResult.finished))
    return Table(flows=filled((1, 3), "ok", **stages, results=results, excess=0.0))


def head_path(apart: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """V O learns at 2, K Q at 5; the third value of each is never learned."""
    times = np.arange(9.0)
    singular = np.zeros((9, 2, 3))
    singular[2:, 1, 0] = 1.0
    singular[5:, 0, 0] = 0.5
    singular[:, 0, 2] = 1e-9
    gradient = np.zeros(9)
    gradient[3 if apart else 7] = -5.0
    return times, singular, gradient


def head(apart: bool) -> Table:
    """Two instances at every scale."""
    path = dict(zip(("times", "singular", "log_gradient"), head_path(apart), strict=True))
    return Table(paths=filled((3, 2), "ok", each=path))


def support(second: float, other: bool = False) -> Table:
    """Two products enter; at the smaller α the second one at this rescaled time, at the larger one at 3; in the `other`
    order at the smaller one, which decides nothing."""
    order = np.array([0, 1, -1])
    found = Table(
        results=np.array([StageResult.learned] * 2 + [StageResult.finished]).astype(int),
        times=np.array([1.0, 3.0, np.inf]),
        # The first product leaves as the second one enters.
        support=np.array([[True, False], [False, True], [False, True]]),
        exponents=np.array([[0.0, 0.5], [0.0, 0.0], [0.0, 0.0]]),
        slopes=np.array([[0.0, 0.2], [-0.3, 0.0], [-0.3, 0.0]]),
    )
    times = np.array([[1.0, 3.0, np.nan], [1.0, second, np.nan]])
    orders = np.stack([order, order[[1, 0, 2]] if other else order])
    flows = Table(coordinates=orders, times=times, inside=np.asarray(True), ok=np.asarray(True))
    return Table(algorithm=boxed(found), flows=boxed(flows))


# Later by a share of log(1/α); by the same time; in another order.
SUPPORTS = [support(2.9), support(1.2), support(2.9, other=True)]


PROBES = {
    **dict.fromkeys(("fig1", "fig4", "fig5", "fig6", "fig7", "fig14", "fig15"), networks),
    **dict.fromkeys(("fig3", "fig10", "fig11"), lambda: [noise()]),
    **dict.fromkeys(("fig2", "fig8", "fig9"), lambda: [toy(), toy(jump=True)]),
    # Nine runs: so that a correlation has a small p-value.
    "lora": lambda: [bounded([0, 0, 1, 1, 2, 4, 8, 8, 16])],
    "stages": lambda: [small()],
    "log-scale": lambda: [
        Table(points=Table(exponent=np.array([-0.5, 0.5, 1.5, 2.5]), conserved=np.array([10.0, 10.0, 10.0, -10.0])))
    ],
    "outside": orders,
    "decay": lambda: [decay()],
    "heads": lambda: [head(True), head(False)],
    "supports": lambda: SUPPORTS,
}
