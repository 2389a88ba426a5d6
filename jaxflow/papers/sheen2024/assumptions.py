"""How often the assumptions hold, which imply which, and what Assumption 3 asks of the score gap."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxflow.data import random_tokens
from jaxflow.losses import Exponential
from jaxflow.models import CombinedAttention
from jaxflow.papers.dataset import Dataset, Draw, Part, Sweep
from jaxflow.papers.independent import margin_rows, separable, tokens_of
from jaxflow.papers.registry import register
from jaxflow.papers.sheen2024.instances import equal_score_tokens
from jaxflow.papers.sheen2024.separability import assumption_1, assumption_3, diagonal_separability, score_gap_needed
from jaxflow.papers.statement import Again, Statement
from jaxflow.papers.table import Table
from jaxflow.risk import EmpiricalRisk

TRIALS = {"quick": 64, "paper": 1024, "large": 8192}
SHAPE = (6, 8, 10)
# (n, L) and multiples of the needed gap, of which the middle ones are next to the bound itself.
SIZES = ((2, 3), (3, 5), (4, 4), (6, 8), (10, 10))
MULTIPLES = (0.5, 0.99, 1.0 - 1e-9, 1.0 + 1e-9, 1.01, 2.0)


def separability(key: Any, shape: tuple[int, int, int]) -> Table:
    """Of one instance.

    Slacks of Assumption 1 and of separability by a diagonal W: positive, 0 with a Farkas ray, or NaN.
    """
    data, head = random_tokens(key, *shape)
    return Table(general=assumption_1(data, head).slack, diagonal=diagonal_separability(data, head).slack)


def slack(key: Any, n: int, T: int, multiple: float) -> float:
    """Slack of Assumption 3 at W = 0 for equal gaps of `multiple` times what it needs."""
    data, head = equal_score_tokens(key, n, T, 4, multiple * score_gap_needed(n, T))
    return float(assumption_3(EmpiricalRisk(data, Exponential()), CombinedAttention(jnp.zeros((4, 4)), head)).slack)


def gaps(scale: str, key: Any, say: Callable[[str], None]) -> Table:
    """At every size and multiple.

    Slack of Assumption 3 at W = 0 with equal gaps, `(sizes, multiples)`, and the gap that it needs, `(sizes,)`. Of its
    own shape: `slack` `(s, k)`; `needed` `(s,)`.
    """
    slacks = np.asarray([[slack(key, n, T, multiple) for multiple in MULTIPLES] for n, T in SIZES])
    return Table(slack=slacks, needed=np.asarray([score_gap_needed(n, T) for n, T in SIZES]))


# `separability` `(1, b)`: of unit-sphere data; `gaps`: of data of Assumption 2, about the bound of Assumption 3.
ASSUMPTIONS = Dataset(
    "sheen2024",
    "assumptions",
    {
        "separability": Part(separability, {"sphere": SHAPE}, TRIALS, block=32),
        "gaps": Sweep(gaps),
    },
    where=f"{__name__}:ASSUMPTIONS",
)


def _decided(data: Table) -> np.ndarray:
    return np.isfinite(data.general) & np.isfinite(data.diagonal)


def _inside(numbers: Table) -> np.ndarray:
    """Where separability is open the instance may be inside: it is counted, and decides nothing."""
    data = numbers.separability.at(0)
    return (data.general > 0) | ~_decided(data)


def _separable_again(numbers: Table, draw: Draw, at: tuple[int, ...]) -> float:
    given = tokens_of(*random_tokens(draw.instance("separability", at[0])[0], *SHAPE))
    rows = margin_rows(given, np.argmax(given.scores, axis=1))
    return float(not separable(np.diagonal(rows, axis1=1, axis2=2)))


SEPARABLE = Statement[Table](
    source="ℓ1-SVM",
    says="Assumption 1 makes the diagonal program feasible (it is what §4 works with); unit-sphere data, n, L, d = "
    f"{SHAPE}.",
    inside=_inside,
    residual=lambda n: np.where(_decided(n.separability.at(0)), n.separability.at(0).diagonal <= 0, np.nan),
    again=Again("HiGHS of SciPy", _separable_again, 0.0),
)


def _other_side(numbers: Table) -> np.ndarray:
    """How far the slack is on the wrong side of zero; 0 on the right one."""
    above = np.asarray(MULTIPLES)[None] > 1.0
    slacks = numbers.gaps.slack
    wrong = (slacks >= 0) != above
    return np.where(np.isnan(slacks), np.nan, np.where(wrong, np.maximum(np.abs(slacks), 1e-300), 0.0))


GAP = Statement[Table](
    source="Assumption 3",
    says='"If we start with β(0) = 0, Assumption 3 holds when the gap ... is sufficiently large": from which gap on.',
    residual=_other_side,
    unit="slack beyond the bound",
)

register(
    ASSUMPTIONS,
    title="Assumptions 1 and 3, diagonal separability",
    statements=[SEPARABLE, GAP],
)
