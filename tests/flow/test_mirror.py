"""Mirror flow with p-norm potentials: the path of its dual variable, and what it ends at."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.optimize import minimize

import jaxflow as jf
from jaxflow.flow import Mirror
from tests.limits.models import Linear, Matrix


def mirror(x: np.ndarray, p: float) -> np.ndarray:
    return np.sign(x) * np.abs(x) ** (p - 1)


def test_two_is_gradient_flow() -> None:
    data, head = jf.data.random_tokens(jax.random.key(0), 3, 4, 3)
    risk, model = jf.EmpiricalRisk(data, "logistic"), jf.models.CombinedAttention.init(jax.random.key(1), data, head)
    ours, theirs = (
        jf.integrate(risk, model, clock="log_time", until=3.0, coordinates=c).final for c in (Mirror(2.0), jf.Weights())
    )
    np.testing.assert_allclose(ours.model.W, theirs.model.W, rtol=0, atol=1e-12)
    np.testing.assert_allclose(ours.velocity.W, theirs.velocity.W, rtol=0, atol=1e-12)
    np.testing.assert_allclose(ours.log_arc_length, theirs.log_arc_length, rtol=1e-10)


def spectral(matrix: np.ndarray, p: float) -> np.ndarray:
    u, s, vt = np.linalg.svd(matrix, full_matrices=False)
    return (u * s ** (p - 1)) @ vt


@pytest.mark.parametrize(
    ("p", "shape", "solver"), [(1.2, (3,), None), (3.0, (3,), None), (1.5, (2, 3), "tsit5"), (3.0, (2, 3), "kvaerno5")]
)
def test_the_path_is_that_of_scipy_in_the_dual_variable(p: float, shape: tuple[int, ...], solver: str | None) -> None:
    """Of the entries of a vector, and of the singular values of a matrix."""
    model, potential, of = (Linear, p, mirror) if len(shape) == 1 else (Matrix, jf.margin.Schatten(p), spectral)
    rng = np.random.default_rng(2)
    inputs, start, labels = rng.normal(size=(8, *shape)), rng.normal(size=shape), rng.choice([-1.0, 1.0], 8)
    signed, q = labels[:, None] * inputs.reshape(8, -1), p / (p - 1)

    def field(t: float, z: np.ndarray) -> np.ndarray:
        return signed.T @ (1.0 / (1.0 + np.exp(signed @ of(z.reshape(shape), q).ravel())))

    found = solve_ivp(field, (0.0, np.exp(2.0)), of(start, p).ravel(), method="LSODA", rtol=1e-10, atol=1e-12)
    risk = jf.EmpiricalRisk((inputs, labels), "logistic", reduction="sum")
    how: Any = {"clock": "log_time", "until": 2.0, "solver": solver, "coordinates": Mirror(potential)}
    path = jf.integrate(risk, model(jnp.asarray(start)), **how)
    [end], [velocity] = (jax.tree.leaves(x) for x in (path.final.model, path.final.velocity))
    # A step's error of 1e-6 in z, the default, is that times dw/dz in the weights, which is of order one here.
    np.testing.assert_allclose(end, of(found.y[:, -1].reshape(shape), q), rtol=1e-5, atol=1e-6)
    z, h = of(np.asarray(end), p), 1e-5
    slope = field(0.0, z.ravel()).reshape(shape)
    # Central differences err by h² and by rounding over h.
    speed = of(z + h * slope, q) - of(z - h * slope, q)
    np.testing.assert_allclose(velocity, speed / np.linalg.norm(speed), atol=1e-8)


def test_a_schatten_potential_is_for_one_matrix() -> None:
    risk = jf.EmpiricalRisk((np.eye(2), [1.0, -1.0]), "logistic")
    with pytest.raises(ValueError, match="coordinates: a Schatten potential is for"):
        jf.integrate(risk, Linear(jnp.ones(2)), clock="log_time", until=1.0, coordinates=Mirror(jf.margin.Schatten(3)))


@pytest.mark.parametrize("p", [1.5, 3.0])
def test_squared_error_ends_at_the_least_bregman_divergence(p: float) -> None:
    rng = np.random.default_rng(1)
    rows, start, targets = rng.normal(size=(3, 6)), rng.normal(size=6), rng.normal(size=3)
    risk = jf.EmpiricalRisk((rows, targets), "squared", reduction="sum")
    path = jf.integrate(
        risk, Linear(jnp.asarray(start)), clock="log_time", until=7.0, solver="kvaerno5", coordinates=Mirror(p)
    )
    end = np.asarray(path.final.model.w)
    found = minimize(
        lambda w: np.sum(np.abs(w) ** p) / p - mirror(start, p) @ w,
        np.linalg.pinv(rows) @ targets,
        jac=lambda w: mirror(w, p) - mirror(start, p),
        constraints={"type": "eq", "fun": lambda w: rows @ w - targets, "jac": lambda w: rows},
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 500},
    )
    np.testing.assert_allclose(rows @ end, targets, atol=1e-6)
    # Of a divergence known to 1e-14 the minimiser has half of the digits.
    np.testing.assert_allclose(end, found.x, atol=1e-5)
