"""The shapes in the signatures of jaxflow are checked in every test; here it is seen that they are."""

import jax
import jax.numpy as jnp
import pytest
from jaxtyping import TypeCheckError

from jaxflow.data import TokenData
from jaxflow.limits.self_certificate import settled
from jaxflow.models import LinearHead


def test_wrong_shapes_and_dtypes():
    # A public function says itself what is wrong, before this does; so does a constructor that a class writes itself.
    for wrong in (jnp.ones((2, 4), bool), jnp.ones((2, 3))):
        with pytest.raises(TypeCheckError, match="settled"):
            settled(jnp.ones((2, 3)), wrong)
    with pytest.raises(TypeCheckError, match="__call__"):
        LinearHead(jnp.ones(3))(jnp.ones((2, 3)))


def test_modules_made_inside_vmap_pass():
    made = jax.vmap(lambda x: TokenData(x, x[:, 0], x[:, 0, 0]))(jnp.ones((5, 2, 3, 4)))
    assert made.tokens.shape == (5, 2, 3, 4)


def test_settings_of_the_session():
    assert jnp.ones(1).dtype == jnp.float64
    with pytest.raises(ValueError, match="rank_promotion"):
        jnp.ones((2, 3)) + jnp.ones(3)
