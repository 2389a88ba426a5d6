"""The plain flows that peers follow are those of the library."""

import importlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxflow as jf

plain = importlib.import_module("plain_flows")


def gradients_are(exact: np.ndarray, some: Any) -> None:
    """Sums of at most 500 products of numbers of order one."""
    arrays = [part[0] for part in some.arrays]
    np.testing.assert_allclose(some.numpy_gradient(*arrays)(some.starts[0]), exact, rtol=0, atol=1e-14)
    by_jax = jax.grad(some.jax_loss)(jnp.asarray(some.starts[0]), *map(jnp.asarray, arrays))
    np.testing.assert_allclose(by_jax, exact, rtol=0, atol=1e-14)


@pytest.mark.slow
@pytest.mark.parametrize("most", [2e7, 0], ids=["outer products", "factors"])
@pytest.mark.parametrize("kind", [jf.models.CombinedAttention, jf.models.FactoredAttention])
def test_gradients_of_attention_are_those_of_the_risk(kind: Any, most: float, monkeypatch: Any) -> None:
    monkeypatch.setattr(plain, "MOST_OUTER", most)
    data, head = jf.data.random_tokens(jax.random.key(0), 3, 4, 5)
    risk, model = jf.EmpiricalRisk(data, "logistic"), kind.init(jax.random.key(1), data, head)
    scaled = risk.scaled_gradient(model)
    gradient = scaled.gradient
    parts = [gradient.W] if kind is jf.models.CombinedAttention else [gradient.K, gradient.Q]
    exact = np.concatenate([np.ravel(part) for part in parts]) * np.exp(float(scaled.log_scale))

    some = plain.of_attention(*jax.tree.map(lambda leaf: leaf[None], (risk, model)))
    gradients_are(exact, some)
    np.testing.assert_allclose(plain.combined(some.starts, 5)[0], model.combined_weights(), rtol=0, atol=1e-14)


@pytest.mark.slow
@pytest.mark.parametrize("regression", [False, True])
def test_gradients_of_networks_are_those_of_the_risk(regression: bool) -> None:
    keys = jax.random.split(jax.random.key(0), 3)
    targets = jax.random.normal(keys[0], (4,))
    data = jf.data.LinearData(jax.random.normal(keys[1], (4, 6)), targets if regression else jnp.sign(targets))
    risk = jf.EmpiricalRisk(data, "squared" if regression else "logistic")
    if regression:
        model: Any = jf.models.HadamardNetwork.init(keys[2], jf.models.DiagonalLinear(), p=6)
        of, products = plain.of_regression, model.log_weights.products
    else:
        model = jf.models.DiagonalLinearNetwork.init(keys[2], data)
        of, products = plain.of_network, model.weights[0] * model.weights[1]
    scaled = risk.scaled_gradient(model)
    parts = [scaled.gradient.u, scaled.gradient.v] if regression else list(scaled.gradient.weights)
    some = of(*jax.tree.map(lambda leaf: leaf[None], (risk, model)))
    gradients_are(np.concatenate(parts) * np.exp(float(scaled.log_scale)), some)
    np.testing.assert_allclose(plain.products(some.starts)[0], products, rtol=0, atol=1e-14)
