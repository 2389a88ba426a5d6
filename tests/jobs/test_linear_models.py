"""Linear models and regressions as people bring them, against CVXPY, NumPy and formulas."""

from typing import Any

import cvxpy
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

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


def minimum(inputs: np.ndarray, labels: np.ndarray, start: Any = None) -> np.ndarray:
    """Of the logistic loss, by Newton's method from zero or from a start, with the gradient in extended precision."""
    rows = (labels[:, None] * inputs).astype(np.longdouble)
    w = np.asarray(np.zeros(inputs.shape[1]) if start is None else start, np.longdouble)
    for _ in range(30):
        p = 1 / (1 + np.exp(rows @ w))
        hessian = (rows.T @ (rows * (p * (1 - p))[:, None])).astype(float)
        w = w + np.linalg.solve(hessian, (rows.T @ p).astype(float))
    return w.astype(float)


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


def test_with_an_intercept_by_a_layer_of_equinox() -> None:
    limit = jf.find_limit(
        jf.EmpiricalRisk((POINTS, SIDES), "logistic"), eqx.nn.Linear(2, "scalar", key=jax.random.key(0))
    )
    found = np.r_[np.ravel(limit.direction.weight), np.ravel(limit.direction.bias)]
    assert limit.outcome == "globally_optimal"
    close(found, svm(np.c_[POINTS, np.ones(30)], SIDES), 2e-4)


def test_a_column_twice_shares_its_weight() -> None:
    """Of a table of pandas, whose labels are words."""
    table = pd.DataFrame(np.c_[POINTS, POINTS[:, 0]], columns=["age", "salary", "age in years"])
    limit = limit_of(table, pd.Series(np.where(NOISY > 0, "yes", "no")))
    once = minimum(POINTS, NOISY)
    assert limit.outcome == "finite_stationary_point" and limit.error <= 1e-10
    close(limit.point.weights, np.array([once[0] / 2, once[1], once[0] / 2]), 1e-8)


@pytest.mark.slow
def test_least_squares_from_any_start_and_with_fewer_data_than_weights() -> None:
    targets = RNG.normal(size=30)
    limit = limit_of(POINTS, targets, "squared")
    solution = np.linalg.lstsq(POINTS, targets, rcond=None)[0]
    close(limit.point.weights, solution, float(limit.error))
    wide, start = RNG.normal(size=(3, 5)), RNG.normal(size=5)
    limit = limit_of(wide, targets[:3], "squared", start)
    close(limit.point.weights, start + np.linalg.pinv(wide) @ (targets[:3] - wide @ start), float(limit.error))
    assert limit.outcome == "limit_point"


@pytest.mark.slow
def test_five_thousand_weights_and_few_data() -> None:
    """A linear model moves in the span of its data; the limit point of a network of this size is refused with the ways
    that are left (its direction is not: tests/flow/test_hard_margin_products.py)."""
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
        jf.find_limit(jf.EmpiricalRisk((POINTS, SIDES), "squared"), network)


def test_descent_with_small_steps_tends_to_the_same_minimum() -> None:
    """And Adam, whose minimum is the same where there is only one."""
    import optax

    risk = jf.EmpiricalRisk((POINTS, NOISY), "logistic")
    expected = minimum(POINTS, NOISY)
    plain = jf.descend(risk, Linear(jnp.zeros(2)), steps=2000, learning_rate=1.0, normalised=False)
    adam = jf.descend(risk, Linear(jnp.zeros(2)), steps=2000, optimizer=optax.adam(0.02), normalised=False)
    close(plain.model.weights, expected, 1e-6)
    close(adam.model.weights, expected, 1e-4)
    assert jf.find_limit(risk, adam.model).outcome == "finite_stationary_point"
