"""Figures and checks of yun2021: starts, bounds, and verdicts that follow made-up numbers."""

import re
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
from jaxflow.papers.table import Table
from jaxflow.papers.verdicts import Verdict, fit
from jaxflow.papers.yun2021 import (
    fully_connected,
    limit_directions,
    loss_bounds,
    multiplier_direction,
)
from jaxflow.papers.yun2021.closed_forms import point_limit
from jaxflow.papers.yun2021.starts import NETWORKS, start_at
from jaxflow.theory import layer_gap
from tests.papers.findings import found, letters
from tests.papers.made_up.records import filled
from tests.papers.made_up.yun2021 import classification, direction, regression


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("d", [2, 5])
def test_starts_have_the_prescribed_coefficients_and_satisfy_theorem_5(network: str, d: int) -> None:
    x, z = jnp.linspace(1.0, 2.0, d), jnp.cos(jnp.arange(d) * 1.7)
    start = start_at(network, x, z, 0.3)
    np.testing.assert_allclose(start.linear_coefficients(), 0.09 * z, atol=1e-14)
    assert float(point_limit(start, x, jnp.asarray(1.0)).slack) > 0


def statements(name: str, numbers: Any) -> list[Finding]:
    return found("yun2021", name, numbers)


def on_plane(*arguments: Any, **more: Any) -> Table:
    return Table(regression=regression(*arguments, **more))


def on_both(**how: Any) -> Table:
    return Table(regression=regression(1e-3, 0.1, scales=1), classification=classification(**how))


def bounded(**changes: Any) -> Table:
    fields = {"corrected": 0.9, "printed": 2.0, "start": 0.5, "gap": 1.0, "ok": True} | changes
    separable = Table(**{name: np.broadcast_to(v, (1, 2)) for name, v in fields.items()})
    ratio = filled(Table, (2, 2), ratio=0.9, gap=1.0, ok=True)
    ratio.ok[0, 1] = fields["ok"]
    stuck = filled(Table, (1, 2), gap=0.0, loss=1.5, ok=fields["ok"])
    return Table(separable=separable, squared=ratio, datum=separable, stuck=stuck)


def paired(last: float) -> Table:
    """Errors of two forms, and multipliers of which one is the last."""
    errors, least = np.tile([1e-11, 1e-12], (2, 1)), np.tile([1e-9, 1e-3], (2, 1))
    least[1, 1] = last
    return Table(pairs=Table(error=errors, ok=np.ones((2, 2), bool), least=least))


@pytest.mark.parametrize(
    ("name", "numbers", "verdicts"),
    [
        ("fig1", on_plane(1e-3, 0.1), "HHH"),
        ("fig1", on_plane(0.1, 0.1), "HOH"),
        ("fig1", on_plane(1e-3, 0.0), "HHO"),
        ("fig1", on_plane(1e-3, 0.1, end=1e-3), "OHH"),
        ("fig1", on_plane(1e-3, 0.1, slack=-1.0), "N.."),
        ("fig3", on_both(), "..HHH"),
        ("fig3", on_both(steps=1000), "...N."),
        ("fig3", on_both(off=1e-3), "..O.."),
        ("fig3", on_both(loss=1e-3, spread=0.0), "...OO"),
        # Nothing else has computed what is above the bound.
        ("bounds", bounded(), "HOHHHOH"),
        ("bounds", bounded(corrected=np.array([0.9, 1.1])), "O...O.."),
        ("bounds", bounded(ok=False), "OOO.OOO"),
        ("bounds", bounded(gap=-1.0), "NN..NN."),
        # Both forms agree and multipliers push the right way, or one does not.
        ("dual-form", paired(1e-3), "HH"),
        ("dual-form", paired(-1e-3), "HO"),
    ],
)
def test_verdicts_follow_the_numbers(name: str, numbers: Any, verdicts: str) -> None:
    assert re.fullmatch(verdicts, letters(statements(name, numbers)))


def test_a_fit_has_an_interval() -> None:
    x = np.arange(5.0)
    slope, half = fit(x, 2.0 * x + np.array([0.0, 0.1, -0.1, 0.1, 0.0]))
    assert abs(slope - 2.0) < half < 0.2
    assert np.isnan(fit(x[:2], x[:2])[0])


@pytest.fixture(scope="module")
def bounds() -> Table:
    keys = jax.random.split(jax.random.key(0), 4)

    def many(one: Any) -> Any:
        found = jax.jit(lambda keys: jax.lax.map(one, keys))(keys)
        return jax.tree.map(lambda x: np.asarray(x)[None], found)

    regressions = [many(lambda key, name=name: loss_bounds.regress(key, name)) for name in loss_bounds.REGRESSIONS]
    squared = jax.tree.map(lambda *x: np.concatenate(x), *regressions)
    parts = {"separable": loss_bounds.classify, "datum": loss_bounds.datum, "stuck": loss_bounds.stuck}
    found = {name: many(lambda key, one=one: one(key, None)) for name, one in parts.items()}
    return Table(found, squared=squared)


def test_the_bound_of_d_1_wants_the_loss_at_the_start(bounds: Table) -> None:
    rows = corrected, printed, *_ = statements("bounds", bounds)
    found = letters(rows)
    # From few starts is the loss of one data point above the bound as it is printed.
    assert found[:5] + found[6] == "HOHHHH" and corrected.evidence.inside > 0
    assert "as printed" in printed.says


