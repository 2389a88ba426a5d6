"""Random instances with several outputs a sequence: sequence-to-sequence and causal attention."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

from jaxflow._core import checked, compiled_once, require
from jaxflow.data.random import draw_tokens, unit_sphere
from jaxflow.data.tokens import TokenData


@checked(least={"n": 1, "T": 1})
def causal_mask(n: int, T: int) -> Bool[Array, "n T T"]:
    r"""Output k sees the tokens $t\le k$, as $\mathbb S_k$ in equation (10): `mask[i, k, t]` is True there.

    The first output sees one token: its gradient is zero, and it has no constraint.
    """
    return jnp.broadcast_to(jnp.tril(jnp.ones((T, T), dtype=bool)), (n, T, T))


@checked(least={"n": 1, "T": 2, "d": 1, "k": 1})
@compiled_once
def random_sequences(
    key: Key[Array, ""],
    n: int,
    T: int,
    d: int,
    k: int | None = None,
    causal: bool = False,
    self_attention: bool = True,
    position_heads: bool = False,
) -> tuple[TokenData, Float[Array, "*k d"]]:
    r"""A random instance with k outputs a sequence, and its linear head or heads.

    Tokens, queries and heads are uniform on the unit sphere, labels $Y_{ik}$ ±1 with equal chance.

    **Arguments:**

    - `key`; `n`, `T`, `d`: number of sequences, tokens in each, dimension.
    - `k`: outputs a sequence, T by default.
    - `causal`: output k sees the first k tokens only (then there are T outputs).
    - `self_attention`: every token is a query, $Z_i = X_i$ (then there are T outputs); False: queries of their own.
    - `position_heads`: a head for each output, for `jaxflow.models.PositionHeads`; False: one for all.

    **Returns:** `(TokenData, v)`, queries `(n, k, d)`, labels `(n, k)`, the mask `(n, T, T)` if causal; `v` of
    shape `(d,)`, or `(k, d)` with `position_heads`.

    **Raises:** `ValueError` for sizes out of range, or k other than T where there must be T outputs.

    Source: Tarzanagh et al. (2023) §7, equation (10), and App. D.

    **Example:**

    ```python
    sequences, v = jf.data.random_sequences(jax.random.key(0), n=2, T=4, d=4)
    assert sequences.queries.shape == (2, 4, 4)
    ```
    """
    outputs = T if k is None else k
    for name, wanted in (("self_attention", self_attention), ("causal", causal)):
        require(not wanted or outputs == T, "k", f"{name} has an output for each of the {T} tokens, got k = {k}")
    key_tokens, key_queries, key_labels, key_heads = jax.random.split(key, 4)
    single, head, _ = draw_tokens(key_tokens, n, T, d)
    labels = jnp.where(jax.random.bernoulli(key_labels, 0.5, (n, outputs)), 1.0, -1.0)
    queries = single.tokens if self_attention else unit_sphere(key_queries, n, outputs, d)
    mask = causal_mask(n, T) if causal else None
    heads = unit_sphere(key_heads, outputs, d) if position_heads else head
    return TokenData(single.tokens, queries, labels, mask), heads
