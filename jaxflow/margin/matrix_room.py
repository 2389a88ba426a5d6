r"""The room $C(\lambda)=I-M^\top M\succeq0$ of a matrix $M=\sum_k\lambda_kA_k$: what the interior point does there.

With the multiplier $Y\succeq0$ the point of the other side is $\rho=2MY$. Newton's equations have the HKM
symmetrisation (Helmberg, Rendl, Vanderbei, Wolkowicz 1996). `RankOneRoom` and `DenseRoom` say what the elements
$A_k$ are.
"""

import abc
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxflow._core import linalg
from jaxflow.margin.mehrotra import AbstractPlace, Move

# Step lengths tried at once: eliminations tell which keep a matrix positive definite. They cost a fraction of the
# eigenvalues that the exact length needs, and cannot hang on NaN.
# They are closest near one, where the last digits are made: between 1 and 0.97 lies a factor of thirty in the gap.
STEPS = (1.0, 0.997, 0.985, 0.96, 0.92, 0.86, 0.78, 0.68, 0.56, 0.44, 0.33, 0.2, 0.08, 0.01)


class AbstractMatrixRoom(abc.ABC):
    """The elements $A_k$, and the products with M that they allow; `size` is q, of C."""

    size: int

    @abc.abstractmethod
    def combine(self, weights: Float[Array, " m"]) -> Any:
        """M, in a form of the room's own."""

    @abc.abstractmethod
    def inner(self, left: Any, right: Any) -> Float[Array, "q q"]:
        """LᵀR of two matrices in that form."""

    @abc.abstractmethod
    def values(self, point: Any, matrix: Float[Array, "q q"]) -> Float[Array, " m"]:
        """2⟨A_k, MZ⟩ for a symmetric Z."""

    @abc.abstractmethod
    def schur(self, point: Any, Y: Float[Array, "q q"], P: Float[Array, "q q"]) -> Float[Array, "m m"]:
        r"""$2\langle A_k,A_lY\rangle+\mathrm{tr}(D_kYD_lP)$ with $D_k=A_k^\top M+M^\top A_k$."""

    def finish(self, weights: Float[Array, " m"], shares: Float[Array, "q q"]) -> tuple[Array, Array]:
        """⟨Y, C⟩ and ⟨A_k, 2MY⟩."""
        point = self.combine(weights)
        left = jnp.sum(shares * (jnp.eye(self.size, dtype=shares.dtype) - self.inner(point, point)))
        return left, self.values(point, shares)


class RankOneRoom(AbstractMatrixRoom):
    r"""$A_k=f_kg_k^\top$ of which only $\langle f_k,f_l\rangle$, `cross`, and the queries $g_k$ are known. A matrix M
    is kept as $\lambda\circ g$ and the rows $h_k=M^\top f_k$."""

    def __init__(self, cross: Float[Array, "m m"], queries: Float[Array, "m q"], used: Bool[Array, " m"]):
        self.cross, self.queries, self.used = cross, queries, used
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


class MatrixPlace(AbstractPlace):
    """The room at one point (λ, Y); a `careful` one centres more where the predictor's step was short."""

    def __init__(self, room: AbstractMatrixRoom, careful: Bool[Array, ""], weights: Array, Y: Array):
        eye = jnp.eye(room.size, dtype=Y.dtype)
        self.room, self.careful, self.Y = room, careful, Y
        self.point = room.combine(weights)
        C = eye - room.inner(self.point, self.point)
        self.C = C = 0.5 * (C + C.T)
        half = linalg.lower_solve(linalg.cholesky(C), eye)
        self.P = half.T @ half

    def schur(self, outer: Array) -> Array:
        return self.room.schur(self.point, self.Y, self.P) + outer

    def product(self) -> Array:
        return jnp.sum(self.Y * self.C)

    def known(self, centre: Array, correction: Array) -> Array:
        # ⟨D_k, Z⟩ = 2⟨A_k, MZ⟩ for symmetric Z.
        return self.room.values(self.point, centre * self.P - self._turned(correction))

    def move(self, change: Array, centre: Array, correction: Array) -> Move:
        moved = self.room.combine(change)
        mixed = self.room.inner(self.point, moved)
        change_C = -(mixed + mixed.T)
        turned = self.Y @ change_C @ self.P
        change_Y = centre * self.P - self.Y - 0.5 * (turned + turned.T) - self._turned(correction)
        return Move(change, change_Y, (change_C, self.room.inner(moved, moved), moved))

    def longest(self, move: Move) -> Array:
        change_C, square, _ = move.more
        grid = jnp.asarray(STEPS, self.Y.dtype)
        alpha = grid[:, None, None]
        trial_Y = self.Y[None] + alpha * move.shares[None]
        trial_C = self.C[None] + alpha * change_C[None] - alpha**2 * square[None]
        fine = jax.vmap(linalg.definite)(trial_Y) & jax.vmap(linalg.definite)(trial_C)
        return jnp.max(jnp.where(fine, grid, 0.0))

    def product_after(self, move: Move, step: Array) -> Array:
        change_C, square, _ = move.more
        return jnp.sum((self.Y + step * move.shares) * (self.C + step * change_C - step**2 * square))

    def centring(self, ratio: Array, affine: Array) -> Array:
        # The bolder power takes a step less of ten; near infeasibility it comes to a halt more often.
        power = jnp.where(self.careful, jnp.maximum(1.0, 3 * affine**2), 2.0)
        return jnp.clip(ratio**power, 1e-6, 1.0)

    def second_order(self, move: Move) -> tuple[Array, Array]:
        change_C, square, moved = move.more
        return move.shares @ change_C - self.Y @ square, self.room.values(moved, move.shares)

    def _turned(self, correction: Array) -> Array:
        skewed = correction @ self.P
        return 0.5 * (skewed + skewed.T)
