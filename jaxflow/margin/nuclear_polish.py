r"""Newton's method at fixed rank and active set: the last digits of a nuclear-norm program.

With $2Y=QQ^\top$, Q of rank r, and the active set fixed, the optimality conditions
$$(I-M^\top M)Q=0,\qquad \langle A_k,MQQ^\top\rangle=1\ (k\text{ active}),\qquad \lambda_k=0\
\text{(others)}$$
are those of a saddle of $\sum_k\lambda_k+\tfrac12\langle Q,CQ\rangle$ with $C=I-M^\top M$, which no rotation of Q
changes. With the other eigenvectors V of Y every change of Q is, up to a rotation, $QS+VX$ with a symmetric S: one
unknown $u_{ij}$ for each pair of columns $i\le j$ of $(Q,V)$ of which one is in Q. With $h_k=M^\top f_k$, features
$J_{k,ij}$ from $h_kg_k^\top+g_kh_k^\top$, $B\succeq0$ from C and $S_{kl}=\langle f_k,f_l\rangle\langle
Q^\top g_k,Q^\top g_l\rangle$ Newton's equations are

$$-Bu+J^\top\Delta\lambda=r,\qquad Ju+S\Delta\lambda=s,$$

solved by the Cholesky factors of S and of $B+J^\top S^{-1}J$.
"""

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float

from jaxflow._core import linalg, positive_or_one
from jaxflow.margin._linear_algebra import scaled_cholesky
from jaxflow.margin.conclude import default_tolerance
from jaxflow.margin.matrix_room import RankOneRoom
from jaxflow.margin.mehrotra import Constraints

# Newton steps from where the interior point hands over, at a gap of 1e-7: 1e-14 after two.
NEWTON_STEPS = 2


