"""Laws over every attention model, head and loss."""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

from jaxflow.data import TokenData, random_tokens
from jaxflow.losses import Correlation, Exponential, Logistic, Squared
from jaxflow.models import (
    CombinedAttention,
    ConcaveHead,
    DiagonalAttention,
    FactoredAttention,
    LinearHead,
    MLPHead,
    token_scores,
)
from jaxflow.risk import EmpiricalRisk

MODELS = [CombinedAttention, FactoredAttention, DiagonalAttention]
HEADS = ["linear", "mlp", "concave"]
LOSSES = [Logistic(), Exponential(), Squared(), Correlation()]


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


@pytest.mark.parametrize("trainable", [None, everything], ids=["attention", "everything"])
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("model", MODELS)
def test_equals_autodiff_where_that_does_not_underflow(model, head, loss, trainable):
    risk, start = make(model, head, loss, trainable)
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


def test_multipliers_of_a_query_sum_to_zero():
    risk, start = make(FactoredAttention)
    assert jnp.max(jnp.abs(jnp.sum(risk.scaled_gradient(start).multipliers, axis=-1))) <= 1e-15


@pytest.mark.parametrize("model", MODELS)
def test_permuting_tokens_permutes_multipliers(model):
    risk, start = make(model)
    order = jnp.array([2, 0, 3, 1])
    data = TokenData(risk.data.tokens[:, order], risk.data.queries, risk.data.labels)
    permuted = EmpiricalRisk(data, risk.loss).scaled_gradient(start)
    scaled = risk.scaled_gradient(start)
    assert jnp.allclose(permuted.multipliers, scaled.multipliers[:, order], atol=1e-14)
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


def test_several_queries_are_the_sum_over_queries():
    data, v = random_tokens(jax.random.key(3), 2, 4, 3)
    queries = jax.random.normal(jax.random.key(4), (2, 3, 3))
    labels = jnp.array([[1.0, -1.0, 1.0], [-1.0, 1.0, 1.0]])
    model = CombinedAttention.init(jax.random.key(1), data, v)
    together = EmpiricalRisk(TokenData(data.tokens, queries, labels), Logistic())
    apart = [EmpiricalRisk(TokenData(data.tokens, queries[:, k], labels[:, k]), Logistic()) for k in range(3)]
    assert float(together(model)) == pytest.approx(float(sum(risk(model) for risk in apart)) / 3, rel=1e-14)
    assert together.scaled_gradient(model).multipliers.shape == (2, 3, 4)
    assert token_scores(together.data, v).shape == (2, 3, 4)


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


@pytest.mark.parametrize(
    "build, name",
    [
        (lambda data, v: CombinedAttention(jnp.zeros((2, 2)), v), "W"),
        (lambda data, v: FactoredAttention(jnp.zeros((2, 4)), jnp.zeros((2, 4)), v), "K"),
        (lambda data, v: FactoredAttention(jnp.zeros((3, 4)), jnp.zeros((3, 2)), v), "Q"),
        (lambda data, v: DiagonalAttention(jnp.zeros(2), jnp.zeros(2), v), "k"),
        (lambda data, v: DiagonalAttention(jnp.zeros(3), jnp.zeros(2), v), "q"),
        (lambda data, v: FactoredAttention.init(jax.random.key(0), data, v, m=0), "m"),
    ],
)
def test_wrong_shapes_name_the_parameter(build, name):
    data, v = random_tokens(jax.random.key(0), 2, 3, 3)
    with pytest.raises(ValueError, match=rf"^{name}: "):
        EmpiricalRisk(data, Logistic()).check(build(data, v))


def test_risk_names_what_is_wrong_with_its_arguments():
    data, _ = random_tokens(jax.random.key(0), 2, 3, 3)
    with pytest.raises(ValueError, match=r"^loss: unknown name .logistics.; did you mean .logistic."):
        EmpiricalRisk(data, "logistics")
    with pytest.raises(ValueError, match=r"^reduction: "):
        EmpiricalRisk(data, Logistic(), reduction="max")
    with pytest.raises(ValueError, match=r"^tokens: NaN"):
        EmpiricalRisk(eqx.tree_at(lambda x: x.tokens, data, data.tokens.at[0, 0, 0].set(jnp.nan)), Logistic())
    with pytest.raises(ValueError, match=r"^labels: "):
        EmpiricalRisk(eqx.tree_at(lambda x: x.labels, data, 2 * data.labels), Logistic())
    with pytest.raises(ValueError, match=r"^loss: Squared is not a margin loss"):
        EmpiricalRisk.from_margins(lambda model: model, Squared())
