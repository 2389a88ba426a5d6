"""Checks by independent code: each runs, and none has an answer that does not depend on what it is asked about."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from jaxflow.papers.dataset import Draw
from jaxflow.papers.results import hypotheses
from jaxflow.papers.statement import checked_again
from tests.papers.findings import entry_of
from tests.papers.made_up.probes import PROBES
from tests.papers.test_every_verdict_can_change import SEVERAL, in_every_way

# Statements about one explicit case or one explicit point, of which nothing is drawn, or whose first instance it is.
EXPLICIT = {
    ("tarzanagh2023", "equal-scores"): {0, 1},
    ("tarzanagh2023", "inequalities"): {7, 8},
    ("tarzanagh2023", "nearly-equal-scores"): {0},
}
# Of many cells that one function draws and follows: one for each parametrisation, and the other kind of draws.
SOME = {("results", "hypotheses"): {0, 5, 9, 18}}
# Flows to log t = 1e6 by SciPy.
SLOW = {("results", "rates")}
# An instance of the other kind, where one in three is, is among as many but for one case in 30,000.
SEEDS = 25


def contradicted(paper: str, name: str, place: int) -> tuple[Any, Any, np.ndarray]:
    """The statement, made-up numbers that contradict it (or any, where several columns have to be wrong), and where."""
    entry, given = entry_of(paper, name), PROBES[paper, name]()
    for numbers in itertools.chain(given, *map(in_every_way, given)):
        statement = entry.said(numbers)[place]
        inside, residual = statement.measure(numbers)
        wrong = inside & (residual > max(statement.bound, statement.late))
        if wrong.any():
            return statement, numbers, wrong
    assert place in SEVERAL[paper, name][0], "no made-up numbers contradict it"
    statement = entry.said(given[0])[place]
    return statement, given[0], statement.measure(given[0])[0]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("paper", "name"), [pytest.param(*key, marks=pytest.mark.slow) if key in SLOW else key for key in PROBES]
)
def test_every_check_runs_and_follows_what_it_is_asked(paper: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Which instance it is does not matter here: no search for one that satisfies what is assumed.
    monkeypatch.setattr(hypotheses, "DRAWS", 1)
    monkeypatch.setattr(hypotheses, "SEARCH", 1)
    drawn: list[bool] = []
    for method in ("key", "instance"):
        monkeypatch.setattr(Draw, method, noting(getattr(Draw, method), drawn))
    entry = entry_of(paper, name)
    for place, one in enumerate(entry.said(PROBES[paper, name]()[0])):
        if one.again is not None and place in SOME.get((paper, name), {place}):
            explicit = place in EXPLICIT.get((paper, name), set())
            _runs(entry, place, drawn, explicit, *contradicted(paper, name, place))


def noting(method: Any, drawn: list[bool]) -> Any:
    """The same method, which notes that an instance is drawn again."""

    def noted(*arguments: Any) -> Any:
        drawn.append(True)
        return method(*arguments)

    return noted


def _runs(
    entry: Any, place: int, drawn: list[bool], explicit: bool, statement: Any, numbers: Any, wrong: np.ndarray
) -> None:
    at = tuple(np.argwhere(wrong)[0].tolist())
    only = np.zeros_like(wrong)
    only[at] = True
    drawn.clear()
    found = float(statement.again.residual(numbers, Draw(entry.dataset, "quick", 0), at))
    # The recorded residual is compared with that of the code that ran (once), and not with itself.
    ran = replace(statement, again=replace(statement.again, residual=lambda *_: found))
    for residual, agrees in ((found, found > max(statement.bound, statement.late)), (np.nan, False)):
        made = np.full(wrong.shape, residual)
        check = checked_again(ran, numbers, Draw(entry.dataset, "quick", 0), only, made)
        assert (check.agrees, check.tried) == (int(agrees), 1) and check.by
    # One that does not contradict confirms nothing, and is the same for all that reach their limit.
    if explicit or not found > max(statement.bound, statement.late):
        return
    # The same numbers with other instances, where any are drawn, and then other numbers.
    seeds = range(1, SEEDS) if drawn else ()
    others = itertools.chain(((numbers, seed) for seed in seeds), ((other, 0) for other in in_every_way(numbers)))
    values = (statement.again.residual(other, Draw(entry.dataset, "quick", seed), at) for other, seed in others)
    assert any(value != found and not np.isnan(value) for value in values), f"{place}: a constant"
