"""Limit points of regression: their error, what says so, and the theorems that are named."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxflow as jf
from jaxflow import models
from jaxflow.limits import ErrorSource, LinearStaged
from jaxflow.limits.linear_point import known_of, polished
from jaxflow.limits.regression_gears import continued
from jaxflow.losses import Exponential, Squared
from jaxflow.papers.yun2021.closed_forms import point_limit
from jaxflow.theory import datum_limit, pair_limit, pairs_of
from tests.referee.paths import Vectors, follow_in

KEY = jax.random.key(17)
COUNT, D = 100, 5


def risk_of(inputs, targets):
    return jf.EmpiricalRisk(jf.data.LinearData(inputs, targets), Squared())


def normal(*shape, seed=0):
    return jax.random.normal(jax.random.fold_in(KEY, seed), shape)


def instance(key, alpha):
    """One datum, y of either sign, and a start whose layers are both random."""
    x_key, y_key, sign_key, *start_keys = jax.random.split(key, 5)
    x = jax.random.normal(x_key, (D,))
    y = jax.random.uniform(y_key, (), minval=0.5, maxval=2.0) * jax.random.rademacher(sign_key, ()).astype(float)
    return x, y, tuple(alpha * jax.random.normal(k, (D,)) for k in start_keys)


def theorem_5(x, y, first, second):
    """Of a diagonal network, by bisection in extended precision: nothing of the library is in it."""
    x, y, plus, minus = (np.asarray(z, np.longdouble) for z in (x, y, first + second, first - second))

    def beta(nu):
        return ((plus * np.exp(x * nu)) ** 2 - (minus * np.exp(-x * nu)) ** 2) / 4

    low, high = -20 / np.max(np.abs(x)), 20 / np.max(np.abs(x))
    assert beta(low) @ x < y < beta(high) @ x
    for _ in range(90):
        middle = (low + high) / 2
        low, high = (low, middle) if beta(middle) @ x > y else (middle, high)
    return beta(low)


def far(beta, exact):
    return np.linalg.norm(np.asarray(beta) - exact, axis=-1) / np.linalg.norm(exact, axis=-1)


@pytest.mark.slow
def test_theorem_5_is_met_to_the_gap_asked_for_and_the_error_is_a_bound():
    gap, keys, alphas = 1e-10, jax.random.split(KEY, COUNT), jnp.logspace(-4, 1, COUNT)

    def one(pair):
        x, y, start = instance(*pair)
        limit = jf.find_limit(risk_of(x[None], y[None]), models.DiagonalLinearNetwork(start), gap=gap, throw=False)
        return limit, limit.trajectory.final, (x, y, *start)

    limits, final, given = jax.jit(lambda pairs: jax.lax.map(one, pairs))((keys, alphas))
    ends = jax.vmap(lambda model: model.linear_coefficients())(final.model)
    exact = np.asarray([theorem_5(*numbers) for numbers in zip(*map(np.asarray, given), strict=True)], float)
    assert bool(jnp.all(limits.outcome == "limit_point")) and bool(jnp.all(limits.error_source == ErrorSource.pairs))
    true, error, own = far(limits.point, exact), np.asarray(limits.error), far(ends, exact)
    # Some 10² roundings: exponents up to 20, and for α = 10 layers a hundred times larger than their products.
    assert np.all(true <= error) and error.max() <= 1e-11
    # The data are such that a flow alone, at its default tolerance, does not do it; both signs are among them.
    assert own.max() > 10 * gap
    assert 30 <= int(jnp.sum(given[1] > 0)) <= 70
    assert 0 < np.sum(limits.closed_form.assumptions[0].holds) < COUNT
    # The distances are those of the flow's own end.
    np.testing.assert_allclose(limits.closed_form.distance, own, atol=1e-12)
    np.testing.assert_allclose(limits.flow_distance, own, atol=1e-12)
    # Lengths and velocities are those of the weights, whatever the state is. (Steps are good to 1e-9.)
    moved = [end - start for end, start in zip(final.model.layers, given[2:], strict=True)]
    straight = np.sqrt(sum(np.sum(x**2, axis=1) for x in moved))
    assert np.all(np.exp(final.log_arc_length) >= (1.0 - 1e-6) * straight)
    # (Where the datum is met exactly, nothing moves.)
    speed = sum(np.sum(x**2, axis=1) for x in jax.tree.leaves(final.velocity))
    np.testing.assert_allclose(speed, np.isfinite(final.log_gradient_norm), rtol=1e-12)
    assert np.mean(speed) > 0.5


@pytest.mark.slow
def test_a_flow_without_an_equation_is_followed_until_its_own_estimate_meets_the_gap():
    """On diagonal networks, whose ends are known otherwise; three data, α from 1e-3 to 1."""
    inputs, targets = normal(8, 3, D, seed=1), normal(8, 3, seed=2)
    starts = jnp.logspace(-3, 0, 8)[:, None, None] * normal(8, 2, D, seed=3)

    def one(given):
        inputs, targets, start = given
        risk, model = risk_of(inputs, targets), models.DiagonalLinearNetwork((start[0], start[1]))
        path, error = continued(LinearStaged().regression(risk, model), risk, model, 4096, 1e-9)
        pairs = pairs_of(model, inputs)
        exact = pair_limit(pairs, model, targets, pairs.dual_of(path.final.model.layers)).coefficients
        end = path.final.model.linear_coefficients()
        return jnp.linalg.norm(end - exact) / jnp.linalg.norm(exact), error

    true, error = jax.jit(lambda given: jax.lax.map(one, given))((inputs, targets, starts))
    assert bool(jnp.all(true <= error)) and bool(jnp.all(error <= 1e-9))


def test_an_end_that_an_equation_does_not_confirm_is_left_alone():
    x, y = normal(D, seed=4), jnp.asarray(1.2)
    risk, model = risk_of(x[None], y[None]), models.DiagonalLinearNetwork((normal(D, seed=5), 0.1 * normal(D, seed=6)))
    known = known_of(risk, model)
    closed = datum_limit(known.pairs, model, y)
    end = eqx.tree_at(lambda n: n.weights, model, known.pairs.layers(closed.dual))
    unknown, reached = jnp.asarray(jnp.inf), jnp.asarray(True)
    point, error, source = polished(risk, model, end, known, unknown, reached)
    np.testing.assert_allclose(point, closed.coefficients, rtol=1e-12)
    assert int(source) == ErrorSource.pairs and float(error) <= 1e-12
    moved = eqx.tree_at(lambda n: n.weights[0], end, 1.05 * end.weights[0])
    point, error, source = polished(risk, model, moved, known, unknown, reached)
    assert int(source) == ErrorSource.distance and jnp.array_equal(point, moved.linear_coefficients())
    assert float(error) == pytest.approx(0.05, rel=1e-6)


NETWORKS = {
    "convolutional network": lambda data: models.LinearConvolutionalNetwork.init(KEY, data, scheme="random", alpha=0.2),
    "deep network": lambda data: models.DeepLinearNetwork.init(KEY, data, width=3, scheme="random", alpha=0.2),
    "matrix sensing": lambda data: models.DeepMatrixSensing.init(KEY, data, scheme="random", alpha=0.2),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", NETWORKS)
def test_pairs_of_one_datum_end_where_a_plain_flow_ends(kind):
    data = jf.data.LinearData(normal(1, 9, seed=7), jnp.asarray([-1.3]))
    model = NETWORKS[kind](data)
    plain = follow_in(kind, Vectors(*map(np.asarray, (data.inputs, data.targets))), model.layers, "squared")
    pairs = pairs_of(model, data.inputs)
    found = datum_limit(pairs, model, data.targets[0])
    # As far as LSODA at a tolerance of 1e-10 goes.
    np.testing.assert_allclose(found.coefficients, plain, rtol=0, atol=1e-7)
    np.testing.assert_allclose(found.coefficients @ data.inputs[0], data.targets[0], rtol=1e-12)
    # ν is read off any point of the path.
    half = 0.5 * found.dual
    np.testing.assert_allclose(pairs.dual_of(pairs.layers(half)), half, rtol=1e-10)
    assert pairs_of(model, normal(2, 9, seed=8)) is None


def test_short_filters_on_one_datum_have_an_answer():
    x, y = normal(D, seed=9), jnp.asarray([0.8])
    data = jf.data.LinearData(x[None], y)
    start = models.LinearConvolutionalNetwork((jnp.asarray([0.3, -0.2]), 0.02 * normal(D, seed=10)))
    limit = jf.find_limit(jf.EmpiricalRisk(data, Squared()), start, gap=1e-10)
    aim = point_limit(start, x, y[0])
    assert limit.outcome == "limit_point" and limit.error_source == "pairs"
    assert far(limit.point, np.asarray(aim.coefficients)) <= float(limit.error) + 1e-14 <= 1e-10
    assert "Theorem 5: from one" in str(limit) and "closed form" in str(limit) and "does not apply" not in str(limit)
    with pytest.raises(ValueError, match=r"^model: no theorem"):
        jf.find_limit(risk_of(normal(2, D, seed=11), normal(2, seed=12)), start)


def test_a_theorem_is_named_where_its_hypotheses_hold_for_this_start():
    def limit_of(*layers, kind=models.DiagonalLinearNetwork):
        return jf.find_limit(risk_of(jnp.asarray([[1.0, -0.5, 2.0]]), jnp.asarray([1.3])), kind(layers))

    one, half = jnp.full(3, 0.2), jnp.full(3, 0.1)
    zero = str(limit_of(one, 0.0 * half))
    assert "relative error at most" in zero and "Corollary 5: " in zero and "Theorem 5: " in zero and "within" in zero
    uneven = str(limit_of(one, half))
    assert "Theorem 5: " in uneven and "Corollary 5" not in uneven and "optimum" not in uneven
    swapped = str(limit_of(half, one))
    assert "Corollary 5 does not apply: <the first layers are equal" in swapped and "optimum" not in swapped
    assert "Theorem 5 does not apply: <the first layer is larger in every singular component" in swapped
    assert "fails by 3.0e-02" in swapped
    # A theorem about starts that tend to zero bounds no error of this start.
    limit = limit_of(0.2 * normal(3, 3, seed=13), jnp.zeros(3), kind=models.DeepLinearNetwork)
    assert float(limit.excess) > 1e-6 and float(limit.error) <= 1e-12
    text = str(limit)
    assert "exceeds the least" in text and "of the optimum" not in text and "Theorem 5: " in text


@pytest.mark.slow
def test_the_direction_of_one_datum_stands_beside_its_closed_form():
    data = jf.data.LinearData(jnp.asarray([[0.5, -2.0, 1.0]]), jnp.asarray([-1.0]))
    start = models.DiagonalLinearNetwork((jnp.asarray([0.4, 0.3, -0.5]), jnp.asarray([0.1, 0.2, 0.0])))
    limit = jf.find_limit(jf.EmpiricalRisk(data, Exponential()), start)
    np.testing.assert_allclose(limit.closed_form.coefficients, [0.0, 0.5, 0.0])
    # ρ decays like ‖β‖^(s_2/s_1 − 1), with s_2/s_1 = 1/2, and paths go to log‖β‖ in the tens at least.
    assert float(limit.closed_form.distance) <= 1e-6 and bool(limit.closed_form.applies)
    assert bool(jnp.isnan(limit.error)) and limit.error_source == "none" and "Theorem 3" in str(limit)


def test_data_that_nearly_repeat_each_other_leave_the_error_open():
    # Along the difference of both data H is zero to rounding, and β still depends on it; where they are equal it does
    # not. The limit is the same in each: the targets are those of one ν.
    first, second = 0.3 + 0.1 * jnp.arange(4.0), 0.2 * normal(4, seed=31)
    x, other = normal(4, seed=32), normal(4, seed=33)

    @jax.jit
    def errors(apart):
        inputs = jnp.stack([x, x + apart * other])
        network = models.DiagonalLinearNetwork((first, second))
        pairs = pairs_of(network, inputs)
        assert pairs is not None
        dual = jnp.array([0.4, -0.3])
        return pair_limit(pairs, network, pairs.outputs(dual), jnp.zeros(2)).error

    assert errors(0.0) <= 1e-12 and errors(0.1) <= 1e-10
    assert np.isinf(errors(1e-8)) and np.isinf(errors(1e-10))


@pytest.mark.slow
def test_a_start_that_meets_its_targets_stays_there():
    """Its gradient is exactly zero: log 0 is -inf in every reading, and no path has a length."""
    network = jf.models.DiagonalLinearNetwork((jnp.array([1.0, 2.0]), jnp.array([0.5, 1.0])))
    inputs = jnp.array([[1.0, 2.0], [0.5, -1.0]])
    risk = jf.EmpiricalRisk((inputs, inputs @ network.linear_coefficients()), "squared")
    scaled = risk.scaled_gradient(network)
    assert float(scaled.log_scale) == 0.0 and np.isneginf(scaled.log_norm)
    how = {"clock": "physical_time", "until": 1.0, "solver": "tsit5"}
    path = jf.integrate(risk, network, **how, save_at=jnp.array([0.5, 1.0]))
    for name in ("log_gradient_norm", "log_arc_length"):
        assert np.isneginf(getattr(path, name)).all() and np.isneginf(getattr(path.final, name))
    assert np.array_equal(path.model.weights, network.weights)
    assert jf.integrate(risk, network, **how, stop=jf.LossExcess(-1e6)).result == jf.RESULTS.event_occurred
