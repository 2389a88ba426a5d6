"""The open question of §9 at a tiny size, end to end; its verdicts by hand."""

from pathlib import Path

import numpy as np
import pytest

from jaxflow import papers
from jaxflow._core import Outcome
from jaxflow.papers.claims import Finding
from jaxflow.papers.table import Table
from jaxflow.papers.tarzanagh2023 import factored
from jaxflow.papers.verdicts import Verdict


@pytest.mark.slow
def test_from_the_name_to_the_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(factored.SIZES, "quick", factored.Size(6, ((3, 3),), 6))
    paths, claims = papers.reproduce("tarzanagh2023", "factored", out=tmp_path, say=lambda line: None)
    assert all(path.stat().st_size > 0 for path in paths.values())
    with np.load(paths["data"]) as archive:
        data = dict(archive)
    assert data["ends.outcome"].shape == (1, 6)
    # No pair has fewer columns than rows: the question is asked once.
    assert len(claims) == 2 and claims[1].verdict == Verdict.holds
    # An instance comes back by its number, with the same outcome.
    limit = factored.study_of(factored.SIZES["quick"], int(data["pairs.seed"]), 3, 3).replay(trial=2)
    assert int(limit.outcome) == data["ends.outcome"][0, 2]


def made_up(outcomes: list[Outcome], excess: list[float], own: list[float], m: int = 5) -> Table:
    n = len(outcomes)
    return Table(
        pairs=Table(d=np.array([5]), m=np.array([m]), seed=np.asarray(0)),
        ends=Table(
            outcome=np.array([[int(x) for x in outcomes]]),
            excess=np.array([excess]),
            flow_gap=np.array([own]),
            program_gap=np.full((1, n), 1e-15),
            num_steps=np.full((1, n), 60),
            rounds=np.ones((1, n), int),
        ),
    )


def test_verdicts_follow_the_numbers() -> None:
    good, bad, still = Outcome.locally_optimal, Outcome.prediction_contradicted, Outcome.undecided

    def found(outcomes: list[Outcome], excess: list[float], own: list[float], m: int = 5) -> list[Finding]:
        return papers.find_figure("tarzanagh2023", "factored").find(made_up(outcomes, excess, own, m))[0]

    question, confirmed = found([good, still], [1e-9, 0.5], [2e-9, 0.4])
    assert question.verdict == Verdict.not_settled and question.evidence.undecided == 1
    settled, _ = found([good, good], [1e-9, 1e-9], [2e-9, 2e-9])
    assert settled.verdict == Verdict.holds
    assert confirmed.verdict == Verdict.holds and confirmed.evidence.inside == 1
    question, _ = found([good, bad], [1e-9, 0.3], [2e-9, 0.4])
    assert question.verdict == Verdict.not_settled and question.evidence.contradicted == 1
    # A flow that claims 2e-9 where the program finds 1e-7.
    _, confirmed = found([good, good], [1e-9, 1e-7], [2e-9, 2e-9])
    assert confirmed.verdict == Verdict.not_settled and confirmed.evidence.contradicted == 1
    question, confirmed = found([still], [0.5], [0.4])
    assert question.verdict == Verdict.not_settled and confirmed.verdict == Verdict.outside_hypotheses
    point, _ = found([Outcome.finite_stationary_point], [0.5], [0.4])
    assert point.verdict == Verdict.outside_hypotheses
    _, question, _ = found([good, bad], [1e-9, 0.3], [2e-9, 0.4], m=2)
    assert question.verdict == Verdict.not_settled
