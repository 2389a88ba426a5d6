"""`reproduce tarzanagh2023 fig10`: alignment of K Qᵀ with (Att-SVM*) against the number of columns m."""

from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxflow._core import linalg
from jaxflow.data import random_tokens
from jaxflow.flow import Weights
from jaxflow.losses import Logistic
from jaxflow.margin import attention_svm, solve
from jaxflow.models import FactoredAttention
from jaxflow.papers.drawing import dress, row_means
from jaxflow.papers.experiment import Dataset, Part, Rate, Table, common_rate, constants, register
from jaxflow.papers.statement import BELOW_ZERO, Mask, Statement
from jaxflow.papers.tarzanagh2023.programs import misalignment, solved, top_tokens
from jaxflow.papers.tarzanagh2023.protocol import ALIGNED, WAYS, explicit_flows, figure_key, published_descent
from jaxflow.papers.tarzanagh2023.shapes import panels_by_shape, varied
from jaxflow.risk import EmpiricalRisk

SHAPES = ((5, 5), (5, 10), (5, 15), (10, 5), (15, 5))
# `trials` instances for each (n, T) of `shapes`; every m of `columns` meets the same ones. `length`: of the flow's
# path; `steps`: of the published descent.
SIZE = Table(trials=50, shapes=SHAPES, columns=(1, 2, 3, 4, 5, 6, 7, 8, 9, 10), d=20, length=60.0, steps=2000)
SIZES = {
    "quick": SIZE.replace(trials=6, shapes=((5, 5), (5, 10), (10, 5)), columns=(1, 2, 4, 10), length=30.0),
    "paper": SIZE,
    "large": SIZE.replace(trials=1000),
}


def runs_of(numbers: Table, way: str) -> Table:
    """By flow or descent, for each (n, T) and m `(s, k, b)`."""
    return getattr(numbers, way).split(len(numbers.grid.shapes), len(numbers.grid.columns))


def feasible(runs: Table) -> Mask:
    """The program has a solution."""
    return runs.rank >= 0


def usable(runs: Table) -> Mask:
    """Attention settled on one token a sequence and the program has a solution."""
    return runs.settled & feasible(runs)


Cell = tuple[Table, int, int, int]


def compute(run: Callable[..., Table], keys: Array, cell: Cell) -> Table:
    r"""Where flow or descent ends for one (n, T) and m.

    - `misalignment`: $1-\mathrm{corr}(W^{mm}_{\star,\alpha},KQ^\top)$; `floor`: the least that m columns allow.
    - `rank` of $W^{mm}_\star$, −1 without a solution.
    - `settled`: attention is on one token a sequence; `log_time`.
    - `halfway`, `halfway_log_time`: misalignment and log t at half of the flow's length; NaN of descent.
    """
    size, n, T, m = cell
    return run(size, *_start(size, n, T, keys, jnp.asarray(m)))


@partial(jax.jit, static_argnums=(0, 1, 2))
def _start(size: Table, n: int, T: int, keys: Any, m: Any) -> Any:
    """Columns beyond m are zero in K and in Q: they stay so, and one compiled program serves every m."""

    def one(key: Any) -> Any:
        key_data, key_model = jax.random.split(key)
        data, head = random_tokens(key_data, n, T, size.d)
        model = FactoredAttention.init(key_model, data, head, m=max(size.columns))
        used = (jnp.arange(max(size.columns)) < m)[None]
        K, Q = (jnp.where(used, factor, 0.0) for factor in (model.K, model.Q))
        return EmpiricalRisk(data, Logistic()), FactoredAttention(K, Q, model.head)

    return jax.vmap(one)(keys)


@eqx.filter_jit
def _flow(size: Table, risks: Any, models: Any) -> Table:
    # Explicit steps cost about the square of the length: this many are enough for a length of 60.
    halfway = jnp.asarray([0.5 * size.length])
    paths = explicit_flows(risks, models, halfway, size.length, Weights(), rtol=1e-5, atol=1e-7, steps=20_000)
    return eqx.filter_vmap(_measure)(risks, paths)


@eqx.filter_jit
def _descent(size: Table, risks: Any, models: Any) -> Table:
    paths = eqx.filter_vmap(lambda risk, model: published_descent(risk, model, steps=size.steps))(risks, models)
    return eqx.filter_vmap(_measure)(risks, paths)


