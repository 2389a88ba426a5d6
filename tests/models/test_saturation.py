"""Multipliers of attention logits where slopes are equal: the scale is that of the largest one that is not zero."""

import jax
import jax.numpy as jnp
import pytest

from jaxflow.data import TokenData
from jaxflow.losses import Correlation
from jaxflow.models import CombinedAttention, Saturation
from jaxflow.risk import EmpiricalRisk

SEES = jnp.ones((1, 4), dtype=bool)


def logit_multipliers(logits, visible, slopes, weights):
    return Saturation.at(logits, visible, slopes).multipliers(jnp.zeros_like(weights), weights)


def p_of(logits, slopes, weights):
    """The definition, in ordinary floating point."""
    s = jax.nn.softmax(logits, axis=-1)
    return weights[:, None] * s * (slopes - jnp.sum(s * slopes, axis=-1, keepdims=True))


@pytest.mark.parametrize("distance", [0.0, 5.0])
@pytest.mark.parametrize("slopes", [[1.0, 1.0, 2.0, 0.0], [1.0, 1.0, 1.0, 0.0], [0.3, 0.1, 0.4, 0.2]])
def test_equals_the_definition_where_that_does_not_cancel(slopes, distance):
    logits = distance * jnp.array([[0.9, 0.4, -0.3, -0.6]])
    slopes, weights = jnp.array([slopes]), jnp.array([-0.7])
    scale, P = logit_multipliers(logits, SEES, slopes, weights)
    expected = p_of(logits, slopes, weights)
    # A few roundings of the largest.
    assert jnp.max(jnp.abs(jnp.exp(scale) * P - expected)) <= 1e-15


def test_two_equal_tokens_share_the_push_of_a_third():
    """Tokens 0 and 1 have equal slopes and half of the attention each: their own difference pushes nothing."""
    logits = jnp.array([[0.0, 0.0, -2000.0, -2500.0]])
    scale, P = logit_multipliers(logits, SEES, jnp.array([[1.0, 1.0, 2.0, 0.0]]), jnp.array([-1.0]))
    # p_2 = −s_2 (2 − 1), p_0 = p_1 = s_2/2 and s_2 = e^−2000/2.
    assert scale == pytest.approx(float(-2000.0 - jnp.log(2.0)), rel=1e-14)
    assert jnp.allclose(P, jnp.array([[0.5, 0.5, -1.0, 0.0]]), atol=1e-14)


def test_a_selected_token_with_an_equal_near_one_sets_no_scale():
    """Token 1 is near, but only tokens 2 and 3, far out, differ from the selected token 0."""
    logits = jnp.array([[0.0, -10.0, -2000.0, -2001.0]])
    scale, P = logit_multipliers(logits, SEES, jnp.array([[1.0, 1.0, 2.0, 0.0]]), jnp.array([-1.0]))
    s_0 = 1.0 / (1.0 + jnp.exp(-10.0))
    assert scale == pytest.approx(float(-2000.0 + jnp.log(s_0)), rel=1e-14)
    net = 1.0 - jnp.exp(-1.0)
    assert P[0, 2] == pytest.approx(-1.0, abs=1e-14) and P[0, 3] == pytest.approx(float(jnp.exp(-1.0)), abs=1e-14)
    assert P[0, 1] == pytest.approx(float(net * (1.0 - s_0)), rel=1e-10)
    assert P[0, 0] == pytest.approx(float(net * s_0), rel=1e-12)


def test_equal_slopes_throughout_push_nothing():
    scale, P = logit_multipliers(jnp.array([[3.0, 2.0, 1.0, 0.0]]), SEES, jnp.ones((1, 4)), jnp.array([-1.0]))
    assert scale == 0.0 and jnp.all(P == 0.0)


def test_the_direction_of_descent_survives_equal_scores():
    """One sequence, the selected token tied with a near one: descent goes to the third, at any distance."""
    tokens = jnp.array([[[0.0, 1.0, 0.0], [0.0, 0.9, 0.1], [1.0, -1.0, 0.0]]])
    data = TokenData(tokens, jnp.array([[0.0, 1.0, 0.0]]), jnp.ones(1))
    risk = EmpiricalRisk(data, Correlation())
    W = jnp.array([[0.0, 0.0, 0.0], [0.0, 1e4, 0.0], [0.0, 0.0, 0.0]])
    scaled = risk.scaled_gradient(CombinedAttention(W, jnp.array([1.0, 0.0, 0.0])))
    # x_2 − x_0 times z, to the share e^−1000 of token 1.
    assert scaled.log_scale == pytest.approx(-2e4, rel=1e-12)
    assert jnp.allclose(-scaled.gradient.W[:, 1], jnp.array([1.0, -2.0, 0.0]), atol=1e-12)


def test_its_derivative_is_that_of_what_it_represents():
    logits = jnp.array([[0.9, 0.4, -0.3, -0.6]])
    slopes, weights = jnp.array([[1.0, 1.0, 2.0, 0.0]]), jnp.array([-0.7])

    def ours(a):
        scale, P = logit_multipliers(a, SEES, slopes, weights)
        return jnp.exp(jax.lax.stop_gradient(scale)) * P

    mine = jax.jacfwd(ours)(logits)
    assert jnp.max(jnp.abs(mine - jax.jacfwd(lambda a: p_of(a, slopes, weights))(logits))) <= 1e-15


def test_the_steepest_loss_may_be_of_an_output_whose_attention_is_gone():
    """Two queries with the same tokens: the first is lost and saturated, the second fitted and undecided.

    Their multipliers are e^-3000 (1 - s_1) and e^-900: scaled by either factor alone both would be zero.
    """
    logits = jnp.array([[3000.0, 0.0], [0.0, 0.0]])
    at = Saturation.at(logits, jnp.ones((2, 2), dtype=bool), jnp.array([[0.0, 1.0], [0.0, 1.0]]))
    scale, P = at.multipliers(jnp.array([0.0, -900.0]), -jnp.ones(2))
    assert scale == pytest.approx(float(-900.0 - jnp.log(2.0)), rel=1e-14)
    assert jnp.array_equal(P, jnp.array([[0.0, 0.0], [0.5, -0.5]]))


def test_an_output_without_weight_sets_no_scale():
    logits = jnp.array([[0.0, 0.0], [2000.0, 0.0]])
    at = Saturation.at(logits, jnp.ones((2, 2), dtype=bool), jnp.array([[0.0, 1.0], [0.0, 1.0]]))
    scale, P = at.multipliers(jnp.zeros(2), jnp.array([0.0, -1.0]))
    assert scale == -2000.0 and jnp.array_equal(P, jnp.array([[0.0, 0.0], [1.0, -1.0]]))
