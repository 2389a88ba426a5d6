"""Data of any size, and diagonal weights that were small for long: what a referee found wrong."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxflow as jf
from jaxflow.flow.pairs import pair_growth
from jaxflow.limits.units import units_of
from jaxflow.models import CombinedAttention, DiagonalAttention, FactoredAttention


def instance(kind, seed=0, tokens=1.0, queries=1.0):
    """Tokens and queries of a size, scores as on the unit sphere, a start that pays the same attention."""
    key_data, key_model = jax.random.split(jax.random.key(seed))
    # Diagonal weights in the shape of `small_diagonal`, whose programs then serve both.
    data, head = jf.data.random_tokens(key_data, *((4, 4) if kind is DiagonalAttention else (3, 3)), 6)
    model = kind.init(key_model, data, head)
    params, frozen = eqx.partition(model, model.trainable())
    params = jax.tree.map(lambda x: x / (tokens * queries) ** (1.0 / model.degree), params)
    model = eqx.tree_at(lambda m: m.head.v, eqx.combine(params, frozen), head / tokens)
    scaled = jf.data.TokenData(tokens * data.tokens, queries * data.queries, data.labels)
    return jf.EmpiricalRisk(scaled, "logistic"), model


@pytest.mark.slow
@pytest.mark.parametrize("kind", [CombinedAttention, FactoredAttention, DiagonalAttention])
def test_data_of_another_size_have_the_same_limit_in_other_units(kind):
    # A power of two whose root is one: the arithmetic is the same, and so is every digit.
    size = 2.0**-30
    plain, small = (jf.find_limit(*instance(kind, tokens=c)) for c in (1.0, size))
    assert str(plain.outcome) == str(small.outcome) != "finite_stationary_point"
    np.testing.assert_array_equal(plain.selection, small.selection)
    np.testing.assert_allclose(size * small.direction, plain.direction, rtol=1e-7)
    # Lengths scale as the parameters; log t, which scales as their square, is so large here that the shift is lost.
    length = small.trajectory.final.log_arc_length - plain.trajectory.final.log_arc_length
    np.testing.assert_allclose(length, -np.log(size) / instance(kind)[1].degree, rtol=1e-6)


def test_data_of_order_one_have_no_units():
    for size in (1.0, 500.0, 1e-3):
        units = units_of(*instance(FactoredAttention, tokens=size))
        assert units is not None and units.weights == 1.0
    for size in (1e-150, 1e4, 1e150):
        units = units_of(*instance(FactoredAttention, tokens=size))
        assert units is not None and 0.25 < size / (units.inputs * units.others) < 4.0


def test_heads_that_see_more_than_scores_have_no_units():
    risk, model = instance(CombinedAttention)
    assert units_of(risk, eqx.tree_at(lambda m: m.head, model, jf.models.heads.MLPHead(jnp.ones((2, 6))))) is None


def test_a_zero_query_is_no_stationary_point():
    risk, model = instance(CombinedAttention)
    queries = risk.data.queries.at[0].set(0.0)
    risk = jf.EmpiricalRisk(jf.data.TokenData(risk.data.tokens, queries, risk.data.labels), "logistic")
    # Its attention is uniform for ever, and the other sequences go on to infinity.
    assert str(jf.find_limit(risk, model, throw=False).outcome) != "finite_stationary_point"


def small_diagonal(seed=1):
    rng = np.random.default_rng(seed)
    tokens, queries, head = rng.normal(size=(4, 4, 6)), rng.normal(size=(4, 6)), rng.normal(size=6)
    unit = [x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (tokens, queries, head)]
    data = jf.data.TokenData(unit[0], unit[1], np.where(rng.random(4) < 0.5, -1.0, 1.0))
    k, q = 1e-12 * rng.uniform(-1.0, 1.0, (2, 6))
    return jf.EmpiricalRisk(data, "logistic"), DiagonalAttention(k, q, unit[2])


def test_small_diagonal_starts_are_followed_past_saddles():
    """From 1e-12 a coordinate that shrinks first and grows later is 1e-30 of the others, and decides all the same."""
    outcomes = [str(jf.find_limit(*small_diagonal(seed), throw=False).outcome) for seed in range(12)]
    assert "prediction_contradicted" not in outcomes and "finite_stationary_point" not in outcomes, outcomes
    assert outcomes.count("undecided") <= 2, outcomes


def test_halves_follow_the_flow_of_the_weights():
    risk, model = instance(DiagonalAttention)
    path, other = (jf.integrate(risk, model, clock="log_time", until=4.0, coordinates=c) for c in ("weights", "halves"))
    np.testing.assert_allclose(other.model.k, path.model.k, rtol=1e-4)
    np.testing.assert_allclose(other.log_arc_length, path.log_arc_length, rtol=1e-4)


def test_a_pair_remembers_what_rounding_has_lost():
    pair, moving = (jnp.array([1.0, 1e-3]), jnp.array([1.0, -1e-3])), (jnp.array([1.0, -3e-3]), jnp.array([1.0, 3e-3]))
    # u = 0 in the second coordinate, whose v shrinks: nothing grows faster than the first.
    assert pair_growth(pair, moving) == 1.0
    assert pair_growth(pair, moving, jnp.array([0.0, 1e-40])) == 3.0


def test_halves_take_the_smaller_half_from_what_is_conserved():
    _, model = instance(DiagonalAttention)
    risk, lost = instance(DiagonalAttention)[0], DiagonalAttention(jnp.full(6, 3.0), jnp.full(6, -3.0), model.head)
    (u, v), _ = jf.flow.Halves(jnp.full(6, 1e-20)).encode(risk, lost)
    np.testing.assert_allclose(u * v, 0.5e-20, rtol=1e-12)
    assert np.all(np.abs(np.asarray(v)) > 4.0)


def test_a_diagonal_start_at_zero_stays_there():
    risk, model = instance(DiagonalAttention)
    zero = DiagonalAttention(jnp.zeros(6), jnp.zeros(6), model.head)
    assert str(jf.find_limit(risk, zero, throw=False).outcome) == "finite_stationary_point"


def test_exponents_without_digits_are_no_stationary_point():
    risk, model = instance(DiagonalAttention, tokens=1e150)
    far = DiagonalAttention(jnp.linspace(0.5, 1.0, 6), jnp.linspace(-1.0, 1.0, 6), model.head)
    assert str(jf.find_limit(risk, far, throw=False).outcome) != "finite_stationary_point"


def test_halves_of_a_start_whose_squares_underflow_are_its_own():
    risk, model = instance(DiagonalAttention)
    tiny = DiagonalAttention(jnp.full(6, 3e-170), jnp.full(6, 1e-170), model.head)
    (u, v), _ = jf.flow.Halves(tiny.conserved()).encode(risk, tiny)
    np.testing.assert_allclose([u, v], np.outer([4e-170, 2e-170], np.ones(6)) / np.sqrt(2.0), rtol=1e-12)
