"""Margin-normalised directions (Definition 4.1 of Sheen et al. 2024) beside norm-normalised ones."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxflow._core import checked, positive_or_one
from jaxflow.data import TokenData


class Directions(eqx.Module):
    r"""A path's directions in both normalisations, and whether they seem to converge.

    - `margin` `(m,)`: $\mu(W)=\min_{i,l\ne\mathrm{opt}(i)}(x_{i\,\mathrm{opt}(i)}-x_{il})^\top Wz_i$.
    - `by_margin` `(m, d, d)`: $\widehat W=W/\mu$; NaN while μ ≤ 0, where it is undefined.
    - `by_norm` `(m, d, d)`: $W/\|W\|_F$; NaN where W = 0.
    - `gap_by_margin`, `gap_by_norm` `(m,)`: the Cauchy gap $\max_{s\ge t}\|D(s)-D(t)\|_F/\|D(\text{last})\|_F$ over
      the later times of the path; NaN where D(t) is undefined. A limit exists only if it tends to zero: it is a
      measurement, not a proof.
    """

    margin: Float[Array, " m"]
    by_margin: Float[Array, "m d d"]
    by_norm: Float[Array, "m d d"]
    gap_by_margin: Float[Array, " m"]
    gap_by_norm: Float[Array, " m"]


@checked()
def margin_of(data: TokenData, selection: Bool[Array, "n T"], W: Float[Array, "d d"]) -> Float[Array, ""]:
    r"""$\mu(W)$ of Definition 4.1 for the tokens of `selection` (one in each sequence)."""
    logits = jnp.einsum("ntd,nd->nt", data.tokens, data.queries @ W.T)
    best = jnp.sum(jnp.where(selection, logits, 0.0), axis=-1, keepdims=True)
    return jnp.min(jnp.where(selection | ~data.visible, jnp.inf, best - logits))


@checked()
def margin_normalised(data: TokenData, selection: Bool[Array, "n T"], W: Float[Array, "d d"]) -> Float[Array, "d d"]:
    r"""$\widehat W=W/\mu(W)$, Definition 4.1; NaN while $\mu(W)\le0$."""
    mu = margin_of(data, selection, W)
    return jnp.where(mu > 0, W / positive_or_one(mu), jnp.nan)


@checked()
def directions(data: TokenData, selection: Bool[Array, "n T"], weights: Float[Array, "m d d"]) -> Directions:
    """Both directions of the combined weights at increasing times, with their Cauchy gaps."""
    margin = jax.vmap(lambda W: margin_of(data, selection, W))(weights)
    by_margin = jax.vmap(lambda W: margin_normalised(data, selection, W))(weights)
    size = jnp.linalg.norm(weights, axis=(-2, -1))[:, None, None]
    by_norm = jnp.where(size > 0, weights / positive_or_one(size), jnp.nan)
    return Directions(margin, by_margin, by_norm, cauchy_gap(by_margin), cauchy_gap(by_norm))


@checked(nan=["path"])
def cauchy_gap(path: Float[Array, "m ..."]) -> Float[Array, " m"]:
    r"""$\max_{s\ge t}\|D(s)-D(t)\|/\|D(\text{last})\|$ at every t of a path, over the later s where D(s) is defined;
    NaN where D(t) is not.
    """
    flat = path.reshape(path.shape[0], -1)
    distance = jnp.linalg.norm(flat[:, None, :] - flat[None, :, :], axis=-1)
    index: Any = jnp.arange(flat.shape[0])
    later = index[None, :] >= index[:, None]
    defined = jnp.all(jnp.isfinite(flat), axis=1)
    largest = jnp.max(jnp.where(later & defined[None, :], distance, 0.0), axis=1)
    return jnp.where(defined, largest / jnp.linalg.norm(flat[-1]), jnp.nan)
