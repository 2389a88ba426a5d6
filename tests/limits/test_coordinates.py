"""Coordinates in which limits are followed: what rounding has lost of the weights, and the models they are for.

That paths are those of the weights is a law of the field: tests/flow/test_coordinates.py.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxflow as jf
from jaxflow.flow.coordinates.halves import pair_growth
from jaxflow.models import CombinedAttention, DiagonalAttention, DiagonalLinearNetwork

ONES = jnp.ones(6)
DATA, HEAD = jf.data.random_tokens(jax.random.key(1), 4, 4, 6)
RISK = jf.EmpiricalRisk(DATA, "logistic")


@pytest.mark.parametrize(
    ("coordinates", "risk", "model", "message"),
    [
        (jf.flow.LayerScores(), RISK, CombinedAttention(jnp.zeros((6, 6)), HEAD), "LayerScores need"),
        ("halves", jf.EmpiricalRisk((jnp.eye(6), ONES), "logistic"), DiagonalLinearNetwork((ONES,) * 3), "Halves need"),
    ],
)
def test_other_models_are_refused(coordinates, risk, model, message):
    with pytest.raises(ValueError, match=f"^coordinates: {message}"):
        jf.integrate(risk, model, clock="log_time", until=4.0, coordinates=coordinates)


def test_halves_take_the_smaller_half_from_what_is_conserved():
    lost = DiagonalAttention(3.0 * ONES, -3.0 * ONES, HEAD)
    (u, v), _ = jf.flow.Halves(1e-20 * ONES).encode(RISK, lost)
    np.testing.assert_allclose(u * v, 0.5e-20, rtol=1e-12)
    assert np.all(np.abs(np.asarray(v)) > 4.0)
    # Of a start whose squares underflow they are its own.
    tiny = DiagonalAttention(3e-170 * ONES, 1e-170 * ONES, HEAD)
    (u, v), _ = jf.flow.Halves(tiny.conserved()).encode(RISK, tiny)
    np.testing.assert_allclose([u, v], np.outer([4e-170, 2e-170], ONES) / np.sqrt(2.0), rtol=1e-12)


def test_a_pair_remembers_what_rounding_has_lost():
    pair, moving = (jnp.array([1.0, 1e-3]), jnp.array([1.0, -1e-3])), (jnp.array([1.0, -3e-3]), jnp.array([1.0, 3e-3]))
    # u = 0 in the second coordinate, whose v shrinks: nothing grows faster than the first.
    assert pair_growth(pair, moving) == 1.0
    assert pair_growth(pair, moving, jnp.array([0.0, 1e-40])) == 3.0
