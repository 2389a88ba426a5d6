"""Linear models and regressions as people bring them, against SciPy, CVXPY, NumPy and formulas."""

from typing import Any

import cvxpy
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize
from scipy.special import expit

import jaxflow as jf


class Linear(eqx.Module):
    weights: jax.Array

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.weights @ x


def limit_of(inputs: Any, labels: Any, loss: Any = "logistic", start: Any = None, **how: Any) -> Any:
    weights = jnp.zeros(np.shape(inputs)[1]) if start is None else jnp.asarray(start)
    return jf.find_limit(jf.EmpiricalRisk((inputs, labels), loss), Linear(weights), **how)


def svm(inputs: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The direction of the largest margin, by CVXPY alone."""
    w = cvxpy.Variable(inputs.shape[1])
    constraints = [cvxpy.multiply(labels, inputs @ w) >= 1]
    cvxpy.Problem(cvxpy.Minimize(cvxpy.sum_squares(w)), constraints).solve(solver="CLARABEL")
    return w.value / np.linalg.norm(w.value)


def logistic_minimum(inputs: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Newton's method of SciPy, in units of one."""
    unit = np.abs(inputs).max(axis=0)
    rows = labels[:, None] * inputs / unit

    def value(w: np.ndarray) -> float:
        return float(np.logaddexp(0.0, -rows @ w).sum())

    def slope(w: np.ndarray) -> np.ndarray:
        return -rows.T @ expit(-rows @ w)

    def curvature(w: np.ndarray) -> np.ndarray:
        p = expit(-rows @ w)
        return rows.T @ (rows * (p * (1 - p))[:, None])

    found = minimize(
        value, np.zeros(len(unit)), jac=slope, hess=curvature, method="trust-exact", options={"gtol": 1e-9}
    )
    w = found.x
    for _ in range(3):
        w = w - np.linalg.solve(curvature(w), slope(w))
    return w / unit


RNG = np.random.default_rng(0)
POINTS = RNG.normal(size=(30, 2))
SIDES = np.sign(POINTS @ [1.0, -0.5])
NOISY = np.sign(POINTS @ [1.0, -0.5] + RNG.normal(size=30))


def close(found: Any, expected: np.ndarray, error: float) -> None:
    assert np.linalg.norm(np.asarray(found) - expected) <= error * np.linalg.norm(expected)


@pytest.mark.parametrize("seed", range(4))
def test_does_logistic_regression_converge_to_the_max_margin(seed: int) -> None:
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(30, 2))
    labels = np.sign(inputs @ rng.normal(size=2))
    limit = limit_of(inputs, labels)
    assert limit.outcome == "globally_optimal", str(limit)
    # Of a direction whose norm exceeds the optimum by 1e-8 the distance is at most its root.
    close(limit.direction.weights, svm(inputs, labels), 2e-4)
    assert limit.trajectory.stats["num_steps"] < 100


def test_overlapping_classes_end_at_the_maximum_likelihood() -> None:
    limit = limit_of(POINTS, NOISY)
    assert limit.outcome == "finite_stationary_point"
    close(limit.point.weights, logistic_minimum(POINTS, NOISY), 1e-10)
    assert limit.error <= 1e-10


def test_with_an_intercept_by_a_layer_of_equinox() -> None:
    limit = jf.find_limit(
        jf.EmpiricalRisk((POINTS, SIDES), "logistic"), eqx.nn.Linear(2, "scalar", key=jax.random.key(0))
    )
    found = np.r_[np.ravel(limit.direction.weight), np.ravel(limit.direction.bias)]
    assert limit.outcome == "globally_optimal"
    close(found, svm(np.c_[POINTS, np.ones(30)], SIDES), 2e-4)


def test_quasi_separable_classes() -> None:
    """Two points coincide with different labels; the others pull along the second axis."""
    inputs = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [2.0, -1.0]])
    labels = np.array([1.0, -1.0, 1.0, -1.0])
    limit = limit_of(inputs, labels)
    assert limit.outcome == "globally_optimal" and limit.linear.separability == "quasi_separable"
    close(limit.direction.weights, np.array([0.0, 1.0]), 1e-8)
    assert "orthogonal to the others" in str(limit)


def test_two_positives_among_a_thousand() -> None:
    rng = np.random.default_rng(1)
    inputs = np.c_[np.ones(1000), rng.normal(size=(1000, 3))]
    labels = -np.ones(1000)
    labels[[3, 500]] = 1.0
    limit = limit_of(inputs, labels > 0)
    assert limit.outcome == "finite_stationary_point"
    close(limit.point.weights, logistic_minimum(inputs, labels), 1e-8)


