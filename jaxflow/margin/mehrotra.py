r"""One interior point for four norms: Mehrotra's predictor-corrector.

The duals of two norms read $\max_\lambda\sum_kb_k\lambda_k$ with $\lambda_k\ge0$ for inequalities and a room that λ
leaves, a vector $c(\lambda)\ge0$ (ℓ1) or a matrix $C(\lambda)\succeq0$ (nuclear). With a multiplier y of the room,
`shares`, the primal is $\rho(\lambda,y)$ and the optimality conditions are

$$\langle A_k,\rho\rangle-w_k=b_k,\qquad y\circ c=\mu,\qquad w_k\lambda_k=\mu .$$

With a matrix G the inequalities are $(G\lambda)_k\ge0$ in place of $\lambda_k\ge0$, and $\langle
A_k,\rho\rangle-(G^\top w)_k=b_k$: so read the primal programs of the other two norms, whose unit balls are these rooms
(`balls`).

An `AbstractRoom` says what room and multiplier are, in the algebra of vectors, entry by entry, or of symmetric
matrices: $c=1-m^*m$ of $m=\sum_k\lambda_kA_k$, and $\rho=2my$. The rest is here: a predictor without centring, the
centre that it suggests, a corrector with second-order terms, the longest step that stays inside, the end. Newton's
equations of matrices have the HKM symmetrisation (Helmberg, Rendl, Vanderbei, Wolkowicz 1996).
"""

import abc
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxflow._core import all_finite, positive_or_one
from jaxflow.margin._linear_algebra import refined_solve, scaled_cholesky, step_to_boundary

# Steps in the room of a matrix, half of them for a first attempt, which takes at most 15 where it settles an attention
# program, and 9 to 25 with any matrices. For the recession cone of a model's rows 30 were seen at most (3,000 random
# instances).
MAX_STEPS = 75

# Violated constraints, in units of the tolerance, at which the interior point may stop. Scaling repairs
# margins, so that their violation only adds to the certified gap; equalities it cannot repair.
MARGIN_RESIDUAL, EQUALITY_RESIDUAL = 1e3, 10.0


class Move(NamedTuple):
    """A direction: of λ, of the shares and of the room, $c+t\\Delta c-t^2\\Delta m^*\\Delta m$ after a step t."""

    weights: Float[Array, " m"]
    shares: Any
    room: Any
    square: Any
    point: Any


class AbstractRoom(abc.ABC):
    """The elements $A_k$ of a norm's dual, and the algebra of its room and shares; `size`: entries of its diagonal."""

    size: int

    @abc.abstractmethod
    def combine(self, weights: Float[Array, " m"]) -> Any:
        """m, in a form of the room's own."""

    @abc.abstractmethod
    def inner(self, left: Any, right: Any) -> Any:
        """l*r of two points in that form."""

    @abc.abstractmethod
    def values(self, point: Any, shares: Any) -> Float[Array, " m"]:
        """⟨A_k, ρ⟩ of ρ = 2my."""

    @abc.abstractmethod
    def schur(self, point: Any, shares: Any, inverse: Any) -> Float[Array, "m m"]:
        r"""$2\langle A_k,A_ly\rangle+\mathrm{tr}(D_kyD_lc^{-1})$ with $D_k=A_k^*m+m^*A_k$."""

    @abc.abstractmethod
    def one(self, dtype: Any) -> Any:
        """The unit of the algebra."""

    @abc.abstractmethod
    def times(self, left: Any, right: Any) -> Any:
        """Its product."""

    @abc.abstractmethod
    def inverse(self, room: Any) -> Any:
        """1/c."""

    @abc.abstractmethod
    def longest(self, room: Any, shares: Any, move: Move) -> Float[Array, ""]:
        """The largest step, of those looked at, that keeps room and shares positive."""

    @abc.abstractmethod
    def power(self, affine: Float[Array, ""]) -> Float[Array, ""] | float:
        """σ, the centre as a share of the mean product now, is this power of what the predictor leaves of it."""

    def at(self, point: Any, dtype: Any) -> Any:
        """c at a point."""
        return symmetric(self.one(dtype) - self.inner(point, point))

    def finish(self, weights: Float[Array, " m"], shares: Any) -> tuple[Float[Array, ""], Float[Array, " m"]]:
        """⟨y, c⟩ and ⟨A_k, ρ⟩."""
        point = self.combine(weights)
        return jnp.sum(shares * self.at(point, shares.dtype)), self.values(point, shares)


def symmetric(x: Array) -> Array:
    """The symmetric part of a matrix; a vector."""
    return 0.5 * (x + x.T)


class Interior(eqx.Module):
    """A state of the method; `status` is 0 under way, 1 at the end, 2 where no step was possible."""

    steps: Int[Array, ""]
    weights: Float[Array, " m"]
    shares: Any
    slack: Float[Array, " c"]
    status: Int[Array, ""]


