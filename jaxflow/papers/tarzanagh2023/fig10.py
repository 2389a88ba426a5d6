"""`reproduce tarzanagh2023 fig10`: alignment of K Qᵀ with (Att-SVM*) against the number of columns m."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from jaxflow._core import good, linalg
from jaxflow.data import random_tokens
from jaxflow.flow import ArcLength, Drive, StationaryPoint, Weights, run_queue
from jaxflow.flow.solvers import state_norm
from jaxflow.gradient_descent import descend, published_protocol
from jaxflow.losses import Logistic
from jaxflow.margin import ProgramResult, attention_svm, is_locally_optimal, solve
from jaxflow.models import FactoredAttention
from jaxflow.papers.dataset import Dataset, Sweep
from jaxflow.papers.registry import register
from jaxflow.papers.statement import Mask, Statement, median
from jaxflow.plots import CURVES, new_figure
from jaxflow.report import common_rate
from jaxflow.risk import EmpiricalRisk

NAMES = {"flow": "the flow", "descent": "the published descent"}

# Every sequence gives its top token all but this: attention has settled.
SETTLED = 1e-3
# Where descent stops, factors are still on their way (their gap falls like a power of log t): this is aligned.
ALIGNED = 0.05
# Rounding of a difference of numbers of order one.
ROUNDING = 1e-9
# ‖∇L‖/Σ|p| below this is a finite stationary point (saturated ends of unit-sphere instances have 1e-2 to 1).
STATIONARY = 1e-6


class Size(NamedTuple):
    """Instances of one scale: `trials` for each (n, T) of `shapes`; every m of `columns` meets the same ones.

    `length`: of the flow's path; `steps`: of the published descent.
    """

    trials: int
    shapes: tuple[tuple[int, int], ...] = ((5, 5), (5, 10), (5, 15), (10, 5), (15, 5))
    columns: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 8, 10)
    d: int = 20
    length: float = 60.0
    steps: int = 2000


SIZES = {
    "quick": Size(6, shapes=((5, 5), (10, 5)), columns=(1, 2, 4, 10), length=30.0),
    "paper": Size(50, columns=(1, 2, 3, 4, 5, 6, 7, 8, 9, 10)),
    "large": Size(1000, columns=(1, 2, 3, 4, 5, 6, 7, 8, 9, 10)),
}


class Grid(NamedTuple):
    """The pairs (n, T), the numbers m of columns, and d."""

    shapes: Int[Any, "s 2"]
    columns: Int[Any, " k"]
    d: Int[Any, ""]


class Runs(NamedTuple):
    r"""Where runs end, with b instances for each (n, T) and m.

    - `misalignment`: $1-\mathrm{corr}(W^{mm}_{\star,\alpha},KQ^\top)$; `floor`: the least that m columns allow.
    - `rank` of $W^{mm}_\star$, −1 without a solution; `result`: of its program (`ProgramResult`).
    - `settled`: attention is on one token a sequence; `good`: of the run; `status`: of the selection.
    - `halfway`, `halfway_log_time`: misalignment and log t at half of the flow's length; NaN of descent.
    """

    misalignment: Float[Any, "s k b"]
    floor: Float[Any, "s k b"]
    rank: Int[Any, "s k b"]
    result: Int[Any, "s k b"]
    settled: Bool[Any, "s k b"]
    good: Bool[Any, "s k b"]
    status: Int[Any, "s k b"]
    log_time: Float[Any, "s k b"]
    halfway: Float[Any, "s k b"]
    halfway_log_time: Float[Any, "s k b"]

    @property
    def feasible(self) -> Mask:
        return self.rank >= 0

    @property
    def usable(self) -> Mask:
        """Attention settled on one token a sequence and the program has a solution."""
        return self.settled & self.feasible


class ColumnNumbers(NamedTuple):
    """The same instances for every m, both ways."""

    grid: Grid
    flow: Runs
    descent: Runs

    def runs(self, way: str) -> Runs:
        return getattr(self, way)

    @property
    def m(self) -> np.ndarray:
        return self.grid.columns[None, :, None]


def _grid(scale: str, key: Any, say: Callable[[str], None]) -> Grid:
    size = SIZES[scale]
    return Grid(np.asarray(size.shapes), np.asarray(size.columns), np.asarray(size.d))


def compute(way: str, scale: str, key: Any, say: Callable[[str], None]) -> Runs:
    """Flow or descent for every (n, T) and m."""
    size, run, table = SIZES[scale], {"flow": _flow, "descent": _descent}[way], []
    for n, T in size.shapes:
        say(f"{NAMES[way]}, n = {n}, T = {T}, d = {size.d}: {size.trials} instances for each m of {size.columns}")
        keys = jax.random.split(jax.random.fold_in(key, 100 * n + T), size.trials)
        table.append([run(size, *_start(size, n, T, keys, jnp.asarray(m))) for m in size.columns])
    return Runs(*(np.asarray([[one[name] for one in row] for row in table]) for name in Runs._fields))


@partial(jax.jit, static_argnums=(0, 1, 2))
def _start(size: Size, n: int, T: int, keys: Any, m: Any) -> Any:
    """Columns beyond m are zero in K and in Q: they stay so, and one compiled program serves every m."""

    def one(key: Any) -> Any:
        key_data, key_model = jax.random.split(key)
        data, head = random_tokens(key_data, n, T, size.d)
        model = FactoredAttention.init(key_model, data, head, m=max(size.columns))
        used = jnp.arange(max(size.columns)) < m
        model = eqx.tree_at(
            lambda x: (x.K, x.Q), model, (jnp.where(used[None], model.K, 0.0), jnp.where(used[None], model.Q, 0.0))
        )
        return EmpiricalRisk(data, Logistic()), model

    return jax.vmap(one)(keys)


@eqx.filter_jit
def _flow(size: Size, risks: Any, models: Any) -> dict[str, Any]:
    controller = diffrax.PIDController(rtol=1e-5, atol=1e-7, norm=state_norm)
    # Explicit steps cost about the square of the length: this many are enough for a length of 60.
    drive = Drive(diffrax.Tsit5(), controller, StationaryPoint(STATIONARY), 20_000)

    def start(risk: Any, model: Any) -> Any:
        how: Any = {"clock": ArcLength(floor=0.03), "coordinates": Weights(), "until": size.length}
        return drive.start(risk, model, save_at=jnp.asarray([0.5 * size.length]), **how)

    lanes = run_queue(drive, eqx.filter_vmap(start)(risks, models), width=16)
    return eqx.filter_vmap(_measure)(risks, eqx.filter_vmap(drive.trajectory)(lanes))


@eqx.filter_jit
def _descent(size: Size, risks: Any, models: Any) -> dict[str, Any]:
    def one(risk: Any, model: Any) -> dict[str, Any]:
        protocol = {**published_protocol(model), "steps": size.steps}
        return _measure(risk, descend(risk, model, throw=False, **protocol))

    return eqx.filter_vmap(one)(risks, models)


def _measure(risk: Any, trajectory: Any) -> dict[str, Any]:
    model, data = trajectory.final.model, risk.data
    attention = model.attention(data)
    top = jnp.max(attention, axis=-1, keepdims=True)
    selection = jax.nn.one_hot(jnp.argmax(attention, axis=-1), attention.shape[-1], dtype=bool)
    solution: Any = solve(attention_svm(data, selection, "nuclear"))
    solved = solution.result == ProgramResult.optimal
    reference = jnp.where(solved, solution.primal, 0.0)
    values = linalg.singular_values(reference)
    rank = jnp.sum(values > 1e-8 * jnp.maximum(values[0], 1e-300))
    m = jnp.sum(jnp.any(model.K != 0, axis=0))
    kept = jnp.sum(jnp.where(jnp.arange(values.shape[0]) < m, values, 0.0) ** 2) / jnp.sum(values**2)

    def misalignment(point: Any) -> Any:
        weights = point.model.combined_weights()
        cosine = jnp.sum(weights * reference) / (jnp.linalg.norm(weights) * jnp.linalg.norm(reference))
        return jnp.where(solved, 1.0 - cosine, jnp.nan)

    halfway = halfway_log_time = jnp.nan
    if trajectory.saved is not None:
        point = jax.tree.map(lambda x: x[0] if eqx.is_array(x) else x, trajectory.saved)
        halfway, halfway_log_time = misalignment(point), point.log_time
    return {
        "halfway": halfway,
        "halfway_log_time": halfway_log_time,
        "misalignment": misalignment(trajectory.final),
        "floor": jnp.where(solved, 1.0 - jnp.sqrt(kept), jnp.nan),
        "rank": jnp.where(solved, rank, -1),
        "result": solution.result.value,
        "settled": jnp.all(top >= 1.0 - SETTLED),
        "good": good(trajectory.result),
        "status": is_locally_optimal(data, model.head, selection, solution).status.value,
        "log_time": trajectory.final.log_time,
    }


FIGURE10 = Dataset(
    "tarzanagh2023",
    "fig10",
    ColumnNumbers,
    {"grid": Sweep(Grid, _grid)}
    | {
        way: Sweep(Runs, partial(compute, way), lambda seed: jax.random.fold_in(jax.random.key(seed), 10))
        for way in NAMES
    },
    where=f"{__name__}:FIGURE10",
)


def _enough(way: str) -> Statement[ColumnNumbers]:
    def near(numbers: ColumnNumbers) -> Mask:
        runs = numbers.runs(way)
        aligned = runs.usable & (runs.misalignment <= ALIGNED)
        # The flow is exact, and slow: at any finite length it has to be on its way.
        return aligned & (runs.misalignment < runs.halfway) if way == "flow" else aligned

    def kept(numbers: ColumnNumbers) -> Mask:
        runs = numbers.runs(way)
        return runs.usable & (numbers.m >= runs.rank)

    def rates(numbers: ColumnNumbers) -> np.ndarray:
        runs, at = numbers.runs(way), kept(numbers)
        change = runs.log_time[at] / runs.halfway_log_time[at]
        return np.log(runs.halfway[at] / runs.misalignment[at]) / np.log(change)

    def in_words(numbers: ColumnNumbers, known: Mask) -> str:
        runs, at = numbers.runs(way), kept(numbers)
        values = runs.misalignment[at]
        worst = float(values.max()) if len(values) else np.nan
        text = (
            f"{NAMES[way]}: 1 - corr median {median(values):.1e}, largest {worst:.1e} on {len(values)} runs with m >= "
        )
        text += "rank"
        if way == "flow":
            text += (
                f"; it fell over the second half of the path on {int(np.sum(values < runs.halfway[at]))}, like "
                f"(log t)^-{median(rates(numbers)):.2f} (median)"
            )
        return f"{text}; at most {ALIGNED} on {int((at & near(numbers)).sum())}"

    return Statement(
        source="App. F, Figure 10",
        says="W converges directionally towards W*mm as long as m is at least about n (here: m >= rank W*mm).",
        inside=lambda n: n.runs(way).feasible & (n.m >= n.runs(way).rank),
        # Those that are not there may be late: at a finite length they decide nothing.
        residual=lambda n: np.where(near(n), 0.0, np.nan),
        found=in_words,
        limit=True,
        rate=lambda n, known: common_rate(rates(n), None, law="1 − corr against log t") if way == "flow" else None,
    )


def _floor(way: str) -> Statement[ColumnNumbers]:
    def nearer(numbers: ColumnNumbers) -> np.ndarray:
        runs = numbers.runs(way)
        return np.where(runs.usable, runs.floor - runs.misalignment, np.nan)

    def in_words(numbers: ColumnNumbers, known: Mask) -> str:
        below = nearer(numbers)[known]
        return (
            f"{NAMES[way]}: {int(np.sum(below > ROUNDING))} of {len(below)} runs are nearer than any matrix of rank m; "
            f"median distance above that floor {median(-below):.1e}"
        )

    return Statement(
        source="App. F, Figure 10 (what rank m allows)",
        says="With fewer columns than rank W*mm, K Q^T cannot align with W*mm.",
        inside=lambda n: n.runs(way).feasible & (n.m < n.runs(way).rank),
        residual=nearer,
        bound=ROUNDING,
        found=in_words,
    )


def _more_n(way: str) -> Statement[ColumnNumbers]:
    """Mean misalignment at equal m, for the smallest and the largest n at equal T, where m is below both ranks."""

    def compared(numbers: ColumnNumbers) -> tuple[int, int, np.ndarray]:
        """The two n, and for each m the difference in standard errors of the difference of the means."""
        grid, runs = numbers.grid, numbers.runs(way)
        rows = [i for i, (_, T) in enumerate(grid.shapes) if T == grid.shapes[0][1]]
        rows = [min(rows, key=lambda i: grid.shapes[i][0]), max(rows, key=lambda i: grid.shapes[i][0])]
        small, large = (int(grid.shapes[row][0]) for row in rows)
        pairs = [[_mean(runs, row, column) for row in rows] for column in np.flatnonzero(grid.columns < small)]
        pairs = [pair for pair in pairs if all(np.isfinite(mean) for mean, _ in pair)]
        return small, large, np.array([(b[0] - a[0]) / max(np.hypot(a[1], b[1]), 1e-12) for a, b in pairs])

    def judged(numbers: ColumnNumbers) -> np.ndarray:
        differences = compared(numbers)[2]
        # Within two it may be the draw of the instances.
        return np.where(differences > 2, 0.0, np.where(differences < -2, 1.0, np.nan))

    def judgeable(numbers: ColumnNumbers) -> Mask:
        small, large, differences = compared(numbers)
        return np.full(len(differences), large > small)

    def in_words(numbers: ColumnNumbers, known: Mask) -> str:
        small, large, differences = compared(numbers)
        more, less = (int(np.sum(differences * sign > 2)) for sign in (1, -1))
        return (
            f"{NAMES[way]}: mean 1 - corr at equal m < {small} for n = {large} against n = {small}: larger at {more} "
            f"and smaller at {less} of {len(differences)} values of m by more than two standard errors"
        )

    return Statement(
        source="App. F, Figure 10 (lower)",
        says="A larger n necessitates a larger m for K Q^T to accurately converge to the SVM solution.",
        inside=judgeable,
        residual=judged,
        found=in_words,
    )


def _mean(runs: Runs, row: int, column: Any) -> tuple[float, float]:
    """Mean and its standard error over the usable runs."""
    values = runs.misalignment[row, column][runs.usable[row, column]]
    if not len(values):
        return np.nan, np.nan
    return float(values.mean()), float(values.std() / np.sqrt(len(values)))


def _notes(numbers: ColumnNumbers) -> list[str]:
    return [note for way in NAMES for note in _notes_of(numbers.runs(way), NAMES[way])]


def _notes_of(runs: Runs, name: str) -> list[str]:
    ranks = runs.rank[runs.feasible]
    counts = ", ".join(f"{n} of rank {r}" for r, n in zip(*np.unique(ranks, return_counts=True), strict=True))
    return [
        f"{name}: {runs.rank.size} runs, {int(runs.settled.sum())} settled on one token a sequence, {len(ranks)} with "
        f"a solution of (Att-SVM*) to a gap of 1e-10, {int(runs.usable.sum())} with both; the means are over these. At "
        f"log t = {median(runs.log_time[runs.usable]):.3g} (median).",
        f"{name}: solutions of (Att-SVM*): {counts}. Where no difference is beyond two standard errors there "
        "are too few instances to tell, and the claim is not settled.",
    ]


def draw_columns(numbers: ColumnNumbers) -> Any:
    r"""Mean of $1-\mathrm{corr}(W^{mm}_{\star,\alpha},KQ^\top)$ against m: flow solid, descent dashed, floor dotted.

    α are the tokens selected at the end of the run, and $W^{mm}_{\star,\alpha}$ solves (Att-SVM*) for them with
    m = d. Upper panel: n = 5, T in {5, 10, 15}; lower: T = 5, n in {5, 10, 15}. The paper names m from 1 to 10.
    A matrix of rank m correlates with $W^{mm}_\star$ at most by
    $(\sum_{i\le m}\sigma_i^2/\sum_i\sigma_i^2)^{1/2}$, which is drawn as a floor.
    """
    shapes, columns = numbers.grid.shapes, numbers.grid.columns
    fixed_n, fixed_T = shapes[0]
    panels = [
        ([i for i, (n, _) in enumerate(shapes) if n == fixed_n], "T", 1, rf"(a) $n={fixed_n}$"),
        ([i for i, (_, T) in enumerate(shapes) if T == fixed_T], "n", 0, rf"(b) $T={fixed_T}$"),
    ]
    panels = [panel for panel in panels if len(panel[0]) > 1] or panels[:1]
    figure, axes = new_figure(len(panels), width=5.2 * len(panels), height=4.0, shared=True)
    for axis, (rows, varied, index, title) in zip(axes, panels, strict=True):
        for color, row in zip(CURVES, rows, strict=False):
            value = shapes[row][index]
            for way, line in (("flow", "-o"), ("descent", "--s")):
                mean = _drawn(numbers.runs(way), "misalignment", row)
                axis.plot(columns, mean, line, color=color, markersize=4, label=rf"{way}, ${varied}={value}$")
            axis.plot(columns, np.maximum(_drawn(numbers.flow, "floor", row), 1e-16), ":", color=color, linewidth=1)
        axis.set_yscale("log")
        axis.set_ylim(bottom=1e-4)
        axis.set_xlabel(r"$m$")
        axis.set_xticks(columns)
        axis.set_title(title + "; dotted: what rank m allows", fontsize=10)
        axis.legend(frameon=False, fontsize=8)
    axes[0].set_ylabel(r"$1-\mathrm{corr}(W^{mm}_{\star,\alpha},\,KQ^\top)$")
    return figure


def _drawn(runs: Runs, field: str, row: int) -> np.ndarray:
    """Means over the usable runs of a row; NaN where there is none."""
    kept = runs.usable[row]
    count = kept.sum(axis=1)
    total = np.where(kept, getattr(runs, field)[row], 0.0).sum(axis=1)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


register(
    FIGURE10,
    "fig10",
    title="Alignment of K Q^T with (Att-SVM*) against the number m of columns of K and Q",
    run_times={
        "quick": "6 instances for each of 2 sizes and 4 values of m, about a minute",
        "paper": "50 instances for each of 5 sizes and 10 values of m, some minutes",
        "large": "1,000 instances for each of 5 sizes and 10 values of m, hours on two cores",
    },
    statements=[statement(way) for way in NAMES for statement in (_enough, _floor, _more_n)],
    notes=_notes,
    draw=draw_columns,
)
