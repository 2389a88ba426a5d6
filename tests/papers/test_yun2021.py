"""Figures and checks of yun2021: tiny runs end to end, and verdicts that follow made-up numbers."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxflow import papers
from jaxflow._core import Outcome
from jaxflow.papers.yun2021 import fig1, plane, push
from jaxflow.papers.yun2021.plane_claims import classification_claims, regression_claims
from jaxflow.papers.yun2021.starts import NETWORKS, start_at
from jaxflow.papers.yun2021.verify import bounds, connected, directions, dual_form, ensemble, structure
from jaxflow.papers.yun2021.verify.shared import fit, residual_row
from jaxflow.report import Verdict
from jaxflow.theory import point_limit


def silent(line: str) -> None:
    pass


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("d", [2, 5])
def test_starts_have_the_prescribed_coefficients_and_satisfy_theorem_5(network: str, d: int) -> None:
    x, z = jnp.linspace(1.0, 2.0, d), jnp.cos(jnp.arange(d) * 1.7)
    start = start_at(network, x, z, 0.3)
    np.testing.assert_allclose(start.linear_coefficients(), 0.09 * z, atol=1e-14)
    assert float(point_limit(start, x, jnp.asarray(1.0)).slack) > 0


@pytest.mark.slow
def test_figure_1_from_the_name_to_the_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(fig1, "ALPHAS", (0.5, 1.0))
    paths, claims = papers.reproduce("yun2021", "fig1", out=tmp_path, say=silent)
    assert all(path.stat().st_size > 0 for path in paths.values())
    with np.load(paths["data"]) as archive:
        data = dict(archive)
    assert data["flow"].shape == (3, 2, plane.DIRECTIONS, plane.SAVES, 2)
    # Every path starts at α² z̄: the first save point is t = e^−6.
    wanted = data["alphas"][:, None, None] ** 2 * data["directions"][None]
    np.testing.assert_allclose(data["flow"][:, :, :, 0], np.broadcast_to(wanted, (3, 2, 4, 2)), atol=0.1)
    assert [claim.verdict for claim in claims] == [Verdict.holds, Verdict.holds_at_this_rate, Verdict.holds]


def made_up_regression(off: float, spread: float) -> dict[str, np.ndarray]:
    limit = np.zeros((3, 2, 4, 2)) + 0.5
    limit[:, 1, 0, 0] += spread
    descent = np.repeat(limit[..., None, :], 3, axis=-2) + off
    return {
        "limit": limit,
        "flow_end": limit.copy(),
        "descent": descent,
        "slack": np.ones((3, 2, 4)),
        "alphas": np.array([0.1, 1.0]),
    }


def test_verdicts_of_figure_1_follow_the_numbers() -> None:
    def verdicts(data: dict[str, np.ndarray]) -> list[Verdict]:
        return [claim.verdict for claim in regression_claims(data)]

    holds, rate, broken = Verdict.holds, Verdict.holds_at_this_rate, Verdict.counterexample_found
    assert verdicts(made_up_regression(1e-3, 0.1)) == [holds, rate, holds]
    assert verdicts(made_up_regression(0.1, 0.1)) == [holds, broken, holds]
    assert verdicts(made_up_regression(1e-3, 0.0)) == [holds, rate, broken]
    wrong = made_up_regression(1e-3, 0.1)
    wrong["flow_end"] = wrong["flow_end"] + 1e-3
    assert verdicts(wrong) == [broken, rate, holds]


def test_verdicts_of_figure_3_follow_the_numbers() -> None:
    aims = np.array([[0.2, 0.4], [0.0, 0.5], [1 / 3, 1 / 3]])
    unit = aims / np.linalg.norm(aims, axis=1, keepdims=True)
    end = np.broadcast_to(unit[:, None, None], (3, 1, 4, 2)).copy()
    data = {
        "program": aims,
        "flow_end": end,
        "descent": np.repeat(end[..., None, :], 3, axis=-2) + 0.2 * np.arange(4)[None, None, :, None, None],
        "descent_loss": np.full((3, 1, 4), 1e-5),
        "steps": np.asarray(2_000_000),
        "num_steps": np.full((3, 1, 4), 50),
        "log_time": np.full((3, 1, 4), 1e30),
        "alphas": np.array([1.0]),
    }
    assert [c.verdict for c in classification_claims(data)] == [Verdict.holds] * 3
    short = data | {"steps": np.asarray(1000)}
    assert classification_claims(short)[1].verdict is Verdict.outside_hypotheses
    off = data | {"flow_end": end + 1e-3}
    assert classification_claims(off)[0].verdict is Verdict.counterexample_found


def test_a_row_counts_what_is_outside_and_what_is_undecided() -> None:
    values, inside = np.array([1e-9, np.nan, 1.0]), np.array([True, True, False])
    row = residual_row("Theorem 4", "", values, inside, 1e-8, "distance")
    assert row.verdict is Verdict.holds and row.instances == 1 and row.outside == 1
    assert row.values["undecided"] == 1 and "1 undecided" in row.measured
    assert residual_row("", "", values, ~inside, 1e-8, "").verdict is Verdict.counterexample_found
    assert residual_row("", "", values, np.zeros(3, bool), 1e-8, "").verdict is Verdict.outside_hypotheses
    at_rate = residual_row("", "", values[:1], inside[:1], 1e-8, "", expected=Verdict.holds_at_this_rate)
    assert at_rate.verdict is Verdict.holds_at_this_rate


def test_a_fit_has_an_interval() -> None:
    x = np.arange(5.0)
    slope, half = fit(x, 2.0 * x + np.array([0.0, 0.1, -0.1, 0.1, 0.0]))
    assert abs(slope - 2.0) < half < 0.2
    assert np.isnan(fit(x[:2], x[:2])[0])


@pytest.fixture(scope="module")
def bound_rows() -> list[papers.Row]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(bounds.TRIALS, "quick", 4)
        check = bounds.Bounds()
        return check.rows(check.compute("quick", jax.random.key(0), silent))


def test_the_bound_of_d_1_wants_the_loss_at_the_start(bound_rows: list[papers.Row]) -> None:
    corrected, printed, squared, connected_row = bound_rows
    assert corrected.verdict is Verdict.holds and corrected.instances > 0
    assert printed.verdict is Verdict.counterexample_found and "as printed" in printed.checked
    assert squared.verdict is Verdict.holds and connected_row.verdict is Verdict.holds


@pytest.mark.slow
def test_structure_from_the_name_to_the_rows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(structure.TRIALS, "quick", 2)
    _, rows = papers.verify("yun2021", only=["structure"], out=tmp_path, say=silent)
    by_text = {row.checked: row.verdict for row in rows}
    plain = [verdict for text, verdict in by_text.items() if "unconjugated" in text]
    assert plain == [Verdict.counterexample_found]
    assert sum(verdict is Verdict.holds for verdict in by_text.values()) == len(rows) - 1


def direction_numbers(gap: float, least: float = 0.0) -> dict[str, np.ndarray]:
    data = {}
    for kind in directions.KINDS:
        entries = {
            "outcome": Outcome.globally_optimal.value,
            "flow_gap": gap,
            "program_gap": 1e-13,
            "stationarity": 1e-9,
            "least_multiplier": least,
            "singular": gap,
            "apart": gap,
            "share": gap,
            "drift": -1e-6,
            "exponent": 0.5,
            "predicted": 0.5,
            "slack": 1.0,
            "slope": -1.0,
        }
        data |= {f"{kind}.{name}": np.full(3, value) for name, value in entries.items()}
    return data


def test_verdicts_of_directions_follow_the_numbers() -> None:
    check = directions.Directions()
    rate, broken = Verdict.holds_at_this_rate, Verdict.counterexample_found
    assert {row.verdict for row in check.rows(direction_numbers(1e-7))} == {rate}
    wrong = [row for row in check.rows(direction_numbers(0.5)) if row.verdict is broken]
    assert {row.source for row in wrong} == {"Theorem 1", "Corollary 1", "Corollary 2", "Corollary 3", "Theorem 2"}
    negative = [row for row in check.rows(direction_numbers(1e-7, least=-0.1)) if row.verdict is broken]
    assert [row.source for row in negative] == ["Corollary 2"]
    failed = direction_numbers(1e-7)
    failed = {k: np.full(3, Outcome.failed.value) if k.endswith("outcome") else v for k, v in failed.items()}
    assert {row.verdict for row in check.rows(failed)} == {Verdict.outside_hypotheses}


def test_a_late_rate_is_neither_a_proof_nor_a_counterexample() -> None:
    data = direction_numbers(1e-7)
    for late, verdict in ((1, Verdict.outside_hypotheses), (2, Verdict.counterexample_found)):
        data["diagonal3.slope"] = np.where(np.arange(3) < late, -0.5, -1.0)
        row = next(row for row in directions.Directions().rows(data) if row.source == "beyond the paper")
        assert row.verdict is verdict and row.values["above"] == late


def test_an_ensemble_counts_every_outcome() -> None:
    outcomes = np.array([Outcome.limit_point.value, Outcome.limit_point.value, Outcome.failed.value])
    data = {"outcome": outcomes, "error": np.array([1e-12, 1e-9, 1.0]), "steps": np.array([10, 20, 30])}
    row = ensemble.Ensemble().rows(data)[0]
    # A flow that failed is counted, and proves nothing.
    assert row.verdict is Verdict.holds and row.values["undecided"] == 1
    assert "1 failed, 2 limit_point" in row.measured
    assert ensemble.Ensemble().rows(data | {"error": np.array([1e-12, 1e-7, 1.0])})[0].verdict is (
        Verdict.counterexample_found
    )


def test_both_forms_agree_and_multipliers_push_the_right_way() -> None:
    one = {"error": np.array([1e-11, 1e-12]), "followed": np.ones(2, bool), "least": np.array([1e-9, 1e-3])}
    data = {f"depth{depth}.{name}": value for depth in dual_form.DEPTHS for name, value in one.items()}
    assert [row.verdict for row in dual_form.DualForm().rows(data)] == [Verdict.holds] * 2
    wrong = data | {"depth3.least": np.array([1e-9, -1e-3])}
    assert [row.verdict for row in dual_form.DualForm().rows(wrong)] == [Verdict.holds, Verdict.counterexample_found]


def test_the_bias_of_theorem_6_is_judged_by_falling_errors() -> None:
    alphas = np.array([0.3, 0.1, 0.03])
    part = {"error": alphas[None] ** 2, "followed": np.ones((1, 3), bool)}
    row = connected._bias_row(alphas, part, 2, "identity")
    assert row.verdict is Verdict.holds_at_this_rate and "α^2.00" in row.measured
    part["error"] = np.array([[0.1, 0.2, 0.3]])
    assert connected._bias_row(alphas, part, 2, "identity").verdict is Verdict.counterexample_found


def test_claims_about_the_push_are_no_proof() -> None:
    size = 48
    data: dict[str, np.ndarray] = {"names": np.asarray(push.NAMES)}
    falling, growing = np.exp(-np.linspace(0, 30, size)), np.linspace(0.0, 0.2, size)
    for name in push.NAMES:
        data |= {f"{name}.drift": np.stack([falling, falling]), f"{name}.followed": np.array([True, False])}
        data |= {f"{name}.sizes": np.stack([np.linspace(0, 15, size)] * 2)}
    claims, notes = push.Push().claims(data)
    assert {claim.verdict for claim in claims} == {Verdict.holds_at_this_rate}
    assert "‖β‖^-2.00" in claims[0].measured and "diagonal, L = 2 1" in notes[1]
    data[f"{push.NAMES[0]}.drift"] = np.stack([growing, growing])
    assert push.Push().claims(data)[0][0].verdict is Verdict.outside_hypotheses
