"""Results beyond the papers: their independent code against this library, and each command on few instances."""

from typing import Any

import jax
import numpy as np
import pytest

from jaxflow.data import optimal_tokens, random_tokens
from jaxflow.losses import Squared
from jaxflow.margin import AssumptionStatus, attention_svm, enumerate_selections, solve
from jaxflow.models import token_scores
from jaxflow.papers.boix2023.beyond_assumptions import draw
from jaxflow.papers.independent import margin_rows, tokens_of
from jaxflow.papers.results import adam_order, hypotheses, multistart
from jaxflow.papers.tarzanagh2023.verify.instances import explicit_case
from tests.papers.recorded import changed, entry_of, numbers_of


def test_the_multipliers_in_scipy_are_those_of_the_program() -> None:
    data, head = random_tokens(jax.random.key(1), 3, 3, 6)
    given, best = tokens_of(data, head), optimal_tokens(token_scores(data, head), data.visible)
    dual = np.asarray(solve(attention_svm(data, best)).dual)
    found = hypotheses.multipliers(given, np.argmax(np.asarray(best), axis=1))
    assert found is not None
    np.testing.assert_allclose(found, dual / dual.max(), atol=1e-7)


@pytest.mark.slow
def test_slacks_decide_the_assumptions_as_enumeration_does() -> None:
    seen = set()
    for seed in range(12):
        data, head = random_tokens(jax.random.key(seed), 2, 3, 5)
        B1, D = hypotheses.slacks(tokens_of(data, head))
        every = enumerate_selections(data, head)
        for slack, status in ((B1, every.assumption_B1), (D, every.assumption_D)):
            assert (slack > hypotheses.POSITIVE) == (status == AssumptionStatus.holds)
            seen.add(bool(slack > 0))
    assert seen == {True, False}


def test_the_wrong_token_of_the_explicit_case_has_no_support_token() -> None:
    given = tokens_of(*explicit_case())
    assert np.argmax(given.scores, axis=1).tolist() == [1, 1]
    found = hypotheses.multipliers(given, np.array([1, 0]))
    assert found is not None and found[0].any() and not found[1].any()


def test_a_search_comes_nearer_to_the_boundary_and_keeps_both_assumptions() -> None:
    key = jax.random.key(5)
    data, head = hypotheses.draw_data(key, "B.1, D")
    near, _ = hypotheses.draw_data(key, "B.1, D near its boundary")
    before, after = hypotheses.slacks(tokens_of(data, head)), hypotheses.slacks(tokens_of(near, head))
    assert hypotheses.POSITIVE < after[1] < before[1] and after[0] > hypotheses.POSITIVE


@pytest.mark.slow
def test_a_kkt_point_is_told_from_what_is_none() -> None:
    data, head = random_tokens(jax.random.key(0), 3, 3, 4)
    given, best = tokens_of(data, head), optimal_tokens(token_scores(data, head), data.visible)
    rows = margin_rows(given, np.argmax(np.asarray(best), axis=1))
    solution = solve(attention_svm(data, best, "nuclear"))
    value, residual = multistart.kkt_residual(rows, np.asarray(solution.primal))
    assert abs(value / float(solution.certificate.primal_value) - 1.0) < 1e-6 and residual < multistart.KKT
    _, off = multistart.kkt_residual(rows, np.asarray(solve(attention_svm(data, best)).primal))
    assert off > 10 * multistart.KKT
    assert np.isnan(multistart.kkt_residual(rows, -np.asarray(solution.primal))).all()


def test_adam_in_numpy_is_that_of_optax() -> None:
    risk, model = draw(jax.random.key(2), Squared())
    data: Any = risk.data
    start = model.scaled(adam_order.ADAM_START)
    found = adam_order.adam(*(np.asarray(x, float) for x in (data.inputs, data.targets, start.u, start.v)))
    np.testing.assert_allclose(found, np.asarray(adam_order.adam_products(risk, start)), rtol=1e-6, atol=1e-12)
    steps = adam_order.learned(found, np.array([found[-1, 0], 1e3, found[-1, 2]]))
    assert np.isnan(steps[1]) and (steps[[0, 2]] > 0).all()


def test_two_values_for_the_same_tokens_are_a_contradiction() -> None:
    entry, numbers, other = entry_of("results", "multistart"), numbers_of("results", "multistart"), (0, 1, 2)
    alike = changed(numbers, ("starts.tokens", 5), ("starts.value", 2.0), ("starts.value", 2.1, other))
    found, notes = entry.find(alike)
    assert [one.evidence.contradicted for one in found] == [1, 0, 0]
    assert "1 of 2 (Wilson 95%" in notes[0] and "2.1000 and 2.0000" in notes[0]
    # Other tokens have another least value.
    found, _ = entry.find(changed(alike, ("starts.tokens", 7, other)))
    assert [one.evidence.contradicted for one in found] == [0, 0, 0]
