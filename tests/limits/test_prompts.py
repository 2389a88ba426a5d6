"""Limits of a trained prompt: certified to solve the l2 SVM of its tokens, by the gears of any attention."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxflow as jf
from jaxflow.models import CombinedAttention, LinearHead, PromptAttention
from tests.referee.programs import lower_bound, norm_of

SHAPE = n, T, d = 4, 4, 6
CERTIFIED = ("globally_optimal", "locally_optimal")


def instance(seed: int) -> tuple[jf.data.TokenData, PromptAttention]:
    keys = jax.random.split(jax.random.fold_in(jax.random.key(11), seed))
    data, head = jf.data.random_tokens(keys[0], *SHAPE)
    return data, PromptAttention.init(keys[1], data, head)


def limit_of(data: jf.data.TokenData, model: PromptAttention) -> jf.limits.Limit:
    return jf.find_limit(jf.EmpiricalRisk(data, "logistic"), model, throw=False)


def rows_of(keys: Any, selection: Any) -> np.ndarray:
    """What separates the selected tokens from the others, by NumPy."""
    keys, chosen = np.asarray(keys), np.asarray(selection)
    differences = np.sum(np.where(chosen[..., None], keys, 0.0), axis=1, keepdims=True) - keys
    return differences[~chosen]


@pytest.fixture(scope="module")
def limits() -> list[tuple[jf.data.TokenData, PromptAttention, jf.limits.Limit]]:
    return [(data, model, limit_of(data, model)) for data, model in map(instance, range(40))]


def test_limits_solve_the_program_of_their_tokens(limits):
    outcomes = [str(limit.outcome) for _, _, limit in limits]
    assert "undecided" not in outcomes and sum(outcome in CERTIFIED for outcome in outcomes) >= 36
    for data, _, limit in limits:
        if str(limit.outcome) in CERTIFIED:
            rows, p = rows_of(data.tokens, limit.selection), np.asarray(limit.direction)
            assert p.shape == (d,) and np.min(rows @ p) >= 1.0 - 1e-9
            bound = lower_bound(
                "frobenius", rows, np.asarray(limit.program_solution.dual)[~np.asarray(limit.selection)]
            )
            assert norm_of("frobenius", p) <= (1.0 + 2e-8) * bound
    assert "l2-norm max-margin program" in str(limits[0][2]) and "Max-Margin Token Selection" in str(limits[0][2])


def test_queries_do_not_count(limits):
    data, model, limit = limits[0]
    other = jf.data.TokenData(data.tokens, jnp.zeros_like(data.queries), data.labels)
    assert jnp.array_equal(limit_of(other, model).direction, limit.direction)


@pytest.mark.parametrize("size", [1e-150, 1e-8, 1e8, 1e150])
def test_units_do_not_count(limits, size):
    data, model, limit = limits[0]
    moved = jf.data.TokenData(size * data.tokens, data.queries, data.labels)
    other = limit_of(moved, PromptAttention(model.p / size, LinearHead(model.head.v / size)))
    assert other.outcome == limit.outcome and jnp.array_equal(other.selection, limit.selection)
    # Directions that are both certified to 1e-8 differ by the root of it.
    assert jnp.linalg.norm(size * other.direction - limit.direction) <= 1e-4 * jnp.linalg.norm(limit.direction)


def test_the_flow_is_that_of_w_where_every_query_is_the_same_unit_vector(limits):
    data, model, _ = limits[0]
    first = jnp.zeros_like(data.queries).at[:, 0].set(1.0)
    combined = CombinedAttention(jnp.zeros((d, d)).at[:, 0].set(model.p), model.head)
    same = jf.data.TokenData(data.tokens, first, data.labels)
    ends = [
        jf.integrate(jf.EmpiricalRisk(data, "logistic"), start, clock="log_time", until=5.0).model
        for data, start in ((data, model), (same, combined))
    ]
    # Tolerance 1e-8 over a path of length ten.
    assert jnp.max(jnp.abs(ends[0].p - ends[1].W[:, 0])) <= 1e-6 and jnp.all(ends[1].W[:, 1:] == 0)


@pytest.mark.slow  # two more shapes to compile
def test_fixed_keys_and_several_queries():
    data, _ = instance(0)
    K = jax.random.normal(jax.random.key(3), (d, 5))
    model = PromptAttention.init(jax.random.key(4), data, jax.random.normal(jax.random.key(5), (d,)), K=K)
    limit = limit_of(data, model)
    assert str(limit.outcome) in CERTIFIED and limit.direction.shape == (5,)
    rows = rows_of(data.tokens @ K, limit.selection)
    bound = lower_bound("frobenius", rows, np.asarray(limit.program_solution.dual)[~np.asarray(limit.selection)])
    assert np.linalg.norm(limit.direction) <= (1.0 + 2e-8) * bound
    # Two queries with the labels of one are that one, twice.
    twice = [jnp.stack([x, x], axis=1) for x in (data.queries, data.labels)]
    both = limit_of(jf.data.TokenData(data.tokens, *twice), model)
    assert both.outcome == limit.outcome
    assert jnp.linalg.norm(both.direction - limit.direction) <= 1e-4 * jnp.linalg.norm(limit.direction)


def joint(key: int, until: float) -> tuple[float, float, np.ndarray, float]:
    """Of the flow of prompt and head: how far v, and the velocity of p, are above optima by NumPy's bounds from the
    solved programs' duals; attention; and the least lead of a selected token in a sequence that v does not hold."""
    data, _ = jf.data.random_tokens(jax.random.key(key), n=4, T=3, d=8)
    risk = jf.EmpiricalRisk(data, "logistic", trainable=jf.models.attention_and_head)
    start = PromptAttention(jnp.zeros(8), jnp.zeros(8))
    end = jf.integrate(risk, start, clock="log_time", until=until, solver="kvaerno5").final
    attention = np.asarray(end.model.attention(data))
    chosen = jnp.asarray(attention.argmax(axis=1))
    solved = jf.margin.solve(jf.margin.max_margin(data.tokens[jnp.arange(4), chosen], data.labels))
    held = np.asarray(solved.dual) > 1e-6
    pushing = jf.data.TokenData(data.tokens[held], data.queries[held], data.labels[held])
    dual = np.asarray(jf.margin.solve(jf.margin.prompt_svm(pushing, chosen[held])).dual)
    one_hot = np.asarray(jax.nn.one_hot(chosen, 3, dtype=bool))
    mine = np.asarray(data.tokens)[np.arange(4), np.asarray(chosen)] * np.asarray(data.labels)[:, None]
    rows = rows_of(data.tokens[held], one_hot[held])
    excess = []
    for x, A, weights in ((end.model.head.v, mine, solved.dual), (end.velocity.p, rows, dual[~one_hot[held]])):
        x, weights = np.asarray(x), np.asarray(weights)
        optimum = np.sum(weights) / np.linalg.norm(A.T @ weights)
        excess.append(np.linalg.norm(x) / np.min(A @ x) / optimum - 1.0)
    p = np.asarray(end.model.p)
    lead = rows_of(data.tokens[~held], one_hot[~held]) @ p / np.linalg.norm(p)
    return *excess, attention, np.min(lead, initial=np.inf)


