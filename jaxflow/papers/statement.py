"""A statement of a paper, tested on the typed numbers of one experiment."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from jaxflow.papers.claims import Finding
from jaxflow.papers.dataset import Draw
from jaxflow.papers.verdicts import CONFIDENCE, Check, Evidence, Rate, decide

N = TypeVar("N")

Mask = np.ndarray

# The largest normal number below zero, as a bound: a residual of zero exceeds it.
BELOW_ZERO = -np.finfo(float).tiny

# Contradicting instances that are computed again: where all agree, 95% of all do, with 95% confidence.
TRIED = math.ceil(math.log(1.0 - CONFIDENCE) / math.log(CONFIDENCE))


@dataclass(frozen=True)
class Again(Generic[N]):
    """A residual by independent code, which imports no solver, no flow and no gradient of this library.

    - `by`: what computes it; `residual(numbers, draw, at)`: of the instance at an index of the mask, from data that the
      numbers hold or that are drawn again.
    - `within`: the error of both computations, relative to residuals above one.
    """

    by: str
    residual: Callable[[N, Draw, tuple[int, ...]], float]
    within: float


@dataclass(frozen=True, kw_only=True)
class Statement(Generic[N]):
    r"""What a paper says about each instance, or about its limit, and how the numbers `N` test it.

    - `source`: which statement; `says`: the statement, in one sentence.
    - `of`: the part of all numbers that it is about, which the functions below are given; all, by default.
    - `inside`: which instances satisfy the hypotheses (all, by default), of any shape, empty where nothing was run.
    - `residual`: of the same shape, how far an instance is from the statement; NaN where this is not known (not
      followed, not solved): the instance is undecided.
    - `bound`: the largest allowed residual; where that is a size, with what it measures: `(1e-8, "duality gap")`. Where
      the residual only counts (0 for yes, 1 for no) it is 0.
    - `found`: in at most 25 words, what is unusual about the instances that are inside and have a residual; the largest
      residual is added. By default the words are counted: how many are within the bound, and their median.
    - `rate`: of a statement about a limit: finite times show only the approach to it, which this fits. `limit`: whether
      the verdict rests on it, by default where there is one (a function of the numbers where some instances are at the
      limit). `certified`: what certifies the limit itself, instance by instance; then no rate is needed.
    - `late`: the residual up to which an instance may still approach the limit: between `bound` and `late` it is
      undecided.
    - `again`: the residual by independent code, executed on instances that contradict; a counterexample needs it.
    - `beyond`: measured where the hypotheses fail, to show whether the conclusion fails too: no instance is inside.

    **Raises:** `ValueError` for a limit without a rate: no numbers could confirm it.

    **Example:**

    ```python
    from jaxflow.papers import Statement, Table

    positive = Statement[Table](
        source="Lemma 1",
        says="Every margin is at least one.",
        inside=lambda numbers: np.isfinite(numbers.margin),  # who satisfies the hypotheses
        residual=lambda numbers: 1.0 - numbers.margin,
        bound=(1e-8, "by how much it falls short"),
    )
    ```
    """

    source: str
    says: str
    of: Callable[[Any], N] = lambda numbers: numbers
    residual: Callable[[N], np.ndarray]
    inside: Callable[[N], Mask] | None = None
    bound: float | tuple[float, str] = 0.0
    found: Callable[[N, Mask], str] | None = None
    limit: bool | Callable[[N], bool] | None = None
    rate: Callable[[N, Mask], Rate | None] | None = None
    certified: str = ""
    late: float = -math.inf
    again: Again[N] | None = None
    beyond: bool = False

    def __post_init__(self) -> None:
        if self.limit and self.rate is None:
            raise ValueError(f"rate: {self.source} is said of a limit and has none; is the limit itself `certified`?")
        if self.certified and self.rate is not None:
            raise ValueError(f"certified: the limit of {self.source} is certified, which needs no rate")

    @property
    def most(self) -> float:
        """The largest allowed residual."""
        return self.bound[0] if isinstance(self.bound, tuple) else self.bound

    @property
    def unit(self) -> str:
        """What the residual measures; empty where it only counts."""
        return self.bound[1] if isinstance(self.bound, tuple) else ""

    def is_limit(self, part: N) -> bool:
        """Whether the verdict on these numbers needs the rate."""
        if callable(self.limit):
            return self.limit(part)
        return self.rate is not None if self.limit is None else self.limit

    def measure(self, numbers: Any) -> tuple[Mask, np.ndarray]:
        """Which instances are inside, and the residuals of all."""
        part = self.of(numbers)
        residual = np.asarray(self.residual(part), float)
        inside = np.ones(residual.shape, bool) if self.inside is None else np.asarray(self.inside(part), bool)
        return inside, np.broadcast_to(residual, inside.shape)


def hold(statement: Statement[Any], numbers: Any, draw: Draw | None = None) -> Finding:
    """What the numbers say of a statement; `draw`: where they were drawn, without which nothing is computed again."""
    inside, residual = statement.measure(numbers)
    known = inside & ~np.isnan(residual)
    seen = residual[known]
    top = float(np.max(seen)) if seen.size and statement.unit else math.inf
    outside = inside.size if statement.beyond else int(np.sum(~inside))
    values: dict[str, float | int] = {"known": seen.size}
    if statement.unit:
        values["largest"] = top
    evidence = _evidence(statement, numbers, inside, known, residual, draw)
    words = _measured(statement, residual[inside], evidence)
    if statement.found:
        words = statement.found(statement.of(numbers), known)
    words += f"; certified by {statement.certified}" if statement.certified else ""
    return Finding(statement.source, statement.says, words, evidence, outside, top, statement.unit, values)


def _measured(statement: Statement[Any], residual: np.ndarray, evidence: Evidence) -> str:
    """How many of these residuals are within the bound; their median, where that has a unit."""
    if not residual.size:
        return "none inside" if evidence.ran else decide(evidence).value
    known = residual[~np.isnan(residual)]
    middle = f", median {np.median(known):.1e}" if statement.unit and known.size else ""
    return met(statement.most, residual) + middle


def _evidence(
    statement: Statement[Any], numbers: Any, inside: Mask, known: Mask, residual: np.ndarray, draw: Draw | None
) -> Evidence:
    if inside.size == 0:
        return Evidence(0, ran=False)
    if statement.beyond:
        return Evidence(0)
    good = known & (residual <= statement.most)
    wrong = known & ~good & (residual > statement.late)
    check = None
    if statement.again is not None and draw is not None and wrong.any():
        check = checked_again(statement, numbers, draw, wrong, residual)
    counts = (int(np.sum(one)) for one in (inside, wrong, inside & ~good & ~wrong))
    part = statement.of(numbers)
    rate = statement.rate(part, known) if statement.rate else None
    return Evidence(*counts, limit=bool(statement.is_limit(part)), rate=rate, check=check)


def checked_again(statement: Statement[Any], numbers: Any, draw: Draw, wrong: Mask, residual: np.ndarray) -> Check:
    """Contradicting instances by independent code: `TRIED` of them, evenly over all."""
    again = statement.again
    assert again is not None
    part = statement.of(numbers)
    places = np.argwhere(wrong)
    tried = places[np.unique(np.linspace(0, len(places) - 1, TRIED).astype(int))]
    agrees, largest = 0, 0.0
    for at in map(tuple, tried.tolist()):
        first, second = float(residual[at]), float(again.residual(part, draw, at))
        apart = 0.0 if first == second else abs(first - second)
        largest = max(largest, apart if apart == apart else math.inf)
        wrong_too = second > max(statement.most, statement.late)
        agrees += bool(wrong_too and apart <= again.within * max(1.0, abs(first)))
    return Check(agrees, len(tried), again.by, largest)


def met(bound: float, residual: np.ndarray) -> str:
    """How many residuals are within the bound; one that is not known is not."""
    aim = {0.0: "as stated", BELOW_ZERO: "below zero"}.get(bound, f"within {bound:g}")
    return f"{int(np.sum(residual <= bound))} of {np.size(residual)} {aim}"


def median(values: np.ndarray) -> float:
    """NaN of nothing."""
    return float(np.median(values)) if np.size(values) else math.nan


def largest(values: np.ndarray) -> float:
    """The largest of what is zero or more; 0 of nothing."""
    return float(np.max(values, initial=0.0))
