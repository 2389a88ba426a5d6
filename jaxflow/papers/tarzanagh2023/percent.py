"""What figures 2, 5 and 6 share: studies of random instances, every outcome kept, and percentages of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int

from jaxflow._core import Outcome
from jaxflow.data import score_gap_acceptance
from jaxflow.papers.dataset import Dataset, Studies, Sweep
from jaxflow.papers.statement import Mask, Statement
from jaxflow.papers.verdicts import Rate
from jaxflow.study import DECIDED, Study, TokenSelection, wilson

# "we choose γ = 0.1 in our experiments", of figures 2, 5 and 6 (Appendix F).
SCORE_GAP = 0.1

# The paper's symbols.
SYMBOLS = {"W": "$W$", "KQ": "$(K,Q)$"}
NAMES = {"W": "W", "KQ": "(K, Q)"}

GLOBAL = (Outcome.globally_optimal,)
LOCAL = (Outcome.globally_optimal, Outcome.locally_optimal)
# Outcomes after which nothing is known of where a flow goes.
OPEN = (Outcome.undecided, Outcome.failed, Outcome.ambiguous)

# Draws from which the acceptance rate of the score gap is told: to half a percent.
ACCEPTANCE_DRAWS = 10_000

# Trials computed together. 500 are two full blocks.
BLOCK = 250

# Trials that a note names one by one; of more it gives the number.
LISTED = 20

# A curve: its subject, how many instances at each d, of how many.
Series = tuple[str, Any, Any]


@dataclass(frozen=True)
class Size:
    """How much is computed: `trials` instances for each d, each of `settings` (n, T) and each parametrisation."""

    trials: int
    d: tuple[int, ...]
    settings: tuple[tuple[int, int], ...] = ((5, 5),)
    parametrizations: tuple[str, ...] = ("W", "KQ")


class Grid(NamedTuple):
    """What is varied; `accepted`: the share of sequences that have the score gap."""

    n: Int[Any, " s"]
    T: Int[Any, " s"]
    d: Int[Any, " k"]
    parametrization: Any
    score_gap: Float[Any, ""]
    accepted: Float[Any, "s k"]


class Ends(NamedTuple):
    """Results of `TokenSelection`; a cell is a setting (n, T), a d and a parametrisation."""

    outcome: Int[Any, "cells b"]
    program_gap: Float[Any, "cells b"]
    num_steps: Int[Any, "cells b"]
    rounds: Int[Any, "cells b"]


class SupportedEnds(NamedTuple):
    """`Ends`, with how the program of the optimal tokens ended, and margins of the other tokens in its solution."""

    outcome: Int[Any, "cells b"]
    program_gap: Float[Any, "cells b"]
    num_steps: Int[Any, "cells b"]
    rounds: Int[Any, "cells b"]
    optimal_program: Int[Any, "cells b"]
    mean_margin: Float[Any, "cells b"]
    largest_margin: Float[Any, "cells b"]


class PercentNumbers(NamedTuple):
    """The instances of a figure. The keys are those of `TokenSelection`: figures share their instances."""

    grid: Grid
    ends: Ends | SupportedEnds

    def table(self, field: str) -> np.ndarray:
        """A result by setting, parametrisation, d and trial: `(s, p, k, b)`."""
        values = getattr(self.ends, field)
        shape = (len(self.grid.n), len(self.grid.d), len(self.grid.parametrization), -1)
        return values.reshape(shape).swapaxes(1, 2)

    @property
    def outcome(self) -> np.ndarray:
        return self.table("outcome")

    @property
    def names(self) -> list[str]:
        """Of the parametrisations."""
        return [NAMES[str(name)] for name in self.grid.parametrization]

    def cell(self, s: Any, p: Any, k: Any) -> str:
        """The name of a cell."""
        return f"{self.names[p]}, n={self.grid.n[s]}, T={self.grid.T[s]}, d={self.grid.d[k]}"


def dataset_of(
    name: str, where: str, sizes: Mapping[str, Size], record: type[Any] = Ends, experiment: Any = None
) -> Dataset[PercentNumbers]:
    """The dataset of a figure: one study for each (n, T), since the selected tokens `(n,)` have one shape a study."""

    def grid(scale: str, seed: int, say: Callable[[str], None]) -> Grid:
        size, key = sizes[scale], jax.random.key(seed)
        accepted = [[score_gap_acceptance(key, T, d, SCORE_GAP, ACCEPTANCE_DRAWS) for d in size.d]
                    for _, T in size.settings]  # fmt: skip
        n, T = np.array(size.settings).T
        return Grid(n, T, np.array(size.d), np.array(size.parametrizations), np.asarray(SCORE_GAP), np.array(accepted))

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

    parts = {
        "grid": Sweep(grid, lambda seed: seed, record=Grid),
        "ends": Studies(record._fields, studies, record=record),
    }
    return Dataset("tarzanagh2023", name, parts, where=where, numbers=PercentNumbers)


def tally(numbers: PercentNumbers, outcomes: tuple[Outcome, ...]) -> tuple[np.ndarray, np.ndarray]:
    """How many instances ended in one of `outcomes`, and how many ran: both `(s, p, k)`."""
    outcome = numbers.outcome
    codes = [int(code) for code in outcomes]
    return np.isin(outcome, codes).sum(-1), (outcome != Outcome.not_run).sum(-1)


def curves_of(numbers: PercentNumbers, p: int) -> list[Series]:
    """Global convergence of a parametrisation in the first setting."""
    count, total = (table[0, p] for table in tally(numbers, GLOBAL))
    return [(f"{numbers.names[p]}: global convergence", count, total)]


def interval(count: Any, total: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Percentage with the ends of Wilson's 95% interval; NaN, 0 and 100 of nothing."""
    count, total = np.asarray(count), np.asarray(total)
    low, high = wilson(count, total)
    share = np.where(total > 0, count / np.maximum(total, 1), np.nan)
    return np.asarray(100 * share), np.asarray(100 * low), np.asarray(100 * high)


