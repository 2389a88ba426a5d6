"""Several outputs a sequence: against the plain definition, one output at a time, and with a causal mask."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxflow.data import TokenData, random_sequences
from jaxflow.losses import Logistic
from jaxflow.models import CombinedAttention, DiagonalAttention, FactoredAttention, PositionHeads
from jaxflow.risk import EmpiricalRisk

N, T, D = 2, 4, 3
MODELS = [CombinedAttention, FactoredAttention, DiagonalAttention]


def make(model, causal=False, position_heads=False):
    data, v = random_sequences(jax.random.key(0), N, T, D, causal=causal, position_heads=position_heads)
    head = PositionHeads(v) if position_heads else v
    return EmpiricalRisk(data, Logistic()), model.init(jax.random.key(1), data, head), v


def naive_risk(W, data, heads, causal):
    """Equation (10) with heads h_k as in App. D, sequence by sequence and output by output (mean over outputs)."""
    total = 0.0
    for i in range(N):
        X = data.tokens[i]
        for k in range(T):
            seen = X[: k + 1] if causal else X
            mixture = seen.T @ jax.nn.softmax(seen @ W @ data.queries[i, k])
            v = heads[k] if heads.ndim == 2 else heads
            total = total + jnp.log1p(jnp.exp(-data.labels[i, k] * (v @ mixture)))
    return total / (N * T)


@pytest.mark.parametrize("position_heads", [False, True], ids=["common", "positions"])
@pytest.mark.parametrize("causal", [False, True], ids=["dense", "causal"])
@pytest.mark.parametrize("model", MODELS)
def test_gradient_is_that_of_the_definition(model, causal, position_heads):
    risk, start, v = make(model, causal, position_heads)
    params, frozen = eqx.partition(start, risk.filter(start))

    def naive(params):
        return naive_risk(eqx.combine(params, frozen).combined_weights(), risk.data, v, causal)

    assert float(risk(start)) == pytest.approx(float(naive(params)), rel=1e-14)
    scaled = risk.scaled_gradient(start)
    expected = jax.grad(naive)(params)
    for ours, theirs in zip(jax.tree.leaves(scaled.gradient), jax.tree.leaves(expected), strict=True):
        # A few thousand roundings.
        assert jnp.max(jnp.abs(jnp.exp(scaled.log_scale) * ours - theirs)) <= 1e-12 * jnp.max(jnp.abs(theirs))


def test_causal_is_dense_attention_under_a_mask_and_its_first_output_is_still():
    causal, start, _ = make(CombinedAttention, causal=True)
    scaled = causal.scaled_gradient(start)
    data = causal.data
    assert jnp.all(scaled.multipliers[:, 0] == 0)
    assert jnp.all(jnp.where(data.visible, 0.0, scaled.multipliers) == 0)
    np.testing.assert_allclose(start.attention(data)[:, 0, 0], 1.0, rtol=0, atol=0)
    for k in range(1, T):
        # Output k alone, on the tokens it sees.
        alone = EmpiricalRisk(TokenData(data.tokens[:, : k + 1], data.queries[:, k], data.labels[:, k]), Logistic())
        one = alone.scaled_gradient(start)
        together = jnp.exp(scaled.log_scale - one.log_scale) * T * scaled.multipliers[:, k, : k + 1]
        np.testing.assert_allclose(together, one.multipliers, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("model", MODELS)
def test_one_output_a_sequence_is_the_plain_problem(model):
    data, v = random_sequences(jax.random.key(0), N, T, D, k=1, self_attention=False)
    plain = TokenData(data.tokens, data.queries[:, 0], data.labels[:, 0])
    start = model.init(jax.random.key(1), data, v)
    several, single = (EmpiricalRisk(x, Logistic()) for x in (data, plain))
    a, b = several.scaled_gradient(start), single.scaled_gradient(start)
    assert float(several(start)) == pytest.approx(float(single(start)), rel=1e-14)
    assert float(a.log_scale) == pytest.approx(float(b.log_scale), abs=1e-15)
    np.testing.assert_allclose(a.multipliers[:, 0], b.multipliers, rtol=1e-13, atol=1e-16)
    for x, y in zip(jax.tree.leaves(a.gradient), jax.tree.leaves(b.gradient), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-13, atol=1e-15)


def test_outputs_that_see_one_token_have_nothing_to_learn():
    data, v = random_sequences(jax.random.key(0), N, T, D)
    mask = jnp.broadcast_to(jnp.arange(T) == 1, (N, T, T))
    blind = EmpiricalRisk(TokenData(data.tokens, data.queries, data.labels, mask), Logistic())
    start = CombinedAttention.init(jax.random.key(1), data, v)
    scaled = blind.scaled_gradient(start)
    assert jnp.all(scaled.gradient.W == 0) and jnp.all(scaled.multipliers == 0) and jnp.isfinite(scaled.log_scale)
