"""Hadamard networks: gradients, the flow in log coordinates, and weights far below the smallest number."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxflow as jf
from jaxflow import models
from jaxflow.papers.boix2023.product_paths import follow_products, perturbed
from jaxflow.teachers import diagonal_head_task, taught

D = 3


def linear_risk(key=0, n=5):
    inputs, noise = jax.random.normal(jax.random.key(key), (n, D)), jax.random.normal(jax.random.key(key + 1), (n,))
    return jf.EmpiricalRisk(jf.data.LinearData(inputs, inputs @ jnp.array([1.0, -0.5, 0.3]) + 0.1 * noise), "squared")


def head_risk(n=4, T=3, d=2):
    data, _ = diagonal_head_task(jax.random.key(0), n, T, d)
    return jf.EmpiricalRisk(data, "squared")


@pytest.mark.parametrize(
    "h, risk, p", [(models.DiagonalLinear(), linear_risk(), D), (models.DiagonalHead(), head_risk(), 4)]
)
def test_gradient_equals_autodiff_with_and_without_logarithms(h, risk, p):
    u, v = jax.random.normal(jax.random.key(3), (2, p))
    expected = jax.grad(lambda w: risk(models.HadamardNetwork(h, *w)))((u, v))
    plain = models.HadamardNetwork(h, u, v)
    for model in (plain, plain.scaled(0.0)):
        scaled = risk.scaled_gradient(model)
        for mine, theirs in zip((scaled.gradient.u, scaled.gradient.v), expected, strict=True):
            # A few hundred roundings.
            assert jnp.allclose(jnp.exp(scaled.log_scale) * mine, theirs, rtol=1e-12, atol=1e-14)


def test_gradient_of_weights_below_the_smallest_number():
    risk = linear_risk()
    small = models.HadamardNetwork.init(jax.random.key(0), models.DiagonalLinear(), D, log_scale=-10_000.0)
    scaled = risk.scaled_gradient(small)
    assert jnp.all(small.u == 0.0) and scaled.log_scale < -9000
    # Near zero the gradient is linear in the weights: the same, e^(-9990) times smaller.
    less = risk.scaled_gradient(small.scaled(9_990.0))
    assert jnp.allclose(scaled.gradient.u, less.gradient.u, rtol=1e-6)
    assert scaled.log_scale == pytest.approx(float(less.log_scale) - 9_990.0, rel=1e-12)


def test_logarithms_give_the_weights_back_with_every_sign():
    u, v = jnp.array([2.0, -2.0, 1.0, -1.0, 0.5]), jnp.array([1.0, 1.5, -3.0, 4.0, -0.25])
    logs = models.LogWeights.of(u, v)
    back = logs.mantissas()
    assert jnp.allclose(back[0], u, rtol=1e-14) and jnp.allclose(back[1], v, rtol=1e-14)
    assert jnp.allclose(logs.products, u * v, rtol=1e-14)
    model = models.HadamardNetwork(models.DiagonalLinear(), u, v)
    assert jnp.allclose(model.conserved(), model.scaled(0.0).conserved(), rtol=1e-13)


@pytest.mark.slow
def test_log_coordinates_trace_the_path_of_the_weights():
    """With the logarithms of u + v alone, and with those of u - v beside them, which conserve their sum."""
    risk = head_risk()
    model = models.HadamardNetwork.init(jax.random.key(5), models.DiagonalHead(), 4).scaled(np.log(0.3))
    grid = jnp.array([0.5, 2.0, 5.0])
    paths = []
    for coordinates in ("weights", "log_hadamard", jf.LogHadamard(separate=True)):
        # Weights know no logarithms.
        start = models.HadamardNetwork(model.h, model.u, model.v) if coordinates == "weights" else model
        controller = jf.flow.solvers.as_controller(None, jf.flow.solvers.as_solver("tsit5", jf.PhysicalTime()))
        path = jf.integrate(
            risk, start, clock=jf.RescaledTime(-3.0), until=5.0, save_at=grid, solver="tsit5", controller=controller,
            coordinates=coordinates,
        )  # fmt: skip
        weights = path.saved.model.u, path.saved.model.v, path.final.velocity.u
        paths.append((weights, (path.log_time, path.log_arc_length, path.log_gradient_norm)))
    # rtol 1e-8 over a path of a few units.
    for other in paths[1:]:
        for a, b in zip(jax.tree.leaves(paths[0]), jax.tree.leaves(other), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(path.log_time, jnp.log(3.0 * grid), rtol=1e-6)
    drift = path.final.model.log_weights.log_conserved / model.log_weights.log_conserved - 1.0
    assert jnp.max(jnp.abs(drift)) <= 1e-8


@pytest.mark.slow
def test_few_columns_and_all_of_them_give_the_same_flow():
    """From a start at which no coordinate counts to an end at which all four do."""
    data, _ = diagonal_head_task(jax.random.key(2), 8, 3, 2)
    risk = jf.EmpiricalRisk(data, "squared")
    model = models.HadamardNetwork.init(jax.random.key(0), models.DiagonalHead(), 4, -300.0)
    clock, times = jf.RescaledTime(-300.0), jnp.array([8.0, 14.0, 25.0])
    both = [
        jf.integrate(risk, model, clock=clock, until=25.0, save_at=times, coordinates=jf.LogHadamard(sparse=few))
        for few in (False, True)
    ]
    steps = [int(path.stats["num_steps"]) for path in both]
    # Newton's matrices differ by rounding, and with them what passes a tolerance barely or barely not: 153 steps
    # against 160 were seen where the data differed in their last digits. A wrong matrix costs many times more.
    assert abs(steps[1] - steps[0]) <= 0.1 * steps[0]
    dense, sparse = (np.asarray(path.saved.model.u * path.saved.model.v) for path in both)
    # The tolerance on the logarithms of weights is 1e-5, and a product is a square of one.
    assert np.allclose(sparse, dense, rtol=2e-5, atol=1e-9)
    learned = np.sum(np.abs(sparse) > 1e-2, axis=1)
    assert learned[0] >= 1 and learned[-1] == 4


@pytest.mark.slow
def test_crossings_and_hermite_interpolation():
    """One product alone: a' = 2 sqrt(a² + c²/4) g(a) in closed form, u v learned from both sides of zero."""
    for target, log_alpha in ((1.0, -40.0), (-2.0, -10_000.0)):
        risk = jf.EmpiricalRisk(jf.data.LinearData([[1.0]], [target]), "squared")
        model = models.HadamardNetwork(models.DiagonalLinear(), [1.0], [0.5]).scaled(log_alpha)
        path = follow_products(risk, model, log_alpha, 3.0)
        half = path.crossings(0, 0.5 * target)
        # ω is linear until a is of order one: the logarithm of w/c passes half way at rate |target|.
        assert len(half) == 1 and half[0] == pytest.approx(1.0 / abs(target), abs=2.0 / -log_alpha)
        assert path.products_at(half[0])[0, 0] == pytest.approx(0.5 * target, rel=1e-6)
        # An explicit method hovers at its stability limit, within the tolerance on ω (1e-5).
        near = 2e-5 if log_alpha > -75 else 1e-6
        assert path.products_at(3.0)[0, 0] == pytest.approx(target, rel=near)
        assert path.losses[0] == pytest.approx(0.5 * target**2) and path.losses[-1] < 1e-9
        assert len(path.crossings(0, -0.5 * target)) == 0


