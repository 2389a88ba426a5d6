r"""What figures 8 and 11 share: attention that composes tokens for a head $1^\top\mathrm{ReLU}(Vx)$.

Random instances, the published descent, the programs of the sets that it selects, and how well these predict its
direction. Every instance is kept, with the reason for which the paper leaves it out.
"""

import enum
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxflow.margin import ProgramResult
from jaxflow.papers.tarzanagh2023.composition_descent import descents, draws
from jaxflow.papers.tarzanagh2023.composition_fit import decorrelation, directions, finite_components, fits
from jaxflow.papers.tarzanagh2023.composition_flow import flow_ends, small_descents

# Instances computed together; saved weights of 500 take 8 MB.
BATCH = 500

Data = dict[str, np.ndarray]


class Fate(enum.IntEnum):
    """Whether the paper's filter keeps an instance, and if not why; what comes later in this list prevails."""

    not_run = 0
    kept = 1
    uncertified = 2
    infeasible = 3
    nothing_masked = 4
    between = 5
    failed = 6


REASONS = {
    Fate.kept: "kept",
    Fate.uncertified: "a program without certified solution",
    Fate.infeasible: "(Gen-SVM) or eq. (7) infeasible",
    Fate.nothing_masked: "no token masked",
    Fate.between: "softmax between 1e-6 and 1e-3",
    Fate.failed: "descent failed",
}


@dataclass(frozen=True)
class Size:
    """`trials` instances for each d of `dimensions`; points of the descent are saved every `every` steps.

    The first `flows` of them are followed by the flow, too, and by descent with steps of the lengths `rates` over a
    path of the length `small`.
    """

    trials: int
    flows: int = 60
    dimensions: tuple[int, ...] = (4, 6, 8, 10)
    n: int = 3
    T: int = 4
    steps: int = 2000
    every: int = 100
    rates: tuple[float, ...] = (1e-2, 1e-3, 1e-4)
    small: float = 10.0


# The published code draws until 500 instances have passed the filter. At d = 10 about 2 in 100 do.
SIZES = {
    "quick": Size(200, flows=20, dimensions=(4, 8)),
    "paper": Size(10_000),
    "large": Size(50_000),
}


def compute(size: Size, seed: int, say: Callable[[str], None]) -> Data:
    """The table of all instances: arrays `(dimension, trial)`, curves `(dimension, trial, point)`.

    The keys do not depend on the figure: figures 8 and 11 see the same instances.
    """
    key = jax.random.fold_in(jax.random.key(seed), 8)
    widest = max(size.dimensions)
    columns: dict[str, list[np.ndarray]] = {}
    for d in size.dimensions:
        keys = jax.random.split(jax.random.fold_in(key, d), size.trials)
        rows = [_run(size, d, widest, keys[first : first + BATCH]) for first in range(0, size.trials, BATCH)]
        cell = {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}
        cell["outcome"] = outcomes(cell)
        cell |= _flows(size, d, widest, keys[: size.flows], cell)
        say(f"d = {d}: {fates_in_words(cell['outcome'])}")
        for name, values in cell.items():
            columns.setdefault(name, []).append(values)
    table = {name: np.stack(values) for name, values in columns.items()}
    return {
        "n": np.asarray(size.n),
        "T": np.asarray(size.T),
        "dimensions": np.asarray(size.dimensions),
        "steps": np.arange(0, size.steps + 1, size.every),
        "rates": np.asarray(size.rates),
        "kept": table["outcome"] == Fate.kept,
        **table,
    }


def fates_in_words(outcome: np.ndarray) -> str:
    """How many of how many ended in what: "412 kept, 88 no token masked, of 500"."""
    counts = np.bincount(outcome.ravel(), minlength=len(Fate))
    parts = [f"{counts[fate]:,} {words}" for fate, words in REASONS.items() if counts[fate]]
    return f"{', '.join(parts)}, of {outcome.size:,}"


def outcomes(cell: Data) -> np.ndarray:
    """One `Fate` for each instance."""
    optimal, infeasible = ProgramResult.optimal.value, ProgramResult.infeasible.value
    results = np.stack([cell["direction_result"], cell["finite_result"]])
    outcome = np.full(results.shape[1:], int(Fate.kept))
    for found, fate in (
        (np.any(results != optimal, axis=0), Fate.uncertified),
        (np.any(results == infeasible, axis=0), Fate.infeasible),
        (~cell["sparse"], Fate.nothing_masked),
        (cell["between"], Fate.between),
        (~cell["good"], Fate.failed),
    ):
        outcome[found] = fate
    return outcome.astype(np.uint8)


def _run(size: Size, d: int, widest: int, keys: Array) -> Data:
    """Some instances of one d; programs that several d share are compiled once."""
    instances = draws(size.n, size.T, d, widest, keys)
    path = descents(size.steps, size.every, *instances)
    tokens, queries, labels = instances[:3]
    selected, top = path.pop("selected"), path.pop("top")
    weights, attention = path.pop("weights"), path.pop("attention")
    direction = directions(tokens, queries, labels, selected)
    single = directions(tokens, queries, labels, top)
    finite = finite_components(tokens, queries, labels, selected, attention)
    fit = {**fits(weights, direction, single, finite), "last_weights": weights[:, -1]}
    results = {"direction": direction, "single": single, "finite": finite}
    codes = {f"{name}_result": program["result"] for name, program in results.items()}
    return {name: np.asarray(value) for name, value in {**path, **codes, **fit}.items()}


def _flows(size: Size, d: int, widest: int, keys: Array, cell: Data) -> Data:
    """The flow of the first instances to the log time of their descents, and descent with smaller steps.

    1 − corr of the flow with the descent at the end; with each length of steps, the distance of the weights at equal
    times, relative to the length of the way.
    """
    last = cell.pop("last_weights")[: len(keys)]
    instances = draws(size.n, size.T, d, widest, keys)
    small = [small_descents(size.small, rate, *instances) for rate in size.rates]
    readings = jnp.stack([path["log_time"] for path in small], axis=1)
    found = flow_ends(*instances, jnp.asarray(cell["log_time"][: len(keys)]), readings)
    weights, there = found.pop("flow_weights"), found.pop("flow_readings")
    descended = jnp.stack([path["weights"] for path in small], axis=1)
    apart = jnp.linalg.norm(there - descended, axis=(2, 3))
    way = jnp.linalg.norm(descended - instances[-1][:, None], axis=(2, 3))
    distance = jax.vmap(decorrelation)(weights, jnp.asarray(last))
    found |= {"flow_distance": distance, "descent_distance": apart / way, "descent_log_time": readings}
    return {name: np.asarray(value) for name, value in found.items()}