def _measure(risk: Any, trajectory: Any) -> Table:
    model, data = trajectory.final.model, risk.data
    selection, settled = top_tokens(model.attention(data))
    solution: Any = solve(attention_svm(data, selection, "nuclear"))
    known = solved(solution.result.value)
    reference = jnp.where(known, solution.primal, 0.0)
    values = linalg.singular_values(reference)
    rank = jnp.sum(values > 1e-8 * jnp.maximum(values[0], 1e-300))
    m = jnp.sum(jnp.any(model.K != 0, axis=0))
    kept = jnp.sum(jnp.where(jnp.arange(values.shape[0]) < m, values, 0.0) ** 2) / jnp.sum(values**2)

    def left(point: Any) -> Any:
        return jnp.where(known, misalignment(point.model.combined_weights(), reference), jnp.nan)

    halfway = halfway_log_time = jnp.asarray(jnp.nan)
    if trajectory.saved is not None:
        point = jax.tree.map(lambda x: x[0] if eqx.is_array(x) else x, trajectory.saved)
        halfway, halfway_log_time = left(point), point.log_time
    return Table(
        halfway=halfway,
        halfway_log_time=halfway_log_time,
        misalignment=left(trajectory.final),
        floor=jnp.where(known, 1.0 - jnp.sqrt(kept), jnp.nan),
        rank=jnp.where(known, rank, -1),
        settled=settled,
        log_time=trajectory.final.log_time,
    )


# `grid`: the pairs (n, T), `shapes` `(s, 2)`, and the numbers m of `columns` `(k,)`.
FIGURE10 = Dataset(
    "tarzanagh2023",
    "fig10",
    {"grid": constants(SIZES, "shapes", "columns")}
    | {
        way: Part(
            partial(compute, run),
            lambda scale: {
                f"n = {n}, T = {T}, m = {m}": (SIZES[scale], n, T, m)
                for n, T in SIZES[scale].shapes
                for m in SIZES[scale].columns
            },
            lambda scale: SIZES[scale].trials,
            block=50,
            draw_from=lambda seed, cell: jax.random.fold_in(figure_key(10)(seed), 100 * cell[1] + cell[2]),
            way="as a block",
        )
        for way, run in (("flow", _flow), ("descent", _descent))
    },
)

# Rounding of a difference of numbers of order one.
ROUNDING = 1e-9


def _with_columns(numbers: Table, way: str, enough: bool) -> Mask:
    """The runs with enough columns for the rank of the program's solution, or too few."""
    runs = runs_of(numbers, way)
    return feasible(runs) & ((numbers.grid.columns[None, :, None] >= runs.rank) == enough)


def _enough(way: str) -> Statement[Table]:
    def rate(numbers: Table, known: Mask) -> Rate | None:
        runs, at = runs_of(numbers, way), known
        change = runs.log_time[at] / runs.halfway_log_time[at]
        rates = np.log(runs.halfway[at] / runs.misalignment[at]) / np.log(change)
        return common_rate(rates, None, law="1 − corr against log t")

    return Statement(
        source="App. F, Figure 10",
        says="W converges directionally towards W*mm as long as m is at least about n (here: m >= rank W*mm).",
        inside=lambda n: _with_columns(n, way, True),
        residual=lambda n: of_usable(runs_of(n, way), runs_of(n, way).misalignment),
        bound=(ALIGNED, "1 − corr"),
        # Those that are not there may be late: at a finite length they decide nothing, unless they point away.
        late=1.0,
        # The flow is exact, and slow: at any finite length it has to be on its way. Descent stops, and is where it is.
        rate=rate if way == "flow" else None,
    )


def of_usable(runs: Table, values: np.ndarray) -> np.ndarray:
    """NaN of the other runs."""
    return np.where(usable(runs), values, np.nan)


def _floor(way: str) -> Statement[Table]:
    return Statement(
        source="App. F, Figure 10 (what rank m allows)",
        says="With fewer columns than rank W*mm, K Q^T cannot align with W*mm.",
        inside=lambda n: _with_columns(n, way, False),
        residual=lambda n: of_usable(runs_of(n, way), runs_of(n, way).floor - runs_of(n, way).misalignment),
        bound=ROUNDING,
    )


def _compared(numbers: Table, way: str, which: int) -> tuple[np.ndarray, np.ndarray]:
    """By how much the mean misalignment at the largest n (0) or T (1) is above that at the smallest one, the other of
    both as in the first shape, for each m below all n compared; and the standard errors. NaN without two means."""
    grid, runs = numbers.grid, runs_of(numbers, way)
    rows = varied(grid.shapes, which)
    columns = np.flatnonzero(grid.columns < grid.shapes[rows, 0].min())
    pairs = [[_mean(runs, row, column) for row in (rows[0], rows[-1])] for column in columns]
    small, large = np.moveaxis(np.asarray(pairs).reshape(-1, 2, 2), 1, 0)
    change = large[:, 0] - small[:, 0]
    return np.where(len(rows) > 1, change, np.nan), np.maximum(np.hypot(small[:, 1], large[:, 1]), 1e-12)


