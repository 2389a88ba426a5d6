"""Laws over every attention model, head and loss."""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

from jaxflow.data import TokenData, random_sequences, random_tokens
from jaxflow.losses import Correlation, Exponential, Logistic, Squared
from jaxflow.models import (
    CombinedAttention,
    ConcaveHead,
    DiagonalAttention,
    FactoredAttention,
    LinearHead,
    MLPHead,
    MultiHeadAttention,
    PositionHeads,
)
from jaxflow.risk import EmpiricalRisk

MODELS = [CombinedAttention, FactoredAttention, DiagonalAttention]
HEADS = ["linear", "mlp", "concave"]


def make(model, head="linear", loss=None, trainable=None, n=3, T=4, d=3):
    data, v = random_tokens(jax.random.key(0), n, T, d)
    heads = {
        "linear": LinearHead(v),
        "mlp": MLPHead(jax.random.normal(jax.random.key(2), (5, d))),
        "concave": ConcaveHead(v, 0.3),
    }
    risk = EmpiricalRisk(data, loss or Logistic(), trainable)
    return risk, model.init(jax.random.key(1), data, heads[head])


def everything(model):
    return jax.tree.map(eqx.is_inexact_array, model)


def autodiff(risk, model):
    params, frozen = eqx.partition(model, risk.filter(model))
    return jax.grad(lambda p: risk(eqx.combine(p, frozen)))(params)


def assert_trees_close(a, b, relative):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert jnp.max(jnp.abs(x - y)) <= relative * jnp.max(jnp.abs(y))


CASES = [(model, head, Logistic()) for model in MODELS for head in HEADS]
CASES += [(FactoredAttention, "linear", loss) for loss in (Exponential(), Squared(), Correlation())]


@pytest.mark.parametrize(("model", "head", "loss"), CASES)
def test_equals_autodiff_where_that_does_not_underflow(model, head, loss):
    """For all that may be trained: attention's part is that of attention alone."""
    risk, start = make(model, head, loss, everything)
    scaled = risk.scaled_gradient(start)
    full = jax.tree.map(lambda g: jnp.exp(scaled.log_scale) * g, scaled.gradient)
    # 1e-12: a few thousand roundings; measured at most 1e-14.
    assert_trees_close(full, autodiff(risk, start), 1e-12)


@pytest.mark.parametrize("model", MODELS)
def test_equals_finite_difference(model):
    risk, start = make(model)
    scaled = risk.scaled_gradient(start)
    params, frozen = eqx.partition(start, risk.filter(start))
    h = 1e-6
    step = jax.tree.map(lambda g: h * g, scaled.gradient)
    ahead, behind = (jax.tree.map(lambda p, s, sign=sign: p + sign * s, params, step) for sign in (1, -1))
    difference = (risk(eqx.combine(ahead, frozen)) - risk(eqx.combine(behind, frozen))) / (2 * h)
    square = sum(jnp.sum(g**2) for g in jax.tree.leaves(scaled.gradient))
    # Central differences: h² + eps/h ~ 2e-10, divided by the size of the slope.
    assert abs(difference - jnp.exp(scaled.log_scale) * square) <= 1e-8


@pytest.mark.parametrize("model", MODELS)
def test_stays_of_order_one_at_any_distance(model):
    risk, start = make(model)
    far = jax.tree.map(lambda x, moves: 1e4 * x if moves else x, start, risk.filter(start))
    scaled = risk.scaled_gradient(far)
    assert scaled.log_scale < -100
    largest = max(float(jnp.max(jnp.abs(g))) for g in jax.tree.leaves(scaled.gradient))
    assert 1e-6 < largest < 1e6
    assert jnp.isfinite(scaled.log_norm)


def test_far_gradient_against_extended_reasoning():
    """Two tokens, one sequence: p = s(1-s)(γ₁-γ₂)ℓ', known in closed form at any margin."""
    data = TokenData([[[1.0, 0.0], [-1.0, 0.0]]], [[1.0, 0.0]], [1.0])
    risk = EmpiricalRisk(data, Correlation())
    margin = 3000.0
    model = CombinedAttention(jnp.array([[margin / 2, 0.0], [0.0, 0.0]]), [0.5, 0.0])
    scaled = risk.scaled_gradient(model)
    # s₂ = e^-margin/(1+e^-margin); the score difference is 1; dL/da₂ = -s₂(γ₂ - γ̄) = s₂(1-s₂).
    assert scaled.log_scale == pytest.approx(-margin, abs=1e-9)
    assert scaled.multipliers[0, 1] == pytest.approx(1.0, abs=1e-12)
    assert jnp.exp(scaled.log_scale) == 0.0  # ordinary numbers have long underflown


@pytest.mark.parametrize("model", [FactoredAttention, DiagonalAttention])
def test_the_flow_conserves_what_it_says(model):
    """Its derivative along the gradient is zero, without integrating."""
    risk, start = make(model)
    gradient = risk.scaled_gradient(start).gradient
    _, rate = eqx.filter_jvp(lambda model: model.conserved(), (start,), (gradient,))
    assert jnp.max(jnp.abs(rate)) <= 1e-14 and jnp.max(jnp.abs(start.conserved())) > 0.01


