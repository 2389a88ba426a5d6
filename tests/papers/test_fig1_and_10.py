"""Figures 1 and 10 at a tiny size, end to end; their verdicts by hand."""

from pathlib import Path

import numpy as np
import pytest

from jaxflow import papers
from jaxflow.papers.tarzanagh2023 import fig1, fig10, plane_claims
from jaxflow.report import Verdict


def loaded(paths: dict[str, Path]) -> dict[str, np.ndarray]:
    assert all(path.stat().st_size > 0 for path in paths.values())
    with np.load(paths["data"]) as archive:
        return dict(archive)


@pytest.mark.slow
def test_the_plane_from_the_name_to_the_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(fig1.SIZES, "quick", fig1.Size(4, steps=300))
    paths, claims = papers.reproduce("tarzanagh2023", "fig1", out=tmp_path, say=lambda line: None)
    data = loaded(paths)
    assert len(claims) == 16
    for setting, tokens in (("described", 3), ("published", 5)):
        cloud = plane_claims.records(plane_claims.Cloud, data, setting)
        assert (cloud.visible.sum(axis=-1) == tokens).all()
        # Cross-attention: queries drawn apart from the tokens, of length one like these.
        first = cloud.tokens[:, :, 0]
        assert np.array_equal(cloud.queries, first) == (setting == "published")
        assert np.allclose(np.linalg.norm(cloud.queries, axis=-1), 1.0) == (setting == "described")
        runs = plane_claims.records(plane_claims.Runs, data, f"{setting}_combined_flow")
        assert runs.decided.any() and runs.path.shape == (4, fig1.POINTS, 2, 2)
        # Hidden tokens are never selected.
        assert not (runs.selection & ~cloud.visible).any()
        # The distance that an arc length of 1,000 leaves.
        assert runs.own[runs.decided].max() < 1e-3


@pytest.mark.slow
def test_columns_from_the_name_to_the_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    size = fig10.Size(3, shapes=((2, 3), (3, 3)), columns=(1, 3), d=4, length=12.0, steps=300)
    monkeypatch.setitem(fig10.SIZES, "quick", size)
    paths, claims = papers.reproduce("tarzanagh2023", "fig10", out=tmp_path, say=lambda line: None)
    data = loaded(paths)
    assert len(claims) == 6
    for way in fig10.NAMES:
        runs = fig10.Runs(*(data[f"{way}.{field}"] for field in fig10.Runs._fields))
        assert runs.misalignment.shape == (2, 2, 3) and runs.usable.any()
        # No matrix with m columns correlates better than its rank allows.
        assert np.all((runs.misalignment >= runs.floor - 1e-9)[runs.usable])
        assert np.all(runs.floor[:, 1][runs.usable[:, 1]] <= 1e-12)


def made_up(misalignment: float, floor: float) -> fig10.ColumnNumbers:
    """Two values of n, two runs each; rank 2; m = 1 as given (a little more for the larger n), m = 2 aligned."""
    shape = (2, 2, 2)
    runs = [
        fig10.Runs(
            misalignment=np.repeat([[[misalignment], [1e-3]], [[misalignment + 0.01], [1e-3]]], 2, axis=2),
            floor=np.repeat([[[floor], [0.0]]] * 2, 2, axis=2),
            rank=np.full(shape, 2),
            result=np.ones(shape, int),
            settled=np.ones(shape, bool),
            good=np.ones(shape, bool),
            status=np.ones(shape, int),
            log_time=np.full(shape, 30.0),
            halfway=np.full(shape, 1e-2),
            halfway_log_time=np.full(shape, 15.0),
        )
        for _ in range(2)
    ]
    grid = fig10.Grid(np.array([[2, 3], [3, 3]]), np.array([1, 2]), np.asarray(4))
    return fig10.ColumnNumbers(grid, *runs)