def test_noise_goes_on_learned_weights_alone():
    logs = models.LogWeights.of(jnp.array([1.0, 1.0]), jnp.array([0.9, 0.5]), jnp.array([0.0, -50.0]))
    model = models.HadamardNetwork(models.DiagonalLinear(), *logs.mantissas(), logs)
    moved = perturbed(model, jax.random.key(0), noise=0.05)
    assert jnp.abs(moved.u[0] - model.u[0]) > 1e-6 and moved.log_weights.log_sum[1] == logs.log_sum[1]
    assert moved.log_weights.log_conserved[0] != logs.log_conserved[0]


def test_at_zero_the_gradient_for_the_logits_is_exactly_zero():
    at_zero = head_risk().scaled_gradient(models.ProductNetwork(models.DiagonalHead(), jnp.zeros(4))).gradient.products
    assert jnp.all(at_zero[:2] == 0.0) and jnp.all(at_zero[2:] != 0.0)


@pytest.mark.slow
def test_transformer_of_layers_and_heads():
    """Against the definition with matrices, Example 3.2; and it is one model under the same flow."""
    d, layers, heads, m, T = 2, 2, 2, 3, 3
    h = models.DiagonalTransformer.init(jax.random.key(0), d, layers, heads, m)
    a = jax.random.normal(jax.random.key(1), (h.size(d),))
    x = jax.random.normal(jax.random.key(2), (T, d))
    z = x
    for layer in range(layers):
        total = z
        for head in range(heads):
            start = 2 * d * (layer * heads + head)
            kq, vo = jnp.diag(a[start : start + d]), jnp.diag(a[start + d : start + 2 * d])
            total = total + jax.nn.softmax(z @ kq @ z.T, axis=-1) @ z @ vo
        z = total + jax.nn.gelu(total @ h.A[layer], approximate=False) @ h.B[layer].T
    assert jnp.allclose(h(x, a), z, rtol=1e-12)
    data = taught(jax.random.normal(jax.random.key(3), (4, T, d)), models.ProductNetwork(h, 0.5 * a))
    risk = jf.EmpiricalRisk(data, "squared")
    model = models.HadamardNetwork.init(jax.random.key(4), h, h.size(d), log_scale=-50.0)
    risk.check(model)
    gradient = risk.scaled_gradient(models.ProductNetwork(h, jnp.zeros(h.size(d)))).gradient.products
    # No head's logits matter while its values are zero.
    per_head = gradient.reshape(layers * heads, 2, d)
    assert jnp.all(per_head[:, 0] == 0.0) and jnp.all(per_head[:, 1] != 0.0)
