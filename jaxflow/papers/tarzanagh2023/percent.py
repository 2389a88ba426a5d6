"""What figures 2, 5 and 6 share: studies of random instances, every outcome kept, and percentages of them."""

from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Key

from jaxflow._core import Outcome
from jaxflow.data import score_gap_acceptance
from jaxflow.papers.experiment import Dataset, Mask, Rate, Statement, Studies, Sweep, Table
from jaxflow.study import AbstractExperiment, Study, TokenSelection, wilson
from jaxflow.study.experiment import import_named


class SelectionAnd(AbstractExperiment):
    """`TokenSelection` and more of the same instances: a second pass over the same keys, so that the outcomes are those
    of `TokenSelection` alone.

    `more` is `module:name` of a function of `more_settings` and the factors; it gives a function of the keys of a block
    `(b,)`, with further results by name.
    """

    more: str = eqx.field(static=True)
    more_settings: tuple[int, ...] = eqx.field(static=True, default=())
    selection: TokenSelection = eqx.field(default_factory=TokenSelection)
    method: Any = None

    def setup(self, key: Key[Array, ""], **factors: Any) -> tuple[Any, Any]:
        return self.selection.setup(key, **factors)

    def summarize(self, limit: Any) -> dict[str, Any]:
        return self.selection.summarize(limit)

    def replay(self, key: Key[Array, ""], **factors: Any) -> Any:
        return self.selection.replay(key, **factors)

    def name(self) -> str:
        return self.selection.name()

    def signature(self) -> Any:
        return self.selection.signature()

    def definitions(self) -> dict[str, str]:
        return self.selection.definitions()

    def block_function(self, factors: dict[str, Any], trial_width: int) -> Callable[[Any], dict[str, Any]]:
        select = self.selection.block_function(factors, trial_width)
        more = import_named(self.more)(*self.more_settings, factors)
        return lambda keys: {**select(keys), **more(keys)}


# "we choose γ = 0.1 in our experiments", of figures 2, 5 and 6 (Appendix F).
SCORE_GAP = 0.1

# The paper's symbols.
SYMBOLS = {"W": "$W$", "KQ": "$(K,Q)$"}
NAMES = {"W": "W", "KQ": "(K, Q)"}

GLOBAL = (Outcome.globally_optimal,)
LOCAL = (Outcome.globally_optimal, Outcome.locally_optimal)
# Outcomes after which nothing is known of where a flow goes.
OPEN = (Outcome.undecided, Outcome.failed, Outcome.ambiguous)
# Outcomes of which a note names the trials.
SPECIAL = (Outcome.infeasible_program, Outcome.prediction_contradicted, *OPEN, Outcome.not_locally_optimal)

# Draws from which the acceptance rate of the score gap is told: to half a percent.
ACCEPTANCE_DRAWS = 10_000

# Trials computed together. 500 are two full blocks.
BLOCK = 250

# Curves: how many instances at each d, of how many, both `(curves, k)`; and what gives them.
Curves = tuple[np.ndarray, np.ndarray]
Of = Callable[[Table], Curves]

# Trials that a note names one by one; of more it gives the number.
LISTED = 20


# How much is computed: `trials` instances for each d, each of `settings` (n, T) and each parametrisation.
SIZE = Table(trials=500, d=(2, 3, 4, 5, 6, 8, 10, 15, 20), settings=((5, 5),), parametrizations=("W", "KQ"))


def table(numbers: Table, field: str = "outcome") -> np.ndarray:
    """A result by setting, parametrisation, d and trial: `(s, p, k, b)`."""
    grid = numbers.grid
    shape = (len(grid.n), len(grid.d), len(grid.parametrization), -1)
    return getattr(numbers.ends, field).reshape(shape).swapaxes(1, 2)


def names(numbers: Table) -> list[str]:
    """Of the parametrisations."""
    return [NAMES[str(name)] for name in numbers.grid.parametrization]


