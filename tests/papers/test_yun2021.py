"""Figures and checks of yun2021: tiny runs end to end, and verdicts that follow made-up numbers."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxflow import papers
from jaxflow._core import Outcome
from jaxflow.data import LinearData
from jaxflow.models import decomposition_of
from jaxflow.papers.claims import Finding
from jaxflow.papers.verdicts import Verdict, fit
from jaxflow.papers.yun2021 import (
    dual_form,
    ensemble,
    fully_connected,
    limit_directions,
    loss_bounds,
    multiplier_direction,
    plane,
)
from jaxflow.papers.yun2021.closed_forms import point_limit
from jaxflow.papers.yun2021.starts import DIRECTIONS, NETWORKS, directions, start_at
from jaxflow.theory import layer_gap
from tests.papers.made_up.yun2021 import classification, direction, regression


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
def test_figure_1_from_the_name_to_the_files(tmp_path: Path) -> None:
    paths, claims = papers.reproduce("yun2021", "fig1", out=tmp_path, say=silent)
    assert all(path.stat().st_size > 0 for path in paths.values())
    with np.load(paths["data"]) as archive:
        flow = archive["regression.flow"]
    assert flow.shape == (3, 1, 2, DIRECTIONS, plane.SAVES, 2)
    # Every path starts at α² z̄: the first save point is t = e^−6.
    wanted = np.array(plane.SCALES_1)[:, None, None] ** 2 * directions()[None]
    np.testing.assert_allclose(flow[:, 0, :, :, 0], np.broadcast_to(wanted, (3, 2, 4, 2)), atol=0.1)
    assert [claim.verdict for claim in claims] == [Verdict.holds] * 3


def test_verdicts_of_figure_1_follow_the_numbers() -> None:
    def verdicts(off: float, spread: float, **more: Any) -> list[Verdict]:
        return [one.verdict for one in statements("fig1", plane.Plane1(regression(off, spread, **more)))]

    holds, open_, broken = Verdict.holds, Verdict.not_settled, Verdict.counterexample_found
    assert verdicts(1e-3, 0.1) == [holds] * 3
    assert verdicts(0.1, 0.1) == [holds, open_, holds]
    # The flows' ends, which do not know the closed form, spread no more either.
    assert verdicts(1e-3, 0.0) == [holds, holds, broken]
    apart = regression(1e-3, 0.0)._replace(end=regression(1e-3, 0.1).end)
    assert statements("fig1", plane.Plane1(apart))[2].verdict is open_
    assert verdicts(1e-3, 0.1, end=1e-3) == [open_, holds, holds]
    assert verdicts(1e-3, 0.1, slack=-1.0)[0] is Verdict.outside_hypotheses


def test_verdicts_of_figure_3_follow_the_numbers() -> None:
    def verdicts(**how: Any) -> list[Verdict]:
        numbers = plane.Plane3(regression(1e-3, 0.1, scales=1), classification(**how))
        return [one.verdict for one in statements("fig3", numbers)][2:]

    assert verdicts() == [Verdict.holds] * 3
    assert verdicts(steps=1000)[1] is Verdict.outside_hypotheses
    assert verdicts(off=1e-3)[0] is Verdict.not_settled
    assert verdicts(loss=1e-3, spread=0.0)[1:] == [Verdict.not_settled] * 2


def test_a_fit_has_an_interval() -> None:
    x = np.arange(5.0)
    slope, half = fit(x, 2.0 * x + np.array([0.0, 0.1, -0.1, 0.1, 0.0]))
    assert abs(slope - 2.0) < half < 0.2
    assert np.isnan(fit(x[:2], x[:2])[0])


@pytest.fixture(scope="module")
def bounds() -> loss_bounds.BoundNumbers:
    keys = jax.random.split(jax.random.key(0), 4)

    def many(one: Any) -> Any:
        found = jax.jit(lambda keys: jax.lax.map(one, keys))(keys)
        return jax.tree.map(lambda x: np.asarray(x)[None], found)

    regressions = [many(lambda key, name=name: loss_bounds.regress(key, name)) for name in loss_bounds.REGRESSIONS]
    squared = jax.tree.map(lambda *x: np.concatenate(x), *regressions)
    return loss_bounds.BoundNumbers(many(lambda key: loss_bounds.classify(key, None)), squared)


def test_the_bound_of_d_1_wants_the_loss_at_the_start(bounds: loss_bounds.BoundNumbers) -> None:
    corrected, printed, squared, connected_row = statements("bounds", bounds)
    assert corrected.verdict is Verdict.holds and corrected.evidence.inside > 0
    assert printed.verdict is Verdict.counterexample_found and "as printed" in printed.says
    assert "Dopri8" in papers.told(printed)
    assert squared.verdict is Verdict.holds and connected_row.verdict is Verdict.holds


def test_a_bound_that_only_one_solver_exceeds_is_not_refuted() -> None:
    def verdicts(**changes: Any) -> list[Verdict]:
        fields = {"corrected": 0.9, "printed": 2.0, "again": np.nan, "start": 0.5, "gap": 1.0, "ok": True} | changes
        separable = loss_bounds.Separable(**{name: np.broadcast_to(v, (1, 2)) for name, v in fields.items()})
        ratio = loss_bounds.Ratio(*(np.full((2, 2), value) for value in (0.9, 1.0, True)))
        ratio.ok[0, 1] = fields["ok"]
        return [one.verdict for one in statements("bounds", loss_bounds.BoundNumbers(separable, ratio))]

    assert verdicts() == [Verdict.holds, Verdict.not_settled, Verdict.holds, Verdict.holds]
    assert verdicts(again=2.0)[1] is Verdict.counterexample_found
    assert verdicts(corrected=np.array([0.9, 1.1]))[0] is Verdict.not_settled
    assert verdicts(ok=False)[:3] == [Verdict.not_settled] * 3
    assert verdicts(gap=-1.0)[:2] == [Verdict.outside_hypotheses] * 2


@pytest.mark.slow
def test_structure_from_the_name_to_the_rows(tmp_path: Path) -> None:
    _, rows = papers.verify("yun2021", only=["structure"], out=tmp_path, say=silent)
    by_text = {row.checked: row.verdict for row in rows}
    plain = [verdict for text, verdict in by_text.items() if "unconjugated" in text]
    assert plain == [Verdict.counterexample_found]
    assert sum(verdict is Verdict.holds for verdict in by_text.values()) == len(rows) - 1


def test_verdicts_of_directions_follow_the_numbers() -> None:
    rate, open_, outside = Verdict.holds_at_this_rate, Verdict.not_settled, Verdict.outside_hypotheses

    def found(*numbers: Any, **more: Any) -> list[Any]:
        return statements("directions", direction(*numbers, **more))

    # A rate is measured for the gaps and for the approach to a sparse limit; the others have none.
    measured = [1, 2, 4, 6, 10]
    assert [i for i, one in enumerate(found(1e-7)) if one.verdict is rate] == measured
    assert {one.verdict for one in found(0.5) if one.source != "beyond the paper"} == {open_}
    assert [one.source for one in found(1e-7, exponent=0.1) if one.verdict is rate] == ["beyond the paper"]
    negative = [one for one in found(1e-7, least=-0.1) if one.evidence.contradicted]
    assert [one.source for one in negative] == ["Corollary 2", "Corollary 3"]
    failed = found(1e-7, outcome=Outcome.failed.value)
    assert {one.evidence.undecided == one.evidence.inside for one in failed} == {True}
    # Starts are looked at wherever a statement asks for something of them.
    assert sum(one.verdict is outside for one in found(1e-7, start=-1.0)) == 8


def test_a_late_rate_is_neither_a_proof_nor_a_counterexample() -> None:
    for late in (1, 2):
        slope = np.where(np.arange(3) < late, -0.5, -1.0)
        one = next(one for one in statements("directions", direction(1e-7, slope=slope)) if "beyond" in one.source)
        assert one.verdict is Verdict.not_settled
        assert (one.evidence.contradicted, one.evidence.undecided) == (0, late)


def test_a_direction_that_still_turns_stays_in_the_table() -> None:
    drift = np.full((len(limit_directions.KINDS), 3), 1e-7)
    drift[1] = 0.3, 1e-7, np.nan
    one = statements("directions", direction(1e-7, drift=drift))[-1]
    assert one.worst == pytest.approx(0.3) and one.evidence.undecided == 2 and one.evidence.inside == drift.size


def test_a_random_transform_decomposes_and_satisfies_theorem_2() -> None:
    data = LinearData(jnp.ones((2, 3)), jnp.ones(2))
    network = limit_directions.network_of("transformed", jax.random.key(1), data)
    found = decomposition_of(network)
    assert found.transform.shape == (4, 3)
    np.testing.assert_allclose(found.tensor(), network.data_tensor, atol=1e-12)
    rho = found.singular_coefficients((network.layers[0], jnp.ones(6)))
    assert float(layer_gap(found.transformed(network.layers))) > 0 and rho.shape == (4,)


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
    alphas, one = np.array([0.3, 0.1, 0.03]), np.ones((4, 1, 3))

    def bias(error: Any) -> list[Finding]:
        numbers = fully_connected.Approach(alphas * one, error * one, 0.0 * one, one > 0, one)
        found = statements("connected", fully_connected.ConnectedNumbers(numbers))
        return [found[1], found[2]]

    exact, random = bias(alphas**2)
    # From W̄ = I there is to be no error at all; one that is left may still fall.
    assert exact.verdict is Verdict.not_settled and exact.evidence.undecided == 1
    assert random.verdict is Verdict.holds_at_this_rate and "α^2.00" in random.measured
    assert bias(1e-15)[0].verdict is Verdict.holds
    assert bias(np.array([0.1, 0.2, 0.3]))[1].verdict is Verdict.not_settled


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
