"""Figures 8 and 11: their parts at a tiny size against independent computations."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxflow import papers
from jaxflow.margin import ProgramResult, attention_svm, finite_component, solve_cvxpy
from jaxflow.papers.table import Table
from jaxflow.papers.tarzanagh2023 import composed_instances as composed
from jaxflow.papers.tarzanagh2023.composition import COMPOSITION, FlowEnd, key_of
from jaxflow.papers.tarzanagh2023.fig8 import EXPONENTS, by_threshold
from tests.papers.recorded import changed, numbers_of

TINY = composed.SIZE.replace(trials=8, flows=2, dimensions=(4, 6), every=500, rates=(1e-1, 1e-2), small=4.0)


@pytest.fixture(scope="module")
def found() -> Table:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(composed.SIZES, "quick", TINY)
        rows = [
            composed.instances_of(jax.random.split(key_of(0, cell), TINY.trials), cell)
            for cell in composed.cells("quick").values()
        ]
        return jax.tree.map(lambda *values: np.stack(values), *rows)


def test_every_instance_has_a_fate(found: Table) -> None:
    assert found.fate.shape == (2, 8)
    assert np.all(found.fate != composed.Fate.not_run)
    assert composed.kept(found).any()
    # What is kept has all its numbers, and a masked token.
    for curve in (found.svmeq, found.mm):
        assert curve.shape == (2, 8, 5)
        assert np.all(np.isfinite(curve[composed.kept(found)]))
    assert np.all(found.log_masked[composed.kept(found)] < np.log10(composed.MASKED))


@pytest.mark.slow
def test_flows_end_where_the_descents_of_their_instances_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(composed.SIZES, "quick", TINY)
    cell = next(iter(composed.cells("quick").values()))
    flows = COMPOSITION.parts["flows"].one(jax.random.split(key_of(0, cell), TINY.trials)[:2], cell)
    reached = np.asarray(flows.end) == FlowEnd.reached
    assert flows.apart.shape == (2, 2) and reached.any()
    # Another instance would be of order one apart.
    assert np.median(np.asarray(flows.distance)[reached]) < 0.1


def test_instances_follow_the_paper() -> None:
    keys = jax.random.split(jax.random.key(3), 200)
    tokens, queries, labels, V, W = jax.vmap(partial(composed.draw, 3, 4, 4, 6))(keys).named.values()
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
    problems = [jax.vmap(partial(composed.draw, 3, 4, 4, widest))(key[None]) for widest in (4, 6)]
    paths = [composed.descents(50, 25, problem) for problem in problems]
    np.testing.assert_allclose(paths[0].weights, paths[1].weights[:, :, :4, :4], atol=1e-12)


@pytest.mark.slow
def test_the_fit_of_a_combination_finds_it() -> None:
    key = jax.random.key(7)
    problem = composed.draw(3, 4, 6, 6, key)
    data = composed.data_of(problem)
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
        good=jnp.asarray(True),
        **composed.attention_columns(jnp.log(attention)),
    )
    # Eight times the same, in the shapes of the table: nothing is compiled again.
    single = jax.nn.one_hot(jnp.asarray([0, 1, 2]), 4, dtype=bool)
    problems, path, selected, single, attention = jax.tree.map(
        lambda x: jnp.stack([x] * 8), (problem, path, selected, single, attention)
    )
    direct = [composed.directions(problems, chosen) for chosen in (selected, single)]
    programs = [*direct, composed.finite_components(problems, selected, attention)]
    assert all(np.all(program.result == ProgramResult.optimal.value) for program in programs)
    fit = composed.measured(problems, path, *programs)
    assert np.all(fit.svmeq[:, -1] < 1e-10)
    # The saved steps before the last are the direction itself.
    assert np.all(fit.mm[:, :-1] < 1e-10) and np.all(fit.mm[:, -1] > 1e-10)
    assert np.all(fit.one[:, -1] > 1e-3)
    assert np.all(fit.fate == composed.Fate.kept) and np.all(np.asarray(fit.tokens_selected) == [2, 1, 2])


def test_reasons_prevail_in_order() -> None:
    optimal, infeasible = ProgramResult.optimal.value, ProgramResult.infeasible.value
    failed = ProgramResult.failed.value
    rows = [
        (optimal, optimal, True, False, True, composed.Fate.kept),
        (failed, optimal, True, False, True, composed.Fate.uncertified),
        (failed, infeasible, True, False, True, composed.Fate.infeasible),
        (infeasible, optimal, True, False, True, composed.Fate.infeasible),
        (infeasible, optimal, False, False, True, composed.Fate.nothing_masked),
        (infeasible, optimal, True, True, True, composed.Fate.between),
        (optimal, optimal, True, True, False, composed.Fate.failed),
    ]
    fate = np.asarray(composed.fate_of(*(jnp.asarray(column) for column in list(zip(*rows, strict=True))[:-1])))
    assert [composed.Fate(int(code)) for code in fate] == [row[-1] for row in rows]
    assert composed.fates_in_words(fate).startswith("1 kept, 1 a program without")
    assert composed.fates_in_words(fate).endswith("of 7")


def test_means_by_threshold() -> None:
    numbers = numbers_of("tarzanagh2023", "fig8")
    mean, error, count = by_threshold(numbers)
    kept, instances = composed.kept(numbers.instances), numbers.instances
    for d, threshold in itertools.product(range(len(mean)), (0, len(EXPONENTS) // 2, -1)):
        below = instances.svmeq[d, kept[d] & (instances.log_masked[d] < EXPONENTS[threshold]), -1]
        assert count[d, threshold] == below.size
        if below.size > 1:
            spread = np.std(below, ddof=1) / np.sqrt(below.size)
            np.testing.assert_allclose([mean[d, threshold], error[d, threshold]], [np.mean(below), spread])
    assert count[:, -1].max() > 5 > count[:, 0].min()


def test_what_is_drawn_are_means_of_kept_instances() -> None:
    draw_figure = papers.find_figure("tarzanagh2023", "fig11").draw
    assert draw_figure is not None
    numbers = numbers_of("tarzanagh2023", "fig11")
    kept = composed.kept(numbers.instances)
    for d, line in enumerate(draw_figure(numbers).axes[0].lines[:4]):
        np.testing.assert_allclose(line.get_ydata(), numbers.instances.svmeq[d, kept[d]].mean(axis=0), rtol=1e-12)
    none_kept = changed(numbers, ("instances.fate", composed.Fate.between))
    assert all(np.all(np.isnan(line.get_ydata())) for line in draw_figure(none_kept).axes[0].lines[:4])
