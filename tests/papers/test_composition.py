"""Figures 8 and 11 at a tiny size, end to end; their parts against independent computations; verdicts by hand."""

from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxflow import papers
from jaxflow.margin import ProgramResult, attention_svm, finite_component, solve_cvxpy
from jaxflow.papers.statement import hold
from jaxflow.papers.table import Table
from jaxflow.papers.tarzanagh2023.composed_instances import (
    MASKED,
    SIZES,
    Fate,
    Size,
    attention_columns,
    cells,
    data_of,
    descents,
    directions,
    draw,
    fate_of,
    fates_in_words,
    finite_components,
    instances_of,
    kept,
    kinks,
    measured,
)
from jaxflow.papers.tarzanagh2023.composition import FlowEnd, key_of
from jaxflow.papers.tarzanagh2023.fig8 import ORDERED, rank_correlation
from jaxflow.papers.tarzanagh2023.fig11 import EXPONENTS, by_threshold
from jaxflow.papers.verdicts import Verdict

TINY = Size(8, flows=2, dimensions=(4, 6), every=500, rates=(1e-1, 1e-2, 1e-3), small=4.0)
# Means and their errors are checked by nothing else.
HOLDS, OPEN, OUTSIDE = Verdict.holds, Verdict.not_settled, Verdict.outside_hypotheses


