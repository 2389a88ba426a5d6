"""Sequences of tokens with a query and a label each: the data of one-layer attention."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxflow._core import (
    AbstractPrinted,
    as_array,
    as_arrays,
    as_mask,
    as_signs,
    is_concrete,
    require,
    require_finite,
    require_signs,
)

# Roundings between two rows of a product of equal rows with a matrix; tokens that differ by no more are one token to
# every margin that has digits.
COPIES = 4.0


class TokenData(AbstractPrinted):
    r"""n sequences $X_i\in\mathbb R^{T\times d}$ with queries $z_i$ and labels $Y_i\in\{\pm1\}$.

    Tarzanagh et al. (2023) §2; Sheen et al. (2024) §3.1 (whose sequence length is called L).
    With queries of shape `(n, k, d)` there are k outputs per sequence (sequence-to-sequence, eq. 11).

    **Arguments:**

    - `tokens`: `(n, T, d)`, the rows $x_{it}$.
    - `queries`: `(n, d)` or `(n, k, d)`.
    - `labels`: `(n,)` or `(n, k)`, each ±1. Two classes in another form become ±1: True is +1, so is 1 beside 0, and
      of two strings the later one in sorted order.
    - `mask`: `(n, T)` or `(n, k, T)`, True (or 1) where a token is visible to the output. None: all are. A token that
      is hidden from every query of its sequence (padding) is replaced by the first visible one, so that no result
      depends on it, not even a scale or a span. In place of an additive mask, of 0 and −inf, pass `mask == 0`.

    The constructor checks shapes only, and lets every array carry the same leading batch axes, to be
    mapped over with `jax.vmap`. `TokenData.validated` also checks the values.

    **Example:**

    ```python
    jf.data.TokenData(data.tokens, data.queries, data.labels)
    jf.data.TokenData.validated(data.tokens, data.queries, data.labels)  # names the argument that is wrong
    ```
    """

    tokens: Float[Array, "*b n T d"]
    queries: Float[Array, "..."]
    labels: Float[Array, "..."]
    mask: Bool[Array, "..."] | None

    def __init__(self, tokens: Any, queries: Any, labels: Any, mask: Any = None):
        self.tokens, self.queries = as_arrays(tokens=tokens, queries=queries)
        self.labels = as_array("labels", as_signs("labels", labels)).astype(self.tokens.dtype)
        self.mask = None if mask is None else as_mask("mask", mask)
        if self.mask is not None:
            self.tokens = _without_padding(self.tokens, self.mask)

    def __check_init__(self) -> None:
        require(self.tokens.ndim >= 3, "tokens", f"expected shape (n, T, d), got {self.tokens.shape}")
        *batch, n, T, d = self.tokens.shape
        b = len(batch)
        single, several = (*batch, n, d), self.queries.ndim == b + 3
        shape = (*batch, n, self.queries.shape[b + 1], d) if several else single
        require(
            self.queries.shape == shape,
            "queries",
            f"expected shape (n, d) = {(n, d)} or (n, k, d) to match tokens of shape (n, T, d) = "
            f"{(n, T, d)}, got {self.queries.shape}",
        )
        outputs = self.queries.shape[:-1]
        require(
            self.labels.shape == outputs,
            "labels",
            f"expected one label for each query, shape {outputs}, got {self.labels.shape}",
        )
        if self.mask is not None:
            allowed = {(*batch, n, T), (*outputs, T)}
            require(
                self.mask.shape in allowed,
                "mask",
                f"expected shape {' or '.join(map(str, sorted(allowed)))}, got {self.mask.shape}",
            )

    @classmethod
    def validated(cls, tokens: Any, queries: Any, labels: Any, mask: Any = None) -> "TokenData":
        """Builds data and checks their values, see `TokenData.check`.

        **Raises:** `ValueError` naming the argument.
        """
        data = cls(tokens, queries, labels, mask)
        data.check()
        return data

    def check(self) -> None:
        """Checks one concrete instance: finite entries, labels ±1, at least one visible token for each query.

        Does nothing to traced values, which cannot be inspected: there NaN becomes an outcome.

        **Raises:** `ValueError` naming the argument.
        """
        require(
            self.tokens.ndim == 3,
            "tokens",
            f"expected one instance (n, T, d), got {self.tokens.shape}: map over batch axes with jax.vmap",
        )
        _, T, _ = self.tokens.shape
        require(min(self.tokens.shape) > 0, "tokens", f"empty axis in shape {self.tokens.shape}")
        if self.mask is None:
            require(T > 1, "tokens", "one token and no mask leave nothing to select; give T >= 2 tokens")
        if not is_concrete(self):
            return
        for name, value in (("tokens", self.tokens), ("queries", self.queries)):
            require_finite(name, value)
        require_signs("labels", self.labels)
        if self.mask is not None:
            hidden = ~np.asarray(self.mask).any(-1)
            require(not hidden.any(), "mask", f"every token is hidden from query {first_index(hidden)}")

    @property
    def named_sizes(self) -> dict[str, int]:
        """The sizes that shapes of other arguments use by name."""
        n, T, d = self.tokens.shape[-3:]
        return {"n": n, "T": T, "d": d} if self.single_query else {"T": T, "d": d}

    @property
    def single_query(self) -> bool:
        """Whether each sequence has one query: labels `(n,)` rather than `(n, k)`."""
        return self.queries.ndim == self.tokens.ndim - 1

    @property
    def output_shape(self) -> tuple[int, ...]:
        """`(n,)` or `(n, k)`."""
        return self.labels.shape

    @property
    def visible(self) -> Bool[Array, "n ..."]:
        """The mask in the shape of the logits, `(n, T)` or `(n, k, T)`; all True where there is none."""
        shape = (*self.output_shape, self.tokens.shape[-2])
        if self.mask is None:
            return jnp.ones(shape, dtype=bool)
        mask = self.mask if self.mask.ndim == len(shape) else self.mask[:, None, :]
        return jnp.broadcast_to(mask, shape)

    def copies(self, index: Int[Array, "*n"]) -> Bool[Array, "*n T"]:
        """The visible tokens that equal the token `index` of their query, itself among them.

        Equal to a few roundings of that token, which a change of basis leaves between copies.
        """
        tokens = self.tokens if self.single_query else self.tokens[:, None]
        # A gather takes XLA many times longer to compile.
        here = jax.nn.one_hot(index, self.tokens.shape[-2], dtype=bool)[..., None]
        chosen = jnp.sum(jnp.where(here, tokens, 0.0), axis=-2, keepdims=True)
        apart, size = (jnp.max(jnp.abs(x), axis=-1) for x in (tokens - chosen, chosen))
        eps = float(jnp.finfo(self.tokens.dtype).eps)
        return self.visible & (apart <= COPIES * eps * size)


def first_index(flags: Any) -> tuple[int, ...]:
    """Where the first of them is; `()` where none is."""
    return next((tuple(int(i) for i in index) for index in np.argwhere(flags)), ())


def _without_padding(tokens: Array, mask: Array) -> Array:
    outer, T = tokens.shape[:-2], tokens.shape[-2:-1]
    if tokens.ndim < 3 or mask.shape[: len(outer)] != outer or mask.shape[-1:] != T:
        # Shapes that do not belong together are named by `__check_init__`.
        return tokens
    seen = mask if mask.ndim == tokens.ndim - 1 else jnp.any(mask, axis=-2)
    first = jnp.take_along_axis(tokens, jnp.argmax(seen, axis=-1)[..., None, None], axis=-2)
    # Of a sequence that is hidden as a whole nothing can take the place.
    hidden = ~seen & jnp.any(seen, axis=-1, keepdims=True)
    return jnp.where(hidden[..., None], first, tokens)
