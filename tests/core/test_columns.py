"""Derivatives by columns against ordinary ones."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxflow._core import by_columns

P = 4
MATRIX = jax.random.normal(jax.random.key(0), (P, P))
X = jnp.array([1.0, -0.5, 2.0, 0.25])


def curved(matrix, x):
    return jnp.sin(matrix @ (x * x))


def sparse(matrix, x, influence):
    return by_columns(lambda y: curved(matrix, y), x, influence)


def assert_close(found, expected):
    # The same sums in another order.
    np.testing.assert_allclose(found, expected, rtol=1e-14, atol=1e-15)


def test_columns_that_count_are_exact_and_the_others_zero():
    """Of each member of a batch its own columns: all, some, or none."""
    influence = jnp.array([[1.0, 1.0, 1.0, 1.0], [1.0, 1e-21, 1.0, 1.0], [0.0, 1.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    matrices, points = jnp.stack([MATRIX, MATRIX.T, -MATRIX, MATRIX]), jnp.stack([X, 2.0 * X, X, X])
    given = matrices, points, influence
    np.testing.assert_array_equal(jax.vmap(sparse)(*given), jax.vmap(curved)(matrices, points))
    expected = jax.vmap(jax.jacfwd(curved, argnums=1))(matrices, points) * (influence == 1.0)[:, None, :]
    for derivative in (jax.jacfwd, jax.jacrev):
        assert_close(jax.jit(jax.vmap(derivative(sparse, argnums=1)))(*given), expected)


def test_what_the_function_closes_over_is_differentiated_too():
    found = jax.jacfwd(lambda s: sparse(s * MATRIX, s * X, jnp.ones(P)))(1.0)
    assert_close(found, jax.jacfwd(lambda s: curved(s * MATRIX, s * X))(1.0))
    # Entries that do not count leave the rest of a derivative as it is.
    found = jax.jacfwd(lambda s: sparse(s * MATRIX, s * X, jnp.zeros(P)))(1.0)
    assert_close(found, jax.jacfwd(lambda s: curved(s * MATRIX, X))(1.0))