def dataset_of(name: str, sizes: Mapping[str, Table], more: tuple[str, ...] = (), experiment: Any = None) -> Dataset:
    """The dataset of a figure: one study for each (n, T), since the selected tokens `(n,)` have one shape a study.

    `grid`: what is varied, `n`, `T` `(s,)`, `d` `(k,)`, `parametrization` `(p,)`, and the `score_gap`; `accepted`
    `(s, k)`: the share of sequences that have it. `ends` `(cells, b)`: `outcome` of `TokenSelection`, and `more`; a
    cell is a setting (n, T), a d and a parametrisation. Keys are those of `TokenSelection`: figures share instances.
    """

    def grid(scale: str, seed: int) -> Table:
        size, key = sizes[scale], jax.random.key(seed)
        accepted = [[score_gap_acceptance(key, T, d, SCORE_GAP, ACCEPTANCE_DRAWS) for d in size.d]
                    for _, T in size.settings]  # fmt: skip
        n, T = np.array(size.settings).T
        return Table(
            n=n,
            T=T,
            d=np.array(size.d),
            parametrization=np.array(size.parametrizations),
            score_gap=np.asarray(SCORE_GAP),
            accepted=np.array(accepted),
        )

    def studies(scale: str, seed: int) -> Mapping[str, Study]:
        size = sizes[scale]
        return {
            f"n={n}, T={T}": Study(
                experiment or TokenSelection(),
                {"n": [n], "T": [T], "d": list(size.d), "score_gap": [SCORE_GAP]},
                {"parametrization": list(size.parametrizations)},
                trials=size.trials,
                seed=seed,
                block=min(size.trials, BLOCK),
            )
            for n, T in size.settings
        }

    parts = {"grid": Sweep(grid, lambda seed: seed), "ends": Studies(("outcome", *more), studies)}
    return Dataset("tarzanagh2023", name, parts)


def tally(numbers: Table, outcomes: tuple[Outcome, ...] = GLOBAL) -> tuple[np.ndarray, np.ndarray]:
    """How many instances ended in one of `outcomes`, and how many ran: both `(s, p, k)`."""
    outcome = table(numbers)
    codes = [int(code) for code in outcomes]
    return np.isin(outcome, codes).sum(-1), (outcome != Outcome.not_run).sum(-1)


