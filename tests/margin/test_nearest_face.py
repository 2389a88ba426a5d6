"""The active set by pivots, against SciPy's nonnegative least squares and the interior point."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import nnls

from jaxflow.margin import min_norm_point as module
from jaxflow.margin.min_norm_point import min_norm_point, nearest_face
from jaxflow.margin.program import Compact, DenseRows

M = 12
FACES = jax.jit(jax.vmap(nearest_face))


def rows_of(kind, seed):
    """Constraints `(M, d)` and which of them are there."""
    rng = np.random.default_rng(seed)
    used = np.ones(M, bool)
    rows = rng.normal(size=(M, 16)) + 0.5
    if kind == "duplicates":
        rows[M // 2 :] = rows[: M // 2]
    if kind == "tied":
        # Symmetric about the solution: more constraints are active than weights are needed.
        rows = np.concatenate([rng.normal(size=(M // 2, 15))] * 2)
        rows = np.concatenate([np.repeat([[1.0], [1.0]], M // 2, axis=0), rows], axis=1)
        rows[M // 2 :, 1:] *= -1
    if kind == "few entries":
        rows[:, 3:] = 0.0
        rows[:, 0] += 3.0
    if kind == "one":
        used[1:] = False
    return rows / np.sqrt(np.mean(np.sum(rows**2, axis=1))), used


@pytest.mark.parametrize("kind", ["random", "duplicates", "tied", "few entries", "one"])
def test_the_face_is_that_of_nonnegative_least_squares(kind):
    stack = [rows_of(kind, seed) for seed in range(20)]
    rows, used = (np.array(x) for x in zip(*stack, strict=True))
    grams = np.where(used[:, :, None] & used[:, None, :], rows @ rows.transpose(0, 2, 1), 0.0)
    faces = FACES(jnp.asarray(grams), used, np.zeros_like(used))
    assert np.all(faces.end)
    for A, on, weights in zip(rows, used, np.asarray(faces.weights), strict=True):
        assert np.all(weights >= 0) and np.all(weights[~on] == 0)
        total = weights.sum()
        lacking = (1.0 - total) - (A * on[:, None]) @ (weights @ A)
        assert np.max(lacking[on]) <= 1e-12 and np.max(np.abs(lacking[weights > 0])) <= 1e-12

        def objective(weights, A=A, on=on):
            return 0.5 * np.sum(((weights * on) @ A) ** 2) + 0.5 * (1.0 - np.sum(weights * on)) ** 2

        # Where more constraints are active than weights are needed, SciPy stops before the optimum.
        theirs = objective(nnls(np.concatenate([A.T, np.ones((1, M))]) * on, np.append(np.zeros(A.shape[1]), 1.0))[0])
        assert objective(weights) <= theirs + 1e-14
        assert kind == "tied" or objective(weights) >= theirs - 1e-14


def test_pivots_and_the_interior_point_agree(monkeypatch):
    """The same weights and the same norm; the first three constraints are equalities, with weights of both signs."""
    rows = jnp.asarray([rows_of("random", seed)[0] for seed in range(20)])
    equality = jnp.arange(M) < 3

    def points():
        def point(A):
            targets = jnp.where(equality, 0.0, 1.0)
            return min_norm_point(Compact(DenseRows(A), ~equality, equality, targets, jnp.arange(M), jnp.asarray(True)))

        return jax.jit(jax.vmap(point))(rows)

    pivoted = points()
    monkeypatch.setattr(module, "MOST_PIVOTED", 0)
    interior = points()
    assert np.all(pivoted.converged) and np.all(interior.converged)
    assert not np.array_equal(pivoted.steps, interior.steps)
    np.testing.assert_allclose(pivoted.primal, interior.primal, atol=1e-11)
    np.testing.assert_allclose(pivoted.weights, interior.weights, atol=1e-11)
