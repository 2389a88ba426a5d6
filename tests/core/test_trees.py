import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from jaxflow._core import all_finite, tree_cast, tree_dot, tree_norm, tree_scale

# A sum of n products is exact to n rounding errors; the arrays here have at most 12 entries.
RTOL = 12 * np.finfo(np.float64).eps

# XLA flushes subnormal numbers to zero where NumPy keeps them, so no square may be that small.
vectors = arrays(np.float64, 12, elements=st.floats(-1e3, 1e3).map(lambda x: round(x, 6)))


def split(x):
    """The same numbers as a tree with a frozen parameter."""
    return {
        "K": jnp.asarray(x[:6]).reshape(2, 3),
        "frozen": None,
        "Q": (jnp.asarray(x[6:11]), jnp.asarray(x[11])),
    }


@given(vectors, vectors)
def test_as_flat_vectors(x, y):
    a, b = split(x), split(y)
    scale = np.linalg.norm(x) * np.linalg.norm(y)
    np.testing.assert_allclose(tree_dot(a, b), x @ y, rtol=0, atol=RTOL * scale)
    np.testing.assert_allclose(tree_norm(a), np.linalg.norm(x), rtol=RTOL)
    scaled = tree_scale(-2.5, a)
    np.testing.assert_array_equal(scaled["Q"][0], -2.5 * x[6:11])
    assert scaled["frozen"] is None
    # Trees of unequal size are not truncated.
    with pytest.raises(ValueError, match="zip"):
        tree_dot([a["K"], a["K"]], [a["K"]])


def test_norm_is_differentiable_everywhere():
    at_zero = jax.grad(tree_norm)({"a": jnp.zeros(3)})
    np.testing.assert_array_equal(at_zero["a"], np.zeros(3))
    elsewhere = jax.grad(tree_norm)({"a": jnp.asarray([3.0, 4.0])})
    np.testing.assert_allclose(elsewhere["a"], [0.6, 0.8], rtol=RTOL)
    np.testing.assert_array_equal(jax.hessian(tree_norm)(jnp.zeros(2)), np.zeros((2, 2)))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_all_finite(bad):
    module = eqx.nn.Linear(2, 2, key=jax.random.key(0))
    good = {"module": eqx.filter(module, eqx.is_array), "integers": jnp.arange(3), "none": None}
    assert all_finite(good)
    assert not all_finite({**good, "x": jnp.asarray([1.0, bad])})
    assert not all_finite({**good, "x": jnp.asarray(1j * bad)})
    assert all_finite([])


def test_cast_changes_precision_and_nothing_else():
    tree = {"x": jnp.asarray([0.5, jnp.inf]), "n": jnp.asarray(3), "code": jnp.asarray(2, jnp.uint8), "f": jnp.tanh}
    (device,) = tree["x"].devices()
    single = tree_cast(tree | {"on": jnp.asarray(True)}, jnp.float32, jnp.int32, device)
    assert [single[name].dtype for name in ("x", "n", "code", "on")] == [jnp.float32, jnp.int32, jnp.uint8, jnp.bool_]
    assert single["f"] is jnp.tanh
    double = tree_cast(single, jnp.float64, jnp.int64, device)
    np.testing.assert_array_equal(double["x"], tree["x"])
    assert double["x"].dtype == jnp.float64 and double["n"].dtype == jnp.int64
