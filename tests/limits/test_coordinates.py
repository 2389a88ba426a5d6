"""Coordinates in which limits are followed: the path of the weights, and what rounding has lost of them."""

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxflow as jf
from jaxflow.flow.coordinates.halves import pair_growth
from jaxflow.models import CombinedAttention, DiagonalAttention, DiagonalLinearNetwork, MultiHeadAttention

KEY = jax.random.key(1)
ONES = jnp.ones(6)


def attention(kind):
    data, head = jf.data.random_tokens(KEY, 4, 4, 6)
    return data, kind.init(KEY, data, jnp.stack([head, jnp.roll(head, 1)]) if kind is MultiHeadAttention else head)


def causal():
    data, heads = jf.data.random_sequences(KEY, 2, 3, 5, causal=True, position_heads=True)
    return data, CombinedAttention.init(KEY, data, jf.models.PositionHeads(heads))


def diagonal_layers(depth):
    inputs = jax.random.normal(KEY, (3, 6))
    data = jf.data.LinearData(inputs, jnp.sign(inputs[:, 0]))
    return data, DiagonalLinearNetwork.init(KEY, data, depth=depth, alpha=0.3, scheme="zero_last")


def end_of(data, model, coordinates):
    return jf.integrate(
        jf.EmpiricalRisk(data, "logistic"),
        model,
        clock="log_time",
        until=4.0,
        coordinates=coordinates,
        controller=diffrax.PIDController(rtol=1e-10, atol=1e-12),
    ).final


@pytest.mark.parametrize(
    ("coordinates", "make"),
    [
        ("halves", lambda: attention(DiagonalAttention)),
        ("halves", lambda: diagonal_layers(2)),
        pytest.param("scores", causal, marks=pytest.mark.slow),
        pytest.param(jf.flow.LayerScores(), lambda: attention(MultiHeadAttention), marks=pytest.mark.slow),
    ],
    ids=["diagonal attention", "diagonal layers", "causal attention", "layers in parallel"],
)
def test_paths_are_those_of_the_weights(coordinates, make):
    data, model = make()
    ends = [end_of(data, model, one) for one in (coordinates, "weights")]
    known = [jax.tree.leaves((end.model, end.multipliers, end.log_arc_length)) for end in ends]
    for one, other in zip(*known, strict=True):
        # A hundred times the tolerance of a path of some ten steps.
        np.testing.assert_allclose(one, other, rtol=1e-7, atol=1e-7)
    assert ends[0].log_arc_length > -1.0


@pytest.mark.parametrize(
    ("coordinates", "make", "message"),
    [
        (jf.flow.LayerScores(), lambda: attention(CombinedAttention), "LayerScores need"),
        ("halves", lambda: diagonal_layers(3), "Halves need"),
    ],
)
def test_other_models_are_refused(coordinates, make, message):
    with pytest.raises(ValueError, match=f"^coordinates: {message}"):
        end_of(*make(), coordinates)


def test_halves_take_the_smaller_half_from_what_is_conserved():
    data, start = attention(DiagonalAttention)
    risk, lost = jf.EmpiricalRisk(data, "logistic"), DiagonalAttention(3.0 * ONES, -3.0 * ONES, start.head)
    (u, v), _ = jf.flow.Halves(1e-20 * ONES).encode(risk, lost)
    np.testing.assert_allclose(u * v, 0.5e-20, rtol=1e-12)
    assert np.all(np.abs(np.asarray(v)) > 4.0)
    # Of a start whose squares underflow they are its own.
    tiny = DiagonalAttention(3e-170 * ONES, 1e-170 * ONES, start.head)
    (u, v), _ = jf.flow.Halves(tiny.conserved()).encode(risk, tiny)
    np.testing.assert_allclose([u, v], np.outer([4e-170, 2e-170], ONES) / np.sqrt(2.0), rtol=1e-12)


def test_a_pair_remembers_what_rounding_has_lost():
    pair, moving = (jnp.array([1.0, 1e-3]), jnp.array([1.0, -1e-3])), (jnp.array([1.0, -3e-3]), jnp.array([1.0, 3e-3]))
    # u = 0 in the second coordinate, whose v shrinks: nothing grows faster than the first.
    assert pair_growth(pair, moving) == 1.0
    assert pair_growth(pair, moving, jnp.array([0.0, 1e-40])) == 3.0
