"""The small kernels of the interior points against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxflow.margin._linear_algebra import low_rank_solver
from jaxflow.margin.min_norm_point import START_TOLERANCE, min_norm_point
from jaxflow.margin.program import DenseRows


def test_low_rank_solver_agrees_with_the_dense_one() -> None:
    rng = np.random.default_rng(0)
    A, inner, outer = rng.normal(size=(12, 4)), rng.uniform(0.1, 10, 4), 10.0 ** rng.uniform(-4, 1, 12)
    right = rng.normal(size=12)
    matrix = (A * inner).astype(np.longdouble) @ A.T + np.diag(outer)
    exact = np.linalg.solve(matrix.astype(float), right)
    # NumPy's own error is the condition number times rounding too: some 2e-10, until it is refined.
    exact += np.linalg.solve(matrix.astype(float), (right - matrix @ exact).astype(float))
    solve = low_rank_solver(jnp.asarray(A), jnp.asarray(inner), jnp.asarray(outer), 0.0)
    for refine in (False, True):
        # Condition number 1e6 times rounding, with room; refinement removes it.
        np.testing.assert_allclose(solve(jnp.asarray(right), refine), exact, rtol=1e-10 if refine else 1e-8)


@pytest.mark.parametrize("equalities", [0, 2])
def test_infeasibility_is_proven_long_before_the_optimum_of_zero(equalities: int) -> None:
    """Rows that positively span the space, as random ones do when there are many of them (Wendel's theorem)."""
    used = jnp.arange(30) >= equalities

    @jax.jit
    @jax.vmap
    def solve(key: jax.Array) -> tuple:
        rows = DenseRows(jax.random.normal(key, (30, 4)))
        quick = min_norm_point(rows, used, ~used, tolerance=START_TOLERANCE)
        slow = min_norm_point(rows, used, ~used)
        return quick, slow, jnp.abs(quick.weights @ rows.rows).max()

    quick, slow, residual = solve(jax.random.split(jax.random.key(0), 20))
    assert quick.zero.all() and slow.zero.all()
    assert (quick.steps < slow.steps).all()
    assert residual.max() < 1e-14
    assert (quick.weights[:, equalities:] >= 0).all()
    np.testing.assert_allclose(quick.weights[:, equalities:].sum(1), 1.0, rtol=1e-12)
