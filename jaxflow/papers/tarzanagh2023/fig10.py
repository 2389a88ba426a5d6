"""`reproduce tarzanagh2023 fig10`: alignment of K Qᵀ with (Att-SVM*) against the number of columns m."""

from typing import Any

import numpy as np

from jaxflow.papers.registry import register
from jaxflow.papers.statement import Mask, Statement, median
from jaxflow.papers.tarzanagh2023.column_runs import FIGURE10, NAMES, ColumnNumbers, Runs
from jaxflow.papers.verdicts import Rate, common_rate
from jaxflow.plots import CURVES, new_figure

# Where descent stops, factors are still on their way (their gap falls like a power of log t): this is aligned.
ALIGNED = 0.05
# Rounding of a difference of numbers of order one.
ROUNDING = 1e-9


def _enough(way: str) -> Statement[ColumnNumbers]:
    def kept(numbers: ColumnNumbers) -> Mask:
        runs = numbers.runs(way)
        return runs.usable & (numbers.m >= runs.rank)

    def rates(numbers: ColumnNumbers) -> np.ndarray:
        runs, at = numbers.runs(way), kept(numbers)
        change = runs.log_time[at] / runs.halfway_log_time[at]
        return np.log(runs.halfway[at] / runs.misalignment[at]) / np.log(change)

    def rate(numbers: ColumnNumbers, known: Mask) -> Rate | None:
        return common_rate(rates(numbers), None, law="1 − corr against log t")

    return Statement(
        source="App. F, Figure 10",
        says="W converges directionally towards W*mm as long as m is at least about n (here: m >= rank W*mm).",
        inside=lambda n: n.runs(way).feasible & (n.m >= n.runs(way).rank),
        residual=lambda n: np.where(n.runs(way).usable, n.runs(way).misalignment, np.nan),
        bound=ALIGNED,
        unit="1 − corr",
        # Those that are not there may be late: at a finite length they decide nothing, unless they point away.
        late=1.0,
        # The flow is exact, and slow: at any finite length it has to be on its way. Descent stops, and is where it is.
        limit=way == "flow",
        rate=rate if way == "flow" else None,
    )


def _floor(way: str) -> Statement[ColumnNumbers]:
    def nearer(numbers: ColumnNumbers) -> np.ndarray:
        runs = numbers.runs(way)
        return np.where(runs.usable, runs.floor - runs.misalignment, np.nan)

    return Statement(
        source="App. F, Figure 10 (what rank m allows)",
        says="With fewer columns than rank W*mm, K Q^T cannot align with W*mm.",
        inside=lambda n: n.runs(way).feasible & (n.m < n.runs(way).rank),
        residual=nearer,
        bound=ROUNDING,
    )


def _more_n(way: str) -> Statement[ColumnNumbers]:
    """Mean misalignment at equal m, for the smallest and the largest n at equal T, where m is below both ranks."""

    def compared(numbers: ColumnNumbers) -> tuple[int, int, np.ndarray]:
        """The two n, and for each m the difference in standard errors of the difference of the means; NaN where one
        of them has no run."""
        grid, runs = numbers.grid, numbers.runs(way)
        rows = [i for i, (_, T) in enumerate(grid.shapes) if T == grid.shapes[0][1]]
        rows = [min(rows, key=lambda i: grid.shapes[i][0]), max(rows, key=lambda i: grid.shapes[i][0])]
        small, large = (int(grid.shapes[row][0]) for row in rows)
        pairs = [[_mean(runs, row, column) for row in rows] for column in np.flatnonzero(grid.columns < small)]
        return small, large, np.array([(b[0] - a[0]) / max(np.hypot(a[1], b[1]), 1e-12) for a, b in pairs])

    def judged(numbers: ColumnNumbers) -> np.ndarray:
        differences = compared(numbers)[2]
        # Within two it may be the draw of the instances.
        return np.where(differences > 2, 0.0, np.where(differences < -2, 1.0, np.nan))

    def judgeable(numbers: ColumnNumbers) -> Mask:
        small, large, differences = compared(numbers)
        return np.isfinite(differences) & (large > small)

    return Statement(
        source="App. F, Figure 10 (lower)",
        says="A larger n necessitates a larger m for K Q^T to accurately converge to the SVM solution.",
        inside=judgeable,
        residual=judged,
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
