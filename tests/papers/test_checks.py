"""Independent code gives the residuals of instances that runs have left, first of those that contradict."""

import numpy as np
import pytest

from jaxflow.papers.dataset import Draw
from jaxflow.papers.statement import checked_again
from tests.papers.recorded import EXPERIMENTS, entry_of, numbers_of, scale_of

# Of many cells that one function draws and follows: one for each parametrisation, and the other kind of draws.
SOME = {("results", "hypotheses"): {0, 5, 9, 18}}
# Flows to log t = 1e6 by SciPy.
SLOW = {("results", "rates")}
CHECKED = [key for key in EXPERIMENTS if any(one.again is not None for one in entry_of(*key).said(numbers_of(*key)))]


# CVXPY warns of programs that it solves to less than its own tolerance.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("paper", "name"), [pytest.param(*key, marks=pytest.mark.slow) if key in SLOW else key for key in CHECKED]
)
def test_independent_code_agrees_with_the_kept_residuals(paper: str, name: str) -> None:
    entry, numbers = entry_of(paper, name), numbers_of(paper, name)
    draw = Draw(entry.dataset, scale_of(paper, name), 0)
    for place, one in enumerate(entry.said(numbers)):
        if one.again is None or place not in SOME.get((paper, name), {place}):
            continue
        inside, residual = one.measure(numbers)
        known = (inside if inside.any() else np.ones_like(inside)) & ~np.isnan(residual)
        wrong = residual > max(one.most, one.late)
        at = tuple(np.argwhere(known & wrong if np.any(known & wrong) else known)[0])
        only = np.zeros_like(inside)
        only[at] = True
        check = checked_again(one, numbers, draw, only, residual)
        assert check.by and (check.agrees, check.tried) == (int(wrong[at]), 1), f"{place}: {check}"
        assert check.apart <= one.again.within * max(1.0, abs(residual[at])), f"{place}: {check}"