class Judged(NamedTuple):
    """One curve in the light of a sentence: what was seen, and whether it is met, contradicted or (neither) open.

    The excess of one interval over another is not checked by anything else. `lacks`: it is not at its limit yet.
    """

    text: str
    ran: bool
    against: bool
    good: bool
    lacks: bool = False
    rate: Rate | None = None


def judged(source: str, says: str, judge: Callable[[PercentNumbers], list[Judged]]) -> Statement[PercentNumbers]:
    """What is said of curves: each is inside that has instances."""

    def slowest(numbers: PercentNumbers, known: Mask) -> Rate | None:
        rates = [one.rate for one in judge(numbers) if one.rate is not None]
        return min(rates, key=lambda rate: rate.fitted, default=None)

    return Statement(
        source=source,
        says=says,
        inside=lambda n: np.array([one.ran for one in judge(n)]),
        residual=lambda n: np.array([1.0 if one.against else 0.0 if one.good else np.nan for one in judge(n)]),
        found=lambda n, known: "; ".join(one.text for one in judge(n)),
        limit=lambda n: any(one.lacks for one in judge(n)),
        rate=slowest,
    )


def rising(series: list[Series], d: Any) -> list[Judged]:
    """Whether each series rises with d.

    One does where the intervals of the smallest and the largest d are apart and none of a next larger d lies below
    that of its neighbour; where one lies below, it does not; otherwise the instances are too few to tell.
    """
    found = []
    for subject, count, total in series:
        _, low, high = interval(count, total)
        falls = [int(d[i]) for i in range(1, len(d)) if high[i] < low[i - 1]]
        apart = len(d) > 1 and bool(low[-1] > high[0])
        text = f"{subject} {percent(count, total, 0)} at d={d[0]}, {percent(count, total, -1)} at d={d[-1]}"
        if falls:
            text += f", with a fall beyond the intervals at d={', '.join(map(str, falls))}"
        elif not apart:
            text += " (the intervals overlap: too few instances to tell)"
        found.append(Judged(text, bool(np.any(total > 0)), bool(falls) or bool(high[-1] < low[0]), apart))
    return found


