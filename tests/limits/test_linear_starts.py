"""Linear networks from tiny starts, and fully connected ones of more than two layers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import LSODA
from scipy.optimize import nnls

import jaxflow as jf
from jaxflow.limits import ErrorSource
from jaxflow.models import DeepLinearNetwork, LinearConvolutionalNetwork


def convolutions():
    """Regression with three data, from filters of 1e-12 and zero: `(16, 3, 6)`, `(16, 3)` and two of `(16, 6)`."""
    rng = np.random.default_rng([0, 3874245408])
    inputs, teacher = rng.normal(size=(16, 3, 6)), rng.normal(size=(16, 6))
    first = rng.normal(size=(16, 6))
    return inputs, np.einsum("bnd,bd->bn", inputs, teacher), 1e-12 * first, np.zeros_like(first)


def by_modes(x, y, first, second, rtol):
    """The limit of one instance by LSODA for the modes of the DFT, which have digits of their own however small."""
    d = x.shape[1]

    def modes(flat):
        return flat.view(complex).reshape(2, -1)

    def velocity(_, flat):
        u, v = modes(flat)
        push = np.fft.rfft((y - x @ np.fft.irfft(u * v, d)) @ x)
        return np.concatenate([push * np.conj(v), push * np.conj(u)]).view(float)

    start = np.concatenate([np.fft.rfft(first), np.fft.rfft(second)]).view(float)
    solver = LSODA(velocity, 0.0, start, 1e100, rtol=rtol, atol=1e-15 * rtol)
    for _ in range(20_000):
        solver.step()
        beta = np.fft.irfft(np.prod(modes(solver.y), axis=0), d)
        if np.abs(x @ beta - y).max() < 1e-13 * np.abs(y).max():
            return beta
    raise AssertionError("the plain flow has not arrived")


def test_a_tiny_start_has_an_error_that_is_no_less_than_the_true_one():
    # With tolerances of 1e-11 and more for weights of 1e-12 two of these said 5e-7 for 4e-6; of one the modes fall to
    # roundings of the others and come back, which no tolerance tells.
    chosen = [6, 9, 12]
    x, y, first, second = (part[chosen] for part in convolutions())

    @jax.jit
    @jax.vmap
    def limits(x, y, first, second):
        risk = jf.EmpiricalRisk(jf.data.LinearData(x, y), "squared")
        return jf.find_limit(risk, LinearConvolutionalNetwork((first, second)), throw=False)

    found = limits(*map(jnp.asarray, (x, y, first, second)))
    assert bool(jnp.all(found.outcome == jf.Outcome.limit_point))
    assert bool(jnp.all(found.error_source == ErrorSource.tolerances))
    for i in range(len(chosen)):
        exact, again = (by_modes(x[i], y[i], first[i], second[i], rtol) for rtol in (1e-12, 1e-11))
        known = np.linalg.norm(again - exact) / np.linalg.norm(exact)
        # Of two tolerances that differ by 9e-12, ten times as much.
        assert known < 1e-10
        apart = np.linalg.norm(found.coefficients[i] - exact) / np.linalg.norm(exact)
        assert apart <= found.error[i] + known
        # And it says something.
        assert found.error[i] < 1e-6


def test_three_layers_leave_the_saddle_at_zero():
    # Gradients there are alpha squared of what pushes: from 1e-12 that is less than any rest.
    x = jax.random.normal(jax.random.key(3), (3, 4))
    labels = jnp.where(x @ jnp.array([1.0, -2.0, 0.5, 1.0]) < 0, -1.0, 1.0)
    data = jf.data.LinearData(x, labels)
    start = DeepLinearNetwork.init(jax.random.key(5), data, depth=3, alpha=1e-12, scheme="zero_last")
    assert jf.find_limit(jf.EmpiricalRisk(data, "exponential"), start).outcome == jf.Outcome.globally_optimal
    # The time that takes, 1e12, leaves no digits for what comes after: of a regression nothing is claimed.
    point = jf.find_limit(jf.EmpiricalRisk(jf.data.LinearData(x, x[:, 0]), "squared"), start)
    assert point.outcome == jf.Outcome.undecided
    assert jnp.isinf(point.error)


def hard_margin(rows):
    """The l2 max-margin direction at margin one, by non-negative least squares (least distance programming)."""
    n, d = rows.shape
    system, right = np.vstack([rows.T, np.ones((1, n))]), np.append(np.zeros(d), 1.0)
    weights, _ = nnls(system, right)
    off = system @ weights - right
    return -off[:d] / off[d]


@pytest.mark.parametrize(("loss", "depth"), [("exponential", 3), pytest.param("logistic", 4, marks=pytest.mark.slow)])
def test_deep_fully_connected_networks_are_certified_by_default(loss, depth):
    rng = np.random.default_rng(7)
    x, teacher = rng.normal(size=(8, 6, 4)), rng.normal(size=(8, 4))
    y = np.where(np.einsum("bnd,bd->bn", x, teacher) < 0, -1.0, 1.0)

    @jax.jit
    @jax.vmap
    def limits(key, x, y):
        data = jf.data.LinearData(x, y)
        start = DeepLinearNetwork.init(key, data, depth=depth, alpha=0.2, scheme="zero_last")
        return jf.find_limit(jf.EmpiricalRisk(data, loss), start, throw=False)

    found = limits(jax.random.split(jax.random.key(2), 8), jnp.asarray(x), jnp.asarray(y))
    assert bool(jnp.all(found.outcome == jf.Outcome.globally_optimal))
    assert float(jnp.max(found.excess)) <= 1e-8
    for i in range(8):
        exact = hard_margin(y[i][:, None] * x[i])
        # A relative excess of 1e-8 leaves a direction the root of twice that.
        apart = np.linalg.norm(found.coefficients[i] - exact) / np.linalg.norm(exact)
        assert apart <= 2e-4


def test_three_layers_that_cannot_fit_come_to_rest():
    # Two data and a positive combination of their opposites, with one label.
    x = jnp.array([[1.0, 0.2], [0.3, 1.0], [-0.9, -0.7]])
    data = jf.data.LinearData(x, jnp.ones(3))
    start = DeepLinearNetwork.init(jax.random.key(1), data, depth=3, alpha=0.5, scheme="zero_last")
    found = jf.find_limit(jf.EmpiricalRisk(data, "exponential"), start)
    assert found.outcome == jf.Outcome.finite_stationary_point
    # The loss is convex in the coefficients: no push is left.
    push = jnp.exp(-x @ found.coefficients) @ x
    assert float(jnp.max(jnp.abs(push))) < 1e-4
