"""The six verdicts, and the one function that decides between them."""

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import betaincinv, stdtrit

from jaxflow._core import as_array, checked, require

# Of all intervals and bounds, and of the instances that have to do what is said of each.
CONFIDENCE = 0.95


class Verdict(enum.StrEnum):
    """How a statement of a paper fares. "Inside" are the instances that satisfy its hypotheses.

    - `holds`: there are instances inside, none contradicts it, and all are decided, or so many that exceptions are
      rare even if every undecided one is taken for an exception (`Evidence.exceptions` at most 5%).
    - `holds_at_this_rate`: said of a limit, of which only finite times are seen. The above, and a rate was fitted that
      agrees with the predicted one (`Rate.agrees`).
    - `not_settled`: there are instances inside, and neither of the above nor the next is true: too many are undecided,
      or one contradicts it and nothing independent has confirmed that, or it is said of a limit and no rate agrees.
    - `counterexample_found`: instances inside contradict it, and independent code, run on them, agrees (`Check`).
    - `outside_hypotheses`: instances were run, and none is inside.
    - `not_run`: no instance was run, as where the paper's networks and data are not at hand.
    """

    holds = "holds"
    holds_at_this_rate = "holds at this rate"
    not_settled = "not settled"
    counterexample_found = "counterexample found"
    outside_hypotheses = "outside its hypotheses"
    not_run = "not run"


@dataclass(frozen=True)
class Rate:
    """How fast a distance from a limit was found to fall: the exponent, positive where it falls.

    **Arguments:** `fitted` ± `half_width`: the exponent with its 95% interval; `predicted`: what theory says, None
    where a statement says only that the distance vanishes; `bias`: by how much the finite range of the fit may move
    the exponent, with its reason beside the constant; `law`: what falls like which power of what, in words; `falls`:
    of a mean over instances, the share of them whose own exponent is positive; `share`: where each has an interval of
    its own, of those whose interval lies above zero and, with the bias, contains their own prediction.
    """

    fitted: float
    half_width: float
    predicted: float | None
    bias: float = 0.0
    law: str = ""
    falls: float = 1.0
    share: float | None = None

    @property
    def agrees(self) -> bool:
        """On 95% of the instances, each by its own interval. Where they have none, the interval of the mean lies above
        zero and, with the bias, contains the predicted exponent, and the distance falls on 95% of the instances: a
        mean does not speak for those that rise. NaN agrees with none."""
        if self.share is not None:
            return self.share >= CONFIDENCE
        if not (self.fitted - self.half_width > 0.0 and self.falls >= CONFIDENCE):
            return False
        return self.predicted is None or abs(self.fitted - self.predicted) <= self.half_width + self.bias

    def in_words(self) -> str:
        """The fit, its interval and what it is compared with."""
        width = f"{self.fitted:.3f} ± {self.half_width:.3f}" + (f" (bias up to {self.bias:g})" if self.bias else "")
        aim = "only a positive one is predicted" if self.predicted is None else f"predicted {self.predicted:.3f}"
        rises = f", and {100 * (1.0 - self.falls):.3g}% of single ones are not positive" if self.falls < 1.0 else ""
        each = "" if self.share is None else f", in the intervals of {100 * self.share:.3g}% of the instances"
        return (f"{self.law}: " if self.law else "") + f"exponent {width}, {aim}{each}{rises}"


@dataclass(frozen=True)
class Check:
    """What independent code makes of the instances that contradict a statement.

    **Arguments:** `agrees` of the `tried` ones have a residual that contradicts too, and is the recorded one within the
    error of both; `by`: what computed it; `apart`: the largest difference of residuals.
    """

    agrees: int
    tried: int
    by: str
    apart: float = 0.0

    @property
    def confirms(self) -> bool:
        """Some were tried, and all agree."""
        return 0 < self.agrees == self.tried

    def in_words(self) -> str:
        """What agrees with what."""
        return f"{self.by} agrees on {self.agrees} of {self.tried}, residuals at most {self.apart:.0e} apart"


@dataclass(frozen=True)
class Evidence:
    """What the instances of one statement say.

    **Arguments:** `inside`: how many satisfy the hypotheses, decided or not; `contradicted`, `undecided`: how many of
    them contradict the statement, and how many say nothing; `limit`: the statement is about a limit, which finite
    times never reach; `rate`: the fit that then stands in for it; `check`: what independent code makes of the
    contradiction, None where none was run; `ran`: whether any instance was run, inside or outside.

    **Raises:** `ValueError` where the counts cannot be those of `inside` instances, or instances inside were not run.
    """

    inside: int
    contradicted: int = 0
    undecided: int = 0
    limit: bool = False
    rate: Rate | None = None
    check: Check | None = None
    ran: bool = True

    def __post_init__(self) -> None:
        if self.inside and not self.ran:
            raise ValueError(f"evidence: instances inside that were not run in {self}")
        if min(self.inside, self.contradicted, self.undecided) < 0:
            raise ValueError(f"evidence: counts are negative in {self}")
        if self.contradicted + self.undecided > self.inside:
            raise ValueError(f"evidence: more contradicted and undecided than inside in {self}")

    @property
    def confirmed(self) -> int:
        """Instances inside that confirm the statement."""
        return self.inside - self.contradicted - self.undecided

    @property
    def exceptions(self) -> float:
        """The largest share of exceptions that is compatible with these instances, all that do not confirm the
        statement taken for exceptions: the upper bound of Clopper and Pearson (1934) at 95%. One of none."""
        others = self.inside - self.confirmed
        return float(betaincinv(others + 1, self.confirmed, CONFIDENCE)) if self.confirmed else 1.0


