"""Figures 8 and 11 at a tiny size, end to end; their parts against independent computations; verdicts by hand."""

from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxflow import papers
from jaxflow.data import TokenData
from jaxflow.margin import ProgramResult, attention_svm, finite_component, solve_cvxpy
from jaxflow.papers.tarzanagh2023 import composition
from jaxflow.papers.tarzanagh2023.composition import Fate
from jaxflow.papers.tarzanagh2023.composition_claims import (
    EXPONENTS,
    by_threshold,
    figure8_claims,
    figure11_claims,
    rank_correlation,
)
from jaxflow.papers.tarzanagh2023.composition_descent import MASKED, descents, draw
from jaxflow.papers.tarzanagh2023.composition_fit import directions, finite_components, fits
from jaxflow.papers.tarzanagh2023.composition_flow import FlowEnd
from jaxflow.papers.tarzanagh2023.fig11 import curves
from jaxflow.report import Verdict

TINY = composition.Size(8, flows=2, dimensions=(4, 6), every=500, rates=(1e-1, 1e-2, 1e-3), small=4.0)
# Means and their errors are checked by nothing else.
HOLDS, OPEN, OUTSIDE = Verdict.holds, Verdict.not_settled, Verdict.outside_hypotheses


@pytest.fixture(scope="module")
def table() -> composition.Data:
    return composition.compute(TINY, 0, lambda line: None)


