"""Figure 7's runs: W and (K, Q) by the flow and by the published descent, held against both programs."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key

from jaxflow._core import RESULTS, Outcome, SelectionStatus, good, linalg
from jaxflow.data import random_tokens
from jaxflow.flow import ArcLength, Budget, LogArcLength, Scores, StationaryPoint, Weights, integrate
from jaxflow.losses import Logistic
from jaxflow.margin import ProgramResult, attention_svm, is_locally_optimal, solve
from jaxflow.models import CombinedAttention, FactoredAttention
from jaxflow.papers.compiling import compile_together
from jaxflow.papers.experiment import Dataset, Mask, Part, Sweep, Table
from jaxflow.papers.tarzanagh2023.programs import NAMES, OWN, PROGRAMS, misalignment
from jaxflow.papers.tarzanagh2023.protocol import FLOOR, SETTLED, STATIONARY, figure_key, published_descent
from jaxflow.risk import EmpiricalRisk
from jaxflow.trajectory import Point

MODELS: dict[str, Any] = {"combined": CombinedAttention, "factored": FactoredAttention}


# How much is computed: `trials` instances, (K, Q) to log t = `reach`, W, by implicit steps that cost nothing more, to
# log t = `far`, where 1 − corr, which falls like 1/(log t)², is past ten digits; `grid` points are drawn, `saves`
# computed. `fast`: compile for a run that is shorter than its compilation.
SIZE = Table(
    trials=100,
    reach=3e3,
    far=1e6,
    n=6,
    T=8,
    d=10,
    steps=2000,
    grid=81,
    saves=97,
    max_steps=30_000,
    fast=False,
)
SIZES = {
    "quick": SIZE.replace(trials=8, reach=1e3, fast=True),
    "paper": SIZE,
    "large": SIZE.replace(trials=1000, reach=1e4),
}


def until(kind: str, size: Table) -> float:
    """The last log t of one parametrisation."""
    return size.far if kind == "combined" else size.reach


def _instance(kind: str, size: Table, key: Key[Array, ""]) -> tuple[EmpiricalRisk, Any]:
    """W and (K, Q) see the same data: the data's key does not depend on the parametrisation."""
    key_data, key_model = jax.random.split(key)
    data, head = random_tokens(key_data, size.n, size.T, size.d)
    return EmpiricalRisk(data, Logistic()), MODELS[kind].init(key_model, data, head)


def _measure(risk: EmpiricalRisk, point: Point, selection: Bool[Array, "n T"]) -> Table:
    """Combined `weights` `(d, d)`, their `margin` for a selection, the mean over the sequences of the largest
    `attention`, and `log_time`."""
    logits = point.model.logits(risk.data)
    selected, others = (jnp.max(jnp.where(of, logits, -jnp.inf), axis=-1) for of in (selection, ~selection))
    return Table(
        weights=point.model.combined_weights(),
        margin=jnp.min(selected - others),
        attention=jnp.mean(jnp.max(point.model.attention(risk.data), axis=-1)),
        log_time=point.log_time,
    )


def _top(attention: Float[Array, "n T"]) -> Bool[Array, "n T"]:
    return attention == jnp.max(attention, axis=-1, keepdims=True)


