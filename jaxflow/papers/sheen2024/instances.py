"""Instances that satisfy the assumptions of Sheen et al. (2024) by construction, each of which can be broken."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from jaxflow._core import check_real, checked, compiled_once, is_concrete, linalg, require
from jaxflow.data import TokenData

# A number may be traced.
Number = float | Float[Array, ""]


@checked(least={"n": 1, "T": 2, "d": 2}, positive=["score_gap"], nonnegative=["spread"], infinite=["margin"])
@compiled_once
def equal_score_tokens(
    key: Key[Array, ""], n: int, T: int, d: int, score_gap: Number, spread: Number = 0.0, margin: Number = -jnp.inf
) -> tuple[TokenData, Float[Array, " d"]]:
    r"""Random data of Assumption 2: one optimal token a sequence, all other scores equal.

    Tokens and queries are uniform on the unit sphere, then moved along v, so that

    - $\gamma_{i\,\mathrm{opt}(i)}=\Delta/2$, and $\gamma_{il}=-\Delta/2$ for all other l;
    - with `spread` ε (the relaxed assumption) the others are $-\frac\Delta2(1+2\varepsilon u)$ with u uniform
      on [−1, 1].

    $\|v\|=\Delta$: the tokens stay of order one, whatever the gap. From β = 0 Assumption 3 reads
    $ne^{-\Delta/T}\le1+(n-1)e^{-\Delta}$, so Δ of about $T\ln n$ is needed, and heads of norm one
    (gaps of at most 2) are out of reach.

    With a `margin` $m>-\infty$ a random diagonal $\beta^\star$, $\|\beta^\star\|_1=1$, is planted: where
    $\langle x_{i\,\mathrm{opt}(i)}-x_{il},z_i\odot\beta^\star\rangle<m$ for some l the optimal token is moved,
    orthogonally to v, until that is at least m for all l. For m > 0 the tokens are separable by a diagonal W, and
    Assumption 1 holds.

    **Arguments:** `score_gap`: Δ > 0; `spread`: 0 ≤ ε < 1; `margin`: m. They may be traced.

    **Returns:** the data and v `(d,)`.
    """
    key_tokens, key_queries, key_labels, key_head, key_best, key_spread = jax.random.split(key, 6)
    labels = jnp.where(jax.random.bernoulli(key_labels, 0.5, (n,)), 1.0, -1.0)
    unit_head = _sphere(key_head, d)
    tokens = _sphere(key_tokens, n, T, d)
    best = jax.random.randint(key_best, (n, 1), 0, T) == jnp.arange(T)[None, :]
    noise = jax.random.uniform(key_spread, (n, T), minval=-1.0, maxval=1.0)
    # Components along v/|v|: scores over the gap.
    wanted = jnp.where(best, 0.5, -0.5 - spread * noise) * labels[:, None]
    moved = tokens + (wanted - tokens @ unit_head)[..., None] * unit_head[None, None, :]
    queries = _sphere(key_queries, n, d)
    planted = jax.random.normal(jax.random.fold_in(key_head, 1), (d,))
    planted = queries * (planted / jnp.sum(jnp.abs(planted)))[None, :]
    values = jnp.einsum("ntd,nd->nt", moved, planted)
    top = jnp.sum(jnp.where(best, values, 0.0), axis=-1)
    short = margin - (top - jnp.max(jnp.where(best, -jnp.inf, values), axis=-1))
    along = planted - (planted @ unit_head)[:, None] * unit_head[None, :]
    step = jnp.maximum(short, 0.0) / jnp.sum(along**2, axis=-1)
    moved = moved + jnp.where(best[..., None], (step[:, None] * along)[:, None, :], 0.0)
    return TokenData(moved, queries, labels), score_gap * unit_head


@checked(least={"n": 1, "T": 3, "d": 3}, positive=["score_gap"])
@compiled_once
def paired_tokens(
    key: Key[Array, ""],
    n: int,
    T: int,
    d: int,
    score_gap: Number,
    *,
    cosines: tuple[Any, Any] = (0.2, 0.6),
    outside: bool | Bool[Array, ""] = False,
    break_i: Number = 0.0,
    break_ii: Number = 0.0,
    break_iii: Number = 0.0,
) -> tuple[TokenData, Float[Array, " d"], Int[Array, " n"]]:
    r"""Random data of Assumptions 2 and 4; the parts of the latter can be broken one at a time.

    With orthonormal $u_1,\dots,u_n$ and sizes $a_i,b_i$ uniform on [0.7, 1.4]:
    $x_{i\,\mathrm{opt}(i)}=a_iu_i$, $z_i=\pm b_iu_i$, and pairs $c_ix_{i\,\mathrm{opt}(i)}\pm r$ with
    $r\perp u_i,v$ of norm $a_i$. Under Assumption 2 all pairs of a sequence share one $c_i$, drawn from `cosines`. The
    scores are $\gamma_{il}=c_i\gamma_{i\,\mathrm{opt}(i)}$, and equal across sequences, which makes Assumption 3 a
    matter of the gaps; the smallest possible gap is `score_gap`.

    - `outside`: pairs differ by vectors orthogonal to *all* $u_j$. Then $\|W\|_*$ has other minimisers:
      $e(u_iu_j^\top+u_ju_i^\top)$ can be added without changing norm or margins.
    - `break_i` θ: optimal tokens and queries of sequences 2, 3, ... lean towards $u_1$ by the angle θ; (ii) and (iii)
      stay true.
    - `break_ii` θ: queries turn by θ in the planes of $u_i$ and an unused direction (of two neighbours for n = d),
      and stay orthogonal to each other.
    - `break_iii` δ: one token of each pair is moved by $\delta a_iq$, $q\perp u_i,v$ of norm one, so that the pair's
      sum leaves the direction of the optimal token.

    **Arguments:** `T` odd; `d` at least n and 3 (n + 2 unless `outside` is False); `cosines` of one sign, in
    [−1, 1). All that is no size may be traced.

    **Returns:** data, head `(d,)`, and the indices `(n,)` of the optimal tokens.
    """
    require(T % 2 == 1, "T", f"pairs and one optimal token make an odd number of tokens, got {T}")
    only_inside = outside is False
    low = max(3, n) if only_inside else max(3, n + 2)
    require(d >= low, "d", f"expected at least {low}, got {d}")
    require(len(cosines) == 2, "cosines", f"expected two numbers, got {len(cosines)}")
    for cosine in cosines:
        check_real("cosines", cosine)
    lower, upper = cosines
    if is_concrete(cosines):
        one_sign = bool(-1 <= lower <= upper < 1 and lower * upper > 0)
        require(one_sign, "cosines", f"expected one sign within [-1, 1), got {cosines}")
    keys = jax.random.split(key, 9)
    basis, _ = linalg.qr(jax.random.normal(keys[0], (d, d)))
    u = basis[:, :n].T
    labels = jnp.where(jax.random.bernoulli(keys[1], 0.5, (n,)), 1.0, -1.0)
    sides = jnp.where(jax.random.bernoulli(keys[2], 0.5, (n,)), 1.0, -1.0)
    sizes = jax.random.uniform(keys[3], (2, n), minval=0.7, maxval=1.4)
    c = jax.random.uniform(keys[4], (n,), minval=lower, maxval=upper)

    leaning = jnp.cos(break_i) * u + jnp.sin(break_i) * u[:1]
    leaning = unit(leaning.at[0].set(u[0]))
    best = sizes[0][:, None] * leaning
    # Queries turn with the optimal tokens of (i), and by an angle of their own for (ii).
    queries = (sides * sizes[1])[:, None] * _turned(leaning, basis, n, break_ii)

    # Equal scores of all non-optimal tokens, such that every gap rho (1/c - 1) is at least `score_gap`.
    ends = jnp.stack([jnp.asarray(lower), jnp.asarray(upper)])
    rho = score_gap / jnp.min(jnp.abs(1.0 / ends - 1.0)) * jnp.sign(ends[1])
    inside = linalg.solve(best @ best.T, (labels * rho / c)[:, None])[:, 0] @ best
    free = jax.random.normal(keys[5], (d,))
    head = inside + _without(free, u) * jnp.linalg.norm(inside) / jnp.sqrt(d)

    pairs = (T - 1) // 2
    apart = jax.random.normal(keys[6], (n, pairs, d))
    push = jax.random.normal(keys[7], (n, pairs, d))

    def one(best: Array, c: Array, apart: Array, push: Array) -> Array:
        own = jnp.stack([best, head])
        size = jnp.linalg.norm(best)
        r = size * jax.vmap(lambda x: unit(_without(x, own)))(apart)
        if not only_inside:
            every = jnp.concatenate([u, head[None]])
            r = jnp.where(outside, size * jax.vmap(lambda x: unit(_without(x, every)))(apart), r)
        q = size * break_iii * jax.vmap(lambda x: unit(_without(x, own)))(push)
        centre = (c * best)[None, :]
        return jnp.concatenate([best[None], centre + r, centre - r + q])

    tokens = jax.vmap(one)(best, c, apart, push)
    order = jax.vmap(lambda k: jax.random.permutation(k, T))(jax.random.split(keys[8], n))
    tokens = jnp.take_along_axis(tokens, order[..., None], axis=1)
    return TokenData(tokens, queries, labels), head, jnp.argmax(order == 0, axis=-1)


def _sphere(key: Key[Array, ""], *shape: int) -> Float[Array, "..."]:
    return unit(jax.random.normal(key, shape))


def unit(x: Float[Array, "... d"]) -> Float[Array, "... d"]:
    """Rows of norm one."""
    return x / jnp.linalg.norm(x, axis=-1, keepdims=True)


def _without(x: Float[Array, " d"], rows: Float[Array, "m d"]) -> Float[Array, " d"]:
    """x without its components in the span of the rows; twice, which leaves them at rounding."""
    basis, _ = linalg.qr(rows.T)
    x = x - basis @ (basis.T @ x)
    return x - basis @ (basis.T @ x)


def _turned(u: Float[Array, "n d"], basis: Float[Array, "d d"], n: int, angle: Any) -> Float[Array, "n d"]:
    """Rows turned by `angle` in planes that keep orthonormal rows orthonormal."""
    d = basis.shape[0]
    if d >= 2 * n:
        return jnp.cos(angle) * u + jnp.sin(angle) * basis[:, n : 2 * n].T
    # Too few unused directions: the first row with one of them, or neighbours with each other.
    if d > n:
        return u.at[0].set(jnp.cos(angle) * u[0] + jnp.sin(angle) * basis[:, n])
    if n == 1:
        return u
    first = jnp.cos(angle) * u[0] + jnp.sin(angle) * u[1]
    second = jnp.cos(angle) * u[1] - jnp.sin(angle) * u[0]
    return u.at[0].set(first).at[1].set(second)
