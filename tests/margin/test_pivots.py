"""Vertices and faces by pivots: the conditions of an optimum, the interior point, and what pivots do not decide."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxflow.margin import max_margin, min_norm_point, solve
from jaxflow.margin.l1_vertex import find_vertex
from jaxflow.margin.nearest_face import nearest_face
from jaxflow.margin.program import DenseRows

M = 12
VERTICES, FACES = (jax.jit(jax.vmap(one)) for one in (find_vertex, nearest_face))


def rows_of(kind, seed, d):
    """Constraints `(M, d)`, which of them are inequalities, and which are equalities."""
    rng = np.random.default_rng(seed)
    used, equality = np.ones(M, bool), np.zeros(M, bool)
    rows = rng.normal(size=(M, d)) + 0.5
    if kind == "scaled":
        rows *= 10.0 ** rng.uniform(-6, 6, size=(M, 1))
    if kind == "some":
        used[::2] = False
    if kind == "equalities":
        equality[:2] = True
    if kind == "duplicates":
        rows[M // 2 :] = rows[: M // 2]
    if kind == "tied":
        # Symmetric about the solution: more constraints are active than weights are needed.
        rows[:, 0] = 1.0
        rows[M // 2 :, 1:] = -rows[: M // 2, 1:]
    if kind == "few entries":
        rows[:, 3:] = 0.0
        rows[:, 0] += 3.0
    if kind == "one":
        used[1:] = False
    return rows, used & ~equality, equality


def stack_of(kind, d):
    return [np.array(x) for x in zip(*(rows_of(kind, seed, d) for seed in range(20)), strict=True)]


@pytest.mark.parametrize("kind", ["random", "scaled", "some", "equalities"])
def test_a_vertex_is_optimal_or_a_ray_proves_that_there_is_none(kind):
    parts = stack_of(kind, d=9)
    targets = parts[1].astype(float)
    vertices = VERTICES(*parts, targets)
    assert np.all(vertices.end) and np.all(vertices.unique | vertices.ray)
    for i, (rows, inequality, equality) in enumerate(zip(*parts, strict=True)):
        weights, rho = np.asarray(vertices.weights[i]), np.asarray(vertices.primal[i])
        assert np.all(weights[inequality] >= 0) and not np.any(weights[~(inequality | equality)])
        # Roundings of sums of M and d terms, times the condition of a vertex (up to 1e3 here).
        pull = 1e-12 * np.abs(weights) @ np.abs(rows)
        if vertices.ray[i]:
            assert weights @ targets[i] > 0 and np.all(np.abs(weights @ rows) <= pull)
            continue
        seen, size = rows @ rho, 1e-12 * np.abs(rows) @ np.abs(rho)
        assert np.all((seen - 1)[inequality] >= -size[inequality])
        assert np.all(np.abs(seen[equality]) <= size[equality])
        assert np.all(np.abs(weights @ rows) <= 1 + pull)
        # Feasible points of equal value: both are optimal.
        np.testing.assert_allclose(np.abs(rho).sum(), weights @ targets[i], rtol=1e-10)
    assert 5 <= np.sum(~vertices.ray)


@pytest.mark.slow
def test_many_solutions_are_left_to_the_interior_point():
    """Twin features: every split of a weight is a solution, and the answer is the even one, which is no vertex."""
    half = np.random.default_rng(0).normal(size=(4, 3)) + 1.0
    inputs, labels = np.concatenate([half, half], axis=1), np.ones(4)
    on = jnp.ones(4, bool)
    assert not find_vertex(jnp.asarray(inputs), on, ~on, jnp.asarray(labels)).unique
    solution = solve(max_margin(inputs, labels, "l1"))
    assert solution.result == "optimal"
    np.testing.assert_allclose(solution.primal[:3], solution.primal[3:], atol=1e-9)


@pytest.mark.parametrize("kind", ["random", "duplicates", "tied", "few entries", "one"])
def test_a_face_satisfies_the_conditions_of_the_nearest_point(kind):
    """They are sufficient: nonnegative least squares is convex."""
    rows, used, equality = stack_of(kind, d=16)
    rows /= np.sqrt(np.mean(np.sum(rows**2, axis=2, keepdims=True), axis=1, keepdims=True))
    grams = np.where(used[:, :, None] & used[:, None, :], rows @ rows.transpose(0, 2, 1), 0.0)
    faces = FACES(grams, used, equality)
    weights = np.asarray(faces.weights)
    assert np.all(faces.end) and np.all(weights >= 0) and not np.any(weights[~used])
    lacking = 1.0 - weights.sum(axis=1, keepdims=True) - np.einsum("bkl,bl->bk", grams, weights)
    assert np.max(lacking[used]) <= 1e-12 and np.max(np.abs(lacking[weights > 0])) <= 1e-12


def test_pivots_and_the_interior_point_agree(monkeypatch):
    """The same weights and the same norm; the first three constraints are equalities, with weights of both signs."""
    rows = jnp.asarray(stack_of("random", d=16)[0])
    equality = jnp.arange(M) < 3

    def points():
        return jax.jit(jax.vmap(lambda A: min_norm_point.min_norm_point(DenseRows(A), ~equality, equality)))(rows)

    pivoted = points()
    monkeypatch.setattr(min_norm_point, "MOST_PIVOTED", 0)
    interior = points()
    assert np.all(pivoted.converged) and np.all(interior.converged)
    assert not np.array_equal(pivoted.steps, interior.steps)
    np.testing.assert_allclose(pivoted.primal, interior.primal, atol=1e-11)
    np.testing.assert_allclose(pivoted.weights, interior.weights, atol=1e-11)
