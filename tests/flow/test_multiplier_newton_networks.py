"""Stages solved for multipliers: margins against dense algebra, fields, plain Newton's method, gaps that close."""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optimistix
import pytest
from jax.flatten_util import ravel_pytree

import jaxflow as jf
from jaxflow import models
from jaxflow.flow import ArcLength, Factors, LogArcLength, MultiplierNewton, Scores, Weights
from jaxflow.flow.margins import AffineMargins, BilinearMargins, PairMargins, QuadraticMargins
from jaxflow.flow.solvers import as_terms, state_norm
from jaxflow.flow.system import make_system
from jaxflow.limits.self_certificate import network_certificate
from jaxflow.limits.stages import STATIONARY, stationarity

KEY = jax.random.key(3)
# A sum of a few hundred products, and a solve with a matrix of condition ten: a thousand roundings.
ROUNDING = 1e-12


def normal(*shape, seed=0):
    return jax.random.normal(jax.random.key(seed), shape)


def symmetric(N, D):
    H = normal(N, D, D, seed=4)
    return H + H.swapaxes(1, 2)


MARGINS = {
    "affine": (AffineMargins(normal(6), normal(6, 5, seed=1)), normal(5, seed=2)),
    "bilinear": (
        BilinearMargins(normal(6, 4), normal(3, 2, seed=1)),
        (normal(4, 3, seed=2), normal(2, 3, seed=5)),
    ),
    "halves": (PairMargins(normal(6, 4)), (normal(4, seed=2), normal(4, seed=5))),
    "quadratic": (QuadraticMargins(symmetric(6, 5)), normal(5, seed=2)),
}
_layers = models.DeepLinearNetwork((normal(4, 3, seed=2), normal(3, seed=5)))
MARGINS["leaves"] = (BilinearMargins(normal(6, 4), jnp.ones((1, 1))), _layers)
MARGINS["vector"] = (QuadraticMargins(symmetric(6, 15)), _layers)


@pytest.mark.slow
@pytest.mark.parametrize("name", MARGINS)
def test_margins_against_dense_algebra(name):
    margins, x = MARGINS[name]
    flat, unravel = ravel_pytree(x)
    pi = jnp.abs(normal(6, seed=7))
    v = unravel(normal(flat.size, seed=8))

    def vector(tree):
        return np.asarray(ravel_pytree(tree)[0])

    q = lambda flat: margins(unravel(flat))  # noqa: E731
    gradients = np.asarray(jax.jacfwd(q)(flat))
    S = np.asarray(jax.hessian(lambda flat: pi @ q(flat))(flat))
    if name != "affine":
        # The largest eigenvalue λ of S becomes 1.5. B is positive definite where κ λ < 1 + κ: up to κ = 2.
        factor = 1.5 / float(np.linalg.eigvalsh(S)[-1])
        pi, S = factor * pi, factor * S
        # Beyond it a direction grows faster than the step.
        assert bool(margins.regular(margins.factored(pi, jnp.asarray(1.9))))
        assert not bool(margins.regular(margins.factored(pi, jnp.asarray(2.1))))
    kappa = jnp.asarray(0.8)
    B = (1 + float(kappa)) * np.eye(flat.size) - float(kappa) * S
    factors = margins.factored(pi, kappa)
    near = dict(rtol=ROUNDING, atol=ROUNDING)
    np.testing.assert_allclose(vector(margins.pull(pi, x)), np.asarray(pi) @ gradients, **near)
    np.testing.assert_allclose(margins.slopes(x, v), gradients @ vector(v), **near)
    np.testing.assert_allclose(vector(margins.curved(pi, v)), S @ vector(v), **near)
    np.testing.assert_allclose(vector(margins.solve(factors, v)), np.linalg.solve(B, vector(v)), **near)
    np.testing.assert_allclose(margins.gram(factors, x), gradients @ np.linalg.solve(B, gradients.T), **near)
    assert bool(margins.regular(factors))
    assert margins.degree == (1 if name == "affine" else 2)


def tokens(model, size):
    data, head = jf.data.random_tokens(KEY, 3, 4, 4)
    start = model.init(KEY, data, head)
    # Far enough out for one token of each query to have all of the attention but e^-20 or less.
    far = jax.tree.map(lambda x, moves: size * x if moves else x, start, start.trainable())
    return jf.EmpiricalRisk(data, "logistic"), far


def network(model, reduction="mean", loss="exponential", **how):
    data = jf.data.LinearData(normal(3, 4, seed=11), jnp.asarray([1.0, -1.0, 1.0]))
    start = model.init(KEY, data, alpha=0.7, scheme="random", **how)
    return jf.EmpiricalRisk(data, loss, reduction=reduction), start


FIELDS = {
    "W": (lambda: tokens(models.CombinedAttention, 400.0), Scores()),
    "KQ": (lambda: tokens(models.FactoredAttention, 30.0), Factors()),
    "diagonal attention": (lambda: tokens(models.DiagonalAttention, 60.0), Weights()),
    "diagonal": (lambda: network(models.DiagonalLinearNetwork), Weights()),
    "fully connected": (lambda: network(models.DeepLinearNetwork, reduction="sum", width=2), Weights()),
    "convolutional": (lambda: network(models.LinearConvolutionalNetwork, loss="logistic"), Weights()),
    "short filters": (lambda: network(models.LinearConvolutionalNetwork, sizes=(2,)), Weights()),
    "matrix sensing": (lambda: network(models.DeepMatrixSensing), Weights()),
}


