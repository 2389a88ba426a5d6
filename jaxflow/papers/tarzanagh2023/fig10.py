"""`reproduce tarzanagh2023 fig10`: alignment of K Qᵀ with (Att-SVM*) against the number of columns m."""

from typing import Any

import numpy as np

from jaxflow.papers.drawing import dress
from jaxflow.papers.registry import register
from jaxflow.papers.statement import BELOW_ZERO, Mask, Statement
from jaxflow.papers.table import Table
from jaxflow.papers.tarzanagh2023.column_runs import FIGURE10, NAMES, feasible, runs_of, usable
from jaxflow.papers.verdicts import Rate, common_rate
from jaxflow.plots import CURVES, new_figure

# Where descent stops, factors are still on their way (their gap falls like a power of log t): this is aligned.
ALIGNED = 0.05
# Rounding of a difference of numbers of order one.
ROUNDING = 1e-9


def _enough(way: str) -> Statement[Table]:
    def inside(numbers: Table) -> Mask:
        runs = runs_of(numbers, way)
        return feasible(runs) & (numbers.grid.columns[None, :, None] >= runs.rank)

    def rate(numbers: Table, known: Mask) -> Rate | None:
        runs, at = runs_of(numbers, way), known
        change = runs.log_time[at] / runs.halfway_log_time[at]
        rates = np.log(runs.halfway[at] / runs.misalignment[at]) / np.log(change)
        return common_rate(rates, None, law="1 − corr against log t")

    return Statement(
        source="App. F, Figure 10",
        says="W converges directionally towards W*mm as long as m is at least about n (here: m >= rank W*mm).",
        inside=inside,
        residual=lambda n: of_usable(runs_of(n, way), runs_of(n, way).misalignment),
        bound=ALIGNED,
        unit="1 − corr",
        # Those that are not there may be late: at a finite length they decide nothing, unless they point away.
        late=1.0,
        # The flow is exact, and slow: at any finite length it has to be on its way. Descent stops, and is where it is.
        limit=way == "flow",
        rate=rate if way == "flow" else None,
    )


def of_usable(runs: Table, values: np.ndarray) -> np.ndarray:
    """NaN of the other runs."""
    return np.where(usable(runs), values, np.nan)


def _floor(way: str) -> Statement[Table]:
    def inside(numbers: Table) -> Mask:
        runs = runs_of(numbers, way)
        return feasible(runs) & (numbers.grid.columns[None, :, None] < runs.rank)

    def nearer(numbers: Table) -> np.ndarray:
        runs = runs_of(numbers, way)
        return of_usable(runs, runs.floor - runs.misalignment)

    return Statement(
        source="App. F, Figure 10 (what rank m allows)",
        says="With fewer columns than rank W*mm, K Q^T cannot align with W*mm.",
        inside=inside,
        residual=nearer,
        bound=ROUNDING,
    )


def _compared(numbers: Table, way: str, varied: int) -> tuple[np.ndarray, np.ndarray]:
    """By how much the mean misalignment at the largest n (0) or T (1) is above that at the smallest one, the other of
    both as in the first shape, for each m below all n compared; and the standard errors. NaN without two means."""
    grid, runs = numbers.grid, runs_of(numbers, way)
    shapes = grid.shapes
    rows = [i for i, shape in enumerate(shapes) if shape[1 - varied] == shapes[0][1 - varied]]
    rows.sort(key=lambda i: shapes[i][varied])
    least = min(shapes[row][0] for row in rows)
    columns = np.flatnonzero(grid.columns < least)
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
        (by_T, error), (by_n, other) = (_compared(numbers, way, varied) for varied in (1, 0))
        more = np.abs(by_T) - np.abs(by_n)
        return np.where(np.abs(more) > 2 * np.hypot(error, other), more, np.nan)

    return Statement(
        source="App. F, Figure 10 (upper)",
        says="Performances remain consistent across varying T (at equal m < n they differ by less than across n).",
        inside=lambda n: np.isfinite(_compared(n, way, 1)[0] + _compared(n, way, 0)[0]),
        residual=beyond,
        bound=BELOW_ZERO,
        unit="difference of mean 1 − corr by T, minus that by n",
    )


def _mean(runs: Table, row: int, column: Any) -> tuple[float, float]:
    """Mean and its standard error over the usable runs."""
    values = runs.misalignment[row, column][usable(runs)[row, column]]
    if not len(values):
        return np.nan, np.nan
    return float(values.mean()), float(values.std() / np.sqrt(len(values)))


def _notes(numbers: Table) -> list[str]:
    return [_notes_of(runs_of(numbers, way), name) for way, name in NAMES.items()]


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
                mean = _drawn(runs_of(numbers, way), "misalignment", row)
                axis.plot(columns, mean, line, color=color, markersize=4, label=rf"{way}, ${varied}={value}$")
            floor = np.maximum(_drawn(runs_of(numbers, "flow"), "floor", row), 1e-16)
            axis.plot(columns, floor, ":", color=color, linewidth=1)
        more = {"ylim": (1e-4, None), "xticks": columns}
        dress(axis, title + "; dotted: what rank m allows", "$m$", log="y", legend=8, **more)
    axes[0].set_ylabel(r"$1-\mathrm{corr}(W^{mm}_{\star,\alpha},\,KQ^\top)$")
    return figure


def _drawn(runs: Table, field: str, row: int) -> np.ndarray:
    """Means over the usable runs of a row; NaN where there is none."""
    kept = usable(runs)[row]
    count = kept.sum(axis=1)
    total = np.where(kept, getattr(runs, field)[row], 0.0).sum(axis=1)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


register(
    FIGURE10,
    title="Alignment of K Q^T with (Att-SVM*) against the number m of columns of K and Q",
    statements=[statement(way) for way in NAMES for statement in (_enough, _floor, _more_n, _any_T)],
    notes=_notes,
    draw=draw_columns,
)
