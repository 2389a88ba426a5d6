import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxflow._core import all_finite, tree_cast, tree_dot, tree_norm


def test_trees_of_unequal_size_are_not_truncated():
    with pytest.raises(ValueError, match="zip"):
        tree_dot([jnp.ones(2), jnp.ones(2)], [jnp.ones(2)])


def test_norm_is_differentiable_everywhere():
    at_zero = jax.grad(tree_norm)({"a": jnp.zeros(3)})
    np.testing.assert_array_equal(at_zero["a"], np.zeros(3))
    elsewhere = jax.grad(tree_norm)({"a": jnp.asarray([3.0, 4.0])})
    np.testing.assert_allclose(elsewhere["a"], [0.6, 0.8], rtol=1e-15)
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