@pytest.mark.parametrize("model", MODELS)
def test_permuting_tokens_permutes_multipliers(model):
    risk, start = make(model)
    order = jnp.array([2, 0, 3, 1])
    data = TokenData(risk.data.tokens[:, order], risk.data.queries, risk.data.labels)
    permuted = EmpiricalRisk(data, risk.loss).scaled_gradient(start)
    scaled = risk.scaled_gradient(start)
    assert jnp.allclose(permuted.multipliers, scaled.multipliers[:, order], atol=1e-14)
    assert jnp.max(jnp.abs(jnp.sum(scaled.multipliers, axis=-1))) <= 1e-15
    assert_trees_close(permuted.gradient, scaled.gradient, 1e-13)


def test_a_hidden_token_is_as_good_as_absent():
    risk, start = make(CombinedAttention)
    data = risk.data
    mask = jnp.ones((3, 4), bool).at[:, 3].set(False)
    hidden = EmpiricalRisk(TokenData(data.tokens, data.queries, data.labels, mask), Logistic())
    absent = EmpiricalRisk(TokenData(data.tokens[:, :3], data.queries, data.labels), Logistic())
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


SEQUENCES = [*((model, True) for model in MODELS), (CombinedAttention, False)]


@pytest.mark.parametrize(("model", "causal"), SEQUENCES)
def test_several_outputs_have_the_gradient_of_the_definition(model, causal):
    """Causal with a head for each position, or neither."""
    data, v = random_sequences(jax.random.key(0), 2, 4, 3, causal=causal, position_heads=causal)
    start = model.init(jax.random.key(1), data, PositionHeads(v) if causal else v)
    risk = EmpiricalRisk(data, Logistic())
    params, frozen = eqx.partition(start, risk.filter(start))

    def naive(params):
        return naive_risk(eqx.combine(params, frozen).combined_weights(), data, v, causal)

    assert float(risk(start)) == pytest.approx(float(naive(params)), rel=1e-14)
    scaled = risk.scaled_gradient(start)
    full = jax.tree.map(lambda g: jnp.exp(scaled.log_scale) * g, scaled.gradient)
    assert_trees_close(full, jax.grad(naive)(params), 1e-12)
    assert jnp.all(jnp.where(data.visible, 0.0, scaled.multipliers) == 0)


def test_outputs_that_see_one_token_have_nothing_to_learn():
    data, v = random_sequences(jax.random.key(0), 2, 4, 3)
    mask = jnp.broadcast_to(jnp.arange(4) == 1, (2, 4, 4))
    blind = EmpiricalRisk(TokenData(data.tokens, data.queries, data.labels, mask), Logistic())
    scaled = blind.scaled_gradient(CombinedAttention.init(jax.random.key(1), data, v))
    assert jnp.all(scaled.gradient.W == 0) and jnp.all(scaled.multipliers == 0) and jnp.isfinite(scaled.log_scale)


@pytest.mark.parametrize("loss", [Logistic(), Exponential()])
def test_log_value_survives_underflow(loss):
    q = jnp.array([-3.0, 0.5, 19.0, 21.0, 700.0, 1e6])
    logs = loss.log_value(q, jnp.ones(6))
    assert jnp.allclose(logs[:4], jnp.log(loss.value(q, jnp.ones(6)))[:4], rtol=1e-12)
    assert logs[-1] == pytest.approx(-1e6)


def test_vmap_equals_loop():
    def scale_and_gradient(key):
        data, v = random_tokens(key, 3, 4, 3)
        scaled = EmpiricalRisk(data, Logistic()).scaled_gradient(FactoredAttention.init(key, data, v))
        return scaled.log_scale, scaled.gradient.K

    keys = jax.random.split(jax.random.key(5), 4)
    scales, gradients = jax.vmap(scale_and_gradient)(keys)
    for i, key in enumerate(keys):
        scale, gradient = scale_and_gradient(key)
        assert jnp.allclose(scales[i], scale, rtol=1e-13) and jnp.allclose(gradients[i], gradient, rtol=1e-11)


@pytest.mark.slow
@pytest.mark.parametrize(
    "build, name",
    [
        (lambda v: FactoredAttention(jnp.zeros((2, 4)), jnp.zeros((2, 4)), v), "K"),
        (lambda v: DiagonalAttention(jnp.zeros(2), jnp.zeros(2), v), "k"),
        (lambda v: MultiHeadAttention([CombinedAttention(jnp.eye(2), v)]), "W"),
    ],
)
def test_wrong_shapes_name_the_parameter(build, name):
    data, v = random_tokens(jax.random.key(0), 2, 3, 3)
    with pytest.raises(ValueError, match=rf"^{name}: "):
        EmpiricalRisk(data, Logistic()).check(build(v))
