"""Linear tensor networks: closed forms against flows, hypotheses with their slack, certificates that can fail."""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxflow as jf
from jaxflow import models, theory
from jaxflow.flow import integrate
from jaxflow.losses import Exponential, Squared
from jaxflow.margin import CertificateSource
from jaxflow.papers.yun2021.closed_forms import direction_limit, filtered_direction
from jaxflow.papers.yun2021.decomposing import find_decomposition, verify_decomposition
from jaxflow.papers.yun2021.limit_directions import top_singular_share
from jaxflow.papers.yun2021.loss_bounds import algebraic_bound, classification_rate, printed_bound, regression_rate

KEY = jax.random.key(7)
N, D = 2, 4


def normal(*shape, seed=0):
    return jax.random.normal(jax.random.fold_in(KEY, seed), shape)


X, Y = normal(N, D, seed=1), normal(N, seed=2)
LABELS = jnp.asarray([1.0, -1.0])
closed_form = jax.jit(theory.interpolation_limit, static_argnums=3)


def regression(inputs=X, targets=Y):
    return jf.EmpiricalRisk(jf.data.LinearData(inputs, targets), Squared(), reduction="sum")


def classification(inputs=X, labels=LABELS):
    return jf.EmpiricalRisk(jf.data.LinearData(inputs, labels), Exponential(), reduction="sum")


# Theorem 4


@pytest.mark.parametrize("depth", [2, 3, 4])
@pytest.mark.parametrize("alpha", [10.0, 0.1, 1e-3])
def test_the_closed_form_satisfies_its_own_optimality_conditions(depth, alpha):
    start = alpha * (0.5 + jnp.abs(normal(D, seed=3)))
    found = closed_form(X, Y, start, depth)
    # Newton's method stops at rounding; at α = 1e-3 and L = 4 heights are 1e12 times their start.
    assert float(found.residual) <= 1e-12 and float(found.stationarity) <= 1e-12
    assert abs(float(found.gap)) <= 1e-12 and bool(found.converged)


def test_any_other_interpolation_has_a_larger_value():
    start = models.DiagonalLinearNetwork((jnp.full(D, 0.3),) * 2 + (jnp.zeros(D),))
    program = theory.interpolation_program(start, jf.data.LinearData(X, Y))
    best = program.solve()
    null = jnp.linalg.svd(X)[2][N:]
    for direction in null:
        moved = best.primal + 0.1 * direction
        certificate = program.certify(moved, best.dual, CertificateSource.program)
        assert float(certificate.feasibility) <= 1e-12
        assert float(certificate.primal_value) > float(best.certificate.dual_value) + 1e-6
        assert float(certificate.stationarity) > 1e-3


@pytest.mark.slow
def test_the_flow_ends_in_the_closed_form():
    start = models.DiagonalLinearNetwork.init(KEY, jf.data.LinearData(X, Y), depth=3, alpha=0.3, scheme="equal")
    limit = jf.find_limit(regression(), start)
    closed = closed_form(X, Y, start.layers[0], 3)
    assert limit.outcome == "limit_point" and limit.kind == "point" and limit.direction is None
    # A loss of 1e-28 relative to that of the zero function is a residual of 1e-14.
    assert float(limit.residual) <= 3e-14
    # rtol 1e-10 over some hundred steps.
    np.testing.assert_allclose(limit.point, closed.singular, rtol=1e-8)
    assert abs(float(limit.certificate.duality_gap)) <= 1e-10
    assert all(bool(a.holds) for a in limit.prediction.assumptions)
    assert "Corollary 5" in str(limit) and "interpolates" in str(limit)