def test_verdicts_follow_the_numbers() -> None:
    rate, holds, open_ = Verdict.holds_at_this_rate, Verdict.holds, Verdict.not_settled

    def verdicts(numbers: fig10.ColumnNumbers) -> list[Verdict]:
        return [found.verdict for found in papers.find_figure("tarzanagh2023", "fig10").find(numbers)[0]]

    assert verdicts(made_up(0.3, 0.2)) == [rate, holds, holds, open_, holds, holds]
    assert verdicts(made_up(0.1, 0.2)) == [rate, open_, holds, open_, open_, holds]
    # Falling is not enough: at 0.06 from W*mm nothing is reached.
    far = made_up(0.3, 0.2)
    far.flow.misalignment[:, 1], far.flow.halfway[:] = 0.06, 0.5
    assert verdicts(far)[0] == open_
    numbers = made_up(0.3, 0.2)
    numbers.flow.misalignment[1, 0] = 0.25  # no worse for the larger n
    numbers.flow.halfway[:] = 1e-4  # and moving away
    assert verdicts(numbers) == [open_, holds, open_, open_, holds, holds]
    for runs in (numbers.flow, numbers.descent):
        runs.settled[:] = False
    # What has not settled is undecided; without two means there is nothing to compare.
    assert verdicts(numbers) == [open_, open_, Verdict.outside_hypotheses] * 2
    for runs in (numbers.flow, numbers.descent):
        runs.rank[:] = -1
    assert verdicts(numbers) == [Verdict.outside_hypotheses] * 6


def plane_runs(power: float, status: int = plane_claims.LOCALLY_OPTIMAL[0]) -> plane_claims.Runs:
    """Four runs whose 1 − corr falls like this power of the length, from 1e-2 at a length of 10 to one of 1,000."""
    lengths = np.linspace(np.log(10.0), np.log(1000.0), 21)
    distances = np.tile(1e-2 * np.exp(-power * (lengths - lengths[0])), (4, 1))
    four, true = np.full(4, status), np.ones(4, bool)
    end = distances[:, -1]
    return plane_claims.Runs(
        path=np.zeros((4, 21, 2, 2)),
        reached=np.ones((4, 21), bool),
        log_length=np.tile(lengths, (4, 1)),
        distances=distances,
        own=end,
        other=end + 0.1,
        frobenius=np.zeros((4, 2, 2)),
        nuclear=np.zeros((4, 2, 2)),
        selection=np.ones((4, 2, 5), bool),
        settled=true,
        stationary=~true,
        status=four,
        log_time=np.full(4, 30.0),
    )


def plane_data(runs: plane_claims.Runs) -> dict[str, np.ndarray]:
    """These runs in both settings, for both kinds, both ways."""
    four = np.ones((4, 2, 5), bool)
    cloud = plane_claims.Cloud(np.zeros((4, 2, 5, 2)), four, four, np.zeros((4, 2, 2)))
    data: dict[str, np.ndarray] = {}
    for setting in plane_claims.SETTINGS:
        data |= plane_claims.record(setting, cloud)
        for kind in plane_claims.KINDS:
            for way in plane_claims.WAYS:
                data |= plane_claims.record(f"{setting}_{kind}_{way}", runs)
    return data


def test_verdicts_on_the_plane_follow_the_numbers() -> None:
    def verdicts(runs: plane_claims.Runs) -> list[Verdict]:
        return [claim.verdict for claim in plane_claims.claims_of(plane_data(runs))[0]]

    rate, holds, open_ = Verdict.holds_at_this_rate, Verdict.holds, Verdict.not_settled
    # W, by flow and descent, then (K, Q), in each setting.
    assert verdicts(plane_runs(2.0)) == [rate, holds] * 8
    # Another exponent than the predicted one of W; of (K, Q) none is predicted.
    assert verdicts(plane_runs(1.0)) == ([open_, holds] * 2 + [rate, holds] * 2) * 2
    # Moving away, and not there.
    assert verdicts(plane_runs(-0.5)) == [open_] * 16
    one = np.arange(4) == 0
    good = plane_runs(2.0)
    # A run that has not settled may still do so; one at rest, or on tokens that are not locally optimal, is outside.
    late = good._replace(settled=~one)
    claims = plane_claims.claims_of(plane_data(late))[0]
    assert verdicts(late) == [open_] * 16
    assert {(claim.evidence.inside, claim.evidence.undecided) for claim in claims} == {(4, 1)}
    rest = plane_claims.claims_of(plane_data(late._replace(stationary=one)))[0]
    assert {(claim.evidence.inside, claim.evidence.undecided) for claim in rest} == {(3, 0)}
    assert verdicts(plane_runs(2.0, status=-1)) == [Verdict.outside_hypotheses] * 16
