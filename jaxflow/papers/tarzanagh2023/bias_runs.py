"""Figure 7's runs: W and (K, Q) by the flow and by the published descent, held against both programs."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxflow._core import Outcome, SelectionStatus
from jaxflow.papers.compiling import compile_together
from jaxflow.papers.dataset import Dataset, Part, Sweep
from jaxflow.papers.statement import Mask
from jaxflow.papers.table import Table
from jaxflow.papers.tarzanagh2023.paths import Size, descent_path, flow_path, reference
from jaxflow.papers.tarzanagh2023.verify.follow import misalignment

NAMES = {"combined": "W", "factored": "(K, Q)"}
PROGRAMS = {"frobenius": "(Att-SVM)", "nuclear": "(Att-SVM*)"}
NORMS = tuple(PROGRAMS)
# Each parametrisation with the norm whose program it is biased to.
OWN = {"combined": "frobenius", "factored": "nuclear"}

# Instances of a block: one takes as long as its slowest flow.
BATCH = 10

SIZES = {
    # W to log t = 1e6, where 1 − corr, which falls like 1/(log t)², is past ten digits.
    "quick": Size(trials=8, reach=1e3, fast=True),
    "paper": Size(trials=100, reach=3e3),
    "large": Size(trials=1000, reach=1e4),
}


def runs_of(numbers: Table, kind: str) -> Table:
    """Of one parametrisation: columns of `compute`, the g values of `log_time`, and the place `own` in `NORMS` of the
    norm whose program it is biased to."""
    at, cells = list(NAMES).index(kind), getattr(numbers, kind)
    return Table(cells.at(0).named, log_time=numbers.axes.log_time[at], own=NORMS.index(OWN[kind]))


def both(numbers: Table) -> list[Table]:
    """Of W and of (K, Q)."""
    return [runs_of(numbers, kind) for kind in NAMES]


def among(runs: Table, outcomes: tuple[Outcome, ...]) -> Mask:
    """The instances whose flow has one of these outcomes."""
    return np.isin(runs.outcome, outcomes)


def last(runs: Table) -> np.ndarray:
    """1 − corr at the end with the solution in the own norm."""
    return runs.distance[:, runs.own, -1]


def other(runs: Table) -> np.ndarray:
    """1 − corr at the end with the solution in the other norm."""
    return runs.distance[:, 1 - runs.own, -1]


def rates(runs: Table) -> np.ndarray:
    """By which power of 1/log t the excess in the own norm falls over the last decade of log t."""
    early, above = int(np.searchsorted(runs.log_time, runs.log_time[-1] / 10.0)), runs.excess[:, runs.own]
    fall = np.log(above[:, early] / np.maximum(above[:, -1], 1e-300))
    return fall / np.log(runs.log_time[-1] / runs.log_time[early])


@cache
def _programs(kind: str, size: Size, count: int) -> dict[str, Callable[..., Any]]:
    """What is computed of `count` instances, compiled."""
    keys = jax.random.split(jax.random.key(0), count)
    selections = jax.ShapeDtypeStruct((count, size.n, size.T), bool)
    jobs: dict[str, Any] = {
        "flow": (jax.vmap(partial(flow_path, kind, size)), (keys,)),
        "descent": (jax.vmap(partial(descent_path, kind, size)), (keys,)),
    }
    jobs |= {norm: (jax.vmap(partial(reference, norm, size)), (keys, selections)) for norm in NORMS}
    return dict(compile_together(jobs, fast=size.fast))


def compute(keys: Array, cell: tuple[str, Size]) -> Table:
    r"""All numbers of a parametrisation: instances by the flow at g values of log t, and by descent at k of its steps.

    - `outcome`: of the flow, by the program in the own norm.
    - `attention` `(g,)`: the mean over the sequences of the largest attention; `smallest`: the least of these at the
      end.
    - `distance` `(2, g)`: 1 − corr of the combined weights with the solutions of (Att-SVM) and (Att-SVM*) of the tokens
      that the flow selects; `excess` `(2, g)`: of their norm at equal margin over the optimum; `gap` `(2,)`: the
      duality gaps of the solutions.
    - `descent_log_time`, `descent_attention` `(k,)`, `descent_distance` `(2, k)`: of descent; `agrees`: it selects the
      tokens of the flow.
    """
    kind, size = cell
    run = _programs(kind, size, len(keys))
    flow = _to_numpy(run["flow"](keys))
    steps, selection = _to_numpy(run["descent"](keys))
    programs = [_to_numpy(run[norm](keys, jnp.asarray(flow.selection))) for norm in NORMS]
    own, way = NORMS.index(OWN[kind]), flow.way
    drawn = partial(on_grid, np.geomspace(1.0, size.until(kind), size.grid), way.log_time)
    above = [excess(norm, way.weights, way.margin, one.optimum) for norm, one in zip(NORMS, programs, strict=True)]
    return Table(
        outcome=outcomes(flow, programs, own),
        attention=drawn(way.attention),
        smallest=flow.smallest,
        distance=np.stack([drawn(decorrelation(way.weights, one.solution)) for one in programs], axis=1),
        excess=np.stack([drawn(one) for one in above], axis=1),
        gap=np.stack([one.gap for one in programs], axis=1),
        descent_log_time=steps.log_time,
        descent_attention=steps.attention,
        descent_distance=np.stack([decorrelation(steps.weights, one.solution) for one in programs], axis=1),
        agrees=np.all(selection == flow.selection, axis=(1, 2)),
    )


def _to_numpy(tree: Any) -> Any:
    return jax.tree.map(np.asarray, tree)


def outcomes(flow: Table, programs: list[Table], own: int) -> np.ndarray:
    """One `Outcome` for each instance, of the program in the parametrisation's own norm; later lines prevail."""
    outcome = np.full(len(flow.settled), int(Outcome.undecided), np.uint8)
    for found, meaning in (
        (SelectionStatus.global_, Outcome.globally_optimal),
        (SelectionStatus.local, Outcome.locally_optimal),
        (SelectionStatus.not_local, Outcome.not_locally_optimal),
        (SelectionStatus.ambiguous, Outcome.ambiguous),
    ):
        outcome[flow.settled & (programs[own].status == found)] = meaning
    outcome[flow.settled & ~np.all([one.solved for one in programs], axis=0)] = Outcome.failed
    # Both programs have the same constraints.
    outcome[flow.settled & programs[0].infeasible] = Outcome.infeasible_program
    outcome[flow.spent] = Outcome.undecided
    outcome[flow.stationary] = Outcome.finite_stationary_point
    outcome[~flow.good & ~flow.spent] = Outcome.failed
    return outcome


