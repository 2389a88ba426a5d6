"""The multipliers of a linear head, against what the risk finds for any head from all pairs of tokens."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxflow as jf
from jaxflow.flow.constraints import linear_multipliers

N, T, D = 3, 5, 4


@pytest.fixture(scope="module")
def both():
    """Both answers for a risk, a head and logits, `(log_scale, multipliers)`, compiled once for each kind of data."""

    @eqx.filter_jit
    def run(risk, head, logits):
        scaled = risk.scaled_gradient(_Given(logits, head))
        return (scaled.log_scale, scaled.multipliers), linear_multipliers(risk, head, logits)

    return run


class _Given(jf.models.AbstractAttention):
    """Attention whose logits are its parameters."""

    a: jax.Array
    head: jf.models.Head
    degree = 1

    def logits(self, data):
        return self.a

    def combined_weights(self):
        return jnp.zeros((D, D))

    def trainable(self):
        return eqx.tree_at(lambda m: m.a, jax.tree.map(lambda _: False, self), True)

    def check(self, data):
        pass


def instance(key, hidden=False):
    data, head = jf.data.random_tokens(key, N, T, D)
    if hidden:
        seen = jnp.arange(T)[None] < jnp.array([[5], [3], [4]])
        data = jf.data.TokenData(data.tokens, data.queries, data.labels, seen)
    return jf.EmpiricalRisk(data, "logistic"), jf.models.LinearHead(head)


def relative(one, other):
    """Differences of e^M P, relative to the largest, where e^M may lie beyond floating point."""
    shift = other[0] - one[0]
    assert abs(float(shift)) < 50.0
    reference = np.asarray(one[1])
    return np.max(np.abs(np.asarray(other[1]) * np.exp(float(shift)) - reference)) / np.max(np.abs(reference))


# At 1e4 attention is of the order of e^(-1e4).
@pytest.mark.parametrize("size", [0.1, 10.0, 1e4])
@pytest.mark.parametrize("hidden", [False, True])
def test_the_multipliers_are_those_of_any_head(both, size, hidden):
    for seed in range(5):
        key, other = jax.random.split(jax.random.key(seed))
        risk, head = instance(key, hidden)
        expected, found = both(risk, head, size * jax.random.normal(other, (N, T)))
        # Roundings of the exponents, of their size times 1e-16, and of some tens of operations.
        assert relative(expected, found) <= 1e-14 * max(size, 1.0)
        np.testing.assert_allclose(jnp.sum(found[1], axis=-1), 0.0, atol=1e-15)


def test_a_token_that_scores_like_the_top_one_is_pushed_by_the_others_alone(both):
    risk, head = instance(jax.random.key(3))
    data = risk.data
    # A copy of the first token in every sequence; first and copy have nearly all of the attention.
    tokens = data.tokens.at[:, 1].set(data.tokens[:, 0])
    risk = jf.EmpiricalRisk(jf.data.TokenData(tokens, data.queries, data.labels), "logistic")
    for far in (5.0, 900.0):
        logits = jnp.zeros((N, T)).at[:, 0].set(far).at[:, 1].set(far - 1.0)
        expected, found = both(risk, head, logits)
        assert relative(expected, found) <= 1e-12
        assert float(jnp.max(jnp.abs(found[1][:, 1]))) > 0.0


def test_equal_scores_have_no_multipliers(both):
    risk, head = instance(jax.random.key(3))
    flat = jf.models.LinearHead(jnp.zeros(D))
    _, (scale, multipliers) = both(risk, flat, jax.random.normal(jax.random.key(1), (N, T)))
    assert np.isfinite(float(scale))
    np.testing.assert_array_equal(multipliers, 0.0)