def approaching(series: list[Series], d: Any) -> list[Judged]:
    """Whether each series goes to 100% as d grows.

    One is there where all instances at the largest d are; on its way where the shortfall is still falling, beyond
    the intervals, over the last doubling of d, at a rate; where it grows, it does not; otherwise too few to tell.
    """
    found = []
    for subject, count, total in series:
        lacking, ran = total - count, bool(np.any(total > 0))
        text = f"{subject} {percent(count, total, -1)} at d={d[-1]}"
        if total[-1] > 0 and lacking[-1] == 0:
            found.append(Judged(text, ran, against=False, good=True))
            continue
        share, low, high = interval(lacking, total)
        # The last doubling of d, or the smallest d where there is none.
        before = max(int(np.searchsorted(d, d[-1] / 2, side="right")) - 1, 0)
        falls, grows, rate = bool(high[-1] < low[before]), bool(low[-1] > high[before]), None
        if falls:
            # Two shares of so many instances each: the errors of their logarithms add.
            steps = np.log(d[-1] / d[before])
            errors = [(1.0 - share[k] / 100.0) / max(int(lacking[k]), 1) for k in (before, -1)]
            exponent = float(np.log(share[before] / share[-1]) / steps)
            half = float(2.0 * np.sqrt(sum(errors)) / steps)
            rate = Rate(exponent, half, None, law=f"shortfall of {subject} against d")
            text += f", the shortfall falling like d^-{exponent:.1f} from d={d[before]}"
        elif grows:
            text += f", less than {percent(count, total, before)} at d={d[before]}"
        else:
            text += f", not told apart from {percent(count, total, before)} at d={d[before]}"
        found.append(Judged(text, ran, grows, falls, lacks=True, rate=rate))
    return found


def convergence(
    parametrizations: Any, figure: str, says: str, approaches: str | None
) -> list[Statement[PercentNumbers]]:
    """What figures 2 and 5 share: the trend in d, its limit, and Definition 2."""
    said = []
    for p in range(len(parametrizations)):
        source = f"{figure}, caption" + (f" ({'ab'[p]})" if len(parametrizations) > 1 else "")
        said.append(judged(source, says, lambda n, p=p: rising(curves_of(n, p), n.grid.d)))
        if approaches is not None:
            of = f"Section 4.2, {figure}"
            said.append(judged(of, approaches, lambda n, p=p: approaching(curves_of(n, p), n.grid.d)))
    return [*said, locally_optimal(figure)]


def locally_optimal(figure: str) -> Statement[PercentNumbers]:
    """Definition 2 against every direction that was certified; exceptions by trial.

    Points are no directions, nor is a flow that stopped at tokens which no direction selects (infeasible).
    """
    against = Outcome.not_locally_optimal

    def in_words(numbers: PercentNumbers, known: Mask) -> str:
        outcome = numbers.outcome
        directions, bad = np.isin(outcome, (*LOCAL, against)), outcome == against
        inside = int(directions.sum())
        return (
            f"{inside - int(bad.sum()):,} of {inside:,} certified directions select locally optimal tokens; "
            f"exceptions: {where(numbers, bad) or 'none'}; {int((outcome != Outcome.not_run).sum()) - inside:,} "
            "instances tend to no direction"
        )

    return Statement(
        source=f"Section 5.2, Definition 2, {figure}",
        says="Def. 2 captures all possible convergence directions of GD.",
        # What was not followed to its end may tend to any direction.
        inside=lambda n: np.isin(n.outcome, (*LOCAL, against, *OPEN)),
        residual=lambda n: np.where(np.isin(n.outcome, OPEN), np.nan, n.outcome == against),
        found=in_words,
    )


