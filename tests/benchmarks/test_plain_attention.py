"""The plain flows that peers follow are those of the library."""

import importlib.util
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxflow as jf

FILE = Path(__file__).resolve().parents[2] / "benchmarks" / "plain_attention.py"


@pytest.fixture(scope="module")
def plain() -> Any:
    spec = importlib.util.spec_from_file_location("plain_attention", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("kind", [jf.models.CombinedAttention, jf.models.FactoredAttention])
def test_gradients_are_those_of_the_risk(plain: Any, kind: Any) -> None:
    data, head = jf.data.random_tokens(jax.random.key(0), 3, 4, 5)
    risk, model = jf.EmpiricalRisk(data, "logistic"), kind.init(jax.random.key(1), data, head)
    scaled = risk.scaled_gradient(model)
    gradient = scaled.gradient
    parts = [gradient.W] if kind is jf.models.CombinedAttention else [gradient.K, gradient.Q]
    exact = np.concatenate([np.ravel(part) for part in parts]) * np.exp(float(scaled.log_scale))

    some = plain.of(*jax.tree.map(lambda leaf: leaf[None], (risk, model)))
    arrays = [part[0] for part in some[:4]]
    # Sums of 60 products of numbers of order one.
    np.testing.assert_allclose(plain.numpy_gradient(*arrays)(some.starts[0]), exact, rtol=0, atol=1e-14)
    by_jax = jax.grad(plain.jax_loss)(jnp.asarray(some.starts[0]), *map(jnp.asarray, arrays))
    np.testing.assert_allclose(by_jax, exact, rtol=0, atol=1e-14)
    np.testing.assert_allclose(plain.combined(some.starts, 5)[0], model.combined_weights(), rtol=0, atol=1e-14)
