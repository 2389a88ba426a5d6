r"""The room $C(\lambda)=I-M^\top M\succeq0$ of a matrix $M=\sum_k\lambda_kA_k$, with a multiplier $Y\succeq0$ and the
point $\rho=2MY$ of the other side. `RankOneRoom` and `DenseRoom` say what the elements $A_k$ are.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxflow._core import linalg
from jaxflow.margin.mehrotra import AbstractRoom, Move

# Step lengths tried at once: eliminations tell which keep a matrix positive definite. They cost a fraction of the
# eigenvalues that the exact length needs, and cannot hang on NaN.
# They are closest near one, where the last digits are made: between 1 and 0.97 lies a factor of thirty in the gap.
STEPS = (1.0, 0.997, 0.985, 0.96, 0.92, 0.86, 0.78, 0.68, 0.56, 0.44, 0.33, 0.2, 0.08, 0.01)


class AbstractMatrixRoom(AbstractRoom):
    """Symmetric matrices; a `careful` room centres more where the predictor's step was short."""

    careful: Bool[Array, ""] | bool = True

    def one(self, dtype: Any) -> Array:
        return jnp.eye(self.size, dtype=dtype)

    def times(self, left: Array, right: Array) -> Array:
        return left @ right

    def inverse(self, room: Array) -> Array:
        half = linalg.lower_solve(linalg.cholesky(room), self.one(room.dtype))
        return half.T @ half

    def longest(self, room: Array, shares: Array, move: Move) -> Array:
        grid = jnp.asarray(STEPS, room.dtype)
        alpha = grid[:, None, None]
        trial_Y = shares[None] + alpha * move.shares[None]
        trial_C = room[None] + alpha * move.room[None] - alpha**2 * move.square[None]
        fine = jax.vmap(linalg.definite)(trial_Y) & jax.vmap(linalg.definite)(trial_C)
        return jnp.max(jnp.where(fine, grid, 0.0))

    def power(self, affine: Array) -> Array:
        # The bolder power takes a step less of ten; near infeasibility it comes to a halt more often.
        return jnp.where(self.careful, jnp.maximum(1.0, 3 * affine**2), 2.0)


class RankOneRoom(AbstractMatrixRoom):
    r"""$A_k=f_kg_k^\top$ of which only $\langle f_k,f_l\rangle$, `cross`, and the queries $g_k$ are known. A matrix M
    is kept as $\lambda\circ g$ and the rows $h_k=M^\top f_k$."""

    def __init__(self, cross: Float[Array, "m m"], queries: Float[Array, "m q"], used: Bool[Array, " m"], careful: Any):
        self.cross = jnp.where(used[:, None] & used[None, :], cross, 0.0)
        self.queries, self.used, self.careful = queries, used, careful
        self.size = queries.shape[1]

    def combine(self, weights: Array) -> tuple[Array, Array]:
        weighted = weights[:, None] * self.queries
        return weighted, self.cross @ weighted

    def inner(self, left: tuple[Array, Array], right: tuple[Array, Array]) -> Array:
        return left[0].T @ right[1]

    def values(self, point: tuple[Array, Array], matrix: Array) -> Array:
        return 2 * jnp.sum((point[1] @ matrix) * self.queries, axis=1)

    def schur(self, point: tuple[Array, Array], Y: Array, P: Array) -> Array:
        G, H, q = self.queries, point[1], self.size
        GY, HY, GP, HP = G @ Y, H @ Y, G @ P, H @ P
        curvature = 2 * self.cross * (GY @ G.T)
        i, j = np.triu_indices(q)
        if len(i) > 6 * q:
            # Six products of depth q take less than one over all pairs of coordinates.
            gYh, hYh, gPh, hPh = GY @ H.T, HY @ H.T, GP @ H.T, HP @ H.T
            gYg, gPg = GY @ G.T, GP @ G.T
            both = curvature + gYh * gPh.T + gYg * hPh + hYh * gPg + gYh.T * gPh
        else:
            # Inner products of the symmetric part of P·D_k·Y with D_l, whose entries above the diagonal count twice.
            left = HP[:, i] * GY[:, j] + GP[:, i] * HY[:, j] + HP[:, j] * GY[:, i] + GP[:, j] * HY[:, i]
            right = np.where(i == j, 0.5, 1.0)[None, :].astype(G.dtype) * (H[:, i] * G[:, j] + G[:, i] * H[:, j])
            both = curvature + left @ right.T
        return jnp.where(self.used[:, None] & self.used[None, :], both, 0.0)


class DenseRoom(AbstractMatrixRoom):
    """Any $A_k$, `(m, p, q)`, of which those not in use are zero."""

    def __init__(self, elements: Float[Array, "m p q"]):
        self.elements = elements
        self.size = elements.shape[2]

    def combine(self, weights: Array) -> Array:
        return jnp.tensordot(weights, self.elements, 1)

    def inner(self, left: Array, right: Array) -> Array:
        return left.T @ right

    def values(self, point: Array, matrix: Array) -> Array:
        return 2 * jnp.tensordot(self.elements, point @ matrix, 2)

    def schur(self, point: Array, Y: Array, P: Array) -> Array:
        m, flat = len(self.elements), self.elements.reshape(len(self.elements), -1)
        half = jnp.einsum("kpi,pj->kij", self.elements, point)
        turned = half + half.transpose(0, 2, 1)
        bent = jax.vmap(lambda D: P @ D @ Y)(turned).reshape(m, -1)
        both = 2 * flat @ (self.elements @ Y).reshape(m, -1).T + bent @ turned.reshape(m, -1).T
        return 0.5 * (both + both.T)
