"""Instances that satisfy an assumption of the paper by construction, and a common shape for all of them."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

from jaxflow._core import linalg
from jaxflow.data import TokenData, optimal_tokens, random_tokens
from jaxflow.models import token_scores


class Instance(eqx.Module):
    """Data, linear head, a start W(0), and the tokens that a statement says are selected."""

    data: TokenData
    head: Float[Array, "*b d"]
    start: Float[Array, "*b d d"]
    target: Bool[Array, "*b n T"]


def instance(data: TokenData, head: Float[Array, " d"], start: Any = None, target: Any = None) -> Instance:
    """By default the start is zero and the target the optimal tokens."""
    d = data.tokens.shape[-1]
    start = jnp.zeros((d, d)) if start is None else start
    target = optimal_tokens(token_scores(data, head), data.visible) if target is None else target
    return Instance(data, head, start, target)


def padded(given: Instance, shape: tuple[int, int, int]) -> Instance:
    """The same problem in a larger shape `(n, T, d)`, so that one compiled flow serves all sizes.

    Added coordinates are zero and added tokens hidden. Added sequences see one token only: they neither
    contribute a gradient nor a constraint.
    """
    n, T, d = given.data.tokens.shape
    more_n, more_T, more_d = (wide - narrow for wide, narrow in zip(shape, (n, T, d), strict=True))
    rows, columns = (0, more_n), (0, more_T)
    visible = jnp.pad(given.data.visible, (rows, columns))
    first = jnp.broadcast_to(jnp.arange(T + more_T)[None, :] == 0, visible.shape)
    added = jnp.broadcast_to((jnp.arange(n + more_n) >= n)[:, None], visible.shape)
    data = TokenData(
        jnp.pad(given.data.tokens, (rows, columns, (0, more_d))),
        jnp.pad(given.data.queries, (rows, (0, more_d))),
        jnp.pad(given.data.labels, rows, constant_values=1.0),
        visible | (added & first),
    )
    return Instance(
        data,
        jnp.pad(given.head, (0, more_d)),
        jnp.pad(given.start, ((0, more_d), (0, more_d))),
        jnp.pad(given.target, (rows, columns)) | (added & first),
    )


def equal_scores(key: Key[Array, ""], n: int, T: int, d: int) -> tuple[TokenData, Float[Array, " d"]]:
    r"""Random data that satisfy Assumption B.2: $\gamma_{it}=\gamma_{i\tau}<\gamma_{i\,\mathrm{opt}_i}$.

    From unit-sphere tokens, every non-optimal one is moved along v to the second-best score of its sequence
    (the construction of the proof of Theorem 5). For T = 2 nothing moves: the assumption is empty.

    The head is the first coordinate vector, which by rotation changes no law, and makes scores equal to the
    last bit: rounding would decide between tokens that are told apart by nothing else.
    """
    data, _ = random_tokens(key, n, T, d)
    head = jnp.zeros(d).at[0].set(1.0)
    scores = token_scores(data, head)
    best = optimal_tokens(scores, data.visible)
    second = jnp.max(jnp.where(best, -jnp.inf, scores), axis=-1, keepdims=True)
    first = jnp.where(best, scores, second) * data.labels[:, None]
    return TokenData(data.tokens.at[:, :, 0].set(first), data.queries, data.labels), head


def explicit_case() -> tuple[TokenData, Float[Array, " d"]]:
    """n = T = d = 2 with equal queries: Assumption B.2 holds, and descent from zero selects a wrong token."""
    tokens = jnp.array([[[0.0, 0.0], [1.0, 0.0]], [[0.0, 0.0], [-1.5, 1.3]]])
    queries = jnp.array([[1.0, 0.0], [1.0, 0.0]])
    return TokenData(tokens, queries, jnp.ones(2)), jnp.array([1.0, 1.162])


def smoothness(data: TokenData, head: Float[Array, " d"], M0: float = 0.25, M1: float = 1.0) -> Float[Array, ""]:
    r"""$L_W=\frac1n\sum_ia_ib_i$ of (3): $a_i=\|v\|\|z_i\|^2\|X_i\|^3$, $b_i=M_0\|v\|\|X_i\|+3M_1$.

    By default $|\ell''|\le1/4$ and $|\ell'|\le1$ (Assumption A): the logistic loss.
    """
    sizes = linalg.singular_values(data.tokens)[..., 0]
    v = jnp.linalg.norm(head)
    a = v * jnp.sum(data.queries**2, axis=-1) * sizes**3
    return jnp.mean(a * (M0 * v * sizes + 3.0 * M1))


def stack(instances: list[Instance]) -> Instance:
    """A batch."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *instances)