def interval(count: Any, total: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Percentage with the ends of Wilson's 95% interval; NaN, 0 and 100 of nothing."""
    count, total = np.asarray(count), np.asarray(total)
    low, high = wilson(count, total)
    share = np.where(total > 0, count / np.maximum(total, 1), np.nan)
    return np.asarray(100 * share), np.asarray(100 * low), np.asarray(100 * high)


def rises(count: np.ndarray, total: np.ndarray) -> np.ndarray:
    """The residual of each curve `(curves, k)`, counts of totals at growing d: 0 where it rises with d, 1 where not.

    One rises where the intervals of the smallest and the largest d are apart and none of a next larger d lies below
    that of its neighbour; where one lies below, it does not; otherwise the instances are too few to tell.
    """
    _, low, high = interval(count, total)
    falls = np.any(high[:, 1:] < low[:, :-1], axis=1) | (high[:, -1] < low[:, 0])
    return np.where(falls, 1.0, np.where(low[:, -1] > high[:, 0], 0.0, np.nan))


def rising(source: str, says: str, of: Of) -> Statement[Table]:
    """That curves rise with d."""
    return Statement(
        source=source,
        says=says,
        inside=lambda n: np.any(of(n)[1] > 0, axis=1),
        residual=lambda n: rises(*of(n)),
    )


def approach(count: np.ndarray, total: np.ndarray, d: np.ndarray) -> tuple[np.ndarray, Mask, Rate | None]:
    """Whether each curve `(curves, k)` goes to 100% as d grows: residuals, which are not there yet, the slowest rate.

    One is there where all instances at the largest d are; on its way where the shortfall is still falling, beyond
    the intervals, over the last doubling of d, at a rate; where it grows, it does not; otherwise too few to tell.
    """
    lacking = total - count
    lacks = (total[:, -1] == 0) | (lacking[:, -1] > 0)
    share, low, high = interval(lacking, total)
    # The last doubling of d, or the smallest d where there is none.
    before = max(int(np.searchsorted(d, d[-1] / 2, side="right")) - 1, 0)
    falls, grows = lacks & (high[:, -1] < low[:, before]), lacks & (low[:, -1] > high[:, before])
    rates, steps = [], np.log(d[-1] / d[before])
    for at in np.flatnonzero(falls):
        # Two shares of so many instances each: the errors of their logarithms add.
        errors = [(1.0 - share[at, k] / 100.0) / max(int(lacking[at, k]), 1) for k in (before, -1)]
        exponent = float(np.log(share[at, before] / share[at, -1]) / steps)
        rates.append(Rate(exponent, float(2.0 * np.sqrt(sum(errors)) / steps), None, law="the shortfall against d"))
    residual = np.where(grows, 1.0, np.where(falls | ~lacks, 0.0, np.nan))
    return residual, lacks, min(rates, key=lambda rate: rate.fitted, default=None)


def approaching(source: str, says: str, of: Of) -> Statement[Table]:
    """That curves go to 100%."""
    return Statement(
        source=source,
        says=says,
        inside=lambda n: np.any(of(n)[1] > 0, axis=1),
        residual=lambda n: approach(*of(n), n.grid.d)[0],
        limit=lambda n: bool(approach(*of(n), n.grid.d)[1].any()),
        rate=lambda n, known: approach(*of(n), n.grid.d)[2],
    )


def convergence(parametrizations: Any, figure: str, says: str, approaches: str | None) -> list[Statement[Table]]:
    """What figures 2 and 5 share: the trend in d, its limit, and Definition 2."""
    said = []
    for p in range(len(parametrizations)):
        source = f"{figure}, caption" + (f" ({'ab'[p]})" if len(parametrizations) > 1 else "")

        def of(numbers: Table, p: int = p) -> Curves:
            count, total = tally(numbers)
            return count[:1, p], total[:1, p]

        said.append(rising(source, says, of))
        if approaches is not None:
            said.append(approaching(f"Section 4.2, {figure}", approaches, of))
    return [*said, locally_optimal(figure)]


def locally_optimal(figure: str) -> Statement[Table]:
    """Definition 2 against every direction that was certified; exceptions by trial.

    Points are no directions, nor is a flow that stopped at tokens which no direction selects (infeasible).
    """
    against = Outcome.not_locally_optimal

    return Statement(
        source=f"Section 5.2, Definition 2, {figure}",
        says="Def. 2 captures all possible convergence directions of GD.",
        # What was not followed to its end may tend to any direction.
        inside=lambda n: np.isin(table(n), (*LOCAL, against, *OPEN)),
        residual=lambda n: np.where(np.isin(table(n), OPEN), np.nan, table(n) == against),
    )


def notes_of(numbers: Table) -> list[str]:
    """Every outcome of every cell by number; what is out of the ordinary by trial."""
    outcome, accepted = table(numbers), numbers.grid.accepted
    notes = [
        f"{cell(numbers, *at)}: "
        + ", ".join(f"{n:,} {code.name}" for code in Outcome if (n := int((outcome[at] == code).sum())))
        for at in np.ndindex(outcome.shape[:-1])
    ]
    for code in SPECIAL:
        found = where(numbers, outcome == code)
        notes += [f"{code.name}: {found}."] if found else []
    return [
        *notes,
        f"Data: score gap {float(numbers.grid.score_gap):g} by drawing sequences again, of which "
        f"{100 * accepted.min():.0f}% to {100 * accepted.max():.0f}% are accepted, depending on d and T.",
    ]


def cell(numbers: Table, s: Any, p: Any, k: Any) -> str:
    """The name of a cell."""
    grid = numbers.grid
    return f"{names(numbers)[p]}, n={grid.n[s]}, T={grid.T[s]}, d={grid.d[k]}"


def where(numbers: Table, mask: np.ndarray) -> str:
    """Trials by cell: `W, n=5, T=5, d=4: trials 3, 17`; the number alone where there are many."""
    return "; ".join(
        f"{cell(numbers, *at)}: trials {listed(mask[at])}" for at in np.ndindex(mask.shape[:-1]) if mask[at].any()
    )


def listed(mask: Mask) -> str:
    """The first trials of a mask by number, and how many more there are."""
    trials = np.flatnonzero(mask).tolist()
    more = f" and {len(trials) - LISTED:,} more" if len(trials) > LISTED else ""
    return f"{', '.join(map(str, trials[:LISTED]))}{more}"


def convergence_bars(numbers: Table) -> dict[str, Any]:
    """Red, blue and teal bars of the first setting, for `jaxflow.plots.draw_percentage_bars`."""
    count, total = (values[0] for values in tally(numbers))
    reached = interval(count, total)[0]
    local = interval(tally(numbers, LOCAL)[0][0], total)[0]
    panels = [SYMBOLS[str(p)] for p in numbers.grid.parametrization]
    letters = [f"({letter}) " for letter in "abcdef"] if len(panels) > 1 else [""]
    return {
        "x": numbers.grid.d,
        "x_label": "$d$",
        "panels": [letter + title for letter, title in zip(letters, panels, strict=False)],
        "names": ["global", "local (with global)", _complement(numbers)],
        "colors": ["#D55E00", "#0072B2", "#009E9E"],
        "percentage": np.stack([reached, local - reached, 100 - local], axis=-1),
        "denominator": total,
    }


def _complement(numbers: Table) -> str:
    """What the teal bars are made of, by number."""
    rest = np.bincount(table(numbers)[0].ravel(), minlength=len(Outcome))
    parts = [
        f"{code.name.replace('_', ' ')}: {rest[code]:,}"
        for code in Outcome
        if rest[code] and code not in (*LOCAL, Outcome.not_run)
    ]
    return f"not local ({', '.join(parts) or 'none'})"
