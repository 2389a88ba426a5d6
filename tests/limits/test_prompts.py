"""Limits of a trained prompt: certified to solve the l2 SVM of its tokens, by the gears of any attention."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxflow as jf
from jaxflow.models import PromptAttention
from tests.referee.programs import lower_bound

CERTIFIED = ("globally_optimal", "locally_optimal")


def instance(seed: int) -> tuple[jf.data.TokenData, PromptAttention]:
    keys = jax.random.split(jax.random.fold_in(jax.random.key(11), seed))
    data, head = jf.data.random_tokens(keys[0], 4, 4, 6)
    return data, PromptAttention.init(keys[1], data, head)


def limit_of(data: jf.data.TokenData, model: PromptAttention) -> Any:
    return jf.find_limit(jf.EmpiricalRisk(data, "logistic"), model, throw=False)


def solves_its_program(keys: Any, limit: Any) -> None:
    """The rows that separate the selected tokens from the others, and the bound of their program, by NumPy."""
    keys, chosen, p = np.asarray(keys), np.asarray(limit.selection), np.asarray(limit.direction)
    rows = (np.sum(np.where(chosen[..., None], keys, 0.0), axis=1, keepdims=True) - keys)[~chosen]
    assert p.shape == keys.shape[-1:] and np.min(rows @ p) >= 1.0 - 1e-9
    assert np.linalg.norm(p) <= (1.0 + 2e-8) * lower_bound("frobenius", rows, np.zeros(len(rows)))


@pytest.fixture(scope="module")
def limits() -> list[tuple[jf.data.TokenData, PromptAttention, Any]]:
    return [(data, model, limit_of(data, model)) for data, model in map(instance, range(12))]


def test_limits_solve_the_program_of_their_tokens(limits):
    outcomes = [str(limit.outcome) for _, _, limit in limits]
    assert "undecided" not in outcomes and sum(outcome in CERTIFIED for outcome in outcomes) >= 10
    for data, _, limit in limits:
        if str(limit.outcome) in CERTIFIED:
            solves_its_program(data.tokens, limit)
    data, model, limit = limits[0]
    assert "l2-norm max-margin program" in str(limit) and "Max-Margin Token Selection" in str(limit)
    # Queries do not count.
    other = jf.data.TokenData(data.tokens, jnp.zeros_like(data.queries), data.labels)
    assert jnp.array_equal(limit_of(other, model).direction, limit.direction)


@pytest.mark.slow  # two more shapes to compile
def test_fixed_keys_and_several_queries():
    data, _ = instance(0)
    K = jax.random.normal(jax.random.key(3), (6, 5))
    model = PromptAttention.init(jax.random.key(4), data, jax.random.normal(jax.random.key(5), (6,)), K=K)
    limit = limit_of(data, model)
    assert str(limit.outcome) in CERTIFIED
    solves_its_program(data.tokens @ K, limit)
    # Two queries with the labels of one are that one, twice.
    twice = [jnp.stack([x, x], axis=1) for x in (data.queries, data.labels)]
    both = limit_of(jf.data.TokenData(data.tokens, *twice), model)
    assert both.outcome == limit.outcome
    # Directions that are both certified to 1e-8 differ by the root of it.
    assert jnp.linalg.norm(both.direction - limit.direction) <= 1e-4 * jnp.linalg.norm(limit.direction)


def gaps(key: int, until: float) -> tuple[float, float]:
    """Of the flow of prompt and head: the certificates of v, and of the velocity of p among sequences that v holds."""
    data, _ = jf.data.random_tokens(jax.random.key(key), n=4, T=3, d=8)
    risk = jf.EmpiricalRisk(data, "logistic", trainable=jf.models.attention_and_head)
    start = PromptAttention(jnp.zeros(8), jnp.zeros(8))
    end = jf.integrate(risk, start, clock="log_time", until=until, solver="kvaerno5").final
    attention = end.model.attention(data)
    chosen = jnp.argmax(attention, axis=1)
    program = jf.margin.max_margin(data.tokens[jnp.arange(4), chosen], data.labels)
    dual = jf.margin.solve(program).dual
    held = dual > 1e-6
    pushing = jf.data.TokenData(data.tokens[held], data.queries[held], data.labels[held])
    prompt = jf.margin.prompt_svm(pushing, chosen[held])
    found = jf.margin.certify(program, end.model.head.v, dual), jf.margin.certify(prompt, end.velocity.p)
    # A sequence that v does not hold is pushed less and less.
    assert until < 1e8 or jnp.all(jnp.max(attention, axis=1) >= 1.0 - 1e-6)
    return tuple(float(one.duality_gap) for one in found)


@pytest.mark.slow
@pytest.mark.parametrize("key", [1, 4])
def test_directions_of_prompt_and_head_have_bounds_though_no_theorem_names_them(key):
    """Of v to what is certified elsewhere; of p a gap that falls like a power of log t."""
    before, after = gaps(key, 1e4), gaps(key, 1e8)
    assert after[0] <= 1e-8 and before[0] >= 1e-6
    assert 0.0 <= after[1] <= 0.1 * before[1] <= 1e-2


def test_what_is_wrong_is_named():
    data, model = instance(0)
    with pytest.raises(ValueError, match="^trainable: theorems name the program of a limit only for a fixed head"):
        jf.find_limit(jf.EmpiricalRisk(data, "logistic", trainable=jf.models.attention_and_head), model)
    for K, message in ((None, r"p: expected shape \(6,\)"), (jnp.zeros((4, 5)), r"K: expected shape \(6, 5\)")):
        with pytest.raises(ValueError, match=message):
            limit_of(data, PromptAttention(jnp.zeros(5), model.head, K=K))
