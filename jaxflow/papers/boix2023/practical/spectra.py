"""Stable ranks and spectra of attention heads' products, and of what training adds to them."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxflow._core import linalg, positive_or_one
from jaxflow.papers.boix2023.practical.models import Transformer
from jaxflow.papers.table import Table

Products = dict[str, Float[Array, "layers H d d"]]
Pair = tuple[Float[Array, "layers H d e"], Float[Array, "layers H d e"]]


def head_factors(model: Transformer) -> dict[str, Pair]:
    """The factors of the products: $W_K$ and $W_Q$, $W_V$ and $W_O$."""
    heads = [block.attention for block in model.blocks]
    return {
        "KQ": (jnp.stack([a.key for a in heads]), jnp.stack([a.query for a in heads])),
        "VO": (jnp.stack([a.value for a in heads]), jnp.stack([a.output for a in heads])),
    }


def head_products(model: Transformer) -> Products:
    r"""$W_KW_Q^\top$ (`KQ`) and $W_VW_O^\top$ (`VO`) of every layer and head."""
    return {part: jnp.einsum("lhde,lhfe->lhdf", *pair) for part, pair in head_factors(model).items()}


def measure(model: Transformer, initial: Transformer) -> dict[str, Table]:
    r"""Both products now, at the start, and what was added: $W=W_KW_Q^\top$ (`KQ`) and $W=W_VW_O^\top$ (`VO`) of every
    head; arrays have axes layer, head.

    - `rank`, `initial`, `weights`: stable ranks of $\Delta W=W(t)-W(0)$, of $W(0)$ and of $W(t)$ itself.
    - `spectrum`, `initial_spectrum`, `weights_spectrum`: their $\sigma_i/\sigma_1$, with a third axis i. Products of
      $d\times d'$ factors have d' singular values, and their differences 2d' (where d is larger): the rest is zero.
    - `top`, `initial_top`: $\sigma_1$ of $\Delta W$ and of $W(0)$.
    """
    now, then = head_factors(model), head_factors(initial)
    found = {}
    for part, (left, right) in now.items():
        left_then, right_then = then[part]
        # A difference of products is a product of twice as wide factors, whose singular values cost less.
        wide = jnp.concatenate([left, -left_then], axis=-1), jnp.concatenate([right, right_then], axis=-1)
        added, first, whole = (_singular_values(*pair) for pair in (wide, (left_then, right_then), (left, right)))
        found[part] = Table(
            rank=_squares(added),
            initial=_squares(first),
            weights=_squares(whole),
            spectrum=_normalised(added),
            initial_spectrum=_normalised(first),
            weights_spectrum=_normalised(whole),
            top=added[..., 0],
            initial_top=first[..., 0],
        )
    return found


def stable_rank(matrix: Float[Array, "*b m n"]) -> Float[Array, "*b"]:
    r"""$\|W\|_F^2/\|W\|_2^2$; zero for the zero matrix."""
    return _squares(linalg.singular_values(matrix))


def normalised_spectrum(matrix: Float[Array, "*b m n"]) -> Float[Array, "*b k"]:
    r"""$\sigma_i/\sigma_1$, largest first; zeros for the zero matrix."""
    return _normalised(linalg.singular_values(matrix))


def _singular_values(left: Float[Array, "*b d e"], right: Float[Array, "*b d e"]) -> Float[Array, "*b k"]:
    r"""Of $AB^\top$, by triangular factors of A and B where these are no wider than high."""
    if left.shape[-1] >= left.shape[-2]:
        return linalg.singular_values(jnp.einsum("...de,...fe->...df", left, right))
    small = [linalg.qr(factor)[1] for factor in (left, right)]
    return linalg.singular_values(jnp.einsum("...de,...fe->...df", *small))


def _normalised(singular: Float[Array, "*b k"]) -> Float[Array, "*b k"]:
    top = singular[..., :1]
    return singular / positive_or_one(top)


def _squares(singular: Float[Array, "*b k"]) -> Float[Array, "*b"]:
    return jnp.sum(_normalised(singular) ** 2, axis=-1)
