"""Multipliers of attention logits where slopes are equal: the scale is that of the largest one that is not zero."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxflow.data import TokenData
from jaxflow.losses import Correlation
from jaxflow.models import CombinedAttention, Saturation
from jaxflow.risk import EmpiricalRisk


def multipliers(logits, slopes, weights, log_weights=None):
    logits, weights = jnp.asarray(logits), jnp.asarray(weights)
    saturation = Saturation.at(logits, jnp.ones(logits.shape, bool), jnp.asarray(slopes))
    return saturation.multipliers(jnp.zeros_like(weights) if log_weights is None else jnp.asarray(log_weights), weights)


@pytest.mark.parametrize("distance", [0.0, 5.0])
@pytest.mark.parametrize("slopes", [[1.0, 1.0, 2.0, 0.0], [1.0, 1.0, 1.0, 0.0], [0.3, 0.1, 0.4, 0.2]])
def test_equals_the_definition_where_that_does_not_cancel(slopes, distance):
    slopes, weights = jnp.array([slopes]), jnp.array([-0.7])

    def definition(logits):
        s = jax.nn.softmax(logits, axis=-1)
        return weights[:, None] * s * (slopes - jnp.sum(s * slopes, axis=-1, keepdims=True))

    def ours(logits):
        scale, P = multipliers(logits, slopes, weights)
        return jnp.exp(jax.lax.stop_gradient(scale)) * P

    logits = distance * jnp.array([[0.9, 0.4, -0.3, -0.6]])
    for found, expected in ((ours, definition), (jax.jacfwd(ours), jax.jacfwd(definition))):
        # A few roundings of the largest.
        np.testing.assert_allclose(found(logits), expected(logits), rtol=0, atol=1e-15)


NEAR = 1.0 / (1.0 + np.exp(-10.0))
NET = 1.0 - np.exp(-1.0)
# Logits, slopes, weights and their logarithms; the scale and the multipliers.
FAR = {
    # Half of the attention each, and equal slopes: p_2 = −s_2 (2 − 1), p_0 = p_1 = s_2/2 and s_2 = e^−2000/2.
    "two equal tokens share the push of a third": (
        ([[0.0, 0.0, -2000.0, -2500.0]], [[1.0, 1.0, 2.0, 0.0]], [-1.0]),
        (-2000.0 - np.log(2.0), [[0.5, 0.5, -1.0, 0.0]]),
    ),
    # Token 1 is near, but only tokens 2 and 3, far out, differ from the selected token 0.
    "a selected token with an equal near one": (
        ([[0.0, -10.0, -2000.0, -2001.0]], [[1.0, 1.0, 2.0, 0.0]], [-1.0]),
        (-2000.0 + np.log(NEAR), [[NET * NEAR, NET * (1.0 - NEAR), -1.0, np.exp(-1.0)]]),
    ),
    "equal slopes throughout": (([[3.0, 2.0, 1.0, 0.0]], [[1.0] * 4], [-1.0]), (0.0, [[0.0] * 4])),
    # The first query is lost and saturated, the second fitted and undecided. Their multipliers are e^-3000 (1 - s_1)
    # and e^-900: scaled by either factor alone both would be zero.
    "the steepest loss is of an output whose attention is gone": (
        ([[3000.0, 0.0], [0.0, 0.0]], [[0.0, 1.0]] * 2, [-1.0, -1.0], [0.0, -900.0]),
        (-900.0 - np.log(2.0), [[0.0, 0.0], [0.5, -0.5]]),
    ),
    "an output without weight sets no scale": (
        ([[0.0, 0.0], [2000.0, 0.0]], [[0.0, 1.0]] * 2, [0.0, -1.0]),
        (-2000.0, [[0.0, 0.0], [1.0, -1.0]]),
    ),
}


@pytest.mark.parametrize("name", FAR)
def test_multipliers_far_below_floating_point(name):
    given, (expected_scale, expected) = FAR[name]
    scale, P = multipliers(*given)
    np.testing.assert_allclose(scale, expected_scale, rtol=1e-14)
    np.testing.assert_allclose(P, expected, rtol=1e-10, atol=1e-14)


def test_the_direction_of_descent_survives_equal_scores():
    """One sequence, the selected token tied with a near one: descent goes to the third, at any distance."""
    tokens = jnp.array([[[0.0, 1.0, 0.0], [0.0, 0.9, 0.1], [1.0, -1.0, 0.0]]])
    data = TokenData(tokens, jnp.array([[0.0, 1.0, 0.0]]), jnp.ones(1))
    risk = EmpiricalRisk(data, Correlation())
    W = jnp.zeros((3, 3)).at[1, 1].set(1e4)
    scaled = risk.scaled_gradient(CombinedAttention(W, jnp.array([1.0, 0.0, 0.0])))
    # x_2 − x_0 times z, to the share e^−1000 of token 1.
    assert scaled.log_scale == pytest.approx(-2e4, rel=1e-12)
    assert jnp.allclose(-scaled.gradient.W[:, 1], jnp.array([1.0, -2.0, 0.0]), atol=1e-12)