def notes_of(numbers: PercentNumbers) -> list[str]:
    """Every outcome of every cell by number, of all and of the decided; what is out of the ordinary by trial."""
    notes = [
        "Intervals are Wilson's at 95%; every instance is counted. What is decided: "
        + ", ".join(code.name for code in DECIDED)
        + ".",
        "Where intervals overlap, too few instances were computed to tell: such a claim is not settled.",
    ]
    notes += [_cell_note(numbers, *index) for index in np.ndindex(numbers.outcome.shape[:-1])]
    special = (Outcome.infeasible_program, Outcome.prediction_contradicted, Outcome.ambiguous, Outcome.undecided)
    for code in (*special, Outcome.failed):
        found = where(numbers, numbers.outcome == code)
        notes += [f"{code.name}: {found}."] if found else []
    accepted = numbers.grid.accepted
    notes.append(
        f"Data: score gap {float(numbers.grid.score_gap):g} by drawing sequences again, of which "
        f"{100 * accepted.min():.0f}% to {100 * accepted.max():.0f}% are accepted, depending on d and T."
    )
    certified = np.isin(numbers.outcome, LOCAL)
    if certified.any():
        gaps = numbers.table("program_gap")[certified]
        notes.append(
            f"Largest duality gap of the program of locally optimal selected tokens: {np.abs(gaps).max():.0e} "
            f"({certified.sum():,} programs)."
        )
    return notes


def _cell_note(numbers: PercentNumbers, s: Any, p: Any, k: Any) -> str:
    outcome = numbers.outcome[s, p, k]
    ran = int((outcome != Outcome.not_run).sum())
    decided = int(np.isin(outcome, DECIDED).sum())
    parts = []
    for code in Outcome:
        count = int((outcome == code).sum())
        if not count or code == Outcome.not_run:
            continue
        share, low, high = (float(x) for x in interval(count, ran))
        text = f"{count:,} {code.name} ({share:.1f}%, {low:.1f} to {high:.1f}"
        if decided < ran and code in DECIDED:
            text += f"; of the decided {float(interval(count, decided)[0]):.1f}%"
        parts.append(text + ")")
    whole = f"{ran:,} instances, " + ("all decided" if decided == ran else f"{decided:,} decided")
    return f"{numbers.cell(s, p, k)}: {whole}: {', '.join(parts)}."


def where(numbers: PercentNumbers, mask: np.ndarray) -> str:
    """Trials by cell: `W, n=5, T=5, d=4: trials 3, 17`; the number alone where there are many."""
    parts = []
    for s, p, k in zip(*np.nonzero(mask.any(-1)), strict=True):
        trials = np.flatnonzero(mask[s, p, k]).tolist()
        named = ", ".join(map(str, trials[:LISTED])) + (
            f" and {len(trials) - LISTED:,} more" if len(trials) > LISTED else ""
        )
        parts.append(f"{numbers.cell(s, p, k)}: {len(trials):,} (trial{'s' if len(trials) > 1 else ''} {named})")
    return "; ".join(parts)


def percent(count: Any, total: Any, at: int) -> str:
    share, low, high = (float(x[at]) for x in interval(count, total))
    return f"{share:.1f}% ({low:.1f} to {high:.1f}, of {int(total[at]):,})"


def convergence_bars(numbers: PercentNumbers) -> dict[str, Any]:
    """Red, blue and teal bars of the first setting, for `jaxflow.plots.draw_percentage_bars`."""
    ran = tally(numbers, GLOBAL)[1][0]
    reached = interval(tally(numbers, GLOBAL)[0][0], ran)[0]
    local = interval(tally(numbers, LOCAL)[0][0], ran)[0]
    panels = [SYMBOLS[str(p)] for p in numbers.grid.parametrization]
    letters = [f"({letter}) " for letter in "abcdef"] if len(panels) > 1 else [""]
    return {
        "x": numbers.grid.d,
        "x_label": "$d$",
        "panels": [letter + title for letter, title in zip(letters, panels, strict=False)],
        "names": ["global", "local (with global)", _complement(numbers)],
        "colors": ["#D55E00", "#0072B2", "#009E9E"],
        "percentage": np.stack([reached, local - reached, 100 - local], axis=-1),
        "denominator": ran,
    }


def _complement(numbers: PercentNumbers) -> str:
    """What the teal bars are made of, by number."""
    rest = np.bincount(numbers.outcome[0].ravel(), minlength=len(Outcome))
    parts = [
        f"{code.name.replace('_', ' ')}: {rest[code]:,}"
        for code in Outcome
        if rest[code] and code not in (*LOCAL, Outcome.not_run)
    ]
    return f"not local ({', '.join(parts) or 'none'})"