@pytest.mark.parametrize(("depth", "scheme"), [(2, "zero_last"), pytest.param(3, "equal", marks=pytest.mark.slow)])
def test_the_dual_form_traces_the_path_of_the_weights(depth, scheme):
    """ν against Θ for the exponential loss, well past the loss falling below one."""
    start = models.DiagonalLinearNetwork.init(KEY, jf.data.LinearData(X, LABELS), depth=depth, alpha=0.7, scheme=scheme)
    controller = diffrax.PIDController(rtol=1e-11, atol=1e-13)
    ends = [
        integrate(
            classification(), start, clock="log_time", until=12.0, coordinates=coordinates, controller=controller
        ).final
        for coordinates in ("weights", "dual")
    ]
    for a, b in zip(ends[0].model.layers, ends[1].model.layers, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(ends[0].log_gradient_norm, ends[1].log_gradient_norm, rtol=1e-7)
    assert float(ends[1].log_scale) < -5.0
    # Multipliers of the flow push the right way, r_i y_i < 0.
    assert bool(jnp.all(jnp.asarray(ends[1].multipliers) * LABELS < 0))


def test_the_dual_form_refuses_what_it_does_not_describe():
    data = jf.data.LinearData(X, LABELS)
    odd = models.LinearConvolutionalNetwork.init(KEY, data, scheme="equal")
    connected = models.DeepLinearNetwork.init(KEY, data)
    uneven = models.DiagonalLinearNetwork((normal(D, seed=5), normal(D, seed=6), jnp.zeros(D)))
    for model, text in ((uneven, "equal size"), (odd, "even data"), (connected, "network: ")):
        with pytest.raises(ValueError, match=text):
            integrate(classification(), model, clock="log_time", until=1.0, coordinates="dual")


def test_corollary_6_wants_its_factor_and_corollary_7_commuting_sensors():
    inputs = models.even_part(normal(N, 6, seed=8))
    start = models.LinearConvolutionalNetwork.init(
        KEY, jf.data.LinearData(inputs, Y), depth=3, alpha=0.5, scheme="equal"
    )
    program = theory.interpolation_program(start, jf.data.LinearData(inputs, Y))
    beta = program.coefficients(program.solve().primal)
    # Stationarity by the definition, over all d frequencies: dQ/dz = F h^(-1)(…)-weights is a combination of data.
    np.testing.assert_allclose(inputs @ beta, Y, atol=1e-12)
    np.testing.assert_allclose(models.even_part(beta), beta, atol=1e-12)
    holds = theory.predict(regression(inputs, Y), start).assumptions
    assert all(bool(a.holds) for a in holds)
    skew = theory.predict(regression(normal(N, 6, seed=9), Y), start).assumptions
    assert not bool(skew[-1].holds)
    sensors = normal(N, 3, 3, seed=10)
    sensing = models.DeepMatrixSensing.init(KEY, jf.data.LinearData(sensors.reshape(N, 9), Y))
    commuting, diagonal = theory.predict(regression(sensors.reshape(N, 9), Y), sensing).assumptions[-2:]
    assert not bool(commuting.holds) and bool(diagonal.holds)


# Theorems 3 and 5


def test_filters_of_length_two_and_the_tie():
    for sign in (1.0, -1.0):
        x = jnp.asarray([1.0, sign * 0.8, 0.5, 0.3])
        start = models.LinearConvolutionalNetwork((jnp.asarray([1.0, 0.3]), jnp.zeros(D)))
        aim, correlation = filtered_direction(x, -1.0)
        found = direction_limit(start, x, jnp.asarray(-1.0))
        assert bool(jnp.sign(correlation) == sign) and not bool(found.tied)
        np.testing.assert_allclose(found.coefficients, aim, atol=1e-12)
    x = jnp.asarray([1.0, 2.0, -1.0, 3.0])
    assert bool(direction_limit(start, x, jnp.asarray(1.0)).tied)
    assert abs(float(filtered_direction(x, 1.0)[1])) <= 1e-12


# Assumption 1


def test_a_decomposition_is_found_where_there_is_one():
    left, _ = jnp.linalg.qr(normal(5, 4, seed=12))
    right, _ = jnp.linalg.qr(normal(6, 4, seed=13))
    tall = models.Decomposition(normal(4, 2, seed=14), (left, right)).tensor()
    found, assumptions = find_decomposition(tall)
    assert all(bool(a.holds) for a in assumptions) and found.transform.shape == (4, 2) and found.is_real
    found, assumptions = find_decomposition(models.convolutional_tensor(5, (5, 5)))
    assert all(bool(a.holds) for a in assumptions) and not found.is_real
    for tensor in (models.convolutional_tensor(5, (2, 5)), normal(4, 4, 3, seed=15)):
        assert not all(bool(a.holds) for a in find_decomposition(tensor)[1])
    one = jnp.eye(3)
    right_one = models.Decomposition(one, (one,) * 3)
    assert all(bool(a.holds) for a in verify_decomposition(models.diagonal_tensor(3, 3), right_one))
    wrong = verify_decomposition(2.0 * models.diagonal_tensor(3, 3), right_one)
    assert [bool(a.holds) for a in wrong] == [False, True, True, True]


# Hypotheses


def test_the_initial_conditions_of_the_theorems_have_signs():
    big, small = jnp.asarray([2.0, -3.0]), jnp.asarray([1.0, 0.5])
    assert float(theory.layer_gap((big, small))) == pytest.approx(3.0)
    # Any layer may be the small one.
    assert float(theory.layer_gap((small, big))) == pytest.approx(3.0)
    assert float(theory.layer_gap((big, jnp.asarray([3.0, 0.0])))) < 0
    start = models.DeepLinearNetwork((2.0 * jnp.eye(2), jnp.eye(2), jnp.asarray([0.5, 0.0])))
    inner, last = theory.fully_connected_start(start)
    assert float(inner.slack) == pytest.approx(3.0) and float(last.slack) == pytest.approx(0.75)
    swapped = models.DeepLinearNetwork((jnp.eye(2), 2.0 * jnp.eye(2), jnp.asarray([3.0, 0.0])))
    inner, last = theory.fully_connected_start(swapped)
    assert not bool(inner.holds) and not bool(last.holds)


def test_the_residual_of_8_vanishes_at_singular_vectors_only():
    network = models.DiagonalLinearNetwork((jnp.asarray([1.0, 0.0, 0.0, 0.0]), jnp.asarray([-2.0, 0.0, 0.0, 0.0])))
    data = jf.data.LinearData(X, LABELS)
    assert float(theory.singular_residual(network, data, LABELS)) <= 1e-12
    other = models.DiagonalLinearNetwork((jnp.ones(4), jnp.asarray([1.0, 2.0, 3.0, 4.0])))
    assert float(theory.singular_residual(other, data, LABELS)) > 0.1
    one = jnp.eye(D)
    top = int(jnp.argmax(jnp.abs(X.T @ LABELS)))
    on_top = models.DiagonalLinearNetwork((jnp.eye(D)[top], jnp.eye(D)[top]))
    decomposition = models.Decomposition(one, (one, one))
    assert float(top_singular_share(on_top, decomposition, data, LABELS)) == pytest.approx(1.0)
    assert float(top_singular_share(other, decomposition, data, LABELS)) < 0.999


def test_the_printed_bound_lacks_the_loss_at_the_start():
    """d = 1, w = (1, 0.1), x = 30: the loss is known well enough by hand."""
    x, w = 30.0, (1.0, 0.1)
    loss, gap = float(np.exp(-x * w[0] * w[1])), w[0] ** 2 - w[1] ** 2
    rate = classification_rate(jnp.asarray(gap), jnp.eye(1), jnp.asarray(x), 2)
    assert float(rate) == pytest.approx(gap * x**2)
    times = jnp.asarray([0.1, 1.0])
    # dL/dt ≥ −(w_1² + w_2²) x² L², and the weights grow: over such times by 20% at most.
    slow = loss / (1.0 + loss * 1.5 * x**2 * times)
    right = algebraic_bound(jnp.asarray(loss), rate, times)
    printed = printed_bound(jnp.asarray(loss), rate, times)
    assert bool(jnp.all(printed < slow)) and bool(jnp.all(slow <= right))
    assert float(regression_rate(jnp.asarray(2.0), jnp.eye(3), 3.0 * jnp.eye(3), 2)) == pytest.approx(36.0)


# Limits of classification


# The paper's data.
INPUTS = jnp.asarray([[1.0, 2.0], [0.0, -3.0]])


@pytest.mark.slow
def test_the_paper_s_data_diagonal():
    start = models.DiagonalLinearNetwork((jnp.asarray([0.01, 0.02]), jnp.asarray([0.005, -0.01])))
    # The flow goes on until it certifies itself to the gap asked for, and no further.
    limit = jf.find_limit(classification(INPUTS), start, gap=3e-14)
    assert limit.outcome == "globally_optimal" and limit.kind == "direction" and limit.point is None
    assert int(limit.trajectory.stats["num_steps"]) <= 300
    unit = limit.flow_direction / jnp.linalg.norm(limit.flow_direction)
    np.testing.assert_allclose(unit, [0.0, 1.0], atol=1e-10)
    assert float(limit.flow_certificate.duality_gap) <= 1e-10
    # Entries of the layers are the square roots of those of β, which are off by the gap.
    assert float(limit.singular_residual) <= np.sqrt(3e-14)
    assert np.asarray(limit.selection).tolist() == [True, False]
    # κ = ½ on these data: the gap falls like (log t)^(−1/2).
    assert float(limit.rate.predicted) == pytest.approx(0.5, abs=1e-6)
    assert float(limit.rate.exponent) == pytest.approx(0.5, abs=0.02)
    assert "Corollary 2" in str(limit) and "Support vectors [0]" in str(limit)


def test_predictions_name_programs_or_say_why_not():
    risk = classification(INPUTS)
    short = models.LinearConvolutionalNetwork((jnp.ones(1), jnp.ones(2)))
    with pytest.raises(ValueError, match=r"^model: no theorem .*singular_residual"):
        theory.predict(risk, short)
    alone = theory.predict(classification(INPUTS[:1], LABELS[:1]), short)
    assert "Theorem 3" in alone.theorem
    one = jnp.eye(2)
    given = models.LinearTensorNetwork.from_decomposition(
        models.Decomposition(one, (one, one)), (jnp.ones(2), jnp.zeros(2))
    )
    found = theory.predict(risk, given)
    assert "Theorem 2" in found.theorem and bool(found.assumptions[-1].holds)
    assert jnp.array_equal(given.data_tensor, models.diagonal_tensor(2, 2))
    deep = theory.predict(risk, models.DiagonalLinearNetwork((jnp.ones(2),) * 3))
    assert "l_(2/3)" in deep.theorem and "stationary" in deep.theorem
    with pytest.raises(ValueError, match="LinearData"):
        tokens, head = jf.data.random_tokens(KEY, 2, 3, 2)
        del head
        theory.predict(jf.EmpiricalRisk(tokens, Exponential()), short)


def test_a_network_with_frozen_weights_has_no_limit():
    model = models.DiagonalLinearNetwork((jnp.ones(2), jnp.zeros(2)))
    frozen = jf.EmpiricalRisk(
        jf.data.LinearData(INPUTS, LABELS),
        Exponential(),
        trainable=lambda m: eqx.tree_at(lambda t: t.weights, m.trainable(), (True, False)),
    )
    with pytest.raises(ValueError, match="^trainable: "):
        jf.find_limit(frozen, model)
