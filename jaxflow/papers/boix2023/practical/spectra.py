"""Stable ranks and spectra of what training adds to the products of an attention head."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxflow._core import linalg
from jaxflow.papers.boix2023.practical.models import Transformer

Products = dict[str, Float[Array, "layers H d d"]]


def head_products(model: Transformer) -> Products:
    r"""$W_KW_Q^\top$ (`KQ`) and $W_VW_O^\top$ (`VO`) of every layer and head."""
    attention = [block.attention for block in model.blocks]
    return {
        "KQ": jnp.stack([jnp.einsum("hde,hfe->hdf", a.key, a.query) for a in attention]),
        "VO": jnp.stack([jnp.einsum("hde,hfe->hdf", a.value, a.output) for a in attention]),
    }


def stable_rank(matrix: Float[Array, "*b m n"]) -> Float[Array, "*b"]:
    r"""$\|W\|_F^2/\|W\|_2^2$; zero for the zero matrix."""
    singular = linalg.singular_values(matrix)
    top = singular[..., 0]
    shares = singular / jnp.where(top > 0, top, 1.0)[..., None]
    return jnp.sum(shares**2, axis=-1)


def normalised_spectrum(matrix: Float[Array, "*b m n"]) -> Float[Array, "*b k"]:
    r"""$\sigma_i/\sigma_1$, largest first; zeros for the zero matrix."""
    singular = linalg.singular_values(matrix)
    top = singular[..., :1]
    return singular / jnp.where(top > 0, top, 1.0)
