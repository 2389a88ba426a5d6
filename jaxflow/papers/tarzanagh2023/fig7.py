"""Figure 7: W is biased to the Frobenius-norm program, (K, Q) to the nuclear-norm program."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from jaxflow._core import Outcome, SelectionStatus
from jaxflow.papers.compiling import compile_together
from jaxflow.papers.dataset import Dataset, Sweep
from jaxflow.papers.registry import register
from jaxflow.papers.statement import Mask, Statement, everyone, largest, median
from jaxflow.papers.tarzanagh2023.paths import FlowPath, Reference, Size, descent_path, flow_path, reference
from jaxflow.papers.tarzanagh2023.verify.follow import misalignment
from jaxflow.plots import COLORS, SYMBOLS, new_figure
from jaxflow.report import Rate, common_rate

NAMES = {"combined": "W", "factored": "(K, Q)"}
PROGRAMS = {"frobenius": "(Att-SVM)", "nuclear": "(Att-SVM*)"}
NORMS = tuple(PROGRAMS)
# Each parametrisation with the norm whose program it is biased to.
OWN = {"combined": "frobenius", "factored": "nuclear"}

BATCH = 10

SIZES = {
    # W to log t = 1e6, where 1 − corr, which falls like 1/(log t)², is past ten digits.
    "quick": Size(trials=8, reach=1e3, fast=True),
    "paper": Size(trials=100, reach=3e3),
    "large": Size(trials=1000, reach=1e4),
}

# 1 − corr below this is a correlation of 1 to ten digits, past every rate that matters.
REACHED = 1e-10
# On its way, and as near as a finite length lets it: as in figures 1 and 10.
ALIGNED = 0.05
# A share of attention that differs from 1 by less than this is 1 to rounding of the sum over T tokens.
PROBABILITY_ONE = 1e-12

LOCAL = (Outcome.globally_optimal, Outcome.locally_optimal)
# Weights with these outcomes tend to a direction; what was not followed to its end may have selected any tokens.
DIRECTIONS, OPEN = (*LOCAL, Outcome.not_locally_optimal), (Outcome.undecided, Outcome.failed)


class Runs(NamedTuple):
    r"""One parametrisation: b instances by the flow at g values of log t, and by descent at k of its steps.

    - `shape`: n, T and d; `own`: the place in `NORMS` of the norm whose program it is biased to.
    - `outcome`: of the flow, by the program in the own norm.
    - `attention`: the mean over the sequences of the largest attention; `smallest`: the least of these at the end.
    - `distance`: 1 − corr of the combined weights with the solutions of (Att-SVM) and (Att-SVM*) of the tokens that the
      flow selects; `excess`: of their norm at equal margin over the optimum; `gap`: the duality gaps of the solutions.
    - `descent_...`: of descent; `agrees`: it selects the tokens of the flow.
    """

    shape: Int[Any, "3"]
    own: Int[Any, ""]
    log_time: Float[Any, " g"]
    outcome: Int[Any, " b"]
    attention: Float[Any, "b g"]
    smallest: Float[Any, " b"]
    distance: Float[Any, "2 b g"]
    excess: Float[Any, "2 b g"]
    gap: Float[Any, "2 b"]
    descent_log_time: Float[Any, "b k"]
    descent_attention: Float[Any, "b k"]
    descent_distance: Float[Any, "2 b k"]
    agrees: Bool[Any, " b"]

    def among(self, outcomes: tuple[Outcome, ...]) -> Mask:
        """Whose flow has one of these outcomes."""
        return np.isin(self.outcome, outcomes)

    @property
    def last(self) -> np.ndarray:
        """1 − corr at the end with the solution in the own norm."""
        return self.distance[self.own][:, -1]

    @property
    def other(self) -> np.ndarray:
        """1 − corr at the end with the solution in the other norm."""
        return self.distance[1 - self.own][:, -1]

    @property
    def rates(self) -> np.ndarray:
        """By which power of 1/log t the excess in the own norm falls over the last decade of log t."""
        early, above = int(np.searchsorted(self.log_time, self.log_time[-1] / 10.0)), self.excess[self.own]
        fall = np.log(above[:, early] / np.maximum(above[:, -1], 1e-300))
        return fall / np.log(self.log_time[-1] / self.log_time[early])


class ConvergenceNumbers(NamedTuple):
    """The same instances for W and (K, Q)."""

    combined: Runs
    factored: Runs


def compute(kind: str, scale: str, key: Any, say: Callable[[str], None]) -> Runs:
    """All numbers of a parametrisation; `trials` instances."""
    size = SIZES[scale]
    keys = jax.random.split(key, size.trials)
    selections = jax.ShapeDtypeStruct((size.trials, size.n, size.T), bool)
    jobs: dict[str, Any] = {
        "flow": (partial(_in_batches, partial(flow_path, kind, size)), (keys,)),
        "descent": (jax.vmap(partial(descent_path, kind, size)), (keys,)),
    }
    jobs |= {norm: (jax.vmap(partial(reference, norm, size)), (keys, selections)) for norm in NORMS}
    say(f"{NAMES[kind]}: compiling {len(jobs)} programs (kept for the next run)")
    run = dict(compile_together(jobs, fast=size.fast))
    say(f"{NAMES[kind]}: gradient flow of {size.trials} instances to log t = {size.until(kind):.0e}")
    flow: FlowPath = _to_numpy(run["flow"](keys))
    say(f"{NAMES[kind]}: {size.steps} steps of normalised descent, and the programs of the selected tokens")
    steps, selection = _to_numpy(run["descent"](keys))
    programs: list[Reference] = [_to_numpy(run[norm](keys, jnp.asarray(flow.selection))) for norm in NORMS]
    own, way = NORMS.index(OWN[kind]), flow.way
    drawn = partial(on_grid, np.geomspace(1.0, size.until(kind), size.grid), way.log_time)
    above = [excess(norm, way.weights, way.margin, one.optimum) for norm, one in zip(NORMS, programs, strict=True)]
    return Runs(
        shape=np.array([size.n, size.T, size.d]),
        own=np.asarray(own),
        log_time=np.geomspace(1.0, size.until(kind), size.grid),
        outcome=outcomes(flow, programs, own),
        attention=drawn(way.attention),
        smallest=flow.smallest,
        distance=np.stack([drawn(decorrelation(way.weights, one.solution)) for one in programs]),
        excess=np.stack([drawn(one) for one in above]),
        gap=np.stack([one.gap for one in programs]),
        descent_log_time=steps.log_time,
        descent_attention=steps.attention,
        descent_distance=np.stack([decorrelation(steps.weights, one.solution) for one in programs]),
        agrees=np.all(selection == flow.selection, axis=(1, 2)),
    )


def _in_batches(function: Callable[..., Any], keys: Any) -> Any:
    """As `jax.vmap`, ten at a time: a batch takes as long as its slowest member."""
    return jax.vmap(function)(keys) if len(keys) <= BATCH else jax.lax.map(function, keys, batch_size=BATCH)


def _to_numpy(tree: Any) -> Any:
    return jax.tree.map(np.asarray, tree)


def outcomes(flow: FlowPath, programs: list[Reference], own: int) -> np.ndarray:
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


FIGURE7 = Dataset(
    "tarzanagh2023",
    "fig7",
    ConvergenceNumbers,
    {
        kind: Sweep(Runs, partial(compute, kind), lambda seed: jax.random.fold_in(jax.random.key(seed), 7))
        for kind in NAMES
    },
    where=f"{__name__}:FIGURE7",
)

SOURCE = "Section 4.2, Figure 7"


def _selected_in_words(numbers: ConvergenceNumbers, known: Mask) -> str:
    parts = [
        f"{name}: {int(np.sum(runs.smallest[at] >= 1.0 - PROBABILITY_ONE))} of {at.sum()} decided instances"
        for name, runs, at in zip(NAMES.values(), numbers, known, strict=True)
    ]
    return "every sequence gives one token probability 1 to 1e-12; " + ", ".join(parts)


SELECTED = Statement[ConvergenceNumbers](
    source=SOURCE,
    says="Both scenarios result in probability 1, which indicates that attention weights succeed in selecting one "
    "token per input.",
    inside=lambda n: everyone(np.stack([runs.outcome for runs in n])),
    residual=lambda n: np.stack([np.where(runs.among(OPEN), np.nan, 1.0 - runs.smallest) for runs in n]),
    bound=PROBABILITY_ONE,
    found=_selected_in_words,
)


def _converges(kind: str, where: str, name: str) -> Statement[ConvergenceNumbers]:
    def of(numbers: ConvergenceNumbers) -> Runs:
        return getattr(numbers, kind)

    def near(numbers: ConvergenceNumbers) -> np.ndarray:
        runs = of(numbers)
        # What is far from a correlation of 1, or does not come nearer, is late or never will: it is undecided.
        there = (runs.last <= REACHED) | ((runs.rates > 0) & (runs.last <= ALIGNED))
        return np.where(runs.among(LOCAL) & there, 0.0, np.nan)

    def rate(numbers: ConvergenceNumbers, known: Mask) -> Rate | None:
        rates = of(numbers).rates[of(numbers).among(LOCAL)]
        return common_rate(rates, None, law="objective above the optimum against log t")

    def in_words(numbers: ConvergenceNumbers, known: Mask) -> str:
        runs, local = of(numbers), of(numbers).among(LOCAL)
        if not local.any():
            return "no instance selected locally optimal tokens"
        last, above, rates = runs.last[local], runs.excess[runs.own][local, -1], runs.rates[local]
        return (
            f"at log t = {runs.log_time[-1]:.0e}, {local.sum()} locally optimal instances: 1 - corr median "
            f"{median(last):.1e}, largest {last.max():.1e}; objective above the optimum by a median of "
            f"{median(above):.1e}, at most {above.max():.1e}, falling like (log t)^-e with e = {median(rates):.2f} "
            f"(median), {rates.min():.2f} (slowest)"
        )

    return Statement(
        source=f"{SOURCE} {where}",
        says=f"{name} ultimately reaches a 1 correlation with the solution of {PROGRAMS[OWN[kind]]}.",
        inside=lambda n: of(n).among(LOCAL + OPEN),
        residual=near,
        found=in_words,
        limit=lambda n: largest(of(n).last[of(n).among(LOCAL)]) > REACHED,
        rate=rate,
    )


def _bias_in_words(numbers: ConvergenceNumbers, known: Mask) -> str:
    parts = [
        f"{name} nearer to {program} on {int(np.sum(runs.last[at] < runs.other[at]))} of {at.sum()} (1 - corr to the "
        f"other program: median {median(runs.other[at]):.1e})"
        for name, program, runs, at in zip(NAMES.values(), PROGRAMS.values(), numbers, known, strict=True)
        if at.any()
    ]
    return "; ".join(parts) or "no instance tends to a direction"


BIASED = Statement[ConvergenceNumbers](
    source=SOURCE,
    says="These demonstrate the Frobenius norm bias of W(k) and the nuclear norm bias of K(k)Q(k)^T.",
    inside=lambda n: np.stack([runs.among(DIRECTIONS + OPEN) for runs in n]),
    residual=lambda n: np.stack([np.where(runs.among(OPEN), np.nan, ~(runs.last < runs.other)) for runs in n]),
    found=_bias_in_words,
)

# Where the published ridge on the gradient norms of K and Q, 2.22e-16, overtakes the gradients: e^-36.
RIDGE_NOTE = (
    "The published descent on (K, Q) adds 2.22e-16 to the gradient norms by which it divides. From about log t = 36 on "
    "gradients are smaller than that, and it is plain descent with a step of 0.1 / 2.22e-16, far beyond the stability "
    "limit, no longer an approximation of the flow: that is where its curve leaves the flow's."
)


def _notes(numbers: ConvergenceNumbers) -> list[str]:
    gaps = np.concatenate([runs.gap[NORMS.index("nuclear")][runs.among(DIRECTIONS)] for runs in numbers])
    worst = f"{np.abs(gaps).max():.0e}" if gaps.size else "none"
    return [
        *(_counts(name, runs) for name, runs in zip(NAMES.values(), numbers, strict=True)),
        *(_descent(name, runs) for name, runs in zip(NAMES.values(), numbers, strict=True)),
        RIDGE_NOTE,
        "The nuclear-norm program may have several solutions; the objective is compared beside the correlation. "
        f"Largest duality gap of its solutions here: {worst}.",
    ]


def _counts(name: str, runs: Runs) -> str:
    codes, counts = np.unique(runs.outcome, return_counts=True)
    parts = [f"{count} {Outcome(int(code)).name}" for code, count in zip(codes, counts, strict=True)]
    return f"{name}: {len(runs.outcome)} instances, none left out: {', '.join(parts)}."


def _descent(name: str, runs: Runs) -> str:
    kept, total = runs.among(DIRECTIONS) & runs.agrees, int(runs.among(DIRECTIONS).sum())
    if not kept.any():
        return f"{name}: descent selected the tokens of the flow on 0 of {total} instances."
    last = runs.descent_distance[runs.own][kept, -1]
    return (
        f"{name}: the published descent selects the tokens of the flow on {kept.sum()} of {total} instances "
        f"and ends there at 1 - corr {median(last):.1e} (median) and {last.max():.1e} (largest), at log t = "
        f"{median(runs.descent_log_time[kept, -1]):.0f} (median)."
    )


# A distance below rounding is drawn at rounding.
ROUNDING = 1e-16


def draw_convergence(numbers: ConvergenceNumbers) -> Any:
    """Three panels against log t: the largest attention, and 1 − corr with the solutions of (Att-SVM) and (Att-SVM*).

    Means over the instances whose weights tend to a direction, by the flow and by the published descent.
    """
    figure, axes = new_figure(3)
    axes[0].set_ylabel(r"mean of $\max_t\ \mathbb{S}(X_i\tilde{W}z_i)_t$")
    axes[1].set_ylabel(r"$1-\mathrm{corr}(\tilde{W},\,W^{mm}_{\alpha})$")
    axes[2].set_ylabel(r"$1-\mathrm{corr}(\tilde{W},\,W^{mm}_{\star,\alpha})$")
    titles = ("(a) tokens selected", "(b) Frobenius-norm (Att-SVM)", r"(c) nuclear-norm (Att-SVM$_\star$)")
    for place, (axis, title) in enumerate(zip(axes, titles, strict=True)):
        axis.set_xscale("log")
        axis.set_xlabel(r"$\log t$")
        axis.set_title(title, fontsize=10)
        if place:
            axis.set_yscale("log")
        for kind, runs in zip(NAMES, numbers, strict=True):
            kept, times, color = runs.among(DIRECTIONS), runs.log_time, COLORS[kind]
            if not kept.any():
                continue
            values, steps = runs.attention[kept], runs.descent_attention[kept]
            if place:
                values, steps = runs.distance[place - 1][kept], runs.descent_distance[place - 1][kept]
                values = np.maximum(values, ROUNDING)
                low, high = np.quantile(values, [0.1, 0.9], axis=0)
                axis.fill_between(times, low, high, color=color, alpha=0.15, linewidth=0)
            axis.plot(times, values.mean(0), color=color, label=f"flow of {SYMBOLS[kind]}")
            # Steps are placed where the flow would be after the same lengths: the median over the instances.
            when, steps = np.median(runs.descent_log_time[kept], axis=0), steps.mean(0)
            shown, label = when >= times[0], f"descent on {SYMBOLS[kind]}"
            axis.plot(when[shown], steps[shown], "--", color=color, linewidth=1.2, label=label)
            axis.plot(when[-1:], steps[-1:], "o", color=color, markersize=4)
    axes[0].legend(frameon=False, fontsize=8, loc="lower right")
    (n, T, d), (W, KQ) = numbers.combined.shape, (int(runs.among(DIRECTIONS).sum()) for runs in numbers)
    figure.suptitle(
        rf"$n={n}$, $T={T}$, $d={d}$; mean over {W} ($W$) and {KQ} ($(K,Q)$) of "
        rf"{len(numbers.combined.outcome)} instances, bands 10% to 90%; "
        "dashed: the published descent, ending at the dot",
        fontsize=9,
    )
    return figure


# n = 6, T = 8, d = 10, everything uniform on the unit sphere. The flow is drawn against log t; the published protocol
# (normalised descent, η = 0.1, 2,000 steps) stands beside it.
register(
    FIGURE7,
    "fig7",
    title="Local convergence of W and (K, Q) to their max-margin programs",
    run_times={
        "quick": "8 instances, W to log t = 1e6, (K, Q) to 1e3, about a minute",
        "paper": "100 instances, W to log t = 1e6, (K, Q) to 3e3, five minutes",
        "large": "1,000 instances, W to log t = 1e6, (K, Q) to 1e4",
    },
    statements=[
        SELECTED,
        _converges("combined", "(b), Theorem 7", "W"),
        _converges("factored", "(c), Theorem 2", "K Q^T"),
        BIASED,
    ],
    notes=_notes,
    draw=draw_convergence,
)
