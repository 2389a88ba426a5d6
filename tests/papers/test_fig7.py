"""Figure 7 at a tiny size, end to end; its arithmetic and its verdicts by hand."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxflow import papers
from jaxflow._core import Outcome
from jaxflow.papers.claims import Finding
from jaxflow.papers.tarzanagh2023 import bias_runs, fig7
from jaxflow.papers.tarzanagh2023.paths import Size
from jaxflow.papers.verdicts import Verdict

TINY = Size(trials=2, reach=30.0, n=2, T=3, d=3, steps=20, grid=9, saves=17, fast=True)


@pytest.mark.slow
def test_from_the_name_to_the_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(bias_runs.SIZES, "quick", TINY)
    said: list[str] = []
    paths, claims = papers.reproduce("tarzanagh2023", "fig7", out=tmp_path, say=said.append)
    assert all(path.stat().st_size > 0 for path in paths.values())
    assert said

    with np.load(paths["data"]) as archive:
        data = {part: {} for part in bias_runs.FIGURE7.parts}
        for place, values in archive.items():
            part, field = place.split(".")
            data[part][field] = values
    for kind, runs in bias_runs.FIGURE7.typed(data)._asdict().items():
        assert len(runs.outcome) == TINY.trials
        assert not runs.among((Outcome.not_run, Outcome.failed)).any()
        kept, own = runs.among(fig7.DIRECTIONS), runs.own
        # The flow of either parametrisation approaches the program of its own norm.
        assert np.all(runs.last[kept] < runs.distance[own][kept, 0])
        assert np.all(runs.excess[own][kept, -1] > 0)
        if kind == "combined":
            assert runs.among(fig7.LOCAL).any() and runs.log_time[-1] == 1e6
            # The paper's curve of W ends near a correlation of 0.997.
            assert runs.last[runs.among(fig7.LOCAL)].max() <= 1e-10

    table = json.loads(paths["claims"].read_text())
    assert [row["verdict"] for row in table["claims"]] == [claim.verdict.value for claim in claims]
    assert all(claim.sentence in paths["table"].read_text() for claim in claims)
    record = json.loads(paths["manifest"].read_text())
    assert record["arguments"]["scale"] == "quick" and record["seed"] == 0 and record["packages"]["jax"]

    # The second time the files are in the way, and stay as they are.
    before = paths["data"].stat().st_mtime_ns
    with pytest.raises(FileExistsError, match="fig7.npz"):
        papers.reproduce("tarzanagh2023", "fig7", out=tmp_path, say=said.append)
    assert paths["data"].stat().st_mtime_ns == before


def test_decorrelation_resolves_what_one_minus_a_cosine_does_not() -> None:
    target = np.diag([1.0, 0.0])[None]
    angle = 1e-10
    weights = 5.0 * np.array([[[[np.cos(angle), np.sin(angle)], [0.0, 0.0]]]])
    # 1 − cos(1e-10) = 5e-21, far below the spacing of numbers at one.
    np.testing.assert_allclose(bias_runs.decorrelation(weights, target), angle**2 / 2, rtol=1e-6)


def test_excess_is_zero_at_the_optimum_and_infinite_without_a_margin() -> None:
    weights = np.diag([3.0, 4.0])[None, None]
    assert bias_runs.excess("frobenius", weights, np.array([[2.0]]), np.array([2.5]))[0, 0] == 0.0
    assert bias_runs.excess("nuclear", weights, np.array([[2.0]]), np.array([3.5]))[0, 0] == 0.0
    assert bias_runs.excess("nuclear", weights, np.array([[-1.0]]), np.array([3.5]))[0, 0] == np.inf


def test_rows_are_interpolated_between_logarithms() -> None:
    times = np.array([[1.0, 3.0, 3.0]])
    values = np.array([[1e-2, 1e-4, 1e-4]])
    np.testing.assert_allclose(bias_runs.on_grid(np.array([2.0, 3.0]), times, values), [[1e-3, 1e-4]], rtol=1e-12)


def numbers(last: float = 1e-4) -> bias_runs.ConvergenceNumbers:
    """Four instances whose distance falls like 1/log t; the fourth selected badly."""
    times = np.geomspace(1.0, 1e3, 31)
    falling, other = np.tile(last * times[-1] / times, (4, 1)), np.full((4, 31), 0.2)

    def runs(own: int) -> bias_runs.Runs:
        distance = np.stack([other, falling] if own else [falling, other])
        codes = [Outcome.globally_optimal] * 2 + [Outcome.locally_optimal, Outcome.not_locally_optimal]
        return bias_runs.Runs(
            shape=np.array([6, 8, 10]),
            own=np.asarray(own),
            log_time=times,
            outcome=np.array(codes, np.uint8),
            attention=np.ones((4, 31)),
            smallest=np.ones(4),
            distance=distance,
            excess=distance.copy(),
            gap=np.full((2, 4), 1e-15),
            descent_log_time=np.tile(times[:5], (4, 1)),
            descent_attention=np.ones((4, 5)),
            descent_distance=distance[:, :, :5],
            agrees=np.ones(4, bool),
        )

    return bias_runs.ConvergenceNumbers(runs(0), runs(1))


def found(of: bias_runs.ConvergenceNumbers) -> tuple[list[Finding], list[str]]:
    return papers.find_figure("tarzanagh2023", "fig7").find(of)


def test_verdicts_where_all_is_well() -> None:
    findings, notes = found(numbers())
    rate = Verdict.holds_at_this_rate
    assert [finding.verdict for finding in findings] == [Verdict.holds, rate, rate, Verdict.holds]
    # Falling exactly like 1/log t; the instance outside the hypotheses is not among them.
    assert "3 locally optimal instances" in findings[1].measured and "e = 1.00 (median)" in findings[1].measured
    assert findings[1].evidence.rate is not None and findings[1].evidence.rate.fitted == pytest.approx(1.0)
    assert (findings[1].evidence.inside, findings[1].outside) == (3, 1)
    assert "4 instances, none left out: 2 globally_optimal" in notes[0]
    assert found(numbers(last=1e-12))[0][1].verdict is Verdict.holds


@pytest.mark.parametrize(
    ("kind", "field", "place", "value", "finding"),
    [
        ("combined", "smallest", 1, 0.7, 0),
        ("combined", "excess", (0, 0), 0.1, 1),  # no longer falling
        ("factored", "excess", (1, 1), 0.1, 2),
        ("factored", "distance", (1, 3), 0.5, 3),  # nearer to the other program
    ],
)
def test_one_bad_instance_settles_nothing(kind: str, field: str, place: Any, value: float, finding: int) -> None:
    data = numbers()
    getattr(getattr(data, kind), field)[place] = value
    verdicts = [one.verdict for one in found(data)[0]]
    assert verdicts[finding] is Verdict.not_settled
    assert Verdict.not_settled not in verdicts[:finding] + verdicts[finding + 1 :]


def test_an_instance_that_was_not_followed_is_in_every_denominator() -> None:
    data = numbers()
    for runs in data:
        runs.outcome[3] = Outcome.undecided
    findings, _ = found(data)
    assert {finding.verdict for finding in findings} == {Verdict.not_settled}
    assert [finding.evidence.undecided for finding in findings] == [2, 1, 1, 2]


def test_a_correlation_that_is_still_far_from_one_is_open() -> None:
    data = numbers()
    data.factored.distance[1] = 0.11
    finding = found(data)[0][2]
    assert finding.verdict is Verdict.not_settled and finding.evidence.undecided == 3


def test_without_locally_optimal_selections_nothing_is_said() -> None:
    data = numbers()
    for runs in data:
        runs.outcome[:] = Outcome.finite_stationary_point
        runs.smallest[:] = 0.4
    findings, _ = found(data)
    assert findings[0].verdict is Verdict.not_settled and findings[0].evidence.contradicted == 8
    assert {finding.verdict for finding in findings[1:]} == {Verdict.outside_hypotheses}