def test_a_column_twice_shares_its_weight() -> None:
    inputs = np.c_[POINTS, POINTS[:, 0]]
    limit = limit_of(inputs, NOISY)
    once = logistic_minimum(POINTS, NOISY)
    assert limit.outcome == "finite_stationary_point"
    close(limit.point.weights, np.array([once[0] / 2, once[1], once[0] / 2]), 1e-8)


def raw_units() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(2)
    age, salary = rng.uniform(18, 70, 200), rng.lognormal(10.5, 0.5, 200)
    inputs = np.c_[np.ones(200), age, salary]
    labels = np.where(rng.random(200) < expit(0.08 * (age - 40) + 3e-5 * (salary - 4e4)), 1.0, -1.0)
    return inputs, labels


def test_age_and_salary_in_raw_units() -> None:
    inputs, labels = raw_units()
    limit = limit_of(inputs, labels)
    assert limit.outcome == "finite_stationary_point"
    close(limit.point.weights, logistic_minimum(inputs, labels), 1e-8)


@pytest.mark.parametrize("unit", [1e6, 1e-6])
def test_all_inputs_in_another_unit(unit: float) -> None:
    overlap, apart = limit_of(POINTS * unit, NOISY), limit_of(POINTS * unit, SIDES)
    close(overlap.point.weights, logistic_minimum(POINTS, NOISY) / unit, 1e-8)
    assert apart.outcome == "globally_optimal"
    close(apart.direction.weights, svm(POINTS, SIDES), 2e-4)


LABELS = {
    "signs": NOISY,
    "zeros and ones": (NOISY > 0).astype(int),
    "Booleans": NOISY > 0,
    "strings": np.where(NOISY > 0, "yes", "no"),
    "a column of pandas": pd.Series(np.where(NOISY > 0, "yes", "no")),
    "a list": [int(y) for y in NOISY],
}


@pytest.mark.parametrize("form", LABELS)
def test_labels_in_every_form(form: str) -> None:
    table = pd.DataFrame(POINTS, columns=["age", "salary"])
    limit = limit_of(table, LABELS[form])
    close(limit.point.weights, logistic_minimum(POINTS, NOISY), 1e-8)


@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_inputs_of_other_types(dtype: Any) -> None:
    inputs = np.round(3 * POINTS).astype(dtype)
    limit = limit_of(inputs, NOISY.astype(np.float32), start=np.zeros(2, np.float32))
    close(limit.point.weights, logistic_minimum(inputs.astype(float), NOISY), 1e-8)


def test_least_squares_from_any_start_and_with_fewer_data_than_weights() -> None:
    targets = RNG.normal(size=30)
    limit = limit_of(POINTS, targets, "squared")
    solution = np.linalg.lstsq(POINTS, targets, rcond=None)[0]
    close(limit.point.weights, solution, float(limit.error))
    wide, start = RNG.normal(size=(3, 5)), RNG.normal(size=5)
    limit = limit_of(wide, targets[:3], "squared", start)
    close(limit.point.weights, start + np.linalg.pinv(wide) @ (targets[:3] - wide @ start), float(limit.error))
    assert limit.outcome == "limit_point"


def test_five_thousand_weights_and_few_data() -> None:
    """A linear model moves in the span of its data; a network of this size is refused with the ways that are left."""
    inputs = np.random.default_rng(3).normal(size=(30, 5000))
    limit = limit_of(inputs, SIDES)
    assert limit.outcome == "globally_optimal"
    # In the span of the data, whose Gram matrix is all that counts.
    values, basis = np.linalg.eigh(inputs @ inputs.T)
    small = svm(basis * np.sqrt(values), SIDES)
    close(limit.direction.weights, inputs.T @ (basis @ (small / np.sqrt(values))), 2e-4)
    network = eqx.nn.MLP(2, "scalar", width_size=1000, depth=1, use_final_bias=False, key=jax.random.key(0))
    with pytest.raises(
        ValueError, match="^model: 4000 trained numbers; .*`trainable` of the risk.*integrate or descend"
    ):
        jf.find_limit(jf.EmpiricalRisk((POINTS, SIDES), "logistic"), network)


def test_how_good_is_a_direction_from_elsewhere() -> None:
    program = jf.margin.max_margin(POINTS, SIDES, "l2")
    best = svm(POINTS, SIDES)
    assert abs(jf.margin.certify(program, best).duality_gap) < 1e-6
    turned = best + 0.05 * np.array([-best[1], best[0]])
    margins = (SIDES * (POINTS @ best)).min(), (SIDES * (POINTS @ turned)).min()
    certificate = jf.margin.certify(program, turned)
    if margins[1] > 0:
        ratio = np.linalg.norm(turned) / margins[1] * margins[0]
        np.testing.assert_allclose(certificate.duality_gap, ratio - 1, rtol=1e-5)
    assert np.isinf(jf.margin.certify(program, -best).primal_value)


