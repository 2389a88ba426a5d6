r"""Newton's method at fixed rank and active set: the last digits of a nuclear-norm program.

With $2Y=QQ^\top$, Q of rank r, and the active set fixed, the optimality conditions are the square system
$$(I-M^\top M)Q=0,\qquad \langle A_k,MQQ^\top\rangle=1\ (k\text{ active}),\qquad \lambda_k=0\
\text{(others)},$$
up to rotations of Q, which are fixed by a penalty on their tangent directions.
"""

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float

from jaxflow._core import linalg

# From an interior point at 1e-11 two Newton steps reach rounding.
NEWTON_STEPS = 2


def polish(
    cross: Float[Array, "m m"],
    queries: Float[Array, "m q"],
    inequality: Bool[Array, " m"],
    equality: Bool[Array, " m"],
    weights: Float[Array, " m"],
    Y: Float[Array, "q q"],
) -> tuple[Float[Array, " m"], Float[Array, "q q"]]:
    """Polished (λ, Y); the input where the result is not finite or has negative weights."""
    m, q = queries.shape
    # A generic solution has r(r+1)/2 <= number of active constraints.
    rank = min(q, int((np.sqrt(8 * m + 1) - 1) / 2))
    used = inequality | equality
    cross = jnp.where(used[:, None] & used[None, :], cross, 0.0)
    H = cross @ (weights[:, None] * queries)
    C = jnp.eye(q, dtype=Y.dtype) - (weights[:, None] * queries).T @ H
    finite = jnp.all(jnp.isfinite(Y)) & jnp.all(jnp.isfinite(weights))
    values, vectors = linalg.eigh(jnp.where(finite, Y, 0.0))  # ascending
    values, vectors = values[::-1][:rank], vectors[:, ::-1][:, :rank]
    largest = jnp.where(values[0] > 0, values[0], 1.0)
    # A direction belongs to W where its share of Y exceeds its dual slack, both on the scale of one.
    kept = (values / largest > jnp.sum(vectors * (C @ vectors), axis=0)).astype(Y.dtype)
    Q = vectors * (jnp.sqrt(jnp.maximum(2 * values, 0.0)) * kept)[None, :]
    margins = 2 * jnp.sum((H @ Y) * queries, axis=1)
    heaviest = jnp.max(jnp.where(inequality, weights, 0.0), initial=0.0)
    relative = weights / jnp.where(heaviest > 0, heaviest, 1.0)
    support = (inequality & (relative > margins - 1.0)) | equality
    on = support.astype(Y.dtype)
    target = (inequality & support).astype(Y.dtype)
    better, Q = newton_steps(cross, queries, on, target, kept, weights * on, Q, NEWTON_STEPS)
    fine = jnp.all(jnp.isfinite(better)) & jnp.all(jnp.isfinite(Q))
    fine = fine & jnp.all(jnp.where(inequality, better, 0.0) >= 0)
    return jnp.where(fine, better, weights), jnp.where(fine, 0.5 * Q @ Q.T, Y)


def newton_steps(
    cross: Float[Array, "m m"],
    queries: Float[Array, "m q"],
    on: Float[Array, " m"],
    target: Float[Array, " m"],
    kept: Float[Array, " r"],
    weights: Float[Array, " m"],
    Q: Float[Array, "q r"],
    count: int,
) -> tuple[Float[Array, " m"], Float[Array, "q r"]]:
    """`count` Newton steps on λ and Q; `on` marks the active set, `kept` the columns of Q in use."""

    def step(_: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        return _newton(cross, queries, on, target, kept, *state)

    return lax.fori_loop(0, count, step, (weights, Q))


def _newton(
    cross: Float[Array, "m m"],
    queries: Float[Array, "m q"],
    on: Float[Array, " m"],
    target: Float[Array, " m"],
    kept: Float[Array, " r"],
    weights: Float[Array, " m"],
    Q: Float[Array, "q r"],
) -> tuple[Float[Array, " m"], Float[Array, "q r"]]:
    m, q = queries.shape
    r = Q.shape[1]
    dtype = Q.dtype
    H = cross @ (weights[:, None] * queries)
    C = jnp.eye(q, dtype=dtype) - (weights[:, None] * queries).T @ H
    GQ, HQ = queries @ Q, H @ Q
    # Columns of Q that are not kept are zero and stay so: their block is the identity.
    block = jnp.einsum("ab,rs->arbs", C, jnp.diag(kept)) + jnp.einsum(
        "ab,rs->arbs", jnp.eye(q, dtype=dtype), jnp.diag(1 - kept)
    )
    mixed = on[:, None, None] * (H[:, :, None] * GQ[:, None, :] + queries[:, :, None] * HQ[:, None, :])
    mixed = (mixed * kept[None, None, :]).reshape(m, q * r)
    square = on[:, None] * on[None, :] * cross * (GQ @ GQ.T) + jnp.diag(1 - on)
    matrix = jnp.block([[-block.reshape(q * r, q * r), mixed.T], [mixed, square]])
    if r > 1:
        first, second = np.triu_indices(r, 1)
        spin = np.zeros((len(first), r, r))
        spin[np.arange(len(first)), first, second] = 1.0
        spin[np.arange(len(first)), second, first] = -1.0
        tangent = jnp.einsum("qr,grs->qsg", Q, jnp.asarray(spin, dtype)).reshape(q * r, -1)
        tangent = jnp.concatenate([tangent, jnp.zeros((m, tangent.shape[1]), dtype)])
        # The block of Q is −C ⪯ 0: the penalty has its sign.
        matrix = matrix - tangent @ tangent.T
    residual_Q = ((C @ Q) * kept[None, :]).reshape(-1)
    residual_margin = target - on * jnp.sum(HQ * GQ, axis=1)
    right = jnp.concatenate([residual_Q, residual_margin])
    # Where more constraints are active than the rank needs, as with sets of tokens, the weights are not unique and the
    # matrix is singular, to the last digit at the solution. −C ⪯ 0 above a square ⪰ 0 stays so under a shift of these
    # signs, and far from singular; what the shift leaves of an error, its share of a singular value, the next step
    # takes.
    shift = float(np.sqrt(jnp.finfo(dtype).eps)) * jnp.max(jnp.abs(matrix))
    matrix = matrix + shift * jnp.diag(jnp.concatenate([-jnp.ones(q * r, dtype), jnp.ones(m, dtype)]))
    finite = jnp.all(jnp.isfinite(matrix))
    matrix = jnp.where(finite, matrix, jnp.eye(q * r + m, dtype=dtype))
    change = linalg.solve(matrix, right[:, None])[:, 0]
    return weights + on * change[q * r :], Q + kept[None, :] * change[: q * r].reshape(q, r)
