"""`reproduce tarzanagh2023 factored`: §9's open question of the (K, Q) parametrisation, counted."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from jaxflow._core import Outcome
from jaxflow.papers.dataset import Dataset, Studies, Sweep
from jaxflow.papers.registry import register
from jaxflow.papers.statement import Mask, Statement, largest, median
from jaxflow.papers.table import Table
from jaxflow.papers.tarzanagh2023.percent import SCORE_GAP, interval
from jaxflow.plots import draw_percentage_bars
from jaxflow.study import Study, TokenSelection


class Size(NamedTuple):
    """`trials` instances for each pair (d, m): dimension of tokens, columns of K and Q; `block` at a time."""

    trials: int
    pairs: tuple[tuple[int, int], ...]
    block: int = 250


FULL = ((3, 3), (5, 5), (8, 8))
SIZES = {
    "quick": Size(24, ((5, 5), (5, 2)), 24),
    "paper": Size(10_000, FULL),
    "large": Size(1_000_000, (*FULL, (3, 2), (5, 2))),
}
GAP = TokenSelection.gap
# The two numbers are sums of a few hundred rounded products of order one.
ROUNDING = 1e-12
# Exceptions that a note names one by one.
LISTED = 8

GROUPS = {
    "minimises the nuclear norm": (
        Outcome.globally_optimal,
        Outcome.locally_optimal,
        Outcome.not_locally_optimal,
        Outcome.ambiguous,
    ),
    "another direction": (Outcome.prediction_contradicted,),
    "finite stationary point": (Outcome.finite_stationary_point,),
    "open": (Outcome.undecided, Outcome.infeasible_program, Outcome.failed),
}
NAMES = tuple(GROUPS)
MINIMISES, ANOTHER, POINT, OPEN = NAMES
COLORS = ("#0072B2", "#D55E00", "#999999", "#F0E442")
# Results of `TokenSelection`: trial k of a pair is `study_of(...).replay(trial=k, ...)`.
COLUMNS = ("outcome", "excess", "flow_gap", "program_gap", "num_steps", "rounds")


class FactoredNumbers(NamedTuple):
    """A row for each pair."""

    pairs: Table
    ends: Table

    def among(self, *groups: str) -> Mask:
        """Who ended in one of these of `GROUPS`."""
        return np.isin(self.ends.outcome, [int(code) for group in groups for code in GROUPS[group]])

    @property
    def counts(self) -> np.ndarray:
        """How many instances of each pair are in each of `GROUPS`: `(p, groups)`."""
        return np.stack([self.among(name).sum(axis=-1) for name in NAMES], axis=-1)


def study_of(size: Size, seed: int, d: int, m: int) -> Study:
    """The study of one pair. (d, d) and (d, m) have the same data."""
    return Study(
        TokenSelection(),
        {"n": [5], "T": [5], "d": [d], "score_gap": [SCORE_GAP]},
        {"parametrization": ["KQ"], "m": [m]},
        trials=size.trials,
        seed=seed,
        block=size.block,
    )


def _pairs(scale: str, seed: int, say: Callable[[str], None]) -> Table:
    """The pairs (d, m), and the seed of the instances. Of its own shape: `d`, `m` `(p,)`."""
    d, m = np.array(SIZES[scale].pairs).T
    return Table(d=d, m=m, seed=np.asarray(seed))


def _studies(scale: str, seed: int) -> Mapping[str, Study]:
    return {f"d={d}, m={m}": study_of(SIZES[scale], seed, d, m) for d, m in SIZES[scale].pairs}


FACTORED = Dataset(
    "tarzanagh2023",
    "factored",
    {"pairs": Sweep(_pairs, lambda seed: seed), "ends": Studies(COLUMNS, _studies)},
    where=f"{__name__}:FACTORED",
    numbers=FactoredNumbers,
)


def _open_question(which: str, of: Callable[[Table], Mask]) -> Statement[FactoredNumbers]:
    def asked(numbers: FactoredNumbers, *groups: str) -> Mask:
        return numbers.among(*groups) & of(numbers.pairs)[:, None]

    def excess(numbers: FactoredNumbers) -> float:
        return largest(numbers.ends.excess[asked(numbers, ANOTHER)])

    def in_words(numbers: FactoredNumbers, known: Mask) -> str:
        parts, rows = [], of(numbers.pairs)
        pairs = zip(numbers.pairs.d[rows], numbers.pairs.m[rows], numbers.counts[rows], strict=True)
        for d, m, (yes, no, _, left) in pairs:
            share, low, high = interval(yes, yes + no)
            parts.append(f"d={d}, m={m}: {yes:,} of {yes + no:,} ({share:.2f}% [{low:.2f}, {high:.2f}]), open {left:,}")
        points = int(asked(numbers, POINT).sum())
        text = f"{'; '.join(parts)}. {points:,} of the flows end at finite stationary points"
        if asked(numbers, ANOTHER).any():
            text += f"; the largest excess of another direction is {excess(numbers):.2g}"
        above = numbers.ends.excess[asked(numbers, OPEN)]
        above = above[np.isfinite(above)]
        return text + (
            f"; open ones stand {median(above):.2g} above the convex bound in the median" if len(above) else ""
        )

    return Statement(
        source=f"Section 9, (K, Q) parameterization, {which}",
        says="We find it remarkable that regularization path analysis was able to predict the implicit bias of "
        "gradient descent (read here as: the flow's own limit minimises the nuclear norm globally, for the tokens it "
        "selects).",
        inside=lambda n: asked(n, MINIMISES, ANOTHER, OPEN),
        residual=lambda n: np.where(n.among(OPEN), np.nan, n.among(ANOTHER)),
        found=in_words,
    )


def _claimed(numbers: FactoredNumbers) -> Mask:
    """Flows whose own multipliers certify their direction."""
    return np.isfinite(numbers.ends.flow_gap) & (numbers.ends.flow_gap <= GAP)


def _unconfirmed(numbers: FactoredNumbers) -> Mask:
    """The flow's dual bounds the optimum: what it claims is at least its true excess, by a solver that never saw it."""
    ends = numbers.ends
    return ~(ends.excess <= ends.flow_gap + ends.program_gap + ROUNDING)


