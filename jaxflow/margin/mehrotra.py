r"""One interior point for four norms: Mehrotra's predictor-corrector.

The duals of two norms read $\max_\lambda\sum_kb_k\lambda_k$ with $\lambda_k\ge0$ for inequalities and a room that λ
leaves, a vector $c(\lambda)\ge0$ (ℓ1) or a matrix $C(\lambda)\succeq0$ (nuclear). With a multiplier y of the room,
`shares`, the primal is $\rho(\lambda,y)$ and the optimality conditions are

$$\langle A_k,\rho\rangle-w_k=b_k,\qquad y\circ c=\mu,\qquad w_k\lambda_k=\mu .$$

With a matrix G the inequalities are $(G\lambda)_k\ge0$ in place of $\lambda_k\ge0$, and $\langle
A_k,\rho\rangle-(G^\top w)_k=b_k$: so read the primal programs of the other two norms, whose unit balls are these rooms
(`balls`).

An `AbstractPlace` says what room, multiplier and their products are; the rest is here: a predictor without centring,
the centre that it suggests, a corrector with second-order terms, the longest step that stays inside, the end.
"""

import abc
from collections.abc import Callable
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
    """A direction: of λ, of the shares, and what else a place keeps of it."""

    weights: Float[Array, " m"]
    shares: Any
    more: Any


class AbstractPlace(abc.ABC):
    """A norm's dual at one point (λ, y)."""

    @abc.abstractmethod
    def schur(self, outer: Float[Array, "m m"]) -> Float[Array, "m m"]:
        """The matrix of the equations of λ; `outer`: what the inequalities add to it."""

    @abc.abstractmethod
    def product(self) -> Float[Array, ""]:
        """⟨y, c⟩."""

    @abc.abstractmethod
    def known(self, centre: Float[Array, ""], correction: Any) -> Float[Array, " m"]:
        """The part of ⟨A_k, ρ⟩ after the step that the change of λ has nothing to do with."""

    @abc.abstractmethod
    def move(self, change: Float[Array, " m"], centre: Float[Array, ""], correction: Any) -> Move:
        """The direction that belongs to a change of λ."""

    @abc.abstractmethod
    def longest(self, move: Move) -> Float[Array, ""]:
        """The largest step, of those looked at, that keeps room and shares positive."""

    @abc.abstractmethod
    def product_after(self, move: Move, step: Float[Array, ""]) -> Float[Array, ""]:
        """⟨y, c⟩ after a step."""

    @abc.abstractmethod
    def centring(self, ratio: Float[Array, ""], affine: Float[Array, ""]) -> Float[Array, ""]:
        """σ: the centre as a share of the mean product now, from what the predictor leaves of it."""

    @abc.abstractmethod
    def second_order(self, move: Move) -> tuple[Any, Float[Array, " m"]]:
        """What the products of changes leave in y∘c and in ⟨A_k, ρ⟩."""


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
    at: Callable[..., AbstractPlace],
    finish: Callable[..., tuple[Float[Array, ""], Float[Array, " m"]]],
    size: int,
    constraints: Constraints,
    state: Interior,
    *,
    max_steps: int | Int[Array, ""],
    tolerance: float | Float[Array, ""],
) -> Interior:
    r"""Steps until the gap is at most `tolerance` times the dual value, at most `max_steps` in all.

    **Arguments:** `at(weights, shares)`: the place (λ, y). `finish(weights, shares)`: ⟨y, c⟩ and ⟨A_k, ρ⟩. `size`:
    entries of the room's diagonal: complementarity is shared among them and the inequalities.
    """
    inequality, targets, used = constraints.inequality, constraints.targets, constraints.used
    dtype = targets.dtype
    eps = float(jnp.finfo(dtype).eps)
    on = inequality.astype(dtype)
    count = jnp.sum(on) + size
    allowed = jnp.where(jnp.any(constraints.equality), EQUALITY_RESIDUAL, MARGIN_RESIDUAL)
    zero_m, zero_c = jnp.zeros_like(targets), jnp.zeros_like(on)

    def body(state: Interior) -> Interior:
        weights, shares, slack = state.weights, state.shares, state.slack
        held = constraints.held(weights)
        divisor = jnp.where(inequality, held, 1.0)
        place = at(weights, shares)
        # Predictor and corrector share one factorisation.
        schur = place.schur(constraints.outer(slack / divisor))
        factors = scaled_cholesky(schur, 10 * eps)
        mean = (place.product() + jnp.sum(on * slack * held)) / count

        def direction(
            centre: Array, correction: Any, second: Array, product: Array, refine: bool
        ) -> tuple[Move, Array]:
            right = targets - place.known(centre, correction) - second
            right = right + constraints.pushed(on * (centre - product) / divisor)
            change = refined_solve(schur, *factors, jnp.where(used, right, 0.0), refine)
            change_slack = on * ((centre - product - slack * constraints.held(change)) / divisor - slack)
            return place.move(change, centre, correction), change_slack

        def longest(move: Move, change_slack: Array) -> Array:
            to_weights = step_to_boundary(held, constraints.held(move.weights), inequality)
            to_slack = step_to_boundary(slack, change_slack, inequality)
            return jnp.minimum(place.longest(move), jnp.minimum(to_weights, to_slack))

        move, change_slack = direction(jnp.zeros((), dtype), jnp.zeros_like(shares), zero_m, zero_c, refine=False)
        affine = jnp.minimum(1.0, longest(move, change_slack))
        reached = place.product_after(move, affine)
        reached += jnp.sum(on * (slack + affine * change_slack) * (held + affine * constraints.held(move.weights)))
        ratio = jnp.clip(reached / count / positive_or_one(mean), 0.0, 1.0)
        correction, second = place.second_order(move)
        product = on * constraints.held(move.weights) * change_slack
        move, change_slack = direction(mean * place.centring(ratio, affine), correction, second, product, refine=True)
        length = jnp.minimum(1.0, (0.9 + 0.09 * affine) * longest(move, change_slack))
        fine = jnp.isfinite(length) & (length > 0) & all_finite((move.weights, move.shares, change_slack))
        length = jnp.where(fine, length, 0.0)
        weights = weights + length * jnp.where(fine, move.weights, 0.0)
        shares = shares + length * jnp.where(fine, move.shares, 0.0)
        slack = slack + length * jnp.where(fine, change_slack, 0.0)

        left, margins = finish(weights, shares)
        gap = left + jnp.sum(on * slack * constraints.held(weights))
        residual = jnp.where(used, jnp.abs(targets - margins + constraints.pushed(on * slack)), 0.0)
        primal = jnp.max(residual, initial=0.0) / jnp.maximum(jnp.max(jnp.abs(targets), initial=0.0), eps)
        small = (gap <= tolerance * jnp.abs(jnp.sum(targets * weights))) & (primal <= allowed * tolerance)
        return Interior(state.steps + 1, weights, shares, slack, jnp.where(fine, jnp.where(small, 1, 0), 2))

    def unfinished(state: Interior) -> Bool[Array, ""]:
        return (state.steps < max_steps) & (state.status == 0)

    return lax.while_loop(unfinished, body, state)
