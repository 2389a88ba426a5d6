"""An order that changes no value."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxflow._core import after


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("first", [0.0, -0.0, -1.0, jnp.nan, jnp.inf])
def test_values_are_those_that_came(first, dtype):
    tree = {"a": jnp.array([1.0, jnp.nan]), "n": jnp.arange(3), "name": "x"}
    found = after(tree, jnp.asarray(first, dtype))
    np.testing.assert_array_equal(found["a"], tree["a"])
    np.testing.assert_array_equal(found["n"], tree["n"])
    assert found["name"] == "x"


def test_the_dependence_is_one_that_the_compiler_sees():
    text = jax.jit(lambda x, first: after(x, first)).lower(jnp.ones(2), jnp.ones(())).compile().as_text()
    assert "select" in text and text.count("parameter(") >= 2
