"""Figures 1 and 10 at a tiny size, end to end; their verdicts by hand."""

from pathlib import Path

import numpy as np
import pytest

from jaxflow import papers
from jaxflow.papers.tarzanagh2023 import column_claims, fig1, fig10, plane_claims
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
    assert len(claims) == 4
    kept = plane_claims.decided(data, "combined", "flow")
    assert kept.any()
    # The distance that an arc length of 1,000 leaves.
    assert data["combined_flow_frobenius_misalignment"][kept].max() < 1e-4
    assert data["combined_flow_path"].shape == (4, fig1.POINTS, 2, 2)


@pytest.mark.slow
def test_columns_from_the_name_to_the_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    size = fig10.Size(3, shapes=((2, 3), (3, 3)), columns=(1, 3), d=4, length=12.0, steps=300)
    monkeypatch.setitem(fig10.SIZES, "quick", size)
    paths, claims = papers.reproduce("tarzanagh2023", "fig10", out=tmp_path, say=lambda line: None)
    data = loaded(paths)
    assert len(claims) == 6
    assert data["flow_misalignment"].shape == (2, 2, 3)
    for way in ("flow", "descent"):
        usable = column_claims.usable(data, way)
        assert usable.any()
        # No matrix with m columns correlates better than its rank allows.
        assert np.all((data[f"{way}_misalignment"] >= data[f"{way}_floor"] - 1e-9)[usable])
        assert np.all(data[f"{way}_floor"][:, 1][usable[:, 1]] <= 1e-12)


def made_up(misalignment: float, floor: float) -> dict[str, np.ndarray]:
    """Two values of n, two runs each; rank 2; m = 1 as given (a little more for the larger n), m = 2 aligned."""
    data = {"shapes": np.array([[2, 3], [3, 3]]), "columns": np.array([1, 2])}
    for way in column_claims.NAMES:
        data[f"{way}_misalignment"] = np.repeat([[[misalignment], [1e-3]], [[misalignment + 0.01], [1e-3]]], 2, axis=2)
        data[f"{way}_floor"] = np.repeat([[[floor], [0.0]]] * 2, 2, axis=2)
        data[f"{way}_rank"] = np.full((2, 2, 2), 2)
        data[f"{way}_settled"] = np.ones((2, 2, 2), bool)
        data[f"{way}_log_time"] = np.full((2, 2, 2), 30.0)
    data["flow_halfway"], data["flow_halfway_log_time"] = np.full((2, 2, 2), 1e-2), np.full((2, 2, 2), 15.0)
    return data


def test_verdicts_follow_the_numbers() -> None:
    rate, holds, open_ = Verdict.holds_at_this_rate, Verdict.holds, Verdict.not_settled

    def verdicts(data: dict[str, np.ndarray]) -> list[Verdict]:
        return [claim.verdict for claim in column_claims.claims_of(data)[0]]

    assert verdicts(made_up(0.3, 0.2)) == [rate, holds, holds, open_, holds, holds]
    assert verdicts(made_up(0.1, 0.2)) == [rate, open_, holds, open_, open_, holds]
    # Falling is not enough: at 0.06 from W*mm nothing is reached.
    far = made_up(0.3, 0.2)
    far["flow_misalignment"][:, 1], far["flow_halfway"] = 0.06, np.full((2, 2, 2), 0.5)
    assert verdicts(far)[0] == open_
    data = made_up(0.3, 0.2)
    data["flow_misalignment"][1, 0] = 0.25  # no worse for the larger n
    data["flow_halfway"][:] = 1e-4  # and moving away
    assert verdicts(data) == [open_, holds, open_, open_, holds, holds]
    for way in column_claims.NAMES:
        data[f"{way}_settled"][:] = False
    # What has not settled is undecided; without two means there is nothing to compare.
    assert verdicts(data) == [open_, open_, Verdict.outside_hypotheses] * 2
    for way in column_claims.NAMES:
        data[f"{way}_rank"][:] = -1
    assert verdicts(data) == [Verdict.outside_hypotheses] * 6


def plane_data(misalignment: float) -> dict[str, np.ndarray]:
    """Two runs each way; the second selected badly."""
    data: dict[str, np.ndarray] = {"optimal": np.ones((2, 2, 2), bool)}
    for kind in plane_claims.OWN:
        for way in ("flow", "descent"):
            prefix = f"{kind}_{way}"
            local, bad = plane_claims.LOCALLY_OPTIMAL[0], -1
            data |= {f"{prefix}_settled": np.ones(2, bool), f"{prefix}_status": np.array([local, bad])}
            data |= {f"{prefix}_log_time": np.full(2, 30.0), f"{prefix}_selection": np.ones((2, 2, 2), bool)}
            for norm in ("frobenius", "nuclear"):
                data[f"{prefix}_{norm}_solved"] = np.ones(2, bool)
                data[f"{prefix}_{norm}_misalignment"] = np.full(2, misalignment)
    return data


def test_the_plane_is_open_without_a_rate() -> None:
    for misalignment, late in ((1e-3, 0), (0.1, 1)):
        claims, _ = plane_claims.claims_of(plane_data(misalignment))
        assert {claim.verdict for claim in claims} == {Verdict.not_settled}
        assert {(claim.evidence.inside, claim.evidence.undecided) for claim in claims} == {(1, late)}
    data = plane_data(1e-3)
    # A run that has not settled may still do so.
    data["combined_flow_settled"][1] = False
    assert plane_claims.claims_of(data)[0][0].evidence.inside == 2
    data["combined_flow_settled"][:], data["combined_flow_status"][:] = True, -1
    assert plane_claims.claims_of(data)[0][0].verdict is Verdict.outside_hypotheses
