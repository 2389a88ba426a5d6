r"""One sequence of orthonormal tokens under a concave head: random instances, the flow, its exact target (§6.1).

With $h(x)=v^\top x-\lambda\|x\|^2$ and $\ell(x)=-x$ the risk of W is $\lambda\|s\|^2-\gamma^\top s$ (eq. 9), a
convex function of the attention probabilities s alone. Its minimiser over the simplex is the projection of
$\gamma/2\lambda$.
"""

from fractions import Fraction
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from jaxflow.data import TokenData
from jaxflow.losses import Correlation
from jaxflow.models import CombinedAttention, ConcaveHead
from jaxflow.papers.table import Table
from jaxflow.risk import EmpiricalRisk

# Thresholds of (9) nearer to 2λ than this, a thousand rounding errors, are compared in rational arithmetic.
NEAR_TIE = 1e-12


def _sphere(key: Key[Array, ""], d: int) -> Float[Array, " d"]:
    x = jax.random.normal(key, (d,))
    return x / jnp.linalg.norm(x)


def draw(T: int, d: int, key: Key[Array, ""], lam: Any, scores: Any = None) -> Table:
    r"""Haar-orthonormal tokens, query and head uniform on the sphere, W started at $U(\pm1/\sqrt d)$.

    **Arguments:** `scores`: $\gamma$ and, where T < d, the head's other coordinates in the completed basis,
    `(d,)`; None for a head independent of the tokens, which has them uniform on the sphere.

    **Returns:** `tokens` `(T, d)`, `query`, head vector `v` `(d,)`, λ `lam`, and the `start` of W `(d, d)`.
    """
    key_basis, key_query, key_head, key_start = jax.random.split(key, 4)
    basis = jax.random.orthogonal(key_basis, d)
    scores = _sphere(key_head, d) if scores is None else scores
    start = jax.random.uniform(key_start, (d, d), minval=-1.0, maxval=1.0) / np.sqrt(d)
    return Table(
        tokens=basis[:T], query=_sphere(key_query, d), v=scores @ basis, lam=jnp.asarray(lam, float), start=start
    )


def draw_condition(tau: int, T: int, d: int, key: Key[Array, ""]) -> tuple[Array, Array, Int[Array, ""]]:
    r"""A head that satisfies (8), with λ uniform in $(\gamma^{gap}_1,\ \tau\gamma^{gap}_\tau/2)$, and how many draws.

    The head is drawn again until the interval is not empty: rejection defines the distribution.

    **Returns:** the head's coordinates in the basis of the tokens `(d,)` (the first T are γ), λ, draws.
    """

    def interval(scores: Array) -> tuple[Array, Array]:
        ordered = jnp.sort(scores[:T], descending=True)
        return ordered[0] - ordered[1], tau * (ordered[tau - 1] - ordered[tau]) / 2.0

    def empty(state: tuple) -> Bool[Array, ""]:
        low, high = interval(state[1])
        return ~(low < high)

    def again(state: tuple) -> tuple:
        key, _, draws = state
        key, this = jax.random.split(key)
        return key, _sphere(this, d), draws + 1

    key, key_lam = jax.random.split(key)
    state = again((key, jnp.zeros(d), jnp.asarray(0)))
    _, scores, draws = jax.lax.while_loop(empty, again, state)
    low, high = interval(scores)
    return scores, low + (high - low) * jax.random.uniform(key_lam), draws


def scores_of(instance: Table) -> Float[Array, " T"]:
    r"""$\gamma=Xv$."""
    return instance.tokens @ instance.v


def target(scores: Float[Array, " T"], lam: Float[Array, ""]) -> Float[Array, " T"]:
    r"""The minimiser of (9), $s^\star=\mathrm{Proj}_\Delta(\gamma/2\lambda)$; for λ = 0 the top token.

    In the order of the scores token j has weight iff $D_j=\sum_{m<j}m\,\gamma^{gap}_m<2\lambda$.
    """
    count = jnp.arange(1, scores.shape[0] + 1)
    ordered = jnp.sort(scores, descending=True)
    inside = (jnp.cumsum(ordered) - count * ordered < 2.0 * lam) | (count == 1)
    size = jnp.sum(inside)
    level = (jnp.sum(jnp.where(inside, ordered, 0.0)) - 2.0 * lam) / size
    safe = jnp.where(lam > 0, 2.0 * lam, 1.0)
    # Of tied top tokens at λ = 0 the first: any of their mixtures is optimal.
    top = (jnp.arange(scores.shape[0]) == jnp.argmax(scores)).astype(scores.dtype)
    return jnp.where(lam > 0, jnp.maximum(scores - level, 0.0) / safe, top)


def support_sizes(scores: np.ndarray, lam: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    r"""How many nonzero entries $s^\star$ has, decided exactly for the given floating-point scores and λ.

    **Arguments:** `scores` `(..., T)`, `lam` `(...)`.

    **Returns:** sizes $1+\#\{j\ge2:D_j<2\lambda\}$ and whether a threshold was near enough to 2λ to be compared
    in rational arithmetic, both `(...)`.
    """
    ordered = -np.sort(-scores, axis=-1)
    steps = np.arange(1, scores.shape[-1]) * (ordered[..., :-1] - ordered[..., 1:])
    excess = np.cumsum(steps, axis=-1) - 2.0 * np.asarray(lam)[..., None]
    sizes = 1 + np.sum(excess < 0, axis=-1)
    near = np.any(np.abs(excess) < NEAR_TIE, axis=-1)
    for place in np.argwhere(near):
        at = tuple(place)
        exact = [Fraction(float(x)) for x in ordered[at]]
        bound = 2 * Fraction(float(np.asarray(lam)[at]))
        sizes[at] = 1 + sum(sum(exact[:j], Fraction(0)) - j * exact[j] < bound for j in range(1, len(exact)))
    return sizes, near


def problem(instance: Table) -> tuple[EmpiricalRisk, CombinedAttention]:
    """The risk −h with label 1, and the model at its start."""
    data = TokenData(instance.tokens[None], instance.query[None], jnp.ones(1))
    model = CombinedAttention(instance.start, ConcaveHead(instance.v, instance.lam))
    return EmpiricalRisk(data, Correlation()), model


@partial(jax.jit, static_argnums=(0, 1))
def draw_batch(T: int, d: int, keys: Any, lam: Any, scores: Any = None) -> Table:
    """`draw` for a batch of keys."""
    return jax.vmap(partial(draw, T, d))(keys, lam, scores)


@partial(jax.jit, static_argnums=(0, 1, 2))
def draw_conditions(tau: int, T: int, d: int, keys: Any) -> tuple[Array, Array, Array]:
    """`draw_condition` for a batch of keys."""
    return jax.vmap(partial(draw_condition, tau, T, d))(keys)