@pytest.mark.parametrize("name", FIELDS)
def test_gradient_of_the_first_step_is_that_of_the_coordinates(name):
    make, coordinates = FIELDS[name]
    risk, model = make()
    system, x = make_system(LogArcLength(timed=False, cap=1e6), coordinates, risk, model)
    y = system.start(x)
    solver = MultiplierNewton()
    zero = jnp.zeros(())

    @eqx.filter_jit
    def both(system, y):
        state = solver.init(as_terms(system.field, solver), zero, zero + 0.1, y, None)
        return solver.scaled_gradient(system, zero, y, state), system.coordinates.field(system.context, y[0])

    ours, theirs = both(system, y)
    factor = jnp.exp(ours.log_scale - theirs.log_scale)
    for ours_leaf, leaf in (
        (ravel_pytree(ours.gradient)[0], ravel_pytree(theirs.gradient)[0]),
        (ours.multipliers, theirs.multipliers),
    ):
        assert ours_leaf.shape == leaf.shape
        # Exponents of a hundred carry a hundred roundings, and attention on other tokens of e^-20 is what
        # saturated multipliers leave out.
        np.testing.assert_allclose(factor * ours_leaf, leaf, rtol=1e-8, atol=1e-10 * float(jnp.max(jnp.abs(leaf))))


@pytest.mark.parametrize("name", [name for name in FIELDS if name != "W"])
def test_a_model_beyond_the_cap_is_in_proportion_to_the_longer_one(name):
    # Also what never moves: of starts of 1e3 it was nearly all that was left of the error of a direction.
    make, coordinates = FIELDS[name]
    risk, model = make()
    system, x = make_system(LogArcLength(timed=False, cap=10.0), coordinates, risk, model)
    s = jnp.log(1e3)
    shown = system.point(s, system.start(x), jnp.asarray(True))
    longer = system.coordinates.decode(system.context, jax.tree.map(lambda x: 1e3 * x, x))
    parts = [ravel_pytree(eqx.filter(one, risk.filter(one)))[0] for one in (shown.model, longer)]
    np.testing.assert_allclose(100.0 * parts[0], parts[1], rtol=1e-12)
    np.testing.assert_allclose(shown.log_norm, jnp.log(jnp.linalg.norm(parts[1])), rtol=1e-12)


@pytest.mark.slow
def test_agrees_with_newton_for_the_weights():
    risk, model = FIELDS["fully connected"][0]()

    near = jf.integrate(
        risk, model, clock=ArcLength(timed=False), until=4.0, controller=diffrax.PIDController(1e-10, 1e-12)
    )
    plain = diffrax.Kvaerno5(root_finder=optimistix.Newton(rtol=1e-10, atol=1e-12, norm=state_norm))
    controller = diffrax.PIDController(rtol=1e-8, atol=1e-10, pcoeff=0.3, icoeff=0.4, norm=state_norm)
    ours, theirs = (
        jf.integrate(
            risk, near.model, clock=LogArcLength(unit=4.0, timed=False), until=3.0, solver=x, controller=controller
        )
        for x in (MultiplierNewton(), plain)
    )
    a, b = ravel_pytree(ours.final.model)[0], ravel_pytree(theirs.final.model)[0]
    # Errors of tens of steps of 1e-8 each; Newton's last change in a stage is 1e-6 of the multipliers at most, its
    # error the square of it.
    np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6 * float(jnp.max(jnp.abs(b))))
    np.testing.assert_allclose(ours.final.log_arc_length, theirs.final.log_arc_length, rtol=1e-6)
    # The exponents are margins of hundreds, whose relative errors are those above.
    p, q = (
        np.asarray(t.final.multipliers) * np.exp(t.final.log_scale - theirs.final.log_scale) for t in (ours, theirs)
    )
    np.testing.assert_allclose(p, q, rtol=1e-3)


@pytest.mark.slow
def test_closes_its_own_gap_and_ends_at_rest_where_no_gap_is_small_enough():
    risk, model = FIELDS["fully connected"][0]()
    follow = eqx.filter_jit(lambda gap: jf.LinearStaged().follow(risk, model, 1000, gap))
    # No certificate satisfies the second one. The floor of the margins is a few over the exponents of 1e12.
    for gap in (1e-10, 1e-300):
        path = follow(jnp.asarray(gap))
        final = path.final
        certificate, direction = network_certificate(risk, final.model, final.velocity, final.multipliers)
        assert float(certificate.duality_gap) <= 1e-10
        assert path.result == jf.RESULTS.event_occurred and int(path.stats["num_steps"]) < 300
        assert bool(jnp.all(jnp.isfinite(direction)))
    assert float(stationarity(final)) > STATIONARY
    # A certificate that were always zero would not see another direction.
    wrong = eqx.tree_at(lambda m: m.weights, final.model, tuple(w + 0.1 for w in final.model.weights))
    other, _ = network_certificate(risk, wrong, jax.tree.map(jnp.zeros_like, final.velocity), final.multipliers)
    assert not float(other.duality_gap) <= 1e-10
