"""Heads for each position, heads that a user wrote, heads trained with the attention, heads in parallel."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxflow as jf
from jaxflow.losses import Logistic
from jaxflow.models import (
    CombinedAttention,
    ConcaveHead,
    FactoredAttention,
    FunctionHead,
    LinearHead,
    MLPHead,
    MultiHeadAttention,
    PositionHeads,
    attention_and_head,
    token_scores,
)
from jaxflow.risk import EmpiricalRisk

N, T, D = 3, 4, 3


def assert_trees_close(a, b, relative):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert jnp.max(jnp.abs(x - y)) <= relative * jnp.max(jnp.abs(y))


def assert_equals_autodiff(risk, model):
    scaled = risk.scaled_gradient(model)
    params, frozen = eqx.partition(model, risk.filter(model))
    naive = jax.grad(lambda p: risk(eqx.combine(p, frozen)))(params)
    full = jax.tree.map(lambda g: jnp.exp(scaled.log_scale) * g, scaled.gradient)
    # Some thousand roundings: the tolerance of the other models.
    assert_trees_close(full, naive, 1e-12)


class Bump(eqx.Module):
    """A module with an array, a number and a function among its leaves."""

    centre: jax.Array
    width: float
    shape: object

    def __call__(self, x):
        return self.shape(-jnp.sum((x - self.centre) ** 2) / self.width)


def instance():
    return jf.data.random_tokens(jax.random.key(0), N, T, D)


USERS = {
    "closure": lambda v: lambda x: jnp.sin(x[0]) - 0.3 * x[1],
    "module": lambda v: Bump(v, 2.0, jnp.exp),
}


@pytest.mark.parametrize("name", USERS)
def test_a_users_head_has_the_gradient_of_autodiff(name):
    data, v = instance()
    risk = EmpiricalRisk(data, Logistic())
    model = CombinedAttention.init(jax.random.key(1), data, USERS[name](v))
    risk.check(model)
    assert_equals_autodiff(risk, model)


def test_a_users_head_is_a_pytree_of_arrays_and_still_the_same_function():
    data, v = instance()
    user = USERS["module"](v)
    model = CombinedAttention.init(jax.random.key(1), data, user)
    assert isinstance(model.head, FunctionHead)
    assert all(eqx.is_array(leaf) for leaf in jax.tree.leaves(model))
    assert model.head(data.tokens[0, 0]) == user(data.tokens[0, 0]) and model.head.function.width == 2.0
    again = CombinedAttention(model.W, model.head)
    assert again.head is model.head
    assert isinstance(CombinedAttention(model.W, ConcaveHead(v, 0.1)).head, ConcaveHead)


def test_a_module_that_is_trained_as_a_head():
    data, _ = instance()
    network = eqx.nn.MLP(D, "scalar", 4, 1, jnp.tanh, key=jax.random.key(3))
    model = CombinedAttention.init(jax.random.key(1), data, network)
    risk = EmpiricalRisk(data, Logistic(), trainable=attention_and_head)
    assert len(jax.tree.leaves(risk.scaled_gradient(model).gradient)) == 1 + 4
    assert_equals_autodiff(risk, model)


def test_joint_training_has_the_gradient_of_autodiff():
    data, v = jf.data.random_sequences(jax.random.key(2), N, T, D, k=2, self_attention=False, position_heads=True)
    risk = EmpiricalRisk(data, Logistic(), trainable=attention_and_head)
    assert_equals_autodiff(risk, FactoredAttention.init(jax.random.key(1), data, PositionHeads(v)))


def test_joint_training_keeps_the_larger_scale():
    """Attention at a million times its size: its part of the gradient is below any number beside the head's."""
    data, v = instance()
    start = CombinedAttention.init(jax.random.key(1), data, v)
    far = eqx.tree_at(lambda m: m.W, start, 1e6 * start.W)
    scaled = EmpiricalRisk(data, Logistic(), trainable=attention_and_head).scaled_gradient(far)
    assert scaled.log_scale > -10 and jnp.all(scaled.gradient.W == 0)
    assert jnp.max(jnp.abs(scaled.gradient.head.v)) > 1e-3


