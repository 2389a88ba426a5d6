"""Heads for each position, heads that a user wrote, heads trained with the attention, heads in parallel."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxflow as jf
from jaxflow import models
from jaxflow.risk import EmpiricalRisk
from tests.models.test_scaled_gradient import DATA, HEADS, V

KEY = jax.random.key(1)


def test_a_users_head_is_a_pytree_of_arrays_and_still_the_same_function():
    user = HEADS["module"]
    model = models.CombinedAttention.init(KEY, DATA, user)
    assert isinstance(model.head, models.FunctionHead)
    assert all(eqx.is_array(leaf) for leaf in jax.tree.leaves(model))
    assert model.head(DATA.tokens[0, 0]) == user(DATA.tokens[0, 0]) and model.head.function.width == 2.0
    again = models.CombinedAttention(model.W, model.head)
    assert again.head is model.head
    assert isinstance(models.CombinedAttention(model.W, models.ConcaveHead(V, 0.1)).head, models.ConcaveHead)


def far_out(head):
    """The gradients of attention with its head, and of attention alone, at a million times the size of a start."""
    start = models.CombinedAttention.init(KEY, DATA, head)
    far = eqx.tree_at(lambda m: m.W, start, 1e6 * start.W)
    return [
        EmpiricalRisk(DATA, "logistic", trainable=t).scaled_gradient(far) for t in (models.attention_and_head, None)
    ]


def test_joint_training_keeps_the_larger_scale():
    """Attention's part of the gradient is below any number beside the head's."""
    joint, _ = far_out(V)
    assert joint.log_scale > -10 and jnp.all(joint.gradient.W == 0)
    assert jnp.max(jnp.abs(joint.gradient.head.v)) > 1e-3


def test_where_only_attention_has_a_gradient_its_scale_is_the_common_one():
    """A head that lets no derivative through to its array; attention's gradient is far below e^-745."""

    class Fixed(eqx.Module):
        v: jax.Array

        def __call__(self, x):
            return jnp.dot(jax.lax.stop_gradient(self.v), x)

    joint, alone = far_out(Fixed(V))
    assert joint.log_scale < -745 and joint.log_scale == pytest.approx(float(alone.log_scale))
    assert jnp.allclose(joint.gradient.W, alone.gradient.W, rtol=1e-12, atol=0)


def test_layers_saturate_on_scales_of_their_own():
    """Far out each layer's gradient is what it is alone, relative to the layer with the larger one."""
    model = models.MultiHeadAttention.init(
        KEY, DATA, jnp.stack([V, jax.random.normal(KEY, (3,))]), models.CombinedAttention
    )
    risk = EmpiricalRisk(DATA, "logistic")
    far = eqx.tree_at(lambda m: [p.W for p in m.parts], model, [1e4 * model.parts[0].W, 1.001e4 * model.parts[1].W])
    scaled = risk.scaled_gradient(far)
    assert scaled.log_scale < -100 and 1e-6 < jnp.max(jnp.abs(scaled.multipliers)) < 1e6
    # A layer whose scores are all equal has no gradient and no say in the scale.
    dull = eqx.tree_at(lambda m: m.parts[0].head.v, far, jnp.zeros(3))
    scaled = risk.scaled_gradient(dull)
    assert jnp.all(scaled.multipliers[0] == 0) and jnp.max(jnp.abs(scaled.multipliers[1])) > 1e-6


def test_kinks_are_at_sign_changes():
    head = models.MLPHead(jnp.array([[1.0, 0.0], [0.0, 2.0]]))
    np.testing.assert_allclose(head.kinks(jnp.array([3.0, 4.0])), [0.6, 0.8], rtol=1e-15)
    np.testing.assert_array_equal(head.kinks(jnp.zeros(2)), [0, 0])


def test_scores_with_a_head_for_each_position():
    data, v = jf.data.random_sequences(jax.random.key(2), 3, 4, 3, position_heads=True)
    scores = models.token_scores(data, models.PositionHeads(v))
    expected = np.einsum("nk,kd,ntd->nkt", *(np.asarray(x) for x in (data.labels, v, data.tokens)))
    np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-15)
    mixed = models.PositionHeads(
        (v[0], lambda x: jnp.sum(x**2), models.MLPHead(jnp.eye(3)), models.ConcaveHead(v[3], 0.5))
    )
    assert models.token_scores(data, mixed).shape == (3, 4, 4)
    np.testing.assert_array_equal(mixed(data.tokens[0])[0], models.LinearHead(v[0])(data.tokens[0, 0]))
    assert not jf.models.is_linear(mixed) and jf.models.is_linear(models.PositionHeads(v))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (models.CombinedAttention(np.eye(3), np.ones(4)), r"^head: does not accept a token of shape \(3,\)"),
        # Where signatures are checked the type check says it, otherwise the shape.
        (
            models.CombinedAttention(np.eye(3), lambda x: x),
            r"^head: (expected a number for|does not accept) a token of shape \(3,\)",
        ),
        (models.CombinedAttention(np.eye(3), (np.ones(3),) * 2), "^head: 2 heads for 1 outputs a sequence"),
        (models.FactoredAttention(np.zeros((2, 4)), np.zeros((2, 4)), V), "^K: "),
        (models.DiagonalAttention(np.zeros(2), np.zeros(2), V), "^k: "),
        (models.MultiHeadAttention([models.CombinedAttention(np.eye(2), V)]), "^W: "),
    ],
)
def test_what_does_not_fit_the_data_is_named(model, message):
    with pytest.raises(ValueError, match=message):
        EmpiricalRisk(DATA, "logistic").check(model)
