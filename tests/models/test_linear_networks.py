"""Linear networks: one function in several forms, with laws that hold for all of them."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxflow import models
from jaxflow.data import LinearData
from jaxflow.models.linear_convolution import FFT_FROM
from jaxflow.models.profiles import angle_of, angle_of_height, edge, height, norm_like, time_of
from jaxflow.risk import EmpiricalRisk

KEY = jax.random.key(3)
# A few hundred roundings of numbers of order one.
ROUNDING = 1e-12


def normal(*shape, seed=0):
    return jax.random.normal(jax.random.fold_in(KEY, seed), shape)


DATA = LinearData(normal(4, 5, seed=20), jnp.asarray([1.0, -1.0, 1.0, 1.0]))

RISK = EmpiricalRisk(DATA, "exponential", reduction="sum")

NETWORKS = {
    "diagonal2": models.DiagonalLinearNetwork((normal(5, seed=1), normal(5, seed=2))),
    "diagonal3": models.DiagonalLinearNetwork(tuple(normal(5, seed=i) for i in range(3))),
    "convolution": models.LinearConvolutionalNetwork((normal(5, seed=4), normal(5, seed=5))),
    "filters": models.LinearConvolutionalNetwork((normal(2, seed=6), normal(3, seed=7), normal(5, seed=8))),
    "connected": models.DeepLinearNetwork((normal(5, 3, seed=9), normal(3, 2, seed=10), normal(2, seed=11))),
    "tensor": models.LinearTensorNetwork(
        normal(2, 3, 2, 5, seed=12), (normal(2, seed=13), normal(3, seed=14), normal(2, seed=15))
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_outputs_are_linear_in_the_input_and_homogeneous_in_the_layers(name):
    network = NETWORKS[name]
    network.check(DATA)
    beta = network.linear_coefficients()
    np.testing.assert_allclose(network.outputs(DATA), DATA.inputs @ beta, atol=ROUNDING)
    doubled = jax.tree.map(lambda w: 2.0 * w, network.layers)
    bigger = eqx.tree_at(lambda n: n.weights, network, doubled)
    np.testing.assert_allclose(bigger.linear_coefficients(), 2.0**network.degree * beta, rtol=1e-12)


@pytest.mark.parametrize("name", ["diagonal2", "diagonal3", "convolution", "filters", "connected"])
def test_the_structured_forms_are_the_tensor_form(name):
    network = NETWORKS[name]
    general = models.as_tensor_network(network)
    np.testing.assert_allclose(general.linear_coefficients(), network.linear_coefficients(), atol=ROUNDING)
    # Layer by layer, equation (2) with the identity as activation.
    plain = models.LinearTensorNetwork(general.data_tensor, general.weights, activation=lambda x: x)
    np.testing.assert_allclose(plain.outputs(DATA), network.outputs(DATA), atol=ROUNDING)


@pytest.mark.parametrize(("d", "k"), [(6, 4), (60, 57)])
def test_cross_correlation_and_its_adjoint_by_the_definition(d, k):
    """Long filters take the Fourier transform."""
    assert (k >= FFT_FROM) == (k == 57)
    a, b, c = (np.asarray(normal(size, seed=seed)) for size, seed in ((d, 23), (k, 24), (d, 25)))
    by_hand = [sum(a[(i + j) % d] * b[j] for j in range(k)) for i in range(d)]
    np.testing.assert_allclose(models.cross_correlation(a, b), by_hand, atol=10 * ROUNDING)
    np.testing.assert_allclose(by_hand @ c, a @ models.convolution(c, b), atol=10 * ROUNDING)


def test_a_summed_loss_is_the_paper_s_and_a_mean_is_an_option():
    network = NETWORKS["filters"]

    def margins(network):
        return DATA.targets * (DATA.inputs @ network.linear_coefficients())

    np.testing.assert_allclose(RISK(network), jnp.sum(jnp.exp(-margins(network))), rtol=1e-12)
    np.testing.assert_allclose(EmpiricalRisk(DATA, "exponential")(network), RISK(network) / 4, rtol=1e-12)
    # Margins of a network are as good as its data.
    alone, hidden = (
        EmpiricalRisk.from_margins(margins, "exponential", reduction="sum"),
        EmpiricalRisk.from_function(RISK),
    )
    norm, *others = [risk.scaled_gradient(network).log_norm for risk in (RISK, alone, hidden)]
    np.testing.assert_allclose(others, [norm] * 2, rtol=1e-12)
    # Without margins the gradient is scaled by its own largest entry.
    entries = jax.tree.leaves(hidden.scaled_gradient(network).gradient)
    assert max(float(jnp.max(jnp.abs(entry))) for entry in entries) == 1.0


@pytest.mark.parametrize("name", ["diagonal2", "diagonal3", "convolution"])
def test_decompositions_satisfy_assumption_1(name):
    network = NETWORKS[name]
    found = models.decomposition_of(network)
    np.testing.assert_allclose(found.tensor(), models.as_tensor_network(network).data_tensor, atol=ROUNDING)
    rho = found.singular_coefficients(network.layers)
    np.testing.assert_allclose(found.transform.T @ rho, network.linear_coefficients(), atol=ROUNDING)


@pytest.mark.parametrize(("d", "depth"), [(6, 2), (5, 3), (2, 2), (1, 3)])
def test_the_even_decomposition_on_even_vectors(d, depth):
    layers = tuple(models.even_part(normal(d, seed=31 + i)) for i in range(depth))
    found = models.even_decomposition(d, depth)
    m = d // 2 + 1
    np.testing.assert_allclose(found.factors[0].T @ found.factors[0], jnp.eye(m), atol=ROUNDING)
    x = models.even_part(normal(d, seed=40))
    rho = found.singular_coefficients(layers)
    network = models.LinearConvolutionalNetwork(layers)
    np.testing.assert_allclose((found.transform @ x) @ rho, x @ network.linear_coefficients(), atol=ROUNDING)


def test_starts_of_the_theorems():
    data = LinearData(normal(3, 6, seed=50), jnp.ones(3))
    for cls in (models.DiagonalLinearNetwork, models.LinearConvolutionalNetwork):
        equal = cls.init(KEY, data, depth=3, alpha=0.1, scheme="equal")
        first, second, last = equal.layers
        assert jnp.array_equal(first, second) and not jnp.any(last) and jnp.all(jnp.abs(equal.conserved()) > 0)
    even = models.LinearConvolutionalNetwork.init(KEY, data, scheme="equal").layers[0]
    np.testing.assert_allclose(models.even_part(even), even, atol=ROUNDING)
    assert float(jnp.min(jnp.abs(jnp.fft.fft(even, norm="ortho")))) >= 0.5 - ROUNDING
    one = models.DeepLinearNetwork.init(KEY, data, depth=3, alpha=0.5, scheme="identity")
    np.testing.assert_allclose(one.layers[0], 0.5 * jnp.eye(6))
    filters = models.LinearConvolutionalNetwork.init(KEY, data, depth=3, sizes=(2, 3))
    assert [w.shape[0] for w in filters.layers] == [2, 3, 6]
    square = LinearData(normal(3, 4, seed=51), jnp.ones(3))
    sensing = models.DeepMatrixSensing.init(KEY, square, depth=2, alpha=0.1)
    assert sensing.product().shape == (2, 2) and not jnp.any(sensing.linear_coefficients())
    tensor = models.LinearTensorNetwork.init(KEY, data, data_tensor=models.diagonal_tensor(6, 2))
    assert not jnp.any(tensor.layers[-1])


def test_an_activation_is_applied_after_every_layer_but_the_last():
    tensor = normal(2, 3, 4, seed=52)
    v1, v2 = normal(2, seed=53), normal(3, seed=54)
    network = models.LinearTensorNetwork(tensor, (v1, v2), activation=jax.nn.relu)
    x = normal(4, seed=55)
    by_hand = jax.nn.relu((tensor @ x).T @ v1) @ v2
    np.testing.assert_allclose(network.outputs(LinearData(x[None], jnp.ones(1)))[0], by_hand, atol=ROUNDING)
    with pytest.raises(ValueError, match="activation"):
        network.linear_coefficients()
    built = models.LinearTensorNetwork.from_map(lambda x: tensor @ x, 4, (v1, v2))
    np.testing.assert_allclose(built.data_tensor, tensor, atol=ROUNDING)
    np.testing.assert_allclose(models.contract(tensor @ x, (v1, v2), skip=0), (tensor @ x) @ v2, atol=ROUNDING)


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match="^inputs: "):
        NETWORKS["diagonal2"].check(LinearData(jnp.ones((1, 4)), jnp.ones(1)))
    with pytest.raises(ValueError, match="^network: "):
        models.decomposition_of(NETWORKS["connected"])


@pytest.mark.parametrize("depth", [2, 3, 4, 5, 8])
def test_the_profiles_solve_their_differential_equations(depth):
    """p' = p^(L−2) q and q' = p^(L−1), by the derivative of angle_of; the closed forms; H' = h^(−1)."""
    c = min(edge(depth), 2.0)
    t = jnp.linspace(-0.9, 0.9, 7) * c
    s, rate = jax.jvp(lambda t: angle_of(depth, t), (t,), (jnp.ones_like(t),))
    p, q = jnp.cosh(s), jnp.sinh(s)
    np.testing.assert_allclose(q * rate, p ** (depth - 2) * q, rtol=1e-12)
    np.testing.assert_allclose(time_of(depth, s), t, atol=1e-13)
    h = height(depth, s)
    np.testing.assert_allclose(angle_of_height(depth, h), s, atol=1e-12)
    slope = jax.vmap(jax.grad(lambda x: norm_like(depth, x)))(h)
    np.testing.assert_allclose(slope, t, atol=1e-11)
    if depth == 3:
        np.testing.assert_allclose(h, jnp.tan(t) / jnp.cos(t) ** 2, rtol=1e-12, atol=1e-13)
    if depth == 4:
        np.testing.assert_allclose(h, t / (1 - t**2) ** 2, rtol=1e-12, atol=1e-13)


@pytest.mark.slow
def test_the_edges_of_the_intervals():
    assert edge(2) == float("inf") and edge(3) == pytest.approx(np.pi / 2) and edge(4) == pytest.approx(1.0)
    # ∫_0^∞ cosh^(−3) = π/4.
    assert edge(5) == pytest.approx(np.pi / 4)
    assert bool(jnp.isnan(angle_of(3, jnp.asarray(1.6)))) and bool(jnp.isinf(angle_of(4, jnp.asarray(1.0))))
