"""The recession cone of linear data: against linear programs, in all units, alone and in a batch."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linprog

from jaxflow.margin import RecessionCone, Separability, recession_cone
from jaxflow.margin.recession import null_space, orthonormal_columns
from jaxflow.margin.thin import MAX_STEPS, thin_margin

ROWS, COLUMNS = 12, 4


def growing(rows: np.ndarray) -> np.ndarray:
    """D by a linear program: the most rows that some u with Au >= 0 makes positive."""
    n, p = rows.shape
    found = linprog(
        np.r_[np.zeros(p), -np.ones(n)],
        A_ub=np.c_[-rows, np.eye(n)],
        b_ub=np.zeros(n),
        bounds=[(None, None)] * p + [(0, 1)] * n,
        method="highs",
    )
    return found.x[p:] > 0.5


def instance(rng: np.random.Generator) -> np.ndarray:
    """Gaussian or integer rows, some of them separable, some with two equal columns."""
    gaussian, separable, twin = rng.random(3) < [0.4, 0.3, 0.2]
    rows = rng.normal(size=(ROWS, COLUMNS)) if gaussian else rng.integers(-1, 2, size=(ROWS, COLUMNS)).astype(float)
    if separable:
        sign = np.sign(rows @ rng.normal(size=COLUMNS))
        rows *= np.where(sign == 0, 1.0, sign)[:, None]
    if rng.random() < 0.3:
        rows[:, 1] = np.where(rng.random(ROWS) < 0.6, 0.0, np.abs(rows[:, 1]))
    if twin:
        rows[:, 3] = rows[:, 2]
    return rows


@pytest.fixture(scope="module")
def instances() -> np.ndarray:
    rng = np.random.default_rng(5)
    return np.stack([instance(rng) for _ in range(300)])


@pytest.fixture(scope="module")
def cones_of() -> Callable[[np.ndarray], RecessionCone]:
    """One program for all that have as many instances."""
    compiled = jax.jit(jax.vmap(recession_cone))
    return lambda rows: compiled(jnp.asarray(rows))


@pytest.mark.slow
def test_the_partition_is_that_of_a_linear_program(instances, cones_of) -> None:
    cones = cones_of(instances)
    expected = np.stack([growing(rows) for rows in instances])
    codes = np.asarray(cones.separability.value)
    known = codes != Separability.unknown.value
    # What is not proved is not claimed.
    assert known.mean() > 0.99
    np.testing.assert_array_equal(np.asarray(cones.growing)[known], expected[known])
    every, some = expected.all(axis=1), expected.any(axis=1)
    case = np.where(
        every, Separability.separable, np.where(some, Separability.quasi_separable, Separability.overlapping)
    )
    np.testing.assert_array_equal(codes[known], case[known])
    # All three were there.
    assert min(np.sum(case == kind) for kind in set(Separability) - {Separability.unknown}) >= 20


def test_the_certificates_say_what_they_should(instances, cones_of) -> None:
    cones = cones_of(instances)
    for k in np.flatnonzero(np.asarray(cones.separability.value) != Separability.unknown.value):
        rows, on = instances[k], np.asarray(cones.growing[k])
        margins, weights = rows @ np.asarray(cones.direction[k]), np.asarray(cones.weights[k])
        assert np.all(margins[on] > 0) and np.all(np.abs(margins[~on]) < 1e-12)
        assert np.all(weights[~on] > 0) and np.all(weights[on] == 0)
        np.testing.assert_allclose(weights @ rows, 0.0, atol=1e-12 * (1.0 + weights.sum()))


def test_scales_of_columns_and_rows_do_not_matter(instances, cones_of) -> None:
    rng, n = np.random.default_rng(6), len(instances)
    columns, rows = 10.0 ** rng.integers(-6, 7, (n, 1, COLUMNS)), 10.0 ** rng.integers(-3, 4, (n, ROWS, 1))
    plain, scaled = cones_of(instances), cones_of(instances * columns * rows)
    known = np.asarray(scaled.separability.value) != Separability.unknown.value
    assert known.mean() > 0.97
    np.testing.assert_array_equal(plain.growing[known], scaled.growing[known])


def test_what_is_not_finite_is_unknown() -> None:
    assert jax.jit(recession_cone)(jnp.array([[1.0, jnp.nan]])).separability == "unknown"
    assert recession_cone(jnp.zeros((2, 2))).separability == "overlapping"


@pytest.mark.slow
def test_ten_thousand_rows_and_their_largest_margin() -> None:
    rng = np.random.default_rng(0)
    u = rng.normal(size=5)
    inputs = rng.normal(size=(10_000, 5))
    rows = jnp.asarray(np.sign(inputs @ u)[:, None] * inputs + 0.3 * u / np.linalg.norm(u))
    cone = recession_cone(rows)
    assert cone.separability == "separable"
    found = thin_margin(rows, cone.growing, cone.direction)
    np.testing.assert_allclose(jnp.min(rows @ found.primal), 1.0, atol=1e-12)
    assert 0 < found.steps < MAX_STEPS
    lower = jnp.sum(found.dual) / jnp.linalg.norm(found.dual @ rows)
    assert float(jnp.linalg.norm(found.primal) / lower - 1.0) < 1e-12
    # One label turned round among ten thousand.
    assert recession_cone(rows.at[17].multiply(-1.0)).separability == "overlapping"


def test_a_column_of_roundings_is_no_direction_of_chosen_rows() -> None:
    """Of the second row the first column is the rounding of a zero beside the first row, whatever its own size."""
    rows = np.array([[1.0, 0.5, 0.0], [1e-17, 1.0, 1.0], [-1e-17, 1.0, 1.0]])
    away = np.asarray(null_space(jnp.asarray(rows), jnp.array([False, True, True])))
    projector = np.array([[1.0, 0.0, 0.0], [0.0, 0.5, -0.5], [0.0, -0.5, 0.5]])
    np.testing.assert_allclose(away.T @ away, projector, atol=1e-15)
    basis, back = orthonormal_columns(jnp.asarray(rows), jnp.array([False, True, True]))
    np.testing.assert_allclose(basis @ basis.T, [[0.0, 0.0, 0.0], [0.0, 0.5, 0.5], [0.0, 0.5, 0.5]], atol=1e-15)
    assert np.max(np.abs(back)) <= 1.0


def test_dependent_rows_of_bad_condition_are_found() -> None:
    """Ten inputs of condition 1e3, of which each may have two of four classes: margins between the two stay, and those
    over the other classes grow."""
    rng, eye, cone = np.random.default_rng(5), np.eye(4), jax.jit(recession_cone)
    for _ in range(4):
        left, right = (np.linalg.qr(rng.normal(size=(10, 10)))[0] for _ in range(2))
        rows, grow = [], []
        for x in left * np.geomspace(1.0, 1e-3, 10) @ right:
            some = rng.choice(4, 2, replace=False)
            pairs = [(y, other) for y in some for other in range(4) if other != y]
            rows += [np.kron(eye[y] - eye[other], x) for y, other in pairs]
            grow += [other not in some for _, other in pairs]
        found = cone(jnp.asarray(np.stack(rows)))
        assert found.separability == Separability.quasi_separable
        np.testing.assert_array_equal(found.growing, grow)