def _more_n(way: str) -> Statement[Table]:
    def judged(numbers: Table) -> np.ndarray:
        change, error = _compared(numbers, way, 0)
        # Within two it may be the draw of the instances.
        return np.where(change > 2 * error, 0.0, np.where(change < -2 * error, 1.0, np.nan))

    return Statement(
        source="App. F, Figure 10 (lower)",
        says="A larger n necessitates a larger m for K Q^T to accurately converge to the SVM solution.",
        inside=lambda n: np.isfinite(_compared(n, way, 0)[0]),
        residual=judged,
    )


def _any_T(way: str) -> Statement[Table]:
    def beyond(numbers: Table) -> np.ndarray:
        """By how much more the mean changes with T than with n, where it is not the draw of the instances."""
        (by_T, error), (by_n, other) = (_compared(numbers, way, which) for which in (1, 0))
        more = np.abs(by_T) - np.abs(by_n)
        return np.where(np.abs(more) > 2 * np.hypot(error, other), more, np.nan)

    return Statement(
        source="App. F, Figure 10 (upper)",
        says="Performances remain consistent across varying T (at equal m < n they differ by less than across n).",
        inside=lambda n: np.isfinite(_compared(n, way, 1)[0] + _compared(n, way, 0)[0]),
        residual=beyond,
        bound=(BELOW_ZERO, "difference of mean 1 − corr by T, minus that by n"),
    )


def _mean(runs: Table, row: int, column: Any) -> tuple[float, float]:
    """Mean and its standard error over the usable runs."""
    values = runs.misalignment[row, column][usable(runs)[row, column]]
    if not len(values):
        return np.nan, np.nan
    return float(values.mean()), float(values.std() / np.sqrt(len(values)))


def _notes_of(runs: Table, name: str) -> str:
    ranks = runs.rank[feasible(runs)]
    counts = ", ".join(f"{n} of rank {r}" for r, n in zip(*np.unique(ranks, return_counts=True), strict=True))
    return (
        f"{name}: {int(runs.settled.sum())} of {runs.rank.size} runs settled on one token a sequence; solutions of "
        f"(Att-SVM*): {counts}."
    )


def draw_columns(numbers: Table) -> Any:
    r"""Mean of $1-\mathrm{corr}(W^{mm}_{\star,\alpha},KQ^\top)$ against m: flow solid, descent dashed, floor dotted.

    α are the tokens selected at the end of the run, and $W^{mm}_{\star,\alpha}$ solves (Att-SVM*) for them with
    m = d. Upper panel: n = 5, T in {5, 10, 15}; lower: T = 5, n in {5, 10, 15}. The paper names m from 1 to 10.
    A matrix of rank m correlates with $W^{mm}_\star$ at most by
    $(\sum_{i\le m}\sigma_i^2/\sum_i\sigma_i^2)^{1/2}$, which is drawn as a floor.
    """
    columns, flow = numbers.grid.columns, runs_of(numbers, "flow")
    figure, panels = panels_by_shape(numbers.grid.shapes, "Tn")
    for axis, title, curves in panels:
        for row, color, shape in curves:
            for way, line in (("flow", "-o"), ("descent", "--s")):
                runs = runs_of(numbers, way)
                mean = row_means(runs.misalignment[row], usable(runs)[row])
                axis.plot(columns, mean, line, color=color, markersize=4, label=f"{way}, {shape}")
            floor = np.maximum(row_means(flow.floor[row], usable(flow)[row]), 1e-16)
            axis.plot(columns, floor, ":", color=color, linewidth=1)
        more = {"ylim": (1e-4, None), "xticks": columns}
        dress(axis, title + "; dotted: what rank m allows", "$m$", log="y", legend=8, **more)
    panels[0][0].set_ylabel(r"$1-\mathrm{corr}(W^{mm}_{\star,\alpha},\,KQ^\top)$")
    return figure


register(
    FIGURE10,
    title="Alignment of K Q^T with (Att-SVM*) against the number m of columns of K and Q",
    statements=[statement(way) for way in WAYS for statement in (_enough, _floor, _more_n, _any_T)],
    notes=lambda n: [_notes_of(runs_of(n, way), name) for way, name in WAYS.items()],
    draw=draw_columns,
)