@pytest.mark.parametrize("key", [1, 3, 4, 10])
def test_directions_of_prompt_and_head_have_bounds_though_no_theorem_names_them(key):
    """Of v to what is certified elsewhere; of p a gap that falls like a power of log t."""
    before, after = joint(key, 1e4), joint(key, 1e8)
    # A sequence that v does not hold is pushed less and less.
    assert np.all(after[2].max(axis=1) >= 1.0 - 1e-6)
    assert after[0] <= 1e-8 and before[0] >= 1e-6
    assert 0.0 <= after[1] <= 0.1 * before[1] <= 1e-2 and after[3] >= -1e-9
    data, model = instance(0)
    with pytest.raises(ValueError, match="^trainable: theorems name the program of a limit only for a fixed head"):
        jf.find_limit(jf.EmpiricalRisk(data, "logistic", trainable=jf.models.attention_and_head), model)


def test_what_is_wrong_is_named():
    data, model = instance(0)
    with pytest.raises(ValueError, match=r"p: expected shape \(6,\)"):
        limit_of(data, PromptAttention(jnp.zeros(5), model.head))
    with pytest.raises(ValueError, match=r"K: expected shape \(6, 5\)"):
        limit_of(data, PromptAttention(jnp.zeros(5), model.head, K=jnp.zeros((4, 5))))
