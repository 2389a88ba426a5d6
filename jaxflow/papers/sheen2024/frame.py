r"""General weights, Sheen et al. (2024) §5, App. A.6–A.7: alignment, reduced program and its lifting, exact limit."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxflow._core import checked, linalg, positive_or_one, require
from jaxflow.data import TokenData
from jaxflow.margin import MaxMarginProgram, attention_svm, max_margin
from jaxflow.papers.table import Table


@checked()
def alignment_frame(data: TokenData, selection: Bool[Array, "n T"]) -> Table:
    r"""The frame of Definition 5.1 for data that satisfy Assumption 4 (i): $U_K$ as `keys`, $U_Q$ as `queries`,
    `(d, d)`, of equation (7) with π the identity: $x_{i\,\mathrm{opt}(i)}/\|\cdot\|=u^k_i$, $z_i/\|\cdot\|=u^q_i$. The
    columns that no sequence fixes (n < d) are one choice of many.

    For other data the fixed columns are orthonormalised in the order of the sequences, so that the frame stays
    orthogonal and (7) holds for the first sequence only.
    """
    n, _, d = data.tokens.shape
    require(n <= d, "data", f"orthogonal optimal tokens need n <= d, got n = {n}, d = {d}")
    best = jnp.sum(jnp.where(selection[..., None], data.tokens, 0.0), axis=1)
    return Table(keys=_completed(best), queries=_completed(data.queries))


@checked()
def aligned_start(
    frame: Table, xi_k: Float[Array, " d"], xi_q: Float[Array, " d"], V: Float[Array, "m m"]
) -> tuple[Float[Array, "d m"], Float[Array, "d m"]]:
    r"""$K=U_K\Lambda_KV^\top$, $Q=U_Q\Lambda_QV^\top$ with diagonals $\xi_k,\xi_q$ (Definition 5.1).

    $\Lambda$ is d × $d_e$: for $d_e<d$ the entries of $\xi$ beyond $d_e$ have no place and are ignored.
    """
    d, m = frame.keys.shape[0], V.shape[0]
    eye = jnp.eye(d, m)
    return frame.keys @ (xi_k[:, None] * eye) @ V.T, frame.queries @ (xi_q[:, None] * eye) @ V.T


@checked()
def alignment_error(
    frame: Table, K: Float[Array, "d m"], Q: Float[Array, "d m"], V: Float[Array, "m m"]
) -> Float[Array, ""]:
    r"""$\max$ over K and Q of $\|U^\top KV-\mathrm{diag}\|_F/\|K\|_F$: zero where Definition 5.1 holds (Lemma 5.1)."""
    diagonal = jnp.eye(*K.shape, dtype=bool)

    def error(U: Array, factor: Array) -> Array:
        rotated = U.T @ factor @ V
        size = jnp.linalg.norm(factor)
        return jnp.linalg.norm(jnp.where(diagonal, 0.0, rotated)) / positive_or_one(size)

    return jnp.maximum(error(frame.keys, K), error(frame.queries, Q))


@checked()
def singular_entries(frame: Table, W: Float[Array, "d d"]) -> Float[Array, " d"]:
    r"""$\beta=\mathrm{diag}(U_K^\top WU_Q)$, the diagonal of the aligned combined weights."""
    return jnp.diagonal(frame.keys.T @ W @ frame.queries)


@checked()
def reduced_program(data: TokenData, selection: Bool[Array, "n T"]) -> MaxMarginProgram:
    r"""$\min\|\beta\|_1$ s.t. $\beta^\top B_{il}\ge1$, $B_{il}=\mathrm{sign}\langle x_{i\,\mathrm{opt}(i)},z_i\rangle
    \langle x_{i\,\mathrm{opt}(i)}-x_{il},z_i\rangle e_i$: program (9), (42).

    One row for each (i, l) with l ≠ opt(i), in the order of the tokens: n(T−1) rows.
    """
    n, T, d = data.tokens.shape
    best = jnp.sum(jnp.where(selection[..., None], data.tokens, 0.0), axis=1, keepdims=True)
    inner = jnp.einsum("ntd,nd->nt", best - data.tokens, data.queries)
    sign = jnp.sign(jnp.einsum("nd,nd->n", best[:, 0], data.queries))
    row = (sign[:, None] * inner)[..., None] * jnp.eye(n, d)[:, None, :]
    rows = jnp.take_along_axis(row, not_selected(selection)[..., None], axis=1).reshape(n * (T - 1), d)
    return max_margin(rows, jnp.ones(n * (T - 1)), norm="l1")


@checked()
def lift(
    data: TokenData, selection: Bool[Array, "n T"], frame: Table, primal: Float[Array, " d"], dual: Float[Array, " r"]
) -> tuple[Float[Array, "d d"], Float[Array, "n T"], Float[Array, ""]]:
    r"""From a solution of `reduced_program` to one of (W⋆-SVM): $W=U_K\mathrm{diag}(\beta)U_Q^\top$ and multipliers.

    Equation (44) needs equal multipliers within a pair; under Assumptions 2 and 4 all rows of a sequence are equal,
    so that their sum may be spread evenly, which is what the flow's own multipliers do.

    **Returns:** W `(d, d)`; λ `(n, T)`, zero at the selected tokens; the residual of (44),
    $\|\sum\lambda_{il}U_K\mathrm{Diag}(B_{il})U_Q^\top-\sum\lambda_{il}(x_{i\,\mathrm{opt}(i)}-x_{il})z_i^\top\|_F$.
    """
    n, T, _ = data.tokens.shape
    spread = jnp.broadcast_to(jnp.sum(dual.reshape(n, T - 1), axis=1, keepdims=True) / (T - 1), (n, T))
    weights = jnp.where(selection, 0.0, spread)
    W = frame.keys @ (primal[:, None] * frame.queries.T)
    pushed = attention_svm(data, selection, "nuclear").adjoint(weights)
    even = jnp.take_along_axis(weights, not_selected(selection), axis=1).reshape(-1)
    diagonal = reduced_program(data, selection).adjoint(even)
    lifted = frame.keys @ (diagonal[:, None] * frame.queries.T)
    return W, weights, jnp.linalg.norm(lifted - pushed)


@checked()
def aligned_limit(data: TokenData, selection: Bool[Array, "n T"]) -> tuple[Float[Array, "d d"], Float[Array, ""]]:
    r"""The exact limit under Assumptions 2 and 4 from an aligned start, and its nuclear norm.

    The flow splits into n scalar equations, one margin each, and all margins grow alike:
    $$\widehat W^\infty=\sum_i\frac{u^k_iu_i^{q\top}}{(1-c_i)\|x_{i\,\mathrm{opt}(i)}\|\|z_i\|},\qquad
    \|\widehat W^\infty\|_*=\sum_i\frac1{(1-c_i)\|x_{i\,\mathrm{opt}(i)}\|\|z_i\|}$$
    with $c_ix_{i\,\mathrm{opt}(i)}$ the common projection of the other tokens (the largest, where they differ).
    """
    best = jnp.sum(jnp.where(selection[..., None], data.tokens, 0.0), axis=1)
    square = jnp.sum(best**2, axis=-1)
    along = jnp.where(selection, -jnp.inf, jnp.einsum("ntd,nd->nt", data.tokens, best)) / square[:, None]
    sizes = 1.0 / ((1.0 - jnp.max(along, axis=-1)) * jnp.sqrt(square) * jnp.linalg.norm(data.queries, axis=-1))
    u, z = best / jnp.sqrt(square)[:, None], data.queries / jnp.linalg.norm(data.queries, axis=-1, keepdims=True)
    return jnp.einsum("n,nd,ne->de", sizes, u, z), jnp.sum(sizes)


def not_selected(selection: Bool[Array, "n T"]) -> Int[Array, "n rest"]:
    """Indices of the tokens that are not selected, in their order."""
    return jnp.argsort(selection, axis=-1, stable=True)[:, : selection.shape[-1] - 1]


def _completed(rows: Float[Array, "n d"]) -> Float[Array, "d d"]:
    """An orthogonal matrix whose first columns are the rows, normalised."""
    n, d = rows.shape
    unit = rows / jnp.linalg.norm(rows, axis=-1, keepdims=True)
    basis, factor = linalg.qr(jnp.concatenate([unit.T, jnp.eye(d)], axis=1))
    # QR fixes columns up to sign: the given ones keep theirs.
    sign = jnp.sign(jnp.diagonal(factor)[:n])
    return basis.at[:, :n].multiply(jnp.where(sign == 0, 1.0, sign)[None, :])
