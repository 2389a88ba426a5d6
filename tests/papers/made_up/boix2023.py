"""Numbers for every statement of boix2023 that confirm it where a statement can be confirmed, and variants."""

from typing import Any

import jax
import numpy as np

from jaxflow.papers.boix2023 import weight_decay
from jaxflow.papers.table import Table
from jaxflow.theory import StageResult

# Stable ranks after training by scale and seed: lower from a smaller start.
ORDERED = [[1.6, 1.6], [1.5, 1.5]]
FALLING = [[1.6, 1.6], [1.7, 1.7]]


def boxed(record: Any) -> Any:
    """One cell and one trial."""
    return jax.tree.map(lambda value: np.asarray(value)[None, None], record)


def toy(
    error: float = 1e-5,
    distance: float = 0.0,
    swap: bool = False,
    jump: bool = False,
    straight: bool = False,
    late: tuple[float, ...] = (0.8, 0.2, 0.05, 0.0125),
    ok: bool = True,
) -> Table:
    """Three stages of four products from four scales, which come later by shares `late` at each; `error`: at the
    smallest; a `jump` brings two products at once."""
    times, log_alphas = np.array([1.0, 2.0, 3.0]), np.append(-np.log(100.0) * 4.0 ** np.arange(3), -10_000.0)
    products = np.array([[0, 0, 1.0, 0], [0, 0, 1.0, 1.0], [1.0, 0, 1.0, 1.0]])
    if jump:
        products[1] = [1.0, 1.0, 1.0, 0.0]
    # Late by 1/log(1/α), if the last one is late by 1e-5.
    crossings = times * (1.0 + np.append(0.1 / -log_alphas[:-1], error)[:, None])
    if swap:
        crossings[-1] = crossings[-1, ::-1]
    grid = np.linspace(0.0, 4.0, 4001)

    def stairs(shares: np.ndarray) -> np.ndarray:
        before = np.concatenate([np.zeros((1, 4)), products])
        return before[np.searchsorted(times * (1.0 + shares), grid, side="right")]

    # The entries of every scale step up a share later than predicted, the smallest ones when they are to.
    shares = (*late[:3], late[3] if late[3] > 0.1 else 1e-4)
    paths = np.stack([stairs(share * np.array([0.3, 0.1, 0.05])) for share in shares])
    # From plateau to plateau, or at one rate.
    steps = np.interp(grid, [1.0, 1.1, 2.0, 2.1, 3.0, 3.1], [1.0, 0.6, 0.6, 0.3, 0.3, 0.0])
    losses = np.linspace(1.0, 0.0, grid.size) if straight else steps
    one, three = np.ones((4, 1)), np.ones(3)
    stages = Table(
        times=times,
        next=np.array([2.0, 3.0, 5.0]),
        coordinates=np.array([2, 3, 0]),
        products=products,
        losses=three,
        gaps=three,
        curvatures=three,
        leaving=np.inf * three,
        slacks=np.array([0.1, 0.2, np.inf, 0.3]),
        initial_loss=1.0,
        until=4.0,
    )
    return Table(
        stages=boxed(stages),
        paths=Table(
            log_alpha=log_alphas[:, None],
            times=grid * one[..., None],
            losses=losses * one[..., None],
            products=paths[:, None],
            ok=np.full((4, 1), ok),
            steps=one.astype(int),
            accepted=one.astype(int),
            crossings=crossings[:, None],
            plateaus=products * np.ones((4, 1, 1, 1)),
            distances=np.full((4, 1, 3), distance),
            effort=np.ones((4, 1, 3)),
        ),
    )


def noise(end: float, noise: float = 1.0, followed: bool = True) -> Table:
    """Two windows of either kind, and room for one more."""
    two = np.array([1.0, 1.0, np.nan]) * np.ones((2, 1, 1))
    line, lines = np.linspace(0.0, 1.0, 4) * two[..., None], np.ones((2, 1, 3, 4, 2))
    return Table(
        noise=Table(
            start=two,
            noise=noise * two,
            end=end * two,
            allowed=0.05 * noise * two,
            followed=np.full((2, 1, 3), followed),
            times=line,
            products=lines,
            plain_times=line,
            plain_products=lines,
        )
    )


def spectrum(rank: np.ndarray) -> np.ndarray:
    """Two normalised singular values with these stable ranks, between one and two, and two zeros."""
    second = np.sqrt(np.clip(rank - 1.0, 0.0, 1.0))
    return np.stack([np.ones_like(second), second, 0 * second, 0 * second], axis=-1)