@pytest.fixture(scope="module")
def found() -> Table:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SIZES, "quick", TINY)
        rows = [instances_of(jax.random.split(key_of(0, cell), TINY.trials), cell) for cell in cells("quick").values()]
        return jax.tree.map(lambda *values: np.stack(values), *rows)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For the numbers that both figures read."""
    return tmp_path_factory.mktemp("composition")


@pytest.mark.slow
@pytest.mark.parametrize("figure", ["fig8", "fig11"])
def test_from_the_name_to_the_files(figure: str, found: Table, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setitem(SIZES, "quick", TINY)
    paths, claims = papers.reproduce("tarzanagh2023", figure, out=folder, say=lambda line: None)
    assert all(path.stat().st_size > 0 for path in paths.values())
    with np.load(paths["data"]) as archive:
        # Both figures see the same instances, and the same seed gives the same numbers.
        for name, values in found.named.items():
            np.testing.assert_array_equal(archive[f"instances.{name}"], values)
        flows = Table({name: archive[f"flows.{name}"] for name in ("end", "apart", "log_time", "distance")})
    # Each flow goes to the time of its descent, and ends near it: another instance would be of order one apart.
    assert flows.apart.shape == (2, 2, 3) and np.any(flows.end == FlowEnd.reached)
    reached = flows.end == FlowEnd.reached
    np.testing.assert_allclose(flows.log_time[reached], found.log_time[:, :2][reached], rtol=1e-12)
    assert np.median(flows.distance[reached]) < 0.1
    assert len(claims) == (8 if figure == "fig8" else 3)


def test_every_instance_has_a_fate(found: Table) -> None:
    assert found.fate.shape == (2, 8)
    assert np.all(found.fate != Fate.not_run)
    assert kept(found).any()
    # What is kept has all its numbers, and a masked token.
    for curve in (found.svmeq, found.mm):
        assert curve.shape == (2, 8, 5)
        assert np.all(np.isfinite(curve[kept(found)]))
        # The greatest correlation is no less than that of either combination.
        assert np.all(found.best[kept(found)] <= curve[kept(found)][:, -1] + 1e-12)
    assert np.all(found.log_masked[kept(found)] < np.log10(MASKED))


def test_instances_follow_the_paper() -> None:
    keys = jax.random.split(jax.random.key(3), 200)
    tokens, queries, labels, V, W = jax.vmap(partial(draw, 3, 4, 4, 6))(keys).named.values()
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


@pytest.mark.slow
def test_zeros_around_an_instance_change_nothing() -> None:
    key = jax.random.key(5)
    paths, distances = [], []
    for widest in (4, 6):
        problem = jax.vmap(partial(draw, 3, 4, 4, widest))(key[None])
        paths.append(descents(50, 25, problem))
        distances.append(jax.vmap(kinks)(problem, paths[-1].attention)[1])
    np.testing.assert_allclose(paths[0].weights, paths[1].weights[:, :, :4, :4], atol=1e-12)
    np.testing.assert_allclose(*distances, atol=1e-12)


@pytest.mark.slow
def test_the_fit_of_a_combination_finds_it() -> None:
    key = jax.random.key(7)
    problem = draw(3, 4, 6, 6, key)
    data = data_of(problem)
    selected = jnp.asarray([[True, True, False, False], [False, True, False, False], [False, False, True, True]])
    attention = jnp.where(selected, 0.5 + 0.3 * jnp.cos(jnp.arange(12.0).reshape(3, 4)), 0.0)
    # An interior point of another library answers to about 1e-7.
    direction = solve_cvxpy(attention_svm(data, selected)).primal
    finite = solve_cvxpy(finite_component(data, selected, attention)).primal
    truth = finite + 30.0 * direction / jnp.linalg.norm(direction)
    weights = jnp.stack([2.0 * direction] * 4 + [truth])
    path = Table(
        weights=weights,
        log_time=jnp.zeros(()),
        at_rest=jnp.asarray(False),
        good=jnp.asarray(True),
        **attention_columns(jnp.log(attention)),
    )
    # Eight times the same, in the shapes of the table: nothing is compiled again.
    single = jax.nn.one_hot(jnp.asarray([0, 1, 2]), 4, dtype=bool)
    problems, path, selected, single, attention = jax.tree.map(
        lambda x: jnp.stack([x] * 8), (problem, path, selected, single, attention)
    )
    direct = [directions(problems, chosen) for chosen in (selected, single)]
    programs = [*direct, finite_components(problems, selected, attention)]
    assert all(np.all(program.result == ProgramResult.optimal.value) for program in programs)
    fit = measured(500, problems, path, *programs)
    np.testing.assert_allclose(fit.gamma, [30.0] * 8, rtol=1e-5)
    np.testing.assert_allclose(fit.best_gamma, [30.0] * 8, rtol=1e-3)
    assert np.all(fit.svmeq[:, -1] < 1e-10) and np.all(fit.best < 1e-10)
    # The saved steps before the last are the direction itself.
    assert np.all(fit.mm[:, :-1] < 1e-10) and np.all(fit.mm[:, -1] > 1e-10)
    assert np.all(fit.one[:, -1] > 1e-3)
    assert np.all(fit.fate == Fate.kept) and np.all(np.asarray(fit.tokens_selected) == [2, 1, 2])


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
    fate = np.asarray(fate_of(*(jnp.asarray(column) for column in list(zip(*rows, strict=True))[:-1])))
    assert [Fate(int(code)) for code in fate] == [row[-1] for row in rows]
    assert fates_in_words(fate).startswith("1 kept, 1 a program without")
    assert fates_in_words(fate).endswith("of 7")


def made_up(
    scale: tuple[float, float] = (4e-3, 2e-3), *, slope: float = 1.0, one: float = 0.5, exponent: float = 1.0
) -> Table:
    """Two dimensions, twelve instances, the last two of which the filter leaves out."""
    rates = np.array([1e-2, 1e-3, 1e-4])
    distance = np.stack([s * (1.0 + 0.01 * np.arange(12)) for s in scale])
    fate = np.full((2, 12), int(Fate.kept))
    fate[:, -2:] = Fate.between
    zero, ones, flows = np.zeros((2, 12)), np.ones((2, 12, 3)), np.ones((2, 3), int)
    instances = Table(
        fate=fate,
        labels=np.array([-1.0, 1.0, 1.0]) * ones,
        tokens_selected=ones.astype(int),
        log_masked=np.stack([-9.3 + slope * 0.2 * np.arange(12.0), -15.0 + slope * 0.1 * np.arange(12.0)]),
        units_off=ones < 0,
        kink_distance=ones,
        log_time=zero,
        at_rest=zero > 0,
        progress=zero + 1.0,
        svmeq=np.stack([zero + 1.0, distance], axis=-1),
        mm=np.stack([zero + 1.0, 2 * distance], axis=-1),
        one=np.full((2, 12, 2), one),
        gamma=zero,
        best=zero,
        best_gamma=zero,
    )
    # The constants of single instances scatter about one.
    apart = rates**exponent * (1.0 + 0.05 * np.arange(6.0).reshape(2, 3, 1) * (rates > 1e-3))
    reached = np.full((2, 3), int(FlowEnd.reached))
    ends = Table(
        end=reached,
        log_time=0.0 * flows,
        steps=100 * flows,
        crossed=flows,
        met=flows,
        sliding=flows,
        distance=0.0 * flows,
        apart=apart,
        apart_log_time=0.0 * apart,
    )
    return Table(
        grid=Table(dimensions=np.array([4, 8]), steps=np.array([0, 2000]), rates=rates), instances=instances, flows=ends
    )


def none_kept() -> Table:
    numbers = made_up()
    fate = np.full_like(numbers.instances.fate, Fate.between)
    return numbers.replace(instances=numbers.instances.replace(fate=fate))


def verdicts(data: Table, figure: str = "fig8") -> list[Verdict]:
    return [finding.verdict for finding in papers.find_figure("tarzanagh2023", figure).find(data)[0]]


def test_verdicts_of_figure_8_follow_the_numbers() -> None:
    # After them, of sequences with label 1.
    flow = [HOLDS, Verdict.holds_at_this_rate, HOLDS]
    assert verdicts(made_up()) == [HOLDS] * 5 + flow
    assert verdicts(made_up((2e-3, 4e-2))) == [OPEN, HOLDS, HOLDS, HOLDS, OPEN, *flow]
    assert verdicts(made_up(one=1e-6)) == [HOLDS, OPEN, HOLDS, HOLDS, HOLDS, *flow]
    assert verdicts(made_up(slope=-1.0)) == [HOLDS, HOLDS, OPEN, HOLDS, HOLDS, *flow]
    assert verdicts(none_kept()) == [OUTSIDE] * 5 + flow[:2] + [OUTSIDE]
    # Of order one half, and of none; one flow that spends its budget; one that goes elsewhere than descent.
    assert verdicts(made_up(exponent=0.5))[5:] == verdicts(made_up(exponent=0.0))[5:] == [HOLDS, OPEN, HOLDS]
    spent, elsewhere = made_up(), made_up()
    spent.flows.end[0, 0] = int(FlowEnd.budget_spent)
    assert verdicts(spent)[5:] == [OPEN, OPEN, HOLDS]
    elsewhere.flows.distance[1, 2] = 0.5
    assert verdicts(elsewhere)[5:] == [OPEN, Verdict.holds_at_this_rate, HOLDS]


def test_too_few_instances_are_undecided() -> None:
    two = made_up()
    two.instances.fate[1, 2:] = Fate.between
    assert verdicts(two)[:3] == [HOLDS, HOLDS, OPEN]
    # No kept instance of one d has a solution of (Att-SVM): it stays in the denominator.
    unsolved = made_up()
    unsolved.instances.one[0] = np.nan
    evidence = hold(ORDERED, unsolved).evidence
    assert (evidence.inside, evidence.contradicted, evidence.undecided) == (2, 0, 1)


def test_verdicts_of_figure_11_follow_the_numbers() -> None:
    assert verdicts(made_up(), "fig11") == [HOLDS] * 3
    assert verdicts(made_up((4e-2, 2e-3)), "fig11") == [HOLDS, HOLDS, OPEN]
    assert verdicts(made_up((4e-2, 2e-2)), "fig11") == [HOLDS, OPEN, OPEN]
    assert verdicts(none_kept(), "fig11") == [OUTSIDE] * 3
    # A mean that is above the limit by less than its errors decides nothing.
    found = papers.find_figure("tarzanagh2023", "fig11").find(made_up((4e-2, 9.6e-3)))[0][1]
    assert found.verdict == OPEN and found.evidence.contradicted == 0


def test_means_by_threshold() -> None:
    mean, error, count = by_threshold(made_up())
    # Of the exponents -9.3, -9.1, -8.9, ... none is below -9.5, and two are below -9.
    row = int(np.flatnonzero(EXPONENTS == -9.5)[0])
    assert count[0, row] == 0 and np.isnan(mean[0, row])
    assert count[0, row + 1] == 2
    np.testing.assert_allclose(mean[0, row + 1], 4e-3 * 1.005)
    # 1% of 4e-3 apart: the standard deviation of the two is 4e-5/√2, that of their mean √2 less.
    np.testing.assert_allclose(error[0, row + 1], 2e-5)
    assert count[0, -1] == 10


def test_what_is_drawn_are_means_of_kept_instances() -> None:
    draw_figure = papers.find_figure("tarzanagh2023", "fig11").draw
    assert draw_figure is not None
    curves = draw_figure(made_up()).axes[0].lines[:2]
    np.testing.assert_allclose([line.get_ydata()[1] for line in curves], [4e-3 * 1.045, 2e-3 * 1.045])
    assert all(np.all(np.isnan(line.get_ydata())) for line in draw_figure(none_kept()).axes[0].lines[:2])


def test_rank_correlation_sees_order_alone() -> None:
    x = np.array([3.0, 1.0, 2.0, 10.0])
    assert rank_correlation(x, np.exp(x)) == pytest.approx(1.0)
    assert rank_correlation(x, -(x**3)) == pytest.approx(-1.0)
    # 1 - 6 Σ d² / (n (n² - 1)) with d = (0, 0, 1, -1).
    assert rank_correlation(np.arange(4.0), np.array([0.0, 1.0, 3.0, 2.0])) == pytest.approx(0.8)
