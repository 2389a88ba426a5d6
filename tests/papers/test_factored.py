"""The open question of §9 at a tiny size, end to end; its verdicts by hand."""

from pathlib import Path

import numpy as np
import pytest

from jaxflow import papers
from jaxflow._core import Outcome
from jaxflow.papers.tarzanagh2023 import factored
from jaxflow.report import Verdict


@pytest.mark.slow
def test_from_the_name_to_the_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(factored.SIZES, "quick", factored.Size(6, ((3, 3),), 6))
    paths, claims = papers.reproduce("tarzanagh2023", "factored", out=tmp_path, say=lambda line: None)
    assert all(path.stat().st_size > 0 for path in paths.values())
    with np.load(paths["data"]) as archive:
        data = dict(archive)
    assert data["outcome"].shape == (1, 6) and factored.grouped(data).sum() == 6
    assert len(claims) == 2 and claims[1].verdict == Verdict.holds
    # An instance comes back by its number, with the same outcome.
    limit = factored.study_of(factored.SIZES["quick"], int(data["seed"]), 3, 3).replay(trial=2)
    assert int(limit.outcome) == data["outcome"][0, 2]


def made_up(outcomes: list[Outcome], excess: list[float], own: list[float]) -> dict[str, np.ndarray]:
    n = len(outcomes)
    return {
        "d": np.array([5]),
        "m": np.array([5]),
        "seed": np.asarray(0),
        "outcome": np.array([[int(x) for x in outcomes]]),
        "excess": np.array([excess]),
        "flow_gap": np.array([own]),
        "program_gap": np.full((1, n), 1e-15),
        "num_steps": np.full((1, n), 60),
        "rounds": np.ones((1, n), int),
    }


def test_verdicts_follow_the_numbers() -> None:
    good, bad, still = Outcome.locally_optimal, Outcome.prediction_contradicted, Outcome.undecided
    figure = factored.Factored()
    question, confirmed = figure.claims(made_up([good, still], [1e-9, 0.5], [2e-9, 0.4]))[0]
    assert question.verdict == Verdict.not_settled and question.values["open"] == 1
    settled, _ = figure.claims(made_up([good, good], [1e-9, 1e-9], [2e-9, 2e-9]))[0]
    assert settled.verdict == Verdict.holds
    assert confirmed.verdict == Verdict.holds and confirmed.values["claimed"] == 1
    question, _ = figure.claims(made_up([good, bad], [1e-9, 0.3], [2e-9, 0.4]))[0]
    assert question.verdict == Verdict.counterexample_found and question.values["others"] == 1
    # A flow that claims 2e-9 where the program finds 1e-7.
    _, confirmed = figure.claims(made_up([good, good], [1e-9, 1e-7], [2e-9, 2e-9]))[0]
    assert confirmed.verdict == Verdict.not_settled and confirmed.values["unconfirmed"] == 1
    question, confirmed = figure.claims(made_up([still], [0.5], [0.4]))[0]
    assert question.verdict == Verdict.not_settled and confirmed.verdict == Verdict.outside_hypotheses
    point, _ = figure.claims(made_up([Outcome.finite_stationary_point], [0.5], [0.4]))[0]
    assert point.verdict == Verdict.outside_hypotheses
