"""Sequence-to-sequence and causal attention from start to certified limit, in both coordinates."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxflow as jf
from jaxflow.limits import find_limit
from jaxflow.margin import attention_svm, is_locally_optimal, solve, solve_cvxpy

N, T, D = 2, 3, 5


def start(key=0, causal=True, common=False, visible=None):
    """A mask and a head for each position in all cases, so that one compiled program serves them."""
    data, v = jf.data.random_sequences(jax.random.key(key), N, T, D, causal=True, position_heads=True)
    mask = data.mask | (not causal) if visible is None else jnp.broadcast_to(visible, (N, T, T))
    data = jf.data.TokenData(data.tokens, data.queries, data.labels, mask)
    head = jf.models.PositionHeads(jnp.broadcast_to(v[:1], v.shape) if common else v)
    model = jf.models.CombinedAttention.init(jax.random.key(key + 100), data, head)
    return jf.EmpiricalRisk(data, jf.losses.Logistic()), model


# Causal: output k has k − 1 tokens to leave. Without a mask, and with a common head: T − 1 at each of its outputs.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "constraints"),
    [({}, N * T * (T - 1) // 2), ({"causal": False, "common": True, "key": 1}, N * T * (T - 1))],
)
def test_a_limit_is_certified_by_its_own_dual_and_solves_the_program(how, constraints):
    risk, model = start(**how)
    limit = find_limit(risk, model)
    assert limit.flow_certificate.duality_gap <= 1e-8 and bool(limit.kind == "direction")
    assert limit.selection.shape == (N, T, T) and jnp.all(jnp.sum(limit.selection, axis=-1) == 1)
    assert not jnp.any(limit.selection & ~risk.data.visible)
    program = attention_svm(risk.data, limit.selection)
    assert int(jnp.sum(program.active)) == constraints
    reference = solve_cvxpy(program).primal
    assert jnp.max(jnp.abs(limit.direction - reference)) <= 1e-6 * jnp.max(jnp.abs(reference))
    status = is_locally_optimal(risk.data, model.head, limit.selection, solve(program)).status
    assert str(status) == str(limit.selection_status) and str(limit.outcome) in ("globally_optimal", "locally_optimal")
    assert "App. D" in str(limit) and all(bool(a.holds) for a in limit.prediction.assumptions)


@pytest.mark.slow
def test_one_output_a_sequence_has_the_limit_of_the_plain_problem():
    # The plain problem in the shape of other modules, whose compiled program is then found on disk.
    data, v = jf.data.random_sequences(jax.random.key(3), 3, 4, 4, k=1, self_attention=False)
    plain = jf.data.TokenData(data.tokens, data.queries[:, 0], data.labels[:, 0])
    model = jf.models.CombinedAttention.init(jax.random.key(4), data, v)
    several, single = (find_limit(jf.EmpiricalRisk(x, jf.losses.Logistic()), model) for x in (data, plain))
    np.testing.assert_array_equal(several.selection[:, 0], single.selection)
    # Both are certified to 1e-8, which is the square of the error of a direction; most often to rounding.
    assert jnp.max(jnp.abs(several.direction - single.direction)) <= 1e-4 * jnp.max(jnp.abs(single.direction))
    assert "Theorem 7" in str(single) and "Corollary 2" in str(several)


@pytest.mark.slow
def test_nothing_to_select_goes_nowhere():
    """A single visible token at every output: no constraint, no gradient, W stays."""
    risk, model = start(visible=jnp.arange(T) == 0)
    limit = find_limit(risk, model)
    assert str(limit.outcome) == "finite_stationary_point" and jnp.allclose(limit.point, model.W, atol=1e-12)
    assert not jnp.any(attention_svm(risk.data, limit.selection).active)


@pytest.mark.slow
@pytest.mark.parametrize("padding", [0.0, 1e200, np.nan])
@pytest.mark.parametrize("model", [jf.models.CombinedAttention, jf.models.FactoredAttention])
def test_nothing_depends_on_what_stands_under_a_mask(model, padding):
    """Zeros were taken for a token that stands twice, and large padding for the size of the data."""
    data, head = jf.data.random_tokens(jax.random.key(3), 4, 3, 5)
    start = model.init(jax.random.key(4), data, head)
    plain = jf.find_limit(jf.EmpiricalRisk(data, "logistic"), start)
    tokens = jnp.concatenate([data.tokens, jnp.full((4, 2, 5), padding)], axis=1)
    mask = jnp.broadcast_to(jnp.arange(5) < 3, (4, 5))
    padded = jf.data.TokenData(tokens, data.queries, data.labels, mask)
    limit = jf.find_limit(jf.EmpiricalRisk(padded, "logistic"), start)
    assert limit.outcome == plain.outcome and plain.outcome in ("globally_optimal", "locally_optimal")
    np.testing.assert_array_equal(limit.selection[:, :3], plain.selection)
    assert not np.any(limit.selection[:, 3:])
    # Both are within 1e-8 of the optimum, so that they differ by the root of it at most.
    np.testing.assert_allclose(limit.direction, plain.direction, atol=2e-4)


@pytest.mark.slow
def test_data_that_a_compiled_function_closes_over():
    """Within `jit` concrete data stay what they are, duplicates of tokens among them."""
    data, head = jf.data.random_tokens(jax.random.key(0), n=2, T=3, d=3)
    for tokens in (data.tokens, data.tokens.at[:, 1].set(data.tokens[:, 0])):
        risk = jf.EmpiricalRisk(jf.data.TokenData(tokens, data.queries, data.labels), "logistic")
        model = jf.models.CombinedAttention.init(jax.random.key(1), risk.data, head)
        shapes = eqx.filter_eval_shape(lambda m, risk=risk: jf.find_limit(risk, m, throw=False), model)
        assert shapes.selection.shape == (2, 3)
