"""Figure 7 at a tiny size, end to end; its arithmetic and its verdicts by hand."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from jaxflow import papers
from jaxflow._core import Outcome
from jaxflow.papers.tarzanagh2023 import fig7
from jaxflow.papers.tarzanagh2023.convergence_claims import claims_of
from jaxflow.papers.tarzanagh2023.paths import Size
from jaxflow.report import Verdict

TINY = Size(trials=2, reach=30.0, n=2, T=3, d=3, steps=20, grid=9, saves=17, fast=True)


@pytest.mark.slow
def test_from_the_name_to_the_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(fig7.SIZES, "quick", TINY)
    said: list[str] = []
    paths, claims = papers.reproduce("tarzanagh2023", "fig7", out=tmp_path, say=said.append)
    assert all(path.stat().st_size > 0 for path in paths.values())
    assert said

    with np.load(paths["data"]) as archive:
        data = dict(archive)
    for kind in ("combined", "factored"):
        assert len(data[f"{kind}_outcome"]) == TINY.trials
        assert not np.isin(data[f"{kind}_outcome"], [Outcome.not_run, Outcome.failed]).any()
        kept = data[f"{kind}_direction"]
        own = fig7.OWN_NORM[kind]
        # The flow of either parametrisation approaches the program of its own norm.
        assert np.all(data[f"{kind}_{own}"][kept][:, -1] < data[f"{kind}_{own}"][kept][:, 0])
        assert np.all(data[f"{kind}_{own}_excess"][kept][:, -1] > 0)
    optimal = np.isin(data["combined_outcome"], [Outcome.globally_optimal, Outcome.locally_optimal])
    assert optimal.any() and data["combined_log_time"][-1] == 1e6
    # The paper's curve of W ends near a correlation of 0.997.
    assert data["combined_frobenius"][optimal][:, -1].max() <= 1e-10

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
    np.testing.assert_allclose(fig7.decorrelation(weights, target), angle**2 / 2, rtol=1e-6)


def test_excess_is_zero_at_the_optimum_and_infinite_without_a_margin() -> None:
    weights = np.diag([3.0, 4.0])[None, None]
    assert fig7.excess("frobenius", weights, np.array([[2.0]]), np.array([2.5]))[0, 0] == 0.0
    assert fig7.excess("nuclear", weights, np.array([[2.0]]), np.array([3.5]))[0, 0] == 0.0
    assert fig7.excess("nuclear", weights, np.array([[-1.0]]), np.array([3.5]))[0, 0] == np.inf


def test_rows_are_interpolated_between_logarithms() -> None:
    times = np.array([[1.0, 3.0, 3.0]])
    values = np.array([[1e-2, 1e-4, 1e-4]])
    np.testing.assert_allclose(fig7.on_grid(np.array([2.0, 3.0]), times, values), [[1e-3, 1e-4]], rtol=1e-12)


def numbers(last: float = 1e-4) -> dict[str, np.ndarray]:
    """Four instances whose distance falls like 1/log t; the fourth selected badly."""
    times = np.geomspace(1.0, 1e3, 31)
    data: dict[str, np.ndarray] = {}
    falling = np.tile(last * times[-1] / times, (4, 1))
    for kind, own, other in (("combined", "frobenius", "nuclear"), ("factored", "nuclear", "frobenius")):
        codes = [Outcome.globally_optimal] * 2 + [Outcome.locally_optimal, Outcome.not_locally_optimal]
        data |= {
            f"{kind}_log_time": times,
            f"{kind}_outcome": np.array(codes, np.uint8),
            f"{kind}_direction": np.ones(4, bool),
            f"{kind}_attention_last": np.ones(4),
            f"{kind}_{own}": falling,
            f"{kind}_{own}_excess": falling,
            f"{kind}_{other}": np.full((4, 31), 0.2),
            f"{kind}_descent_agrees": np.ones(4, bool),
            f"{kind}_descent_{own}": falling[:, :5],
            f"{kind}_descent_log_time": np.tile(times[:5], (4, 1)),
            f"{kind}_nuclear_gap": np.full(4, 1e-15),
        }
    return data


def spoil(name: str, index: int, value: float) -> Callable[[dict[str, np.ndarray]], None]:
    def change(data: dict[str, np.ndarray]) -> None:
        data[name] = data[name].copy()
        data[name][index] = value

    return change


def test_verdicts_where_all_is_well() -> None:
    claims, notes = claims_of(numbers())
    rate = Verdict.holds_at_this_rate
    assert [claim.verdict for claim in claims] == [Verdict.holds, rate, rate, Verdict.holds]
    # Falling exactly like 1/log t; the instance outside the hypotheses is not among them.
    assert claims[1].values["exponent_median"] == pytest.approx(1.0) and claims[1].values["instances"] == 3
    assert "4 instances, none left out: 2 globally_optimal" in notes[0]
    assert claims_of(numbers(last=1e-12))[0][1].verdict is Verdict.holds


@pytest.mark.parametrize(
    ("change", "claim"),
    [
        (spoil("combined_attention_last", 1, 0.7), 0),
        (spoil("combined_frobenius_excess", 0, 0.1), 1),  # no longer falling
        (spoil("factored_nuclear_excess", 1, 0.1), 2),
        (spoil("factored_nuclear", 3, 0.5), 3),  # nearer to the other program
    ],
)
def test_one_bad_instance_settles_nothing(change: Callable[[dict], None], claim: int) -> None:
    data = numbers()
    change(data)
    verdicts = [found.verdict for found in claims_of(data)[0]]
    assert verdicts[claim] is Verdict.not_settled
    assert Verdict.not_settled not in verdicts[:claim] + verdicts[claim + 1 :]


def test_an_instance_that_was_not_followed_is_in_every_denominator() -> None:
    data = numbers()
    for kind in ("combined", "factored"):
        data[f"{kind}_outcome"][3], data[f"{kind}_direction"][3] = int(Outcome.undecided), False
    claims, _ = claims_of(data)
    assert {claim.verdict for claim in claims} == {Verdict.not_settled}
    assert [claim.evidence.undecided for claim in claims] == [2, 1, 1, 2]


def test_a_correlation_that_is_still_far_from_one_is_open() -> None:
    data = numbers()
    data["factored_nuclear"] = np.full((4, 31), 0.11)
    claim = claims_of(data)[0][2]
    assert claim.verdict is Verdict.not_settled and claim.evidence.undecided == 3


def test_without_locally_optimal_selections_nothing_is_said() -> None:
    data = numbers()
    for kind in ("combined", "factored"):
        data[f"{kind}_outcome"] = np.full(4, int(Outcome.finite_stationary_point), np.uint8)
        data[f"{kind}_direction"] = np.zeros(4, bool)
        data[f"{kind}_attention_last"] = np.full(4, 0.4)
    claims, _ = claims_of(data)
    assert claims[0].verdict is Verdict.not_settled and claims[0].evidence.contradicted == 8
    assert {claim.verdict for claim in claims[1:]} == {Verdict.outside_hypotheses}