def _confirmed_in_words(numbers: FactoredNumbers, known: Mask) -> str:
    certified, claimed = numbers.among(MINIMISES), _claimed(numbers)
    gaps, programs = numbers.ends.flow_gap[certified], numbers.ends.program_gap[certified]
    return (
        f"{int(claimed.sum()):,} flows claim a gap of at most {GAP:.0e}; the excess over the program's own solution is "
        f"larger for {int((claimed & _unconfirmed(numbers)).sum()):,}. Of {len(gaps):,} certified directions "
        f"{int((gaps <= GAP).sum()):,} have that gap by their own multipliers, the largest is {largest(gaps):.1e}; "
        f"largest gap of a program {largest(programs):.1e}"
    )


CONFIRMED = Statement[FactoredNumbers](
    source="Certificates of this library",
    says="A gap that a flow claims is confirmed by a program that is solved from the data alone.",
    inside=_claimed,
    residual=_unconfirmed,
    found=_confirmed_in_words,
)
FULL_RANK = _open_question("m = d", lambda pairs: pairs.m >= pairs.d)
LOW_RANK = _open_question("m < d", lambda pairs: pairs.m < pairs.d)


def _statements(numbers: FactoredNumbers) -> list[Statement[FactoredNumbers]]:
    fewer = np.any(numbers.pairs.m < numbers.pairs.d)
    return [FULL_RANK, *([LOW_RANK] if fewer else []), CONFIRMED]


def _notes(numbers: FactoredNumbers) -> list[str]:
    pairs, ends = numbers.pairs, numbers.ends
    notes = [
        f"{ends.outcome.shape[1]:,} instances for each pair, none dropped; replay: `{__name__}.study_of(SIZES[scale], "
        f"{int(pairs.seed)}, d, m).replay(trial=k)`."
    ]
    for name in (ANOTHER, OPEN):
        for d, m, row in zip(pairs.d, pairs.m, numbers.among(name), strict=True):
            where = np.flatnonzero(row)
            if len(where):
                more = f" and {len(where) - LISTED:,} more" if len(where) > LISTED else ""
                notes.append(f"{name.capitalize()}, d={d}, m={m}: trials {', '.join(map(str, where[:LISTED]))}{more}.")
    again = int((ends.rounds > 1).sum())
    return [*notes, f"{again:,} flows left a selection again; steps: median {np.median(ends.num_steps):.0f}."]


def draw(numbers: FactoredNumbers) -> Any:
    """How the flows of each pair ended, as shares of all."""
    counts = numbers.counts
    total = counts.sum(axis=-1)
    return draw_percentage_bars(
        {
            "x": np.array([f"{d}, {m}" for d, m in zip(numbers.pairs.d, numbers.pairs.m, strict=True)]),
            "x_label": "$d$, $m$",
            "panels": ["limits of $(K,Q)$, $n=T=5$"],
            "names": list(NAMES),
            "colors": list(COLORS),
            "percentage": (100.0 * counts / np.maximum(total, 1)[:, None])[None],
            "denominator": total[None],
        }
    )


# Theorem 2 says where the *regularisation path* of W = K Qᵀ goes: to a solution of (Att-SVM⋆), least nuclear norm.
# Whether the flow goes there is left open. n = T = 5, everything uniform on the unit sphere, score gap 0.1, K and Q
# normal of the published size, with m columns. Each flow is followed until its own multipliers certify its direction;
# the excess is the nuclear norm of that direction at margin one, over the least one for the tokens that it selected,
# which a solver finds from the data alone, less one. For m < d the program is that of rank m, whose lower bound is the
# convex one: where it is not tight nothing is certified, and the instance stays open with its excess over that bound.
# Sizes are ours.
register(
    FACTORED,
    "factored",
    title="Section 9's open question of (K, Q): does the flow's own limit minimise the nuclear norm?",
    statements=_statements,
    notes=_notes,
    draw=draw,
)
