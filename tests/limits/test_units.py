"""Data of any size, and weights that were small for long: what a referee found wrong."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxflow as jf
from jaxflow import models
from jaxflow.limits.units import exponent_of, units_of


def attention(kind, size=1.0):
    """Tokens of a size, scores as on the unit sphere, a start that pays the same attention."""
    key_data, key_model = jax.random.split(jax.random.key(0))
    # Diagonal weights in the shape of `small_diagonal`, whose programs then serve both.
    data, head = jf.data.random_tokens(key_data, *((4, 4) if kind is models.DiagonalAttention else (3, 3)), 6)
    model = kind.init(key_model, data, head)
    params, frozen = eqx.partition(model, model.trainable())
    params = jax.tree.map(lambda x: x / size ** (1.0 / model.degree), params)
    model = eqx.tree_at(lambda m: m.head.v, eqx.combine(params, frozen), head / size)
    return jf.EmpiricalRisk(jf.data.TokenData(size * data.tokens, data.queries, data.labels), "logistic"), model


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [models.CombinedAttention, models.FactoredAttention, models.DiagonalAttention, models.PromptAttention]
)
def test_tokens_of_another_size_have_the_same_limit_in_other_units(kind):
    plain = jf.find_limit(*attention(kind))
    # Powers of two whose roots are some: the arithmetic is the same, and so is every digit.
    for size in (2.0**-498, 2.0**-30, 2.0**498):
        moved = jf.find_limit(*attention(kind, size))
        assert str(plain.outcome) == str(moved.outcome) != "finite_stationary_point"
        np.testing.assert_array_equal(plain.selection, moved.selection)
        np.testing.assert_allclose(size * moved.direction, plain.direction, rtol=1e-7)
        # Lengths scale as the parameters; log t, which scales as their square, is so large that the shift is lost.
        length = moved.trajectory.final.log_arc_length - plain.trajectory.final.log_arc_length
        np.testing.assert_allclose(length, -np.log(size) / attention(kind)[1].degree, rtol=1e-6)


def network(loss, size, target=1.0):
    """A network on inputs of a size and targets of another, from a start with the same outputs up to that."""
    x = jax.random.normal(jax.random.key(11), (3, 6))
    x = x / jnp.max(jnp.linalg.norm(x, axis=1))
    y = x @ jax.random.normal(jax.random.key(12), (6,))
    y = y / jnp.max(jnp.abs(y)) if loss == "squared" else jnp.where(y < 0, -1.0, 1.0)
    data = jf.data.LinearData(size * x, target * y)
    start = models.DiagonalLinearNetwork.init(
        jax.random.key(13), data, depth=2, alpha=0.3 * (target / size) ** 0.5, scheme="zero_last"
    )
    return jf.EmpiricalRisk(data, loss), start


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_inputs_of_another_size_have_the_same_limit_in_other_units(loss):
    size, target = 2.0**-40, 2.0**20 if loss == "squared" else 1.0
    plain, moved = (jf.find_limit(*network(loss, *by)) for by in ((1.0, 1.0), (size, target)))
    expected = jf.Outcome.limit_point if loss == "squared" else jf.Outcome.globally_optimal
    assert plain.outcome == moved.outcome == expected
    # What is polished outside of the units has a few roundings of its own.
    np.testing.assert_allclose(moved.flow_direction * size / target, plain.flow_direction, rtol=1e-9)
    final, other = plain.trajectory.final, moved.trajectory.final
    root = np.log(target / size) / 2
    np.testing.assert_allclose(other.log_norm - final.log_norm, root, rtol=1e-9)
    np.testing.assert_allclose(other.log_arc_length - final.log_arc_length, root, rtol=1e-6)
    coefficients = [end.model.linear_coefficients() for end in (final, other)]
    np.testing.assert_allclose(coefficients[1] * size / target, coefficients[0], rtol=1e-9)
    # t goes like one over the gradient's square of the outputs: 1/(size * target).
    if loss == "squared":
        np.testing.assert_allclose(other.log_time - final.log_time, -np.log(size * target), rtol=1e-6)


def test_data_of_order_one_have_no_units():
    # Of the largest norm, not of the largest entry.
    assert exponent_of(jnp.ones((2, 16))) == 2.0
    ordinary = [attention(models.FactoredAttention, size) for size in (1.0, 500.0, 1e-3)]
    ordinary += [network("squared", *sizes) for sizes in ((1.0, 1.0), (100.0, 1e-2), (1e-2, 100.0))]
    assert all(units_of(*one).weights == 1.0 for one in ordinary)
    for size in (1e-150, 1e4, 1e150):
        units = units_of(*attention(models.FactoredAttention, size))
        assert 0.25 < size / (units.inputs * units.others) < 4.0
    for depth in (2, 3, 5):
        x = 1e-150 * jax.random.normal(jax.random.key(1), (3, 6))
        start = models.DiagonalLinearNetwork((jnp.ones(6),) * depth)
        units = units_of(jf.EmpiricalRisk(jf.data.LinearData(x, jnp.ones(3)), "logistic"), start)
        assert units.weights**depth == units.inputs
        assert 2.0**-depth < jnp.max(jnp.linalg.norm(x / units.inputs, axis=1)) < 2.0**depth
    # Heads that see more than scores have none.
    risk, model = attention(models.CombinedAttention)
    assert units_of(risk, eqx.tree_at(lambda m: m.head, model, jf.models.heads.MLPHead(jnp.ones((2, 6))))) is None


def small_diagonal(seed):
    rng = np.random.default_rng(seed)
    tokens, queries, head = rng.normal(size=(4, 4, 6)), rng.normal(size=(4, 6)), rng.normal(size=6)
    unit = [x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (tokens, queries, head)]
    data = jf.data.TokenData(unit[0], unit[1], np.where(rng.random(4) < 0.5, -1.0, 1.0))
    k, q = 1e-12 * rng.uniform(-1.0, 1.0, (2, 6))
    return jf.EmpiricalRisk(data, "logistic"), models.DiagonalAttention(k, q, unit[2])


def test_small_diagonal_starts_are_followed_past_saddles():
    """From 1e-12 a coordinate that shrinks first and grows later is 1e-30 of the others, and decides all the same."""
    outcomes = [str(jf.find_limit(*small_diagonal(seed), throw=False).outcome) for seed in range(12)]
    assert "prediction_contradicted" not in outcomes and "finite_stationary_point" not in outcomes, outcomes
    assert outcomes.count("undecided") <= 2, outcomes


@pytest.mark.slow
def test_what_is_a_stationary_point_and_what_is_none():
    risk, model = attention(models.CombinedAttention)
    diagonal, start = attention(models.DiagonalAttention)
    # A query of zero: its attention stays uniform, and the weights of the other sequences diverge.
    queries = risk.data.queries.at[0].set(0.0)
    idle = jf.EmpiricalRisk(jf.data.TokenData(risk.data.tokens, queries, risk.data.labels), "logistic")
    # Exponents without digits.
    large = attention(models.DiagonalAttention, 1e150)[0]
    far = models.DiagonalAttention(jnp.linspace(0.5, 1.0, 6), jnp.linspace(-1.0, 1.0, 6), start.head)
    for one in ((idle, model), (large, far)):
        assert str(jf.find_limit(*one, throw=False).outcome) != "finite_stationary_point"
    # A diagonal start at zero stays there; so does W, of norm zero, where one token of each sequence is visible.
    zero = models.DiagonalAttention(jnp.zeros(6), jnp.zeros(6), start.head)
    mask = jnp.broadcast_to(jnp.arange(3) == 0, (3, 3))
    alone = jf.EmpiricalRisk(eqx.tree_at(lambda d: d.mask, risk.data, mask, is_leaf=lambda x: x is None), "logistic")
    for one in ((diagonal, zero), (alone, models.CombinedAttention(jnp.zeros((6, 6)), model.head))):
        assert str(jf.find_limit(*one, throw=False).outcome) == "finite_stationary_point"


class Saturated(eqx.Module):
    """A sigmoid of some inputs beside a linear function of others."""

    w: jax.Array
    b: jax.Array

    def __call__(self, x: jax.Array) -> jax.Array:
        return jax.nn.sigmoid(self.w @ x[:2]) + self.b @ x[2:]


@pytest.mark.slow
def test_a_channel_beside_weights_in_other_units_is_no_point():
    """Targets of two are beyond a sigmoid, and w grows like log t. Of all of θ that is a share of 2e-8 where the other
    inputs are of order 1e-6; with 40 for b, and inputs of order one, the end was a point to an error of 6e-3."""
    x = np.array([[1.0, 0.0], [0.5, 1.0], [-1.0, 0.3]])
    b = np.array([40.0, 30.0])
    y = np.array([2.0, 2.0, -1.0]) + x**2 @ b

    @eqx.filter_jit
    def find(inputs, b):
        return jf.find_limit(jf.EmpiricalRisk((inputs, y), "squared"), Saturated(jnp.array([0.1, 0.2]), b))

    for unit in (1.0, 1e-3, 1e-6, 1e3, 1e6):
        limit = find(jnp.asarray(np.hstack([x, unit * x**2])), jnp.asarray(b / unit))
        assert limit.outcome == "undecided"
        assert 0.02 < limit.stationary.drift < 0.1 and "in the next e-fold of time" in str(limit)