@checked()
def decide(evidence: Evidence) -> Verdict:
    """The verdict, by the first line that applies."""
    if not evidence.ran:
        return Verdict.not_run
    if evidence.inside == 0:
        return Verdict.outside_hypotheses
    if evidence.contradicted and evidence.check is not None and evidence.check.confirms:
        return Verdict.counterexample_found
    if evidence.contradicted or (evidence.undecided and evidence.exceptions > 1.0 - CONFIDENCE):
        return Verdict.not_settled
    if not evidence.limit:
        return Verdict.holds
    if evidence.rate is not None and evidence.rate.agrees:
        return Verdict.holds_at_this_rate
    return Verdict.not_settled


@checked()
def fit(x: Sequence[float] | np.ndarray, y: Sequence[float] | np.ndarray) -> tuple[float, float]:
    """Slope of y against x by least squares, and half its 95% interval, with Student's factor for m - 2 degrees of
    freedom (12.7 standard errors of three points). NaN of fewer, and of one x alone."""
    x, y = (np.asarray(as_array(name, value), float) for name, value in (("x", x), ("y", y)))
    require(x.ndim == 1, "x", f"expected shape (m,), got {x.shape}")
    require(y.shape == x.shape, "y", f"expected one value for each of {len(x)}, got shape {y.shape}")
    slope, half = _lines(x[None], y[None], np.ones((1, len(x)), bool))
    return float(slope[0]), float(half[0])


def power_laws(
    x: np.ndarray, values: np.ndarray, use: np.ndarray | bool = True, least: int = 3
) -> tuple[np.ndarray, np.ndarray]:
    """`fit` of log values against x row by row: slopes and half their intervals, `(b,)` each.

    **Arguments:** `x`, which values to `use`: `(m,)`, or for each row as `values` `(b, m)`. NaN of rows with fewer than
    `least` of these, and where one of these is not positive.
    """
    x, use = (np.broadcast_to(one, values.shape) for one in (x, use))
    enough = np.sum(use, axis=1, keepdims=True) >= least
    return _lines(x, np.log(np.where(values > 0, values, np.nan)), use & enough)


def _lines(x: np.ndarray, y: np.ndarray, use: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`fit` of the used entries of every row `(b, m)`."""
    count = np.sum(use, axis=1, keepdims=True)
    known = (count >= 3) & np.all(~use | (np.isfinite(x) & np.isfinite(y)), axis=1, keepdims=True)
    use, count = use & known, np.where(known, count, 3)
    centred, units = [], []
    for z in (x, y):
        # In units in which no square overflows.
        used = np.where(use, z, 0.0)
        unit = np.maximum(np.max(np.abs(used), axis=1, initial=0.0, keepdims=True), np.finfo(float).tiny)
        mean = np.sum(used / unit, axis=1, keepdims=True) / count
        centred.append(np.where(use, used / unit - mean, 0.0))
        units.append(unit[:, 0])
    x, y = centred
    spread = np.sum(x**2, axis=1)
    known, count = known[:, 0] & (spread > 0), count[:, 0]
    spread = np.where(known, spread, 1.0)
    slope = np.sum(x * y, axis=1) / spread
    error = np.sqrt(np.sum((y - slope[:, None] * x) ** 2, axis=1) / (count - 2) / spread)
    with np.errstate(over="ignore"):
        unit = np.where(known, units[1] / units[0], np.nan)
        return slope * unit, _student(count - 2) * error * unit


def _student(freedom: int | np.ndarray) -> np.ndarray:
    """How many standard errors make half of a 95% interval."""
    return np.asarray(stdtrit(freedom, 0.5 * (1.0 + CONFIDENCE)))


@checked()
def common_rate(
    fitted: np.ndarray,
    predicted: np.ndarray | float | None,
    *,
    half: np.ndarray | None = None,
    bias: float = 0.0,
    law: str = "",
) -> Rate | None:
    r"""One rate of many instances: means, and a 95% interval of the differences; None below three fits.

    Where every instance has its own prediction, differences are averaged: $\overline{f-p}\pm t_{m-1}s/\sqrt m$ with
    Student's factor t. The share of instances with a positive exponent of their own is kept beside it. With `half`,
    the half widths of the intervals of `fit`, each instance is judged by its own.
    """
    fitted = np.asarray(fitted, float).ravel()
    aims = np.broadcast_to(np.asarray(0.0 if predicted is None else predicted, float).ravel(), fitted.shape)
    kept = np.isfinite(fitted) & np.isfinite(aims)
    if kept.sum() < 3:
        return None
    differences = fitted[kept] - aims[kept]
    count = int(kept.sum())
    error = float(_student(count - 1)) * float(np.std(differences, ddof=1)) / math.sqrt(count)
    aim = None if predicted is None else float(np.mean(aims[kept]))
    share = None
    if half is not None:
        own = np.asarray(half, float).ravel()[kept]
        near = np.abs(differences) <= own + bias if predicted is not None else True
        share = float(np.mean((fitted[kept] - own > 0.0) & near))
    falls = float(np.mean(fitted[kept] > 0.0))
    return Rate(float(np.mean(fitted[kept])), error, aim, bias, law, falls, share)
