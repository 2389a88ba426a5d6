"""Lemma 1: solutions of (Att-SVM) and (Att-SVM*) have rank at most n and rows in the span of the queries."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxflow.margin import ProgramResult
from jaxflow.papers.checks import AbstractCheck, Row, register_check
from jaxflow.papers.registry import Data
from jaxflow.papers.tarzanagh2023 import fig4
from jaxflow.papers.tarzanagh2023.rank_claims import INSIDE, PROGRAMS
from jaxflow.report import Evidence

SIZES = {
    "quick": fig4.Size(40, shapes=((3, 4),), dimensions=(2, 3, 5, 8)),
    "paper": fig4.Size(200, shapes=((3, 4), (5, 5)), dimensions=(2, 3, 5, 8)),
    "large": fig4.Size(5000, shapes=((3, 4), (5, 5)), dimensions=(2, 3, 5, 8)),
}


@register_check("tarzanagh2023", "ranks", statements="Lemma 1")
class Ranks(AbstractCheck):
    """The programs of random instances, as in figure 4; d below and above n."""

    def compute(self, scale: str, key: Any, say: Callable[[str], None]) -> Data:
        return fig4.compute(SIZES[scale], int(jax.random.randint(key, (), 0, 2**30)), say)

    def rows(self, data: Data) -> list[Row]:
        return [_row(data, norm, program) for norm, program in PROGRAMS.items()]


def _row(data: Data, norm: str, program: str) -> Row:
    result, rank, outside = (data[f"{norm}_{name}"] for name in ("result", "rank", "outside"))
    solved = result == ProgramResult.optimal.value
    n = np.broadcast_to(data["shapes"][:, 0, None, None], rank.shape)
    d = np.broadcast_to(data["dimensions"][None, :, None], rank.shape)
    above = int((solved & (rank > np.minimum(n, d))).sum())
    at = int((solved & (rank == np.minimum(n, d))).sum())
    leaves = int((solved & (outside > INSIDE)).sum())
    infeasible = int((result == ProgramResult.infeasible.value).sum())
    count = int(solved.sum())
    wrong = int((solved & ((rank > np.minimum(n, d)) | (outside > INSIDE))).sum())
    return Row(
        "Lemma 1",
        f"solutions of {program} have rank ≤ n (so ≤ min(n, d)) and rows within span{{z_i}}",
        f"{above} of {count} have a larger rank than min(n, d), {at} have exactly that; {leaves} leave the span; "
        f"{infeasible} programs infeasible, {result.size - count - infeasible} not solved to the tolerance",
        int(result.size - infeasible),
        infeasible,
        float(outside[solved].max(initial=0.0)) if count else float("inf"),
        "share outside of the span",
        # What is neither solved nor proven infeasible is undecided.
        Evidence(result.size - infeasible, wrong, result.size - infeasible - count),
        {"above": above, "attained": at, "solutions": count, "infeasible": infeasible},
    )