class Constraints(eqx.Module):
    """Which slots are inequalities and equalities, and their right sides b; or, with a matrix G, which of its rows are
    inequalities and which entries of λ are in use."""

    inequality: Bool[Array, " c"]
    equality: Bool[Array, " m"]
    targets: Float[Array, " m"]
    matrix: Float[Array, "c m"] | None = None

    @property
    def used(self) -> Bool[Array, " m"]:
        """Slots that hold a constraint."""
        return self.inequality | self.equality if self.matrix is None else self.equality

    def held(self, weights: Float[Array, " m"]) -> Float[Array, " c"]:
        """What is kept positive: λ, or Gλ."""
        return weights if self.matrix is None else self.matrix @ weights

    def pushed(self, slack: Float[Array, " c"]) -> Float[Array, " m"]:
        """w, or Gᵀw."""
        return slack if self.matrix is None else slack @ self.matrix

    def outer(self, ratio: Float[Array, " c"]) -> Float[Array, "m m"]:
        """What the ratios of w and λ add to the linear system: a diagonal, or GᵀDG; one where no slot is in use."""
        unused = jnp.where(self.used, 0.0, 1.0)
        if self.matrix is None:
            return jnp.diag(jnp.where(self.inequality, ratio, unused))
        return (self.matrix.T * jnp.where(self.inequality, ratio, 0.0)[None, :]) @ self.matrix + jnp.diag(unused)


def follow(
    room: AbstractRoom,
    constraints: Constraints,
    state: Interior,
    *,
    max_steps: int | Int[Array, ""],
    tolerance: float | Float[Array, ""],
) -> Interior:
    r"""Steps until the gap is at most `tolerance` times the dual value, at most `max_steps` in all."""
    inequality, targets, used = constraints.inequality, constraints.targets, constraints.used
    dtype = targets.dtype
    eps = float(jnp.finfo(dtype).eps)
    on = inequality.astype(dtype)
    # Complementarity is shared among the inequalities and the diagonal of the room.
    count = jnp.sum(on) + room.size
    allowed = jnp.where(jnp.any(constraints.equality), EQUALITY_RESIDUAL, MARGIN_RESIDUAL)
    zero_m, zero_c = jnp.zeros_like(targets), jnp.zeros_like(on)

    def body(state: Interior) -> Interior:
        weights, shares, slack = state.weights, state.shares, state.slack
        held = constraints.held(weights)
        divisor = jnp.where(inequality, held, 1.0)
        point = room.combine(weights)
        here = room.at(point, dtype)
        inverse = room.inverse(here)
        # Predictor and corrector share one factorisation.
        schur = room.schur(point, shares, inverse) + constraints.outer(slack / divisor)
        factors = scaled_cholesky(schur, 10 * eps)
        mean = (jnp.sum(shares * here) + jnp.sum(on * slack * held)) / count

        def direction(
            centre: Array, correction: Any, second: Array, product: Array, refine: bool
        ) -> tuple[Move, Array]:
            # ⟨D_k, z⟩ = 2⟨A_k, mz⟩ for symmetric z.
            wanted = centre * inverse - symmetric(room.times(correction, inverse))
            right = targets - room.values(point, wanted) - second
            right = right + constraints.pushed(on * (centre - product) / divisor)
            change = refined_solve(schur, *factors, jnp.where(used, right, 0.0), refine)
            change_slack = on * ((centre - product - slack * constraints.held(change)) / divisor - slack)
            moved = room.combine(change)
            change_room = -2 * symmetric(room.inner(point, moved))
            turned = symmetric(room.times(room.times(shares, change_room), inverse))
            square = room.inner(moved, moved)
            return Move(change, wanted - shares - turned, change_room, square, moved), change_slack

        def longest(move: Move, change_slack: Array) -> Array:
            to_weights = step_to_boundary(held, constraints.held(move.weights), inequality)
            to_slack = step_to_boundary(slack, change_slack, inequality)
            return jnp.minimum(room.longest(here, shares, move), jnp.minimum(to_weights, to_slack))

        move, change_slack = direction(jnp.zeros((), dtype), jnp.zeros_like(shares), zero_m, zero_c, refine=False)
        affine = jnp.minimum(1.0, longest(move, change_slack))
        reached = jnp.sum((shares + affine * move.shares) * (here + affine * move.room - affine**2 * move.square))
        reached += jnp.sum(on * (slack + affine * change_slack) * (held + affine * constraints.held(move.weights)))
        ratio = jnp.clip(reached / count / positive_or_one(mean), 0.0, 1.0)
        # What the products of changes leave in y∘c and in ⟨A_k, ρ⟩.
        correction = room.times(move.shares, move.room) - room.times(shares, move.square)
        second = room.values(move.point, move.shares)
        product = on * constraints.held(move.weights) * change_slack
        centre = mean * jnp.clip(ratio ** room.power(affine), 1e-6, 1.0)
        move, change_slack = direction(centre, correction, second, product, refine=True)
        length = jnp.minimum(1.0, (0.9 + 0.09 * affine) * longest(move, change_slack))
        fine = jnp.isfinite(length) & (length > 0) & all_finite((move.weights, move.shares, change_slack))
        length = jnp.where(fine, length, 0.0)
        weights = weights + length * jnp.where(fine, move.weights, 0.0)
        shares = shares + length * jnp.where(fine, move.shares, 0.0)
        slack = slack + length * jnp.where(fine, change_slack, 0.0)

        left, margins = room.finish(weights, shares)
        gap = left + jnp.sum(on * slack * constraints.held(weights))
        residual = jnp.where(used, jnp.abs(targets - margins + constraints.pushed(on * slack)), 0.0)
        primal = jnp.max(residual, initial=0.0) / jnp.maximum(jnp.max(jnp.abs(targets), initial=0.0), eps)
        small = (gap <= tolerance * jnp.abs(jnp.sum(targets * weights))) & (primal <= allowed * tolerance)
        return Interior(state.steps + 1, weights, shares, slack, jnp.where(fine, jnp.where(small, 1, 0), 2))

    def unfinished(state: Interior) -> Bool[Array, ""]:
        return (state.steps < max_steps) & (state.status == 0)

    return lax.while_loop(unfinished, body, state)