@pytest.mark.slow
def test_structure_from_the_name_to_the_rows(tmp_path: Path) -> None:
    _, rows = papers.verify("yun2021", only=["structure"], out=tmp_path, say=lambda line: None)
    by_text = {row.says: row.verdict for row in rows}
    plain = [verdict for text, verdict in by_text.items() if "unconjugated" in text]
    assert plain == [Verdict.counterexample_found]
    assert sum(verdict is Verdict.holds for verdict in by_text.values()) == len(rows) - 1


def test_verdicts_of_directions_follow_the_numbers() -> None:
    # Certified directions are limits; a rate is measured for the gaps and for the approach to a sparse limit.
    good = statements("directions", direction(1e-7))
    assert letters(good) == "HHHHRHRHHRHHRHHHRHH"
    # Rates and the stationary points of three layers have numbers of their own.
    assert letters(statements("directions", direction(0.5))) == "OOOOROROOROOROHHROO"
    slow = statements("directions", direction(1e-7, exponent=0.1))
    assert letters(slow) == "HHHHOHOHHOHHOHHHRHH"
    negative = [one for one in statements("directions", direction(1e-7, least=-0.1)) if one.evidence.contradicted]
    assert [one.source for one in negative] == ["Corollary 2", "Corollary 3"]
    failed = statements("directions", direction(1e-7, outcome=Outcome.failed.value))
    assert all(one.evidence.undecided == one.evidence.inside for one in failed)
    # Starts are looked at wherever a statement asks for something of them.
    assert letters(statements("directions", direction(1e-7, start=-1.0))).count("N") == 12


def test_a_late_rate_is_neither_a_proof_nor_a_counterexample() -> None:
    for late in (1, 2):
        slope = np.where(np.arange(3) < late, -0.5, -1.0)
        (one,) = [one for one in statements("directions", direction(1e-7, slope=slope)) if "constants" in one.says]
        assert one.verdict is Verdict.not_settled
        assert (one.evidence.contradicted, one.evidence.undecided) == (0, late)


def test_a_direction_that_still_turns_stays_in_the_table() -> None:
    drift = np.full((len(limit_directions.KINDS), 3), 1e-7)
    drift[1] = 0.3, 1e-7, np.nan
    one = statements("directions", direction(1e-7, drift=drift))[-2]
    assert one.worst == pytest.approx(0.3) and one.evidence.inside == drift.size
    assert (one.evidence.contradicted, one.evidence.undecided) == (1, 1)


def test_a_random_transform_decomposes_and_satisfies_theorem_2() -> None:
    data = LinearData(jnp.ones((2, 3)), jnp.ones(2))
    network = limit_directions.network_of("transformed", jax.random.key(1), data)
    found = decomposition_of(network)
    assert found.transform.shape == (4, 3)
    np.testing.assert_allclose(found.tensor(), network.data_tensor, atol=1e-12)
    rho = found.singular_coefficients((network.layers[0], jnp.ones(6)))
    assert float(layer_gap(found.transformed(network.layers))) > 0 and rho.shape == (4,)


def test_an_ensemble_counts_every_outcome() -> None:
    reached, failed = Outcome.limit_point.value, Outcome.failed.value

    def ends(outcomes: list[int], *errors: float) -> Finding:
        data = Table(outcome=np.array([outcomes]), error=np.array([errors]), steps=np.array([[10, 20, 30]]))
        (one,) = statements("ensemble", Table(limits=data))
        return one

    # A flow that failed is counted, and proves nothing.
    one = ends([reached, reached, failed], 1e-12, 1e-9, 1.0)
    assert one.verdict is Verdict.not_settled and one.evidence.undecided == 1
    assert ends([reached] * 3, 1e-10, 1e-10, 1e-10).verdict is Verdict.holds
    one = ends([reached] * 3, 1e-12, 1e-7, 1e-9)
    assert one.verdict is Verdict.not_settled and one.evidence.contradicted == 1


def test_the_bias_of_theorem_6_is_judged_by_falling_errors() -> None:
    alphas, one = np.array([0.3, 0.1, 0.03]), np.ones((len(fully_connected.STARTS), 1, 3))

    def bias(error: Any) -> list[Finding]:
        numbers = Table(alphas=alphas * one, error=error * one, residual=0.0 * one, followed=one > 0, last=one)
        found = statements("connected", Table(approaches=numbers))
        return [found[1], found[2]]

    exact, random = bias(alphas**2)
    # From W̄ = I there is to be no error at any α.
    assert exact.verdict is Verdict.not_settled and exact.evidence.contradicted == 1
    assert random.verdict is Verdict.holds_at_this_rate and random.evidence.rate is not None
    assert random.evidence.rate.fitted == pytest.approx(2.0)
    assert bias(1e-15)[0].verdict is Verdict.holds
    assert bias(np.array([0.1, 0.2, 0.3]))[1].verdict is Verdict.not_settled


def test_claims_about_the_push_are_no_proof() -> None:
    size = multiplier_direction.SAVES
    falling, growing = np.exp(-np.linspace(0, 30, size)), np.linspace(0.0, 0.2, size)
    ok = np.tile([True, True, True, False], (4, 1))
    paths = Table(drift=np.tile(falling, (4, 4, 1)), sizes=np.tile(np.linspace(0, 15, size), (4, 4, 1)), ok=ok)
    said = statements("push", Table(paths=paths))
    # One flow in four did not get there: it stays in the denominator.
    assert set(letters(said)) == {"O"} and said[0].evidence.inside == 4
    assert said[0].evidence.rate is not None and said[0].evidence.rate.fitted == pytest.approx(2.0)
    paths = paths.replace(ok=np.ones((4, 4), bool))
    assert set(letters(statements("push", Table(paths=paths)))) == {"R"}
    paths.drift[0] = growing
    assert letters(statements("push", Table(paths=paths)))[0] == "O"
