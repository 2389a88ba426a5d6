"""Pieces of a function read off its jaxpr."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxflow._core.kinks import gated, kink_count

FUNCTIONS = {
    "relu": (jax.nn.relu, 1),
    "leaky relu": (jax.nn.leaky_relu, 1),
    "relu6": (jax.nn.relu6, 2),
    "absolute": (jnp.abs, 1),
    "clip": (lambda x: jnp.clip(x, -1.0, 1.0), 2),
    "where": (lambda x: jnp.where(x > 0.3, x * x, 0.3 * x), 1),
    "maximum": (lambda x: jnp.maximum(x**2, x), 1),
    "elu": (jax.nn.elu, 2),
    "softplus": (jax.nn.softplus, 0),
    "logaddexp": (lambda x: jnp.logaddexp(x, 1.0), 0),
    "tanh": (jnp.tanh, 0),
    # No derivative passes through the largest entry, which it subtracts.
    "softmax": (lambda x: jax.nn.softmax(jnp.stack([x, -x]))[0], 0),
    "of what is cut off": (lambda x: x * jax.lax.stop_gradient(jnp.abs(x)) + jnp.sign(jnp.abs(x)), 0),
    # Its own absolute value, of what is never negative.
    "logsumexp": (lambda x: jax.nn.logsumexp(jnp.stack([x, -x])), 1),
    "times a comparison": (lambda x: x * (x > 0.3), 1),
    "both": (lambda x: jnp.where((x > 0) & ~(x > 1.0), x * (1.0 - x), 0.0), 1),
    "of a constant": (lambda x: x * jnp.maximum(jnp.asarray(2.0), 1.0), 0),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FUNCTIONS)
def test_pieces_together_are_the_function(name: str) -> None:
    function, kinks = FUNCTIONS[name]
    for value in (-2.3, -0.4, 0.1, 0.7, 8.0):
        x = jnp.asarray(value)
        found = gated(function, x)
        # A piece is computed as it is: no rounding.
        assert float(found.value) == float(function(x))
        assert found.switches.shape == (kink_count(function, x),) and np.isfinite(found.switches).sum() == kinks
        slope = jax.grad(lambda x, function=function: gated(function, x).value)(x)
        np.testing.assert_allclose(slope, jax.grad(function)(x), rtol=1e-14)


@pytest.mark.parametrize("activation", [jax.nn.elu, jax.nn.hard_tanh])
def test_a_batch_has_the_kinks_of_all(activation: Any) -> None:
    """`vmap` moves axes between a comparison and what it chooses."""
    inputs, W = jnp.ones((4, 2)), jnp.ones((3, 2))
    batched = kink_count(lambda W: jax.vmap(lambda x: activation(W @ x))(inputs), W)
    assert batched == kink_count(lambda W: activation(inputs @ W.T), W) == 2 * 4 * 3