def decorrelation(weights: np.ndarray, target: np.ndarray) -> np.ndarray:
    """`misalignment` of the points of each path `(b, p, d, d)` with one matrix for each, `(b, d, d)`."""
    return np.asarray(jax.vmap(jax.vmap(misalignment, (0, None)))(jnp.asarray(weights), jnp.asarray(target)))


def excess(norm: str, weights: np.ndarray, margin: np.ndarray, optimum: np.ndarray) -> np.ndarray:
    r"""$N(W)/(\mu\,\mathrm{opt})-1$, which does not care whether the program's solution is unique.

    +inf before every selected token leads, and where the program has no solution.
    """
    size = np.linalg.norm(weights, ord="nuc" if norm == "nuclear" else "fro", axis=(-2, -1))
    scale = margin * optimum[:, None]
    usable = (margin > 0) & np.isfinite(scale)
    return np.where(usable, size / np.where(usable, scale, 1.0) - 1.0, np.inf)


def on_grid(grid: np.ndarray, log_time: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Each row, known at its own log times, at those of the grid: linear between logarithms."""
    rows = []
    for times, row in zip(log_time, values, strict=True):
        later = np.maximum.accumulate(times)
        # The bounds stand for zero and infinity, of which no interpolation is possible.
        rows.append(np.exp(np.interp(grid, later, np.log(np.clip(row, 1e-300, 1e300)))))
    return np.stack(rows)


def _axes(scale: str, key: Any, say: Callable[[str], None]) -> Table:
    """n, T and d, `shape` `(3,)`, and of both parametrisations the values of `log_time` `(2, g)`."""
    size = SIZES[scale]
    times = [np.geomspace(1.0, size.until(kind), size.grid) for kind in NAMES]
    return Table(shape=np.array([size.n, size.T, size.d]), log_time=np.stack(times))


FIGURE7 = Dataset(
    "tarzanagh2023",
    "fig7",
    {"axes": Sweep(_axes)}
    | {
        kind: Part(
            compute,
            lambda scale, kind=kind: {kind: (kind, SIZES[scale])},
            lambda scale: SIZES[scale].trials,
            block=BATCH,
            draw_from=lambda seed, cell: jax.random.fold_in(jax.random.key(seed), 7),
            way="as a block",
        )
        for kind in NAMES
    },
    where=f"{__name__}:FIGURE7",
)
