"""Laws over every attention model, head and loss; what a flow conserves, of every model."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxflow import models
from jaxflow.data import TokenData, random_sequences, random_tokens
from jaxflow.losses import Exponential, Logistic, Squared, Tail, as_loss, log_slope_excess
from jaxflow.risk import EmpiricalRisk
from tests.models import test_linear_networks as linear

MODELS = [models.CombinedAttention, models.FactoredAttention, models.DiagonalAttention]
DATA, V = random_tokens(jax.random.key(0), 3, 4, 3)
KEY = jax.random.key(1)


def make(model=models.CombinedAttention, head=V, loss="logistic", trainable=None, data=DATA):
    return EmpiricalRisk(data, loss, trainable), model.init(KEY, data, head)


def assert_trees_close(a, b, relative):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert jnp.max(jnp.abs(x - y)) <= relative * jnp.max(jnp.abs(y))


class Bump(eqx.Module):
    """A module with an array, a number and a function among its leaves."""

    centre: jax.Array
    width: float
    shape: object

    def __call__(self, x):
        return self.shape(-jnp.sum((x - self.centre) ** 2) / self.width)


HEADS = {
    "linear": V,
    "mlp": models.MLPHead(jax.random.normal(jax.random.key(2), (5, 3))),
    "concave": models.ConcaveHead(V, 0.3),
    "closure": lambda x: jnp.sin(x[0]) - 0.3 * x[1],
    "module": Bump(V, 2.0, jnp.exp),
    "network": eqx.nn.MLP(3, "scalar", 4, 1, jnp.tanh, key=jax.random.key(3)),
}
SEVERAL, ROWS = random_sequences(jax.random.key(2), 3, 4, 3, k=2, self_attention=False, position_heads=True)
JOINT = models.attention_and_head


def in_parallel(part, trainable=None):
    """Three layers, each with a head of its own."""
    heads = jnp.stack([V, *jax.random.normal(jax.random.key(1), (2, 3))])
    return EmpiricalRisk(DATA, "logistic", trainable), models.MultiHeadAttention.init(KEY, DATA, heads, part)


CASES = {f"{m.__name__}, {h}": partial(make, m, HEADS[h], trainable=JOINT) for m in MODELS for h in ("linear", "mlp")}
for name in ("concave", "closure", "module", "network"):
    CASES[f"{name} head"] = partial(make, head=HEADS[name], trainable=JOINT)
for name in ("exponential", "squared", "correlation"):
    CASES[name] = partial(make, models.FactoredAttention, loss=name, trainable=JOINT)
CASES["heads of positions"] = partial(
    make, models.FactoredAttention, models.PositionHeads(ROWS), "logistic", JOINT, SEVERAL
)
CASES["layers of W, attention alone"] = partial(in_parallel, models.CombinedAttention)
CASES["layers of KQ"] = partial(in_parallel, models.FactoredAttention, JOINT)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_equals_autodiff_where_that_does_not_underflow(name):
    risk, start = CASES[name]()
    risk.check(start)
    scaled = risk.scaled_gradient(start)
    params, frozen = eqx.partition(start, risk.filter(start))
    naive = jax.grad(lambda p: risk(eqx.combine(p, frozen)))(params)
    full = jax.tree.map(lambda g: jnp.exp(scaled.log_scale) * g, scaled.gradient)
    # 1e-12: a few thousand roundings; measured at most 1e-14.
    assert_trees_close(full, naive, 1e-12)
    if name == "network head":
        # W, and the weights and biases of two layers.
        assert len(jax.tree.leaves(scaled.gradient)) == 1 + 4
    if name.startswith("layers"):
        assert scaled.multipliers.shape == (3, 3, 4)


@pytest.mark.parametrize("model", MODELS)
def test_stays_of_order_one_at_any_distance(model):
    risk, start = make(model)
    far = jax.tree.map(lambda x, moves: 1e4 * x if moves else x, start, risk.filter(start))
    scaled = risk.scaled_gradient(far)
    assert scaled.log_scale < -100
    largest = max(float(jnp.max(jnp.abs(g))) for g in jax.tree.leaves(scaled.gradient))
    assert 1e-6 < largest < 1e6
    assert jnp.isfinite(scaled.log_norm)


CONSERVED = {
    **{m.__name__: make(m) for m in (models.FactoredAttention, models.DiagonalAttention)},
    **{name: (linear.RISK, network) for name, network in linear.NETWORKS.items()},
}


@pytest.mark.parametrize("name", CONSERVED)
def test_the_flow_conserves_what_it_says(name):
    """Its derivative along the gradient is zero at a random point, without integrating."""
    risk, start = CONSERVED[name]
    gradient = risk.scaled_gradient(start).gradient
    conserved, rate = eqx.filter_jvp(lambda model: model.conserved(), (start,), (gradient,))
    # Some tens of roundings of numbers of order one.
    assert max(float(jnp.max(jnp.abs(r))) for r in jax.tree.leaves(rate)) <= 1e-14
    assert max(float(jnp.max(jnp.abs(c))) for c in jax.tree.leaves(conserved)) > 0.01


@pytest.mark.parametrize("model", MODELS)
def test_permuting_tokens_permutes_multipliers(model):
    risk, start = make(model)
    order = jnp.array([2, 0, 3, 1])
    data = TokenData(DATA.tokens[:, order], DATA.queries, DATA.labels)
    permuted, scaled = EmpiricalRisk(data, risk.loss).scaled_gradient(start), risk.scaled_gradient(start)
    assert jnp.allclose(permuted.multipliers, scaled.multipliers[:, order], atol=1e-14)
    assert jnp.max(jnp.abs(jnp.sum(scaled.multipliers, axis=-1))) <= 1e-15
    assert_trees_close(permuted.gradient, scaled.gradient, 1e-13)


def test_a_hidden_token_is_as_good_as_absent():
    _, start = make()
    mask = jnp.ones((3, 4), bool).at[:, 3].set(False)
    hidden = EmpiricalRisk(TokenData(DATA.tokens, DATA.queries, DATA.labels, mask), "logistic")
    absent = EmpiricalRisk(TokenData(DATA.tokens[:, :3], DATA.queries, DATA.labels), "logistic")
    assert float(hidden(start)) == pytest.approx(float(absent(start)), rel=1e-14)
    assert_trees_close(hidden.scaled_gradient(start).gradient, absent.scaled_gradient(start).gradient, 1e-13)
    assert jnp.all(hidden.scaled_gradient(start).multipliers[:, 3] == 0)


def naive_risk(W, data, heads, causal):
    """Equation (10) with heads h_k as in App. D, sequence by sequence and output by output (mean over outputs)."""
    total, (n, T) = 0.0, data.labels.shape
    for i in range(n):
        X = data.tokens[i]
        for k in range(T):
            seen = X[: k + 1] if causal else X
            mixture = seen.T @ jax.nn.softmax(seen @ W @ data.queries[i, k])
            v = heads[k] if heads.ndim == 2 else heads
            total = total + jnp.log1p(jnp.exp(-data.labels[i, k] * (v @ mixture)))
    return total / (n * T)


@pytest.mark.parametrize(("model", "causal"), [*((model, True) for model in MODELS), (models.CombinedAttention, False)])
def test_several_outputs_have_the_gradient_of_the_definition(model, causal):
    """Causal with a head for each position, or neither."""
    data, v = random_sequences(jax.random.key(0), 2, 4, 3, causal=causal, position_heads=causal)
    risk, start = make(model, models.PositionHeads(v) if causal else v, data=data)
    params, frozen = eqx.partition(start, risk.filter(start))

    def naive(params):
        return naive_risk(eqx.combine(params, frozen).combined_weights(), data, v, causal)

    # One program: the many small ones of a loop over outputs take longer to compile.
    loss, gradient = jax.jit(jax.value_and_grad(naive))(params)
    assert float(risk(start)) == pytest.approx(float(loss), rel=1e-14)
    scaled = risk.scaled_gradient(start)
    full = jax.tree.map(lambda g: jnp.exp(scaled.log_scale) * g, scaled.gradient)
    assert_trees_close(full, gradient, 1e-12)
    assert jnp.all(jnp.where(data.visible, 0.0, scaled.multipliers) == 0)


def test_outputs_that_see_one_token_have_nothing_to_learn():
    data, v = random_sequences(jax.random.key(0), 2, 4, 3)
    mask = jnp.broadcast_to(jnp.arange(4) == 1, (2, 4, 4))
    blind, start = make(head=v, data=TokenData(data.tokens, data.queries, data.labels, mask))
    scaled = blind.scaled_gradient(start)
    assert jnp.all(scaled.gradient.W == 0) and jnp.all(scaled.multipliers == 0) and jnp.isfinite(scaled.log_scale)


@pytest.mark.parametrize("loss", [Logistic(), Exponential()])
def test_log_value_survives_underflow(loss):
    q = jnp.array([-3.0, 0.5, 19.0, 21.0, 700.0, 1e6])
    logs = loss.log_value(q, jnp.ones(6))
    assert jnp.allclose(logs[:4], jnp.log(loss.value(q, jnp.ones(6)))[:4], rtol=1e-12)
    assert logs[-1] == pytest.approx(-1e6)


def test_a_loss_of_ones_own_has_a_tail():
    by_hand, logistic = as_loss(lambda q: jnp.log1p(jnp.exp(-q))), as_loss("logistic")
    assert by_hand.tail is Tail.exponential
    for q in (-3.0, 0.5, 40.0, 1e4):
        there = jnp.array([q, q + 1.0])
        ours, theirs = (loss.scaled_derivative(there, jnp.ones(2)) for loss in (by_hand, logistic))
        # The tail's slope is known to 1e-7, from q = 128 on.
        np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-6)
        np.testing.assert_allclose(ours[1], theirs[1], rtol=1e-6)
        np.testing.assert_allclose(*(log_slope_excess(loss, there) for loss in (by_hand, logistic)), atol=128e-7)
    # A power of q beside the exponential, however small.
    assert as_loss(lambda q: jnp.exp(-q) * (2.0 + q**2) ** 0.01).tail is Tail.other


def test_a_squared_loss_is_scaled_by_its_largest_residual():
    scale, weights = Squared().scaled_derivative(jnp.array([3.0, 0.5]), jnp.ones(2))
    np.testing.assert_allclose(jnp.exp(scale), 2.0, rtol=1e-15)
    np.testing.assert_array_equal(weights, [1.0, -0.25])