@pytest.mark.slow
@pytest.mark.parametrize("figure", ["fig8", "fig11"])
def test_from_the_name_to_the_files(
    figure: str, table: composition.Data, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(composition.SIZES, "quick", TINY)
    paths, claims = papers.reproduce("tarzanagh2023", figure, out=tmp_path, say=lambda line: None)
    assert all(path.stat().st_size > 0 for path in paths.values())
    with np.load(paths["data"]) as archive:
        # Both figures see the same instances, and the same seed gives the same numbers.
        assert set(archive.files) == set(table)
        for name, values in table.items():
            np.testing.assert_array_equal(archive[name], values)
    assert len(claims) == (7 if figure == "fig8" else 3)
    notes = paths["table"].read_text()
    assert "The paper shows the kept ones only." in notes
    for outcome in table["outcome"]:
        assert f"{np.sum(outcome == Fate.kept)} kept" in notes or not np.any(outcome == Fate.kept)


def test_every_instance_has_a_fate(table: composition.Data) -> None:
    assert table["outcome"].shape == (2, 8)
    assert np.all(table["outcome"] != Fate.not_run)
    assert table["kept"].any()
    # What is kept has all its numbers, and a masked token.
    for name in ("svmeq", "mm"):
        assert table[name].shape == (2, 8, 5)
        assert np.all(np.isfinite(table[name][table["kept"]]))
    assert np.all(table["log_masked"][table["kept"]] < np.log10(MASKED))
    # The greatest correlation is no less than that of either combination.
    kept = table["kept"]
    assert np.all(table["best"][kept] <= table["svmeq"][kept][:, -1] + 1e-12)
    assert np.all(table["best"][kept] <= table["mm"][kept][:, -1] + 1e-12)


def test_instances_follow_the_paper() -> None:
    keys = jax.random.split(jax.random.key(3), 200)
    tokens, queries, labels, V, W = jax.vmap(partial(draw, 3, 4, 4, 6))(keys)
    assert tokens.shape == (200, 3, 4, 6)
    for padded in (tokens, queries, V, W):
        assert np.all(padded[..., 4:] == 0)
    assert np.all(V[:, 4:] == 0) and np.all(W[:, 4:] == 0)
    for unit in (tokens, queries, V.reshape(200, 36)):
        np.testing.assert_allclose(jnp.linalg.norm(unit, axis=-1), 1.0, rtol=1e-14)
    assert np.all(np.abs(W[:, :4, :4]) <= 0.5) and np.abs(W).max() > 0.49
    assert set(np.unique(labels)) == {-1.0, 1.0}
    # Each of the seven patterns with a −1; none is as rare as 1 in 40 by chance (below 1e-6).
    patterns, counts = np.unique(np.asarray(labels), axis=0, return_counts=True)
    assert len(patterns) == 7 and counts.min() >= 5
    assert np.all(patterns.min(axis=1) == -1)


def test_zeros_around_an_instance_change_nothing() -> None:
    key = jax.random.key(5)
    paths = []
    for widest in (4, 6):
        instance = jax.vmap(partial(draw, 3, 4, 4, widest))(key[None])
        paths.append(descents(50, 25, *instance))
    np.testing.assert_allclose(paths[0]["weights"], paths[1]["weights"][:, :, :4, :4], atol=1e-12)
    np.testing.assert_allclose(paths[0]["kink_distance"], paths[1]["kink_distance"], atol=1e-12)


def test_the_fit_of_a_combination_finds_it() -> None:
    key = jax.random.key(7)
    tokens, queries, labels, *_ = draw(3, 4, 6, 6, key)
    data = TokenData(tokens, queries, labels)
    selected = jnp.asarray([[True, True, False, False], [False, True, False, False], [False, False, True, True]])
    attention = jnp.where(selected, 0.5 + 0.3 * jnp.cos(jnp.arange(12.0).reshape(3, 4)), 0.0)
    # An interior point of another library answers to about 1e-7.
    direction = solve_cvxpy(attention_svm(data, selected)).primal
    finite = solve_cvxpy(finite_component(data, selected, attention)).primal
    truth = finite + 30.0 * direction / jnp.linalg.norm(direction)
    # Eight times the same, in the shapes of the table: nothing is compiled again.
    single = jax.nn.one_hot(jnp.asarray([0, 1, 2]), 4, dtype=bool)
    *batch, selected, single, attention = (
        jnp.stack([x] * 8) for x in (tokens, queries, labels, selected, single, attention)
    )
    programs = [
        directions(*batch, selected),
        directions(*batch, single),
        finite_components(*batch, selected, attention),
    ]
    assert all(np.all(program["result"] == ProgramResult.optimal.value) for program in programs)
    fit = fits(jnp.stack([jnp.stack([2.0 * direction] * 4 + [truth])] * 8), *programs)
    np.testing.assert_allclose(fit["gamma"], [30.0] * 8, rtol=1e-5)
    np.testing.assert_allclose(fit["best_gamma"], [30.0] * 8, rtol=1e-3)
    assert np.all(fit["svmeq"][:, -1] < 1e-10) and np.all(fit["best"] < 1e-10)
    # The saved steps before the last are the direction itself.
    assert np.all(fit["mm"][:, :-1] < 1e-10) and np.all(fit["mm"][:, -1] > 1e-10)
    assert np.all(fit["one"][:, -1] > 1e-3)


def test_reasons_prevail_in_order() -> None:
    optimal, infeasible = ProgramResult.optimal.value, ProgramResult.infeasible.value
    failed = ProgramResult.failed.value
    rows = [
        (optimal, optimal, True, False, True, Fate.kept),
        (failed, optimal, True, False, True, Fate.uncertified),
        (failed, infeasible, True, False, True, Fate.infeasible),
        (infeasible, optimal, True, False, True, Fate.infeasible),
        (infeasible, optimal, False, False, True, Fate.nothing_masked),
        (infeasible, optimal, True, True, True, Fate.between),
        (optimal, optimal, True, True, False, Fate.failed),
    ]
    names = ("direction_result", "finite_result", "sparse", "between", "good")
    cell = {name: np.array([row[column] for row in rows]) for column, name in enumerate(names)}
    outcome = composition.outcomes(cell)
    assert [Fate(int(code)) for code in outcome] == [row[-1] for row in rows]
    assert composition.fates_in_words(outcome).startswith("1 kept, 1 a program without")
    assert composition.fates_in_words(outcome).endswith("of 7")


def made_up(
    scale: tuple[float, float] = (4e-3, 2e-3), *, slope: float = 1.0, one: float = 0.5, exponent: float = 1.0
) -> composition.Data:
    """Two dimensions, twelve instances, the last two of which the filter leaves out."""
    rates = np.array([1e-2, 1e-3, 1e-4])
    steps = 1.0 + 0.01 * np.arange(12)
    distance = np.stack([s * steps for s in scale])
    outcome = np.full((2, 12), int(Fate.kept), np.uint8)
    outcome[:, -2:] = Fate.between
    log_masked = np.stack([-9.3 + slope * 0.2 * np.arange(12.0), -15.0 + slope * 0.1 * np.arange(12.0)])
    return {
        "dimensions": np.array([4, 8]),
        "steps": np.array([0, 2000]),
        "outcome": outcome,
        "kept": outcome == Fate.kept,
        "svmeq": np.stack([np.ones_like(distance), distance], axis=-1),
        "mm": np.stack([np.ones_like(distance), 2 * distance], axis=-1),
        "one": np.full((2, 12, 2), one),
        "log_masked": log_masked,
        "tokens_selected": np.ones((2, 12, 3), int),
        "labels": -np.ones((2, 12, 3)),
        "units_off": np.zeros((2, 12, 3), bool),
        "kink_distance": np.ones((2, 12, 3)),
        "at_rest": np.zeros((2, 12), bool),
        "progress": np.ones((2, 12)),
        "flow_end": np.full((2, 3), int(FlowEnd.reached)),
        "flow_distance": np.zeros((2, 3)),
        "flow_steps": np.full((2, 3), 100),
        "flow_met": np.ones((2, 3), int),
        "flow_crossed": np.ones((2, 3), int),
        "flow_sliding": np.ones((2, 3), int),
        "rates": np.array([1e-2, 1e-3, 1e-4]),
        # The constants of single instances scatter about one.
        "descent_distance": rates**exponent * (1.0 + 0.05 * np.arange(6.0).reshape(2, 3, 1) * (rates > 1e-3)),
    }


def verdicts(data: composition.Data) -> list[Verdict]:
    return [claim.verdict for claim in figure8_claims(data)[0]]


def test_verdicts_of_figure_8_follow_the_numbers() -> None:
    flow = [HOLDS, Verdict.holds_at_this_rate]
    assert verdicts(made_up()) == [HOLDS] * 5 + flow
    assert verdicts(made_up((2e-3, 4e-2))) == [OPEN, HOLDS, HOLDS, HOLDS, OPEN, *flow]
    assert verdicts(made_up(one=1e-6)) == [HOLDS, OPEN, HOLDS, HOLDS, HOLDS, *flow]
    assert verdicts(made_up(slope=-1.0)) == [HOLDS, HOLDS, OPEN, HOLDS, HOLDS, *flow]
    nothing = made_up()
    nothing["kept"] = np.zeros_like(nothing["kept"])
    assert verdicts(nothing) == [OUTSIDE] * 5 + flow
    # Of order one half, and of none; one flow that spends its budget; one that goes elsewhere than descent.
    assert verdicts(made_up(exponent=0.5))[5:] == verdicts(made_up(exponent=0.0))[5:] == [HOLDS, OPEN]
    spent, elsewhere = made_up(), made_up()
    spent["flow_end"][0, 0] = int(FlowEnd.budget_spent)
    assert verdicts(spent)[5:] == [OPEN, OPEN]
    elsewhere["flow_distance"][1, 2] = 0.5
    assert verdicts(elsewhere)[5:] == [OPEN, Verdict.holds_at_this_rate]


def test_verdicts_of_figure_11_follow_the_numbers() -> None:
    def judged(data: composition.Data) -> list[Verdict]:
        return [claim.verdict for claim in figure11_claims(data)[0]]

    assert judged(made_up()) == [HOLDS] * 3
    assert judged(made_up((4e-2, 2e-3))) == [HOLDS, HOLDS, OPEN]
    assert judged(made_up((4e-2, 2e-2))) == [HOLDS, OPEN, OPEN]
    # A mean that is above the limit by less than its errors decides nothing.
    assert judged(made_up((4e-2, 9.6e-3)))[1] == OPEN
    assert figure11_claims(made_up((4e-2, 9.6e-3)))[0][1].evidence.contradicted == 0


def test_means_by_threshold() -> None:
    data = made_up()
    dimensions, mean, error, count = by_threshold(data)
    assert list(dimensions) == [4, 8]
    # Of the exponents -9.3, -9.1, -8.9, ... none is below -9.5, and two are below -9.
    row = int(np.flatnonzero(EXPONENTS == -9.5)[0])
    assert count[0, row] == 0 and np.isnan(mean[0, row])
    assert count[0, row + 1] == 2
    np.testing.assert_allclose(mean[0, row + 1], 4e-3 * 1.005)
    # 1% of 4e-3 apart: the standard deviation of the two is 4e-5/√2, that of their mean √2 less.
    np.testing.assert_allclose(error[0, row + 1], 2e-5)
    assert count[0, -1] == 10
    drawn = curves(data)
    np.testing.assert_allclose(drawn["mean"][:, 1], [4e-3 * 1.045, 2e-3 * 1.045])
    assert np.all(np.isnan(curves(data | {"kept": np.zeros((2, 12), bool)})["mean"]))


def test_rank_correlation_sees_order_alone() -> None:
    x = np.array([3.0, 1.0, 2.0, 10.0])
    assert rank_correlation(x, np.exp(x)) == pytest.approx(1.0)
    assert rank_correlation(x, -(x**3)) == pytest.approx(-1.0)
    # 1 - 6 Σ d² / (n (n² - 1)) with d = (0, 0, 1, -1).
    assert rank_correlation(np.arange(4.0), np.array([0.0, 1.0, 3.0, 2.0])) == pytest.approx(0.8)
