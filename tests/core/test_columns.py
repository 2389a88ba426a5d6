"""Derivatives by columns against ordinary ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxflow._core import by_columns

P = 4
MATRIX = jax.random.normal(jax.random.key(0), (P, P))
X = jnp.array([1.0, -0.5, 2.0, 0.25])


def curved(matrix, x):
    return jnp.sin(matrix @ (x * x))


def sparse(matrix, x, influence):
    return by_columns(lambda y: curved(matrix, y), x, influence)


@pytest.mark.parametrize("left_out", [(), (1,), (0, 3), (0, 1, 2, 3)])
def test_columns_that_count_are_exact_and_the_others_zero(left_out):
    influence = jnp.ones(P).at[jnp.array(left_out, int)].set(1e-21)
    expected = jax.jacfwd(lambda x: curved(MATRIX, x))(X).at[:, jnp.array(left_out, int)].set(0.0)
    assert jnp.all(sparse(MATRIX, X, influence) == curved(MATRIX, X))
    for derivative in (jax.jacfwd, jax.jacrev):
        found = jax.jit(derivative(lambda x: sparse(MATRIX, x, influence)))(X)
        # The same sums in another order.
        assert np.allclose(found, expected, rtol=1e-14, atol=1e-15)


def test_what_the_function_closes_over_is_differentiated_too():
    found = jax.jacfwd(lambda s: sparse(s * MATRIX, s * X, jnp.ones(P)))(1.0)
    expected = jax.jacfwd(lambda s: curved(s * MATRIX, s * X))(1.0)
    assert np.allclose(found, expected, rtol=1e-14, atol=1e-15)
    # Entries that do not count leave the rest of a derivative as it is.
    assert np.allclose(
        jax.jacfwd(lambda s: sparse(s * MATRIX, s * X, jnp.zeros(P)))(1.0),
        jax.jacfwd(lambda s: curved(s * MATRIX, X))(1.0),
        rtol=1e-14,
        atol=1e-15,
    )


def test_members_of_a_batch_have_columns_of_their_own():
    matrices, points = jnp.stack([MATRIX, MATRIX.T]), jnp.stack([X, 2.0 * X])
    influence = jnp.array([[1.0, 0.0, 1.0, 0.0], [0.0, 1.0, 1.0, 1.0]])
    found = jax.vmap(jax.jacfwd(sparse, argnums=1))(matrices, points, influence)
    expected = jax.vmap(jax.jacfwd(curved, argnums=1))(matrices, points) * influence[:, None, :]
    assert np.allclose(found, expected, rtol=1e-14, atol=1e-15)
