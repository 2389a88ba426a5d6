"""The study of section 5.2 at a tiny size, end to end; its verdicts by hand."""

from pathlib import Path

import numpy as np
import pytest

from jaxflow import papers
from jaxflow._core import Outcome
from jaxflow.margin import AssumptionStatus
from jaxflow.papers.table import Table
from jaxflow.papers.tarzanagh2023 import conjecture
from jaxflow.papers.verdicts import Verdict

YES, NO, OPEN = AssumptionStatus.holds, AssumptionStatus.violated, AssumptionStatus.undecided


@pytest.mark.slow
def test_from_the_name_to_the_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(conjecture.SIZES, "quick", conjecture.Size(4, (3, 20), steps=50, n=2, T=3))
    paths, claims = papers.reproduce("tarzanagh2023", "conjecture", out=tmp_path, say=lambda line: None)
    assert all(path.stat().st_size > 0 for path in paths.values())
    with np.load(paths["data"]) as archive:
        data = dict(archive)
    found = Table({name: data[f"instances.{name}"] for name in conjecture.COLUMNS})
    assert found.outcome.shape == (2, 4) and np.all(found.outcome != Outcome.not_run)
    # What implies the other does so on every instance that was enumerated.
    assert not np.any((found.support == YES) & (found.D == NO))
    assert not np.any((found.D == YES) & (found.unique == NO) & (found.locally_optimal > 0))
    assert len(claims) == 5


def made_up(flow: list[int], b1: list[int], d: list[int], unique: list[int], **others: list[int]) -> Table:
    columns = {"outcome": flow, "descent": flow, "B1": b1, "D": d, "support": d, "unique": unique}
    columns |= {"locally_optimal": [1] * len(flow), **others}
    instances = {name: np.array([[int(x) for x in values]]) for name, values in columns.items()}
    grid = Table(d=np.array([7]), n=np.asarray(5), T=np.asarray(5))
    return Table(grid=grid, instances=Table(instances))


def test_verdicts_follow_the_numbers() -> None:
    best, local, unknown = Outcome.globally_optimal, Outcome.locally_optimal, Outcome.undecided
    holds, broken, outside = Verdict.holds, Verdict.not_settled, Verdict.outside_hypotheses
    open_ = Verdict.not_settled

    def verdicts(*columns: list[int], **others: list[int]) -> list[Verdict]:
        numbers = made_up(*columns, **others)
        return [found.verdict for found in papers.find_figure("tarzanagh2023", "conjecture").find(numbers)[0]]

    assert verdicts([best, local], [YES, NO], [YES, NO], [YES, NO]) == [holds] * 5
    assert verdicts([local, best], [YES, NO], [YES, NO], [YES, NO])[:2] == [broken, broken]
    # A path that was not followed to its end is neither proof nor counterexample.
    assert verdicts([unknown, best], [YES, NO], [YES, NO], [YES, NO])[0] == open_
    assert verdicts([best, best], [NO, NO], [YES, NO], [YES, NO])[0] == outside
    assert verdicts([best], [YES], [YES], [NO])[-1] == open_
    assert verdicts([best], [YES], [YES], [OPEN])[-1] == open_
    assert verdicts([local], [YES], [NO], [NO])[2] == open_
    # Where descent, which takes other steps, does go to W^mm, nothing has confirmed the flow.
    assert verdicts([local], [YES], [YES], [YES], descent=[best])[0] == open_
    assert verdicts([best], [YES], [NO], [YES], support=[YES])[3] == open_
