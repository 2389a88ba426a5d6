"""Figure 4 at a tiny size, end to end; its verdicts by hand."""

from pathlib import Path

import numpy as np
import pytest

from jaxflow import papers
from jaxflow.margin import ProgramResult
from jaxflow.papers.statement import hold
from jaxflow.papers.table import Table
from jaxflow.papers.tarzanagh2023 import ranks
from jaxflow.papers.verdicts import Verdict

TINY = ranks.Size(4, shapes=((2, 3), (3, 3)), dimensions=(2, 4))


@pytest.mark.slow
def test_from_the_name_to_the_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(ranks.SIZES, "quick", TINY)
    paths, claims = papers.reproduce("tarzanagh2023", "fig4", out=tmp_path, say=lambda line: None)
    assert all(path.stat().st_size > 0 for path in paths.values())
    with np.load(paths["data"]) as archive:
        data = dict(archive)
    assert data["nuclear.rank"].shape == (2 * 2, 4)
    solved = data["nuclear.result"] == ProgramResult.optimal
    assert solved.any()
    # Infeasible programs are counted and have no rank; nothing else is without one.
    assert np.all((data["nuclear.rank"] >= 0) == solved)
    assert np.all(solved | (data["nuclear.result"] == ProgramResult.infeasible))
    assert [claim.verdict for claim in claims] == [Verdict.holds] * 5


def made_up(rank: int, outside: float = 0.0, result: ProgramResult = ProgramResult.optimal) -> Table:
    def program(rank: int) -> Table:
        one = np.ones((1, 1))
        count = np.full(one.shape, rank)
        code = np.full(one.shape, result.value)
        return Table(result=code, rank=count, relative_rank=count, gap=0.0 * one, outside=outside * one)

    grid = Table(shapes=np.array([[3, 3]]), dimensions=np.array([4]))
    return Table(grid=grid, frobenius=program(3), nuclear=program(rank))


def verdicts(numbers: Table) -> list[Verdict]:
    return [hold(statement, numbers).verdict for statement in ranks.STATEMENTS]


def test_verdicts_follow_the_numbers() -> None:
    holds, broken = Verdict.holds, Verdict.not_settled
    assert verdicts(made_up(2)) == [holds] * 5
    assert verdicts(made_up(4)) == [broken, holds, broken, holds, broken]
    assert verdicts(made_up(5)) == [broken, broken, broken, holds, broken]
    assert verdicts(made_up(2, outside=1e-3)) == [holds, holds, holds, broken, holds]
    assert [hold(statement, made_up(4)).evidence.contradicted for statement in ranks.STATEMENTS] == [1, 0, 1, 0, 1]
    # Neither solved nor proven to have no solution.
    assert verdicts(made_up(2, result=ProgramResult.inaccurate)) == [broken] * 5
    nothing = made_up(2, result=ProgramResult.infeasible)
    assert verdicts(nothing) == [Verdict.outside_hypotheses] * 5