def test_where_only_attention_has_a_gradient_its_scale_is_the_common_one():
    """A head that lets no derivative through to its array; attention's gradient is far below e^-745."""
    data, v = instance()

    class Fixed(eqx.Module):
        v: jax.Array

        def __call__(self, x):
            return jnp.dot(jax.lax.stop_gradient(self.v), x)

    start = CombinedAttention.init(jax.random.key(1), data, Fixed(v))
    far = eqx.tree_at(lambda m: m.W, start, 1e6 * start.W)
    joint = EmpiricalRisk(data, Logistic(), trainable=attention_and_head).scaled_gradient(far)
    alone = EmpiricalRisk(data, Logistic()).scaled_gradient(far)
    assert joint.log_scale < -745 and joint.log_scale == pytest.approx(float(alone.log_scale))
    assert jnp.allclose(joint.gradient.W, alone.gradient.W, rtol=1e-12, atol=0)


def test_the_limit_of_a_trained_head_is_nobodys_theorem():
    data, v = instance()
    risk = EmpiricalRisk(data, Logistic(), trainable=attention_and_head)
    with pytest.raises(ValueError, match=r"^trainable: .*fixed head.*integrate"):
        jf.find_limit(risk, CombinedAttention.init(jax.random.key(1), data, v))


def parallel(count=2, part=CombinedAttention):
    data, v = instance()
    heads = jnp.stack([v] + [jax.random.normal(jax.random.key(h), (D,)) for h in range(1, count)])
    return data, MultiHeadAttention.init(jax.random.key(1), data, heads, part)


@pytest.mark.parametrize(
    ("part", "trainable"), [(CombinedAttention, None), (FactoredAttention, attention_and_head)], ids=["W", "KQ, joint"]
)
def test_heads_in_parallel_have_the_gradient_of_autodiff(part, trainable):
    data, model = parallel(3, part)
    risk = EmpiricalRisk(data, Logistic(), trainable=trainable)
    risk.check(model)
    assert_equals_autodiff(risk, model)
    assert risk.scaled_gradient(model).multipliers.shape == (3, N, T)


def test_layers_saturate_on_scales_of_their_own():
    """Far out each layer's gradient is what it is alone, relative to the layer with the larger one."""
    data, model = parallel()
    risk = EmpiricalRisk(data, Logistic())
    far = eqx.tree_at(lambda m: [p.W for p in m.parts], model, [1e4 * model.parts[0].W, 1.001e4 * model.parts[1].W])
    scaled = risk.scaled_gradient(far)
    assert scaled.log_scale < -100 and 1e-6 < jnp.max(jnp.abs(scaled.multipliers)) < 1e6
    # A layer whose scores are all equal has no gradient and no say in the scale.
    dull = eqx.tree_at(lambda m: m.parts[0].head.v, far, jnp.zeros(D))
    scaled = risk.scaled_gradient(dull)
    assert jnp.all(scaled.multipliers[0] == 0) and jnp.max(jnp.abs(scaled.multipliers[1])) > 1e-6


def test_kinks_are_at_sign_changes():
    head = MLPHead(jnp.array([[1.0, 0.0], [0.0, 2.0]]))
    np.testing.assert_allclose(head.kinks(jnp.array([3.0, 4.0])), [0.6, 0.8], rtol=1e-15)
    np.testing.assert_array_equal(head.kinks(jnp.zeros(2)), [0, 0])


def test_scores_with_a_head_for_each_position():
    data, v = jf.data.random_sequences(jax.random.key(2), N, T, D, position_heads=True)
    scores = token_scores(data, PositionHeads(v))
    expected = np.einsum("nk,kd,ntd->nkt", *(np.asarray(x) for x in (data.labels, v, data.tokens)))
    np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-15)
    mixed = PositionHeads((v[0], lambda x: jnp.sum(x**2), MLPHead(jnp.eye(D)), ConcaveHead(v[3], 0.5)))
    assert token_scores(data, mixed).shape == (N, T, T)
    np.testing.assert_array_equal(mixed(data.tokens[0])[0], LinearHead(v[0])(data.tokens[0, 0]))
    assert not jf.models.is_linear(mixed) and jf.models.is_linear(PositionHeads(v))


@pytest.mark.parametrize(
    "head, message",
    [
        (jnp.ones(D + 1), r"^head: does not accept a token of shape \(3,\)"),
        # Where signatures are checked the type check says it, otherwise the shape.
        (lambda x: x, r"^head: (expected a number for|does not accept) a token of shape \(3,\)"),
        ((jnp.ones(D), jnp.ones(D)), r"^head: 2 heads for 1 outputs a sequence"),
    ],
)
def test_a_wrong_head_is_named(head, message):
    data, _ = instance()
    with pytest.raises(ValueError, match=message):
        EmpiricalRisk(data, Logistic()).check(CombinedAttention(jnp.eye(D), head))