def test_descent_with_small_steps_tends_to_the_same_minimum() -> None:
    """And Adam, whose minimum is the same where there is only one."""
    import optax

    risk = jf.EmpiricalRisk((POINTS, NOISY), "logistic")
    minimum = logistic_minimum(POINTS, NOISY)
    plain = jf.descend(risk, Linear(jnp.zeros(2)), steps=2000, learning_rate=1.0, normalised=False)
    adam = jf.descend(risk, Linear(jnp.zeros(2)), steps=2000, optimizer=optax.adam(0.02), normalised=False)
    close(plain.model.weights, minimum, 1e-6)
    close(adam.model.weights, minimum, 1e-4)
    assert jf.find_limit(risk, adam.model).outcome == "finite_stationary_point"


def test_two_optimisers_on_the_same_separable_data() -> None:
    """Normalised gradient descent tends to the max margin of l2, signs of the gradient to that of l1's dual."""
    import optax

    inputs, labels = np.array([[1.0, 0.2], [2.0, 3.0]]), np.ones(2)
    risk = jf.EmpiricalRisk((inputs, labels), "exponential")
    steps = jf.descend(risk, Linear(jnp.zeros(2)), steps=3000, learning_rate=0.1)
    signs = optax.chain(optax.sign_sgd(0.1)) if hasattr(optax, "sign_sgd") else optax.adam(0.1, b1=0.0, b2=0.0)
    other = jf.descend(risk, Linear(jnp.zeros(2)), steps=3000, optimizer=signs)
    # By hand: only the first datum is active in both norms.
    l2, linf = inputs[0] / np.linalg.norm(inputs[0]), np.array([1.0, 1.0]) / np.sqrt(2)
    flow = jf.find_limit(risk, Linear(jnp.zeros(2)))
    close(flow.direction.weights, l2, 1e-4)
    close(np.asarray(steps.model.weights) / np.linalg.norm(steps.model.weights), l2, 0.05)
    close(np.asarray(other.model.weights) / np.linalg.norm(other.model.weights), linf, 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("count", [100])
def test_no_at_most_that_is_not(count: int) -> None:
    """Errors of overlapping logistic regression, which `print` calls bounds, against SciPy's minima refined in
    extended precision; and those of least squares, which it calls estimates."""
    rng = np.random.default_rng(4)
    inputs = rng.normal(size=(count, 12, 3)) * np.exp(rng.normal(size=(count, 1, 3)))
    targets = rng.normal(size=(count, 12))

    def squares(x: jax.Array, y: jax.Array) -> Any:
        found = jf.find_limit(jf.EmpiricalRisk(jf.data.LinearData(x, y), "squared"), Linear(jnp.zeros(3)))
        return found.outcome, found.end.module.weights, found.error

    def logistic(x: jax.Array, y: jax.Array) -> Any:
        found = jf.find_limit(jf.EmpiricalRisk(jf.data.LinearData(x, y), "logistic"), Linear(jnp.zeros(3)))
        return found.outcome, found.end.module.weights, found.error

    outcome, found, error = jax.jit(jax.vmap(squares))(jnp.asarray(inputs), jnp.asarray(targets))
    assert set(outcome.name) == {"finite_stationary_point"}
    exact = np.stack([np.linalg.lstsq(x, y, rcond=None)[0] for x, y in zip(inputs, targets, strict=True)])
    true = np.linalg.norm(found - exact, axis=1) / np.linalg.norm(exact, axis=1)
    assert np.all(true <= np.asarray(error) + 1e-14), (true / error).max()

    labels = np.where(rng.random((count, 12)) < 0.5, 1.0, -1.0)
    outcome, found, error = jax.jit(jax.vmap(logistic))(jnp.asarray(inputs), jnp.asarray(labels))
    names = np.asarray(outcome.name)
    # Random labels of twelve data in three dimensions are sometimes separable, or nearly so.
    assert set(names) <= {"finite_stationary_point", "globally_optimal", "undecided"}
    assert np.mean(names == "finite_stationary_point") >= 0.5
    # Of norms below one the error is absolute, in the units of the largest entry of the data: see `affine_limit`.
    for at in np.flatnonzero(names == "finite_stationary_point"):
        exact = refined(inputs[at], labels[at], np.asarray(found[at]))
        size = max(np.linalg.norm(exact), 1.0)
        assert np.linalg.norm(found[at] - exact) / size <= float(error[at]), at


def refined(inputs: np.ndarray, labels: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Newton's method from w with the gradient in extended precision."""
    rows = (labels[:, None] * inputs).astype(np.longdouble)
    w = w.astype(np.longdouble)
    for _ in range(4):
        p = 1 / (1 + np.exp(rows @ w))
        hessian = (rows.T @ (rows * (p * (1 - p))[:, None])).astype(float)
        w = w + np.linalg.solve(hessian, (rows.T @ p).astype(float))
    return w.astype(float)