def ranks(by_scale: list[list[float]], published: bool, *, start: float = 1.9, backwards: bool = False) -> Table:
    """Four measurements of each (scale, seed), two layers of two heads: the last rank given, the others lower.

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
    steps, scales = np.array([1, 2, 3, 4]), np.array([1.0, 0.1])
    return boxed(Table(both, steps=steps, losses=one[..., 0, 0], scales=scales, published=published))


def training(*arguments: Any, **more: Any) -> Table:
    """The same of all four sets of runs."""
    return Table(dict.fromkeys(("adam", "sgd", "network", "text"), ranks(*arguments, **more)))


def networks() -> list[Table]:
    """Met and not met, by the paper's networks and by ours; and much lower ranks than at the start."""
    both = [training(numbers, published) for numbers in (ORDERED, FALLING) for published in (True, False)]
    worse = [training(ORDERED, published, backwards=True) for published in (True, False)]
    small = [training([[0.9, 0.9], [0.8, 0.8]], published) for published in (True, False)]
    return [*both, *worse, *small]


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


def small(shift: float = 0.0, **changes: Any) -> Table:
    """Two stages of two instances of either family, each later than predicted by 1/log(1/α)."""
    shape = (2, 2)
    predicted = np.broadcast_to([1.0, 2.0], (*shape, 2))
    late = np.array([1e-1, 1e-2, 1e-3])[:, None] + shift
    fields: dict[str, Any] = {
        "inside": np.ones(shape, bool), "ok": np.ones(shape, bool),
        "predicted": predicted, "measured": predicted[:, :, None, :] + late, "distance": 1e-9,
        "entering": 1, "drift": 1e-14, "stays": 2.8, "weight": 2.0, "others": 0.1,
        "length": np.array([3.0, 30.0, 30.0])[:, None], "factor": np.array([0.4, 4.0, 4.0])[:, None],
        "opens": predicted[:, :, None, :] + late, "exponent": 0.0 * predicted[:, :, None, :] + late,
    }  # fmt: skip
    parts = dict.fromkeys(("distance", "stays", "weight", "others", "length", "factor"), (*shape, 3, 2))
    shapes = parts | {"entering": shape, "drift": shape, "ok": shape, "inside": shape}
    fields |= changes
    made = {name: np.broadcast_to(value, shapes.get(name, np.shape(value))) for name, value in fields.items()}
    return Table(flows=Table(**made))


def orders() -> list[Table]:
    times = np.broadcast_to([1.0, 2.0, 3.0], (1, 2, 3))

    def learned(scales: int) -> Table:
        rows = np.repeat(times[:, :, None], scales, axis=2)
        return Table(count=np.full((1, 2), 3), times=times, passed=rows)

    return [Table(tails=learned(2), adam=learned(1))]


def decay(passed: float = 1.0, excess: float = 0.0, ok: bool = True) -> Table:
    """Three instances of two stages; at negative times they are passed in the other order."""
    shape = (1, 3, weight_decay.STAGES)
    times, coordinates = np.full(shape, np.nan), np.full(shape, -1)
    times[..., :2], coordinates[..., :2] = (1.0, 3.0), (0, 1)
    results = np.full(shape, int(StageResult.finished))
    distance = np.where(np.isnan(times), np.nan, 1e-6)
    one = np.ones((1, 3))
    flows = {"results": results, "times": times, "coordinates": coordinates, "passed": passed * times}
    return Table(flows=Table(flows, distance=distance, excess=excess * one, ok=np.full((1, 3), ok)))


def decays() -> list[Table]:
    return [decay(), decay(-1.0, 1.0), decay(np.nan, np.nan, False)]


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


def head(apart: bool, ok: bool = True) -> Table:
    """Two instances at every scale."""
    names = ("times", "singular", "log_gradient")
    paths = {name: np.broadcast_to(x, (3, 2, *x.shape)) for name, x in zip(names, head_path(apart), strict=True)}
    return Table(paths=Table(paths, ok=np.full((3, 2), ok)))


def support(second: float, other: bool = False, inside: bool = True) -> Table:
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
    flows = Table(coordinates=orders, times=times, inside=np.asarray(inside), ok=np.asarray(True))
    return Table(algorithm=boxed(found), flows=boxed(flows))


def supports_data() -> list[Table]:
    # Later by a share of log(1/α); by the same time; in another order.
    return [support(2.9), support(1.2), support(2.9, other=True)]


PROBES = {
    **dict.fromkeys(("fig1", "fig4", "fig5", "fig6", "fig7", "fig14", "fig15"), networks),
    **dict.fromkeys(("fig3", "fig10", "fig11"), lambda: [noise(0.01)]),
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
    "supports": supports_data,
}
