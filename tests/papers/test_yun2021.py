"""Figures and checks of yun2021: tiny runs end to end, and verdicts that follow made-up numbers."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxflow import papers
from jaxflow._core import Outcome
from jaxflow.papers.yun2021 import dual_form, ensemble, fig1, multiplier_direction, plane
from jaxflow.papers.yun2021.plane_claims import classification_claims, regression_claims
from jaxflow.papers.yun2021.starts import NETWORKS, start_at
from jaxflow.papers.yun2021.verify import bounds, connected, directions, structure
from jaxflow.papers.yun2021.verify.shared import fit, late_row, residual_row
from jaxflow.report import Finding, Rate, Verdict
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
    assert [claim.verdict for claim in claims] == [Verdict.holds] * 3


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

    holds, open_, broken = Verdict.holds, Verdict.not_settled, Verdict.counterexample_found
    assert verdicts(made_up_regression(1e-3, 0.1)) == [holds] * 3
    assert verdicts(made_up_regression(0.1, 0.1)) == [holds, open_, holds]
    # The flows' ends, which do not know the closed form, spread no more either.
    assert verdicts(made_up_regression(1e-3, 0.0)) == [holds, holds, broken]
    apart = made_up_regression(1e-3, 0.0)
    apart["flow_end"] = made_up_regression(1e-3, 0.1)["flow_end"]
    assert verdicts(apart)[2] is open_
    wrong = made_up_regression(1e-3, 0.1)
    wrong["flow_end"] = wrong["flow_end"] + 1e-3
    assert verdicts(wrong) == [open_, holds, holds]
    assert verdicts(made_up_regression(1e-3, 0.1) | {"slack": -np.ones((3, 2, 4))})[0] is Verdict.outside_hypotheses


def test_verdicts_of_figure_3_follow_the_numbers() -> None:
    aims = np.array([[0.2, 0.4], [0.0, 0.5], [1 / 3, 1 / 3]])
    unit = aims / np.linalg.norm(aims, axis=1, keepdims=True)
    end = np.broadcast_to(unit[:, None, None], (3, 1, 4, 2)).copy()
    data = {
        "program": aims,
        "flow_end": end,
        "descent": np.repeat(end[..., None, :], 3, axis=-2)
        + 0.2 * np.arange(4)[None, None, :, None, None] * np.array([1.0, 0.0]),
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
    assert classification_claims(off)[0].verdict is Verdict.not_settled
    high = data | {"descent_loss": np.full((3, 1, 4), 1e-3), "descent": np.repeat(end[..., None, :], 3, axis=-2)}
    assert [c.verdict for c in classification_claims(high)[1:]] == [Verdict.not_settled] * 2


def test_a_row_counts_what_is_outside_and_what_is_undecided() -> None:
    values, inside = np.array([1e-9, np.nan, 1.0]), np.array([True, True, False])
    row = residual_row("Theorem 4", "", values, inside, 1e-8, "distance")
    assert row.verdict is Verdict.not_settled and row.instances == 2 and row.outside == 1
    assert row.values["undecided"] == 1 and "1 are undecided" in papers.told(row)
    assert residual_row("", "", values[:1], inside[:1], 1e-8, "").verdict is Verdict.holds
    beyond = residual_row("", "", values, ~inside, 1e-8, "")
    assert beyond.verdict is Verdict.not_settled
    checked = residual_row("", "", values, ~inside, 1e-8, "", checked_by="another solver")
    assert checked.verdict is Verdict.counterexample_found and "another solver" in papers.told(checked)
    assert late_row(checked).verdict is Verdict.not_settled and late_row(checked).evidence.undecided == 1
    assert residual_row("", "", values, np.zeros(3, bool), 1e-8, "").verdict is Verdict.outside_hypotheses
    rate = Rate(1.0, 0.1, 1.05)
    at_rate = residual_row("", "", values[:1], inside[:1], 1e-8, "", limit=True, rate=rate)
    assert at_rate.verdict is Verdict.holds_at_this_rate
    assert residual_row("", "", values[:1], inside[:1], 1e-8, "", limit=True).verdict is Verdict.not_settled


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
    assert "Dopri8" in papers.told(printed)
    assert squared.verdict is Verdict.holds and connected_row.verdict is Verdict.holds


def test_a_bound_that_only_one_solver_exceeds_is_not_refuted() -> None:
    part = {"corrected": 0.9, "printed": 2.0, "printed_again": np.nan, "start": 0.5, "gap": 1.0, "followed": True}
    data = {f"separable.{name}": np.full(2, value) for name, value in part.items()}
    for kind in ("squared", "connected"):
        data |= {f"{kind}.{name}": np.full(2, value) for name, value in (("ratio", 0.9), ("gap", 1.0))}
        data |= {f"{kind}.followed": np.array([True, True])}
    rows = bounds.Bounds().rows(data)
    assert [row.verdict for row in rows] == [Verdict.holds, Verdict.not_settled, Verdict.holds, Verdict.holds]
    rows = bounds.Bounds().rows(data | {"separable.printed_again": np.array([2.0, 2.0])})
    assert rows[1].verdict is Verdict.counterexample_found
    over = {"separable.corrected": np.array([0.9, 1.1]), "squared.followed": np.array([True, False])}
    rows = bounds.Bounds().rows(data | over | {"connected.gap": -np.ones(2)})
    assert [row.verdict for row in rows] == [Verdict.not_settled] * 3 + [Verdict.outside_hypotheses]


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
    rate, open_ = Verdict.holds_at_this_rate, Verdict.not_settled
    rows = check.rows(direction_numbers(1e-7))
    # A rate is measured for the gaps and for the approach to a sparse limit; the others have none.
    assert [row.verdict for row in rows] == [open_, rate, rate, open_, rate, open_, open_, rate, open_]
    assert {row.verdict for row in check.rows(direction_numbers(0.5)) if row.source != "beyond the paper"} == {open_}
    slow = {k: np.full(3, 0.1) if k.endswith("exponent") else v for k, v in direction_numbers(1e-7).items()}
    assert [row.source for row in check.rows(slow) if row.verdict is rate] == ["beyond the paper"]
    negative = [row for row in check.rows(direction_numbers(1e-7, least=-0.1)) if row.evidence.contradicted]
    assert [row.source for row in negative] == ["Corollary 2"]
    failed = direction_numbers(1e-7)
    failed = {k: np.full(3, Outcome.failed.value) if k.endswith("outcome") else v for k, v in failed.items()}
    assert {row.evidence.undecided == row.instances for row in check.rows(failed)} == {True}
    nobody = {k: -np.ones(3) if k.endswith("slack") else v for k, v in direction_numbers(1e-7).items()}
    assert sum(row.verdict is Verdict.outside_hypotheses for row in check.rows(nobody)) == 2


def test_a_late_rate_is_neither_a_proof_nor_a_counterexample() -> None:
    data = direction_numbers(1e-7)
    for late in (1, 2):
        data["diagonal3.slope"] = np.where(np.arange(3) < late, -0.5, -1.0)
        row = next(row for row in directions.Directions().rows(data) if row.source == "beyond the paper")
        assert row.verdict is Verdict.not_settled and row.values["above"] == late
        assert (row.evidence.contradicted, row.evidence.undecided) == (0, late)


def test_a_direction_that_still_turns_stays_in_the_table() -> None:
    data = direction_numbers(1e-7) | {"diagonal.drift": np.array([0.3, 1e-7, np.nan])}
    row = directions.Directions().rows(data)[-1]
    assert row.worst == pytest.approx(0.3, abs=1e-5) and row.evidence.undecided == 2 and row.instances == 12


def statements(name: str, numbers: Any) -> list[Finding]:
    return next(entry for entry in papers.entries_of("yun2021") if entry.name == name).find(numbers)[0]


def test_an_ensemble_counts_every_outcome() -> None:
    outcomes = np.array([[Outcome.limit_point.value, Outcome.limit_point.value, Outcome.failed.value]])
    data = ensemble.Limit(outcomes, np.array([[1e-12, 1e-9, 1.0]]), np.array([[10, 20, 30]]))
    (found,) = statements("ensemble", ensemble.EnsembleNumbers(data))
    # A flow that failed is counted, and proves nothing.
    assert found.verdict is Verdict.not_settled and found.evidence.undecided == 1
    assert "1 failed, 2 limit_point" in found.measured
    settled = data._replace(outcome=np.full((1, 3), Outcome.limit_point.value))
    (found,) = statements("ensemble", ensemble.EnsembleNumbers(settled._replace(error=np.full((1, 3), 1e-10))))
    assert found.verdict is Verdict.holds
    wrong = settled._replace(error=np.array([[1e-12, 1e-7, 1e-9]]))
    (found,) = statements("ensemble", ensemble.EnsembleNumbers(wrong))
    assert found.verdict is Verdict.not_settled and found.evidence.contradicted == 1


def test_both_forms_agree_and_multipliers_push_the_right_way() -> None:
    errors, least = np.tile([1e-11, 1e-12], (2, 1)), np.tile([1e-9, 1e-3], (2, 1))
    pairs = dual_form.Pair(errors, np.ones((2, 2), bool), least)
    assert [one.verdict for one in statements("dual-form", dual_form.DualNumbers(pairs))] == [Verdict.holds] * 2
    least[1, 1] = -1e-3
    found = statements("dual-form", dual_form.DualNumbers(pairs))
    assert [one.verdict for one in found] == [Verdict.holds, Verdict.not_settled]


def test_the_bias_of_theorem_6_is_judged_by_falling_errors() -> None:
    alphas = np.array([0.3, 0.1, 0.03])
    part = {"error": alphas[None] ** 2, "followed": np.ones((1, 3), bool)}
    row = connected._bias_row(alphas, part, 2, "identity")
    assert row.verdict is Verdict.holds_at_this_rate and "α^2.00" in row.measured
    exact = {"error": np.full((1, 3), 1e-15), "followed": np.ones((1, 3), bool)}
    assert connected._bias_row(alphas, exact, 2, "identity").verdict is Verdict.holds
    part["error"] = np.array([[0.1, 0.2, 0.3]])
    assert connected._bias_row(alphas, part, 2, "identity").verdict is Verdict.not_settled


def test_claims_about_the_push_are_no_proof() -> None:
    size = multiplier_direction.SAVES
    falling, growing = np.exp(-np.linspace(0, 30, size)), np.linspace(0.0, 0.2, size)
    ok = np.tile([True, True, True, False], (4, 1))
    paths = multiplier_direction.Path(np.tile(falling, (4, 4, 1)), np.tile(np.linspace(0, 15, size), (4, 4, 1)), ok)
    push = next(entry for entry in papers.figures_of("yun2021") if entry.name == "push")
    found, notes = push.find(multiplier_direction.PushNumbers(paths))
    # One flow in four did not get there: it stays in the denominator.
    assert {one.verdict for one in found} == {Verdict.not_settled} and found[0].evidence.inside == 4
    assert "‖β‖^-2.00" in found[0].measured and "diagonal, L = 2 1" in notes[1]
    paths = paths._replace(ok=np.ones((4, 4), bool))
    found = push.find(multiplier_direction.PushNumbers(paths))[0]
    assert {one.verdict for one in found} == {Verdict.holds_at_this_rate}
    paths.drift[0] = growing
    assert push.find(multiplier_direction.PushNumbers(paths))[0][0].verdict is Verdict.not_settled
    assert push.draw is not None and len(push.draw(multiplier_direction.PushNumbers(paths)).axes) == 1
