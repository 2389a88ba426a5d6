"""Random instances on the unit sphere, the distribution of every experiment in Tarzanagh et al. (2023), with one output
a sequence or several."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Key

from jaxflow._core import checked, compiled_once, is_concrete, normal, require
from jaxflow.data.tokens import TokenData

# Rejection stops here. At an acceptance of 1% the chance to need more is (0.99)^10000 ~ 2e-44.
MAX_DRAWS = 10_000


def unit_sphere(key: Key[Array, ""], *shape: int) -> Float[Array, "..."]:
    """Vectors of the given shape, uniform on the unit sphere along the last axis."""
    x = normal(key, shape)
    return x / jnp.linalg.norm(x, axis=-1, keepdims=True)


def _draw_sequences(key: Key[Array, ""], n: int, T: int, d: int) -> tuple[Array, Array]:
    key_tokens, key_labels = jax.random.split(key)
    labels = jnp.where(jax.random.bernoulli(key_labels, 0.5, (n,)), 1.0, -1.0)
    return unit_sphere(key_tokens, n, T, d), labels


def _gap(tokens: Float[Array, "n T d"], labels: Float[Array, " n"], head: Float[Array, " d"]) -> Array:
    best, second = jnp.moveaxis(lax.top_k(labels[:, None] * (tokens @ head), 2)[0], -1, 0)
    return best - second


@checked(least={"n": 1, "T": 2, "d": 1})
def draw_tokens(
    key: Key[Array, ""], n: int, T: int, d: int, score_gap: float = 0.0, self_attention: bool = False
) -> tuple[TokenData, Float[Array, " d"], Int[Array, " n"]]:
    r"""As `random_tokens`, and how many draws each sequence needed (1 without a score gap).

    Tokens, queries and head are uniform on the unit sphere, labels ±1 with equal chance. With `score_gap` $\delta$ a
    sequence is drawn again until $\gamma_{i\,\mathrm{opt}_i}-\gamma_{it}\ge\delta$ for all t. Given the head the
    sequences are independent and, by rotation, equally likely to be accepted: the law is that of rejecting whole
    instances. Rejection is part of the definition of the distribution; instances are never rejected afterwards. After
    10,000 draws it raises an error; under a trace it returns tokens of NaN, whose outcome is `failed`.

    **Example:**

    ```python
    _, _, draws = jf.data.draw_tokens(jax.random.key(0), n=3, T=4, d=4, score_gap=0.1)
    assert draws.shape == (3,)
    ```
    """
    require(
        not is_concrete(score_gap) or 0 <= score_gap < 2,
        "score_gap",
        f"expected a gap of scores, which lie in [-1, 1]: from 0 to less than 2, got {score_gap}",
    )
    tokens, queries, labels, head, draws = _drawn(key, n, T, d, score_gap, self_attention)
    require(
        not (is_concrete(tokens) and bool(np.isnan(np.asarray(tokens)).any())),
        "score_gap",
        f"a sequence was rejected {MAX_DRAWS} times; lower the gap",
    )
    return TokenData(tokens, queries, labels), head, draws


@compiled_once
def _drawn(key: Key[Array, ""], n: int, T: int, d: int, score_gap: Any, self_attention: bool) -> tuple[Array, ...]:
    """Tokens, queries, labels, head and the number of draws."""
    key_queries, key_head, key_sequences = jax.random.split(key, 3)
    head = unit_sphere(key_head, d)

    def short(tokens: Array, labels: Array) -> Bool[Array, " n"]:
        return _gap(tokens, labels, head) < score_gap

    def again(state: tuple) -> Bool[Array, ""]:
        _, tokens, labels, draws = state
        return jnp.any(short(tokens, labels)) & (jnp.max(draws) < MAX_DRAWS)

    def redraw(state: tuple) -> tuple:
        key, tokens, labels, draws = state
        key, this = jax.random.split(key)
        new_tokens, new_labels = _draw_sequences(this, n, T, d)
        rejected = short(tokens, labels)
        tokens = jnp.where(rejected[:, None, None], new_tokens, tokens)
        return key, tokens, jnp.where(rejected, new_labels, labels), draws + rejected

    key_sequences, first = jax.random.split(key_sequences)
    state = (key_sequences, *_draw_sequences(first, n, T, d), jnp.ones(n, dtype=int))
    _, tokens, labels, draws = lax.while_loop(again, redraw, state)
    tokens = jnp.where(jnp.any(short(tokens, labels)), jnp.nan, tokens)
    queries = tokens[:, 0] if self_attention else unit_sphere(key_queries, n, d)
    return tokens, queries, labels, head, draws


@checked(least={"n": 1, "T": 2, "d": 1})
def random_tokens(
    key: Key[Array, ""], n: int, T: int, d: int, score_gap: float = 0.0, self_attention: bool = False
) -> tuple[TokenData, Float[Array, " d"]]:
    """A random instance and its linear head v.

    **Arguments:**

    - `key`: a JAX key, or a seed; the same key gives the same instance.
    - `n`, `T`, `d`: number of sequences, tokens in each, dimension.
    - `score_gap`: smallest difference between a sequence's best score and its others, by rejection (see `draw_tokens`).
    - `self_attention`: the query is the first token, $z_i = x_{i1}$.

    **Returns:** `(TokenData, v)` with `v` of shape `(d,)`.

    **Raises:** `ValueError` for sizes out of range or an unreachable `score_gap`.

    **Example:**

    ```python
    data, head = jf.data.random_tokens(jax.random.key(0), n=3, T=4, d=4)
    assert data.tokens.shape == (3, 4, 4) and head.shape == (4,)
    ```
    """
    data, head, _ = draw_tokens(key, n, T, d, score_gap, self_attention)
    return data, head


@checked(least={"T": 2, "d": 1, "draws": 1})
@compiled_once
def score_gap_acceptance(key: Key[Array, ""], T: int, d: int, score_gap: float, draws: int = 1000) -> Float[Array, ""]:
    """The share of `draws` unconditioned sequences whose score gap is at least `score_gap`.

    **Example:**

    ```python
    share = jf.data.score_gap_acceptance(jax.random.key(0), T=4, d=4, score_gap=0.1)
    assert 0 < share < 1
    ```
    """
    key_head, key_sequences = jax.random.split(key)
    tokens, labels = _draw_sequences(key_sequences, draws, T, d)
    return jnp.mean(_gap(tokens, labels, unit_sphere(key_head, d)) >= score_gap)


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
