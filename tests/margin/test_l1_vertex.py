"""The vertex by pivots, against SciPy's HiGHS."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linprog

from jaxflow.margin import max_margin, solve
from jaxflow.margin.l1_vertex import find_vertex

M, D = 8, 6
VERTICES = jax.jit(jax.vmap(find_vertex))


def rows_of(kind, seed):
    """Constraints `(M, D)`, which of them are there, and which of those are equalities."""
    rng = np.random.default_rng(seed)
    used, equality = np.ones(M, bool), np.zeros(M, bool)
    rows = rng.normal(size=(M, D)) + 0.5
    if kind == "scaled":
        rows *= 10.0 ** rng.uniform(-6, 6, size=(M, 1))
    if kind == "some":
        used[::2] = False
    if kind == "equalities":
        equality[:2] = True
    return rows, used & ~equality, equality


def by_highs(rows, inequality, equality):
    """The optimum, infinite where there is none."""
    sizes = np.abs(rows).max(axis=1)
    both, targets = np.concatenate([rows, -rows], axis=1) / sizes[:, None], np.where(inequality, 1.0, 0.0) / sizes
    found = linprog(
        np.ones(2 * D),
        A_ub=-both[inequality],
        b_ub=-targets[inequality],
        A_eq=both[equality] if equality.any() else None,
        b_eq=targets[equality] if equality.any() else None,
    )
    return float(found.fun) if found.status == 0 else np.inf


@pytest.mark.parametrize("kind", ["random", "scaled", "some", "equalities"])
def test_the_vertex_is_that_of_highs(kind):
    parts = [np.array(x) for x in zip(*(rows_of(kind, seed) for seed in range(20)), strict=True)]
    targets = parts[1].astype(float)
    vertices = VERTICES(*map(jnp.asarray, (*parts, targets)))
    assert np.all(vertices.end) and np.all(vertices.unique | vertices.ray)
    solved = 0
    for i, (rows, inequality, equality) in enumerate(zip(*parts, strict=True)):
        weights, rho = np.asarray(vertices.weights[i]), np.asarray(vertices.primal[i])
        assert np.all(weights[inequality] >= 0) and not np.any(weights[~(inequality | equality)])
        best = by_highs(rows, inequality, equality)
        # Roundings of sums of M and D terms, times the condition of a vertex (up to 1e3 here).
        pull = np.abs(weights) @ np.abs(rows)
        if vertices.ray[i]:
            assert np.isposinf(best)
            assert np.all(np.abs(weights @ rows) <= 1e-12 * pull)
            continue
        solved += 1
        seen, size = rows @ rho, np.abs(rows) @ np.abs(rho)
        assert np.all((seen - 1)[inequality] >= -1e-12 * size[inequality])
        assert np.all(np.abs(seen[equality]) <= 1e-12 * size[equality])
        assert np.all(np.abs(weights @ rows) <= 1 + 1e-12 * pull)
        np.testing.assert_allclose(np.abs(rho).sum(), weights @ targets[i], rtol=1e-10)
        if kind != "scaled":  # HiGHS itself stops at 1e-7, absolutely
            np.testing.assert_allclose(np.abs(rho).sum(), best, rtol=1e-6)
    assert solved >= 5


@pytest.mark.slow
def test_many_solutions_are_left_to_the_interior_point():
    """Twin features: every split of a weight is a solution, and the answer is the even one, which is no vertex."""
    rng = np.random.default_rng(0)
    half = rng.normal(size=(4, D // 2)) + 1.0
    inputs, labels = np.concatenate([half, half], axis=1), np.ones(4)
    on = jnp.ones(4, bool)
    assert not find_vertex(jnp.asarray(inputs), on, ~on, jnp.asarray(labels)).unique
    solution = solve(max_margin(inputs, labels, "l1"))
    assert solution.result == "optimal"
    np.testing.assert_allclose(solution.primal[: D // 2], solution.primal[D // 2 :], atol=1e-9)