def flow_path(kind: str, size: Table, key: Key[Array, ""]) -> Table:
    """The flow at `saves` + 1 points, the last of which is its end, and how it ended.

    - `way`: columns of `_measure` at these points; `selection` `(n, T)`: the tokens of largest attention; `smallest`:
      the least of these attentions over the sequences.
    - `settled`: attention is on one token a sequence; `stationary`: the gradient vanishes.
    - `good`: the flow was followed to where it was to end; `spent`: its steps were used up.
    """
    risk, model = _instance(kind, size, key)
    stop = StationaryPoint(STATIONARY) | Budget(log_time=until(kind, size))
    # log t grows like 0.3 of the arc length of W and like 0.07 of the square of that of (K, Q). `until` is far
    # beyond: the budget on log t ends the path.
    if kind == "combined":
        # In log arc length the flow of W is stiff; an implicit method takes the decades in its stride.
        grid = jnp.linspace(np.log(0.3), np.log(100.0 * size.far), size.saves)
        how: dict[str, Any] = {
            "clock": LogArcLength(floor=FLOOR),
            "coordinates": Scores(),
            "solver": diffrax.Kvaerno5(root_finder=linalg.chord(rtol=1e-6, atol=1e-8)),
        }
    else:
        # 2d² unknowns make implicit steps dear, and explicit ones cost about one per unit of log t.
        grid = jnp.geomspace(0.3, 30.0 * np.sqrt(size.reach), size.saves)
        how = {"clock": ArcLength(floor=FLOOR), "coordinates": Weights(), "solver": diffrax.Tsit5()}
    # A hundred-thousandth of the path: what is drawn needs no more, and selections are made long before.
    controller = diffrax.PIDController(rtol=1e-5, atol=1e-7, pcoeff=0.3, icoeff=0.4)
    how |= {"controller": controller, "max_steps": size.max_steps, "throw": False}
    path = integrate(risk, model, until=grid[-1], stop=stop, save_at=grid, **how)
    final = path.final
    attention = final.model.attention(risk.data)
    top = _top(attention)
    ends = _measure(risk, final, top)
    saved = jax.vmap(lambda point: _measure(risk, point, top))(path.saved)
    # Past the end every save point repeats the end.
    reached = path.points.reached

    def joined(points: Array, end: Array) -> Array:
        mask = reached.reshape(reached.shape + (1,) * (points.ndim - 1))
        return jnp.concatenate([jnp.where(mask, points, end[None]), end[None]])

    multipliers = jnp.sum(jnp.abs(final.multipliers))  # pyright: ignore[reportArgumentType]
    return Table(
        way=jax.tree.map(joined, saved, ends),
        selection=top,
        smallest=jnp.min(jnp.max(attention, axis=-1)),
        settled=jnp.all(jnp.max(attention, axis=-1) >= 1.0 - SETTLED),
        stationary=jnp.asarray(final.log_gradient_norm - final.log_scale <= jnp.log(STATIONARY) + jnp.log(multipliers)),
        good=jnp.asarray(good(path.result)),
        spent=(path.result == RESULTS.max_steps_reached) | (path.result == RESULTS.max_steps_rejected),
    )


def descent_path(kind: str, size: Table, key: Key[Array, ""]) -> tuple[Table, Bool[Array, "n T"]]:
    """The published protocol on the same instance from the same start, at log-spaced steps; the selected tokens."""
    grid = jnp.asarray(np.unique(np.geomspace(1, size.steps, 60).astype(int)))
    risk, model = _instance(kind, size, key)
    path = published_descent(risk, model, steps=size.steps, save_at=grid)
    top = _top(path.final.model.attention(risk.data))
    return jax.vmap(lambda point: _measure(risk, point, top))(path.saved), top


def reference(norm: str, size: Table, key: Key[Array, ""], selection: Bool[Array, "n T"]) -> Table:
    """The program of the selected tokens of an instance in one norm: `solution` `(d, d)`, `optimum`,
    whether it is `solved` or `infeasible`, and what Definition 2 (or 4) says of the selection, `status`
    (`SelectionStatus`)."""
    risk, model = _instance("combined", size, key)  # the data; the start does not matter
    solution = solve(attention_svm(risk.data, selection, norm))  # pyright: ignore[reportArgumentType]
    return Table(
        solution=solution.primal,
        optimum=solution.certificate.primal_value,
        solved=jnp.asarray(solution.result == ProgramResult.optimal),
        infeasible=jnp.asarray(solution.result == ProgramResult.infeasible),
        status=is_locally_optimal(risk.data, model.head, selection, solution).status.value,  # pyright: ignore
    )


NORMS = tuple(PROGRAMS)

# Instances of a block: one takes as long as its slowest flow.
BATCH = 10