def polish(
    room: RankOneRoom,
    constraints: Constraints,
    weights: Float[Array, " m"],
    Y: Float[Array, "q q"],
    *,
    singular: bool = False,
    rank: int | None = None,
    steps: int = NEWTON_STEPS,
) -> tuple[Float[Array, " m"], Float[Array, "q q"], Bool[Array, ""]]:
    """Polished (λ, Y), and whether they are `settled`; the input where the result is not finite or has negative
    weights. `singular`: by the LU factors of both equations together, for weights that are not unique: three times the
    work, and the digits that Cholesky factors lose. `rank`: the rank of Y, where it is given."""
    cross, queries, inequality = room.cross, room.queries, constraints.inequality
    m, q = queries.shape
    # A generic solution has r(r+1)/2 <= number of active constraints.
    most = min(q, int((np.sqrt(8 * m + 1) - 1) / 2)) if rank is None else rank
    point = room.combine(weights)
    C = room.at(point, Y.dtype)
    finite = jnp.all(jnp.isfinite(Y)) & jnp.all(jnp.isfinite(weights))
    values, vectors = linalg.eigh(jnp.where(finite, Y, 0.0))  # ascending
    values, vectors = values[::-1], vectors[:, ::-1]
    largest = jnp.where(values[0] > 0, values[0], 1.0)
    kept = jnp.arange(q) < most
    if rank is None:
        # A direction belongs to W where its share of Y exceeds its dual slack, both on the scale of one.
        kept = kept & (values / largest > jnp.sum(vectors * (C @ vectors), axis=0))
    Q = vectors * jnp.where(kept, jnp.sqrt(jnp.maximum(2 * values, 0.0)), 0.0)[None, :]
    margins = room.values(point, Y)
    heaviest = jnp.max(jnp.where(inequality, weights, 0.0), initial=0.0)
    relative = weights / positive_or_one(heaviest)
    support = (inequality & (relative > margins - 1.0)) | constraints.equality
    on = support.astype(Y.dtype)
    target = (inequality & support).astype(Y.dtype)
    i, j = np.triu_indices(most, 0, q)
    dtype = Y.dtype

    def step(_: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        """Of Q the columns that are not `kept` are zero."""
        weights, Q = state
        count = len(i)
        columns = jnp.where(kept[None, :], Q, vectors)
        weighted, H = room.combine(weights)
        C = columns.T @ (columns - weighted.T @ (H @ columns))
        HQ, GQ = H @ columns, queries @ columns
        # u_ij changes column i by column j and column j by column i, where the column that changes is in Q.
        to_i = kept[i].astype(dtype)
        to_j = jnp.where(i == j, 0.0, kept[j].astype(dtype))
        both = to_i + to_j
        features = on[:, None] * both[None, :] * (HQ[:, i] * GQ[:, j] + GQ[:, i] * HQ[:, j])
        # Changes of Q in terms of `columns`: entry (w, c) adds column w to column c.
        change = np.zeros((2, count, q, q))
        change[0, np.arange(count), j, i] = 1.0
        change[1, np.arange(count), i, j] = 1.0
        first, second = jnp.asarray(change, dtype)
        moved = to_i[:, None, None] * first + to_j[:, None, None] * second
        bent = jnp.einsum("ab,sbc->sac", C, moved)
        bend = moved.reshape(count, -1) @ bent.reshape(count, -1).T + jnp.diag((both == 0).astype(dtype))
        kept_GQ = jnp.where(kept[None, :], GQ, 0.0)
        square = on[:, None] * on[None, :] * cross * (kept_GQ @ kept_GQ.T) + jnp.diag(1 - on)
        residual = both * C[i, j]
        margins = target - on * jnp.sum(HQ * kept_GQ, axis=1)
        # Where more constraints are active than the rank needs, as with sets of tokens, the weights are not unique and
        # S is singular. What the shift leaves of an error, its share of a singular value, the next step takes.
        shift = float(np.sqrt(jnp.finfo(dtype).eps))
        if singular:
            # −B ⪯ 0 above S ⪰ 0 stays so under a shift of these signs, and far from singular.
            matrix = jnp.block([[-bend, features.T], [features, square]])
            signs = jnp.concatenate([-jnp.ones(count, dtype), jnp.ones_like(on)])
            matrix = matrix + shift * jnp.max(jnp.abs(matrix)) * jnp.diag(signs)
            matrix = jnp.where(jnp.all(jnp.isfinite(matrix)), matrix, jnp.eye(len(matrix), dtype=dtype))
            change = linalg.solve(matrix, jnp.concatenate([residual, margins])[:, None])[:, 0]
            u, back = change[:count], change[count:]
        else:
            factor, scale = scaled_cholesky(square, shift)
            half = linalg.lower_solve(factor, scale[:, None] * jnp.concatenate([features, margins[:, None]], axis=1))
            tall, right = half[:, :-1], half[:, -1]
            inner, inner_scale = scaled_cholesky(bend + tall.T @ tall, 10 * float(jnp.finfo(dtype).eps))
            u = inner_scale * linalg.cholesky_solve(inner, (inner_scale * (tall.T @ right - residual))[:, None])[:, 0]
            back = scale * linalg.cholesky_solve(factor, (scale * (margins - features @ u))[:, None])[:, 0]
        return weights + on * back, Q + columns @ jnp.tensordot(u, moved, 1)

    better, Q = lax.fori_loop(0, steps, step, (weights * on, Q))
    fine = jnp.all(jnp.isfinite(better)) & jnp.all(jnp.isfinite(Q))
    fine = fine & jnp.all(jnp.where(inequality, better, 0.0) >= 0)
    closed = settled(room, constraints, better, Q)
    return jnp.where(fine, better, weights), jnp.where(fine, 0.5 * Q @ Q.T, Y), fine & closed


def settled(
    room: RankOneRoom, constraints: Constraints, weights: Float[Array, " m"], Q: Float[Array, "q r"]
) -> Bool[Array, ""]:
    r"""Whether bounds without singular values close the gap of λ and $W=MQQ^\top$ to a few hundred roundings.

    $\|MQQ^\top\|_*\le\|MQ\|_F\|Q\|_F$, and $\|M\|_2^2\le1+\delta$ where an elimination finds
    $(1+\delta)I-M^\top M\succ0$.
    """
    inequality, equality = constraints.inequality, constraints.equality
    delta = 100 * float(jnp.finfo(Q.dtype).eps)
    point = room.combine(weights)
    square = room.inner(point, point)
    margins = jnp.sum((point[1] @ Q) * (room.queries @ Q), axis=1)
    margin = jnp.min(jnp.where(inequality, margins, jnp.inf), initial=jnp.inf)
    broken = jnp.max(jnp.where(equality, jnp.abs(margins), 0.0), initial=0.0)
    above = jnp.sqrt(jnp.sum(Q * (square @ Q)) * jnp.sum(Q**2) * (1.0 + delta))
    closed = above <= (1.0 + default_tolerance(Q.dtype, 1e3)) * margin * jnp.sum(jnp.where(inequality, weights, 0.0))
    inside = linalg.definite((1.0 + delta) * room.one(Q.dtype) - square)
    return closed & inside & (margin > 0) & (margin < jnp.inf) & (broken <= default_tolerance(Q.dtype, 1e3))
