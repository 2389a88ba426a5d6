"""The limits of mirror flows of linear models: certified, at a minimum that is one alone, or undecided."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit

import jaxflow as jf
from tests.limits.models import Linear, Matrix, Products


def limit_of(p: Any, inputs: Any, labels: Any, start: Any) -> Any:
    """Of a vector or a matrix, with the potential of its entries or of its singular values."""
    risk, start = jf.EmpiricalRisk((inputs, labels), "logistic"), jnp.asarray(start)
    model, potential = (Linear, p) if start.ndim == 1 else (Matrix, jf.margin.Schatten(p))
    return jf.find_limit(risk, model(start), method=jf.ModelStaged(potential=potential), throw=False)


# How many have to be certified. For p = 1.2 roundings end a path before its direction is near enough, and for p = 10
# entries that are small beside others come to their place too late.
VECTORS = [((6, 10, 4), 1, *one) for one in ((1.5, 6), (1.2, 2), (3.0, 6), (10.0, 3))]
MATRICES = [((3, 10, 3, 4), 4, *one) for one in ((3.0, 3), (1.5, 3))]


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "seed", "p", "least"), [*VECTORS, *MATRICES])
def test_certified_directions_are_those_of_the_program(shape: tuple[int, ...], seed: int, p: float, least: int) -> None:
    rng, vectors = np.random.default_rng(seed), len(shape) == 3
    inputs, starts, teachers = rng.normal(size=shape), *rng.normal(size=(2, shape[0], *shape[2:]))
    labels = np.sign(np.sum((inputs * teachers[:, None]).reshape(*shape[:2], -1), axis=2))
    found = jax.jit(jax.vmap(lambda *lane: limit_of(p, *lane)))(inputs, labels, 0.3 * starts)
    certified = np.asarray(found.outcome == "globally_optimal")
    assert set(np.asarray(found.outcome.name)[~certified]) <= {"undecided"} and certified.sum() >= least
    assert np.all(np.asarray(found.excess)[certified] <= 1e-8)
    for at in np.flatnonzero(certified):
        [w] = jax.tree.leaves(jax.tree.map(lambda x, at=at: x[at], found.flow_direction.module))
        norm = jf.margin.Lp(p) if vectors else jf.margin.Schatten(p)
        program = jf.margin.max_margin(inputs[at], labels[at], norm)
        ours = jf.margin.solve(program).primal
        np.testing.assert_allclose(w, ours / np.linalg.norm(ours), rtol=0, atol=1e-6)
        # Clarabel's gap of 1e-10 is one of second order in the direction: the programs' own solver has the digits.
        if vectors:
            np.testing.assert_allclose(jf.margin.solve_cvxpy(program).primal, ours, atol=1e-3)


@pytest.mark.slow
def test_singular_values_that_are_zero_in_the_limit() -> None:
    """Of many classes the rows of W sum to zero, and a power less than one makes a rounding large."""
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(12, 4))
    risk = jf.EmpiricalRisk((inputs, np.argmax(inputs @ rng.normal(size=(4, 3)), axis=1)), "cross_entropy")
    limit = jf.find_limit(risk, Linear(jnp.zeros((3, 4))), method=jf.ModelStaged(potential=jf.margin.Schatten(3)))
    assert limit.outcome == "globally_optimal" and float(limit.excess) <= 1e-8
    ours = limit.program_solution.primal
    assert ours.shape == (3, 4) and limit.prediction.program.norm == jf.margin.Schatten(3)
    np.testing.assert_allclose(limit.direction.w, ours / np.linalg.norm(ours), rtol=0, atol=1e-6)
    np.testing.assert_allclose(np.linalg.svd(ours, compute_uv=False)[2], 0.0, atol=1e-12)


@pytest.mark.slow
def test_two_is_gradient_flow() -> None:
    """Of entries it is the default; of singular values it is the same flow."""
    rng = np.random.default_rng(2)
    inputs = rng.normal(size=(10, 2, 2))
    risk = jf.EmpiricalRisk((inputs, np.sign(np.sum(inputs * rng.normal(size=(2, 2)), axis=(1, 2)))), "logistic")
    model, method = Matrix(jnp.ones((2, 2))), jf.ModelStaged(potential=jf.margin.Schatten(2))
    one, other = jf.find_limit(risk, model), jf.find_limit(risk, model, method=method)
    np.testing.assert_array_equal(one.direction.W, other.direction.W)
    assert one.prediction.program.norm.alias == "frobenius" and str(one) == str(other)


@pytest.mark.parametrize(
    ("p", "shape"), [(3.0, (4,)), *(pytest.param(*x, marks=pytest.mark.slow) for x in ((1.5, (4,)), (3.0, (2, 2))))]
)
def test_overlapping_data_end_at_their_minimum(p: float, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(3)
    inputs, labels = rng.normal(size=(30, *shape)), rng.choice([-1.0, 1.0], 30)
    limit = limit_of(p, inputs, labels, rng.normal(size=shape))
    rows = labels[:, None] * inputs.reshape(30, 4)
    found = minimize(
        lambda w: np.sum(np.logaddexp(0.0, -rows @ w)), np.zeros(4), jac=lambda w: -rows.T @ expit(-rows @ w), tol=1e-10
    )
    assert limit.outcome == "finite_stationary_point" and float(limit.error) <= 1e-10
    np.testing.assert_allclose(np.ravel(*jax.tree.leaves(limit.point)), found.x, rtol=0, atol=1e-6)
    assert f"Mirror flow with p = {p:g}" in str(limit)


@pytest.mark.slow
def test_other_limits_are_undecided() -> None:
    """Of quasi-separable data, and of data that overlap in fewer dimensions than there are parameters."""
    inputs = np.array([[1.0, 0.0, 2.0], [1.0, 0.0, 2.0], [0.0, 1.0, 0.0]])
    limits = [
        limit_of(3.0, inputs, [1.0, -1.0, 1.0], np.ones(3)),
        limit_of(3.0, inputs[[0, 1, 0]], [1.0, -1.0, 1.0], np.ones(3)),
    ]
    assert [limit.linear.separability.name for limit in limits] == ["quasi_separable", "overlapping"]
    assert all(limit.outcome == "undecided" and limit.direction is None and limit.point is None for limit in limits)


@pytest.mark.parametrize(
    ("model", "potential", "message"),
    [
        (Products(jnp.ones(2), jnp.ones(2)), 3.0, "method: `potential`"),
        (Linear(jnp.ones(2)), jf.margin.Schatten(3), r"method: a Schatten potential is for .* one matrix"),
    ],
)
def test_other_models_are_refused(model: Any, potential: Any, message: str) -> None:
    risk = jf.EmpiricalRisk((np.eye(2), [1.0, 1.0]), "logistic")
    with pytest.raises(ValueError, match=message):
        jf.find_limit(risk, model, method=jf.ModelStaged(potential=potential))