def runs_of(numbers: Table, kind: str) -> Table:
    """Of one parametrisation: columns of `compute`; the g values of `log_time`.

    `last`, `other`: 1 − corr at the end with the solution in the norm whose program it is biased to, and in the other
    norm; `above` `(g,)`: the excess in the former norm.
    """
    cells, own = getattr(numbers, kind).at(0), NORMS.index(OWN[kind])
    return Table(
        cells.named,
        log_time=numbers.axes.log_time[list(NAMES).index(kind)],
        last=cells.distance[:, own, -1],
        other=cells.distance[:, 1 - own, -1],
        above=cells.excess[:, own],
    )


def both(numbers: Table) -> list[Table]:
    """Of W and of (K, Q)."""
    return [runs_of(numbers, kind) for kind in NAMES]


def among(runs: Table, outcomes: tuple[Outcome, ...]) -> Mask:
    """The instances whose flow has one of these outcomes."""
    return np.isin(runs.outcome, outcomes)


def rates(runs: Table) -> np.ndarray:
    """By which power of 1/log t the excess in the own norm falls over the last decade of log t."""
    early = int(np.searchsorted(runs.log_time, runs.log_time[-1] / 10.0))
    fall = np.log(runs.above[:, early] / np.maximum(runs.above[:, -1], 1e-300))
    return fall / np.log(runs.log_time[-1] / runs.log_time[early])


@cache
def _programs(kind: str, size: Table, count: int) -> dict[str, Callable[..., Any]]:
    """What is computed of `count` instances, compiled."""
    keys = jax.random.split(jax.random.key(0), count)
    selections = jax.ShapeDtypeStruct((count, size.n, size.T), bool)
    jobs: dict[str, Any] = {
        "flow": (jax.vmap(partial(flow_path, kind, size)), (keys,)),
        "descent": (jax.vmap(partial(descent_path, kind, size)), (keys,)),
    }
    jobs |= {norm: (jax.vmap(partial(reference, norm, size)), (keys, selections)) for norm in NORMS}
    return dict(compile_together(jobs, fast=size.fast))


def compute(keys: Array, cell: tuple[str, Table]) -> Table:
    r"""All numbers of a parametrisation: instances by the flow at g values of log t, and by descent at k of its steps.

    - `outcome`: of the flow, by the program in the own norm.
    - `attention` `(g,)`: the mean over the sequences of the largest attention; `smallest`: the least of these at the
      end.
    - `distance` `(2, g)`: 1 − corr of the combined weights with the solutions of (Att-SVM) and (Att-SVM*) of the tokens
      that the flow selects; `excess` `(2, g)`: of their norm at equal margin over the optimum.
    - `descent_log_time`, `descent_attention` `(k,)`, `descent_distance` `(2, k)`: of descent; `agrees`: it selects the
      tokens of the flow.
    """
    kind, size = cell
    run = _programs(kind, size, len(keys))
    flow = _to_numpy(run["flow"](keys))
    steps, selection = _to_numpy(run["descent"](keys))
    programs = [_to_numpy(run[norm](keys, jnp.asarray(flow.selection))) for norm in NORMS]
    own, way = NORMS.index(OWN[kind]), flow.way
    drawn = partial(on_grid, np.geomspace(1.0, until(kind, size), size.grid), way.log_time)
    above = [excess(norm, way.weights, way.margin, one.optimum) for norm, one in zip(NORMS, programs, strict=True)]
    return Table(
        outcome=outcomes(flow, programs, own),
        attention=drawn(way.attention),
        smallest=flow.smallest,
        distance=np.stack([drawn(decorrelation(way.weights, one.solution)) for one in programs], axis=1),
        excess=np.stack([drawn(one) for one in above], axis=1),
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


def _axes(scale: str, key: Any) -> Table:
    """n, T and d, `shape` `(3,)`, and of both parametrisations the values of `log_time` `(2, g)`."""
    size = SIZES[scale]
    times = [np.geomspace(1.0, until(kind, size), size.grid) for kind in NAMES]
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
            draw_from=figure_key(7),
            way="as a block",
        )
        for kind in NAMES
    },
)
