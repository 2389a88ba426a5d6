"""Products of attention heads: stable ranks and spectra, also of what training adds; updates of bounded rank."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from jaxflow._core import linalg, positive_or_one
from jaxflow.papers.boix2023.practical.models import Transformer
from jaxflow.papers.experiment import Table

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


def _singular_values(left: Float[Array, "*b d e"], right: Float[Array, "*b d e"]) -> Float[Array, "*b k"]:
    r"""Of $AB^\top$, by triangular factors of A and B where these are no wider than high."""
    if left.shape[-1] >= left.shape[-2]:
        return linalg.singular_values(jnp.einsum("...de,...fe->...df", left, right))
    small = [linalg.qr(factor)[1] for factor in (left, right)]
    return linalg.singular_values(jnp.einsum("...de,...fe->...df", *small))


def _normalised(singular: Float[Array, "*b k"]) -> Float[Array, "*b k"]:
    r"""$\sigma_i/\sigma_1$; zeros for the zero matrix."""
    top = singular[..., :1]
    return singular / positive_or_one(top)


def _squares(singular: Float[Array, "*b k"]) -> Float[Array, "*b"]:
    return jnp.sum(_normalised(singular) ** 2, axis=-1)


Factors = dict[str, Float[Array, "layers H d r"]]


def with_added(model: Transformer, left: Factors, right: Factors) -> Transformer:
    r"""The model with $W_KW_Q^\top+AB^\top$ for $W_KW_Q^\top$ in every head, and so for $W_VW_O^\top$.

    Heads get r columns more. The $\sqrt{d'}$ under their logits is meant to stay, so queries carry
    $\sqrt{(d'+r)/d'}$.

    **Arguments:** `left`, `right`: A and B `(layers, H, d, r)` for `KQ` and for `VO`.
    """

    def wider(i: int, attention: Any) -> Any:
        e, r = attention.key.shape[-1], left["KQ"].shape[-1]
        stay = ((e + r) / e) ** 0.5
        return type(attention)(
            key=jnp.concatenate([attention.key, left["KQ"][i]], axis=-1),
            query=stay * jnp.concatenate([attention.query, right["KQ"][i]], axis=-1),
            value=jnp.concatenate([attention.value, left["VO"][i]], axis=-1),
            output=jnp.concatenate([attention.output, right["VO"][i]], axis=-1),
        )

    return eqx.tree_at(_attentions, model, [wider(i, a) for i, a in enumerate(_attentions(model))])


class Adapted(eqx.Module):
    r"""A transformer whose attention stays as it is but for products of rank at most r, which are trained.

    All other layers are trained too. LoRA (Hu et al. 2021) on products: $W_KW_Q^\top$ and $W_VW_O^\top$ of every
    head get $AB^\top$, A random and B zero at the start. `kept` `(r,)`, ones and zeros, switches columns off: so
    runs of several ranks have one shape.
    """

    base: Transformer
    left: Factors
    right: Factors
    kept: Float[Array, " r"]

    @classmethod
    def init(cls, rng: Key[Array, ""], base: Transformer, width: int, rank: Any, scale: Any) -> "Adapted":
        r"""`rank` of `width` columns are on; A uniform on $\pm1/\sqrt d$ times `scale`, as the layers of the base."""
        products = head_products(base)
        shapes = {part: (*x.shape[:-1], width) for part, x in products.items()}
        keys = dict(zip(shapes, jax.random.split(rng, len(shapes)), strict=True))
        size = {part: scale / shape[-2] ** 0.5 for part, shape in shapes.items()}
        left = {part: size[part] * jax.random.uniform(keys[part], s, minval=-1.0) for part, s in shapes.items()}
        right = {part: jnp.zeros(shape) for part, shape in shapes.items()}
        return cls(base, left, right, (jnp.arange(width) < rank).astype(float))

    def __call__(self, x: Array) -> Array:
        return self.merged()(x)

    def merged(self) -> Transformer:
        """As an ordinary transformer with wider heads. What is frozen passes no gradient on, and so is not moved."""
        frozen = eqx.tree_at(_attentions, self.base, jax.lax.stop_gradient(_attentions(self.base)))
        kept = jax.lax.stop_gradient(self.kept)[None, None, None, :]
        return with_added(frozen, {part: kept * x for part, x in self.left.items()}, self.right)


def cut(model: Transformer, initial: Transformer, rank: Any, width: int) -> Transformer:
    r"""The trained model with $\Delta W_KW_Q^\top$ and $\Delta W_VW_O^\top$ of every head cut down to `rank` by their
    singular values; `width`: at least as much, columns beyond the rank are zero."""
    now, then = head_products(model), head_products(initial)
    kept = (jnp.arange(width) < rank).astype(then["KQ"].dtype)[None, None, None, :]
    left, right = {}, {}
    for part in now:
        u, singular, vt = linalg.svd(now[part] - then[part])
        left[part] = (u * singular[..., None, :])[..., :width] * kept
        right[part] = jnp.swapaxes(vt, -1, -2)[..., :width]
    return with_added(eqx.tree_at(_attentions, model, _attentions(initial)), left, right)


def _attentions(model: Transformer) -> list[Any]:
    return [block.attention for block in model.blocks]
