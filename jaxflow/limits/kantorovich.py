r"""Whether a minimum is near a point of a loss that is not convex: Newton and Kantorovich, as far as it was looked.

Kantorovich (1948), in the affine invariant form of Deuflhard: with the Hessian H at θ definite, $\eta=\|g\|_{H^{-1}}$
and $\|H^{-1/2}(H(\theta')-H)H^{-1/2}\|\le\omega\|\theta'-\theta\|_H$ on a ball of radius 2η, $\omega\eta\le\frac12$
proves a stationary point there. A small gradient proves nothing, and in no units: along a channel to infinity in which
the loss falls like $e^{-q}$, Newton's step is one unit of q however far out, and H changes by a factor of e.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float

from jaxflow._core import ScaledGradient, linalg, positive_or_one
from jaxflow._core.kinks import gated
from jaxflow._core.linalg import ROUNDED
from jaxflow.flow import Weights
from jaxflow.flow.filippov import apart_from, mode_at
from jaxflow.flow.pieces import Kinks
from jaxflow.losses import AbstractLoss, margins_of
from jaxflow.risk import EmpiricalRisk


class Piece(NamedTuple):
    """The risk of flat weights around a point, smooth there: where it has kinks, at the gates that the flow has there.

    Functions of flat weights: `outputs`; `gradient`, of the risk; `left`, whether they are on another piece. `loss`: at
    these gates too. `across` `(k, p)`: an orthonormal basis of the normals of the kinks that the flow slides on; rows
    of zero beyond their rank.
    """

    outputs: Callable[[Array], Array]
    gradient: Callable[[Array], ScaledGradient]
    left: Callable[[Array], Array]
    loss: AbstractLoss
    across: Float[Array, "k p"]

    def along(self, rows: Float[Array, "m p"]) -> Float[Array, "m p"]:
        """Rows without their parts across these kinks; zero where roundings are left of them."""
        sizes = jnp.linalg.norm(rows, axis=1, keepdims=True)
        for _ in range(2):
            rows = rows - (rows @ self.across.T) @ self.across
        return jnp.where(jnp.linalg.norm(rows, axis=1, keepdims=True) <= ROUNDED * sizes, 0.0, rows)


def piece_at(
    risk: EmpiricalRisk, unravel: Callable[[Array], Any], theta: Float[Array, " p"], located: bool = False
) -> Piece:
    """The piece around θ. **Arguments:** `unravel`: from θ to the model; `located`: whether the flow was followed along
    kinks, so that it may slide on some of them."""

    def outputs(x: Array) -> Array:
        return risk.source.outputs(unravel(x))

    if not located:
        switched = gated(outputs, theta).switches > 0

        def left(x: Array) -> Array:
            return jnp.any(switched != (gated(outputs, x).switches > 0))

        none = jnp.zeros((0, theta.size), theta.dtype)
        return Piece(outputs, lambda x: risk.scaled_gradient(unravel(x)), left, risk.loss, none)
    state, context = Weights().encode(risk, unravel(theta))
    kinks, there = Kinks(Weights(), context), ravel_pytree(state)[1]
    mode = mode_at(kinks, state)
    return Piece(
        lambda x: kinks.at(there(x), mode.gates).value,
        lambda x: kinks.field(there(x), mode.gates),
        lambda x: jnp.any((apart_from(kinks, there(x), mode) < 0) & ~mode.sliding),
        kinks.loss_at(state, mode.gates),
        kinks.normals(state, mode, mode.sliding).basis,
    )


class Near(NamedTuple):
    r"""Whether a minimum is near θ: by all directions that were asked for, or by those for which that is clearest.

    - `bound`: an estimate of $\omega\eta$; at most one half means that a minimum is within two of Newton's steps.
    - `step`: Newton's; `left`: twice the length of the next step, with the same Hessian.
    - `alone`: whether it is the only minimum nearby in all directions that were asked for, and not one of a set.
    """

    bound: Float[Array, ""]
    step: Float[Array, " p"]
    left: Float[Array, ""]
    alone: Bool[Array, ""]


class _Span(NamedTuple):
    """Directions in which a function of θ changes, of length one in the norm of H (`white`, zero where H is not
    definite on them), Newton's step in these, and the softest of them as long as it is."""

    definite: Bool[Array, ""]
    least: Float[Array, ""]
    white: Float[Array, "p r"]
    curved: Float[Array, "p r"]
    step: Float[Array, " r"]
    softest: Float[Array, " r"]


def kantorovich(
    risk: EmpiricalRisk,
    unravel: Callable[[Array], Any],
    theta: Float[Array, " p"],
    moves: Callable[[Array], Array] | None = None,
    located: bool = False,
) -> Near:
    r"""An estimate of $\omega\eta$ on the directions that move anything; +inf where H is not definite on these.

    The change of H is measured at a distance of two of Newton's steps, along his step and along the softest eigenvector
    both ways; as these are not all directions, it is doubled. Where a kink of the model is crossed that near,
    +inf; along kinks that the flow slides on these are the directions, and the gates are those that it has there.
    Gradients are relative to the scale of `scaled_gradient` at θ, so that nothing underflows.

    The directions are those that move the margins (of a loss without, the outputs). With `moves`, a function of θ in
    whatever units, they are those that move it; or, if that is less, those that move the margins where what pushes the
    outputs cancels output by output. There θ may move as long as the outputs stand: what their second derivatives add
    to H, $\sum_iw_i\nabla^2f_i$ with $w_i=\partial L/\partial f_i$, is at most half of its least eigenvalue.

    **Arguments:** `unravel`, `located`: see `piece_at`.
    """
    piece = piece_at(risk, unravel, theta, located)

    def outputs(x: Array) -> Array:
        return piece.outputs(x).reshape(-1)

    def own(x: Array) -> Array:
        # A shift of all outputs of a datum changes no loss of its classes.
        found = piece.outputs(x)
        return margins_of(risk.loss, found, risk.source.targets(found)).reshape(-1) if risk.loss.margin else outputs(x)

    scale = piece.gradient(theta).log_scale

    def slope_of(x: Array) -> Array:
        scaled = piece.gradient(x)
        return ravel_pytree(scaled.gradient)[0] * jnp.exp(scaled.log_scale - scale)

    def bent(x: Array, columns: Array) -> tuple[Array, Array]:
        """The gradient, and the Hessian's products with the columns, without the Hessian."""
        gradient, product = jax.linearize(slope_of, x)
        return gradient, jax.vmap(product, in_axes=1, out_axes=1)(columns)

    functions = [own] if moves is None else [moves, own]
    rows = [piece.along(jax.jacrev(function)(theta)) for function in functions]
    moved = [orthonormal(jacobian) for jacobian in rows]
    gradient, products = bent(theta, jnp.concatenate(moved).T)
    finite = jnp.all(jnp.isfinite(gradient)) & jnp.all(jnp.isfinite(products))
    ends = [sum(len(m) for m in moved[:k]) for k in range(len(moved) + 1)]
    spans = [
        _span(jnp.where(finite, products, 0.0)[:, a:b], m, gradient, finite & jnp.all(jnp.isfinite(jacobian)))
        for a, b, m, jacobian in zip(ends[:-1], ends[1:], moved, rows, strict=True)
    ]
    definite = [span.definite for span in spans]
    if moves is not None:
        there = risk.source.outputs(unravel(theta))
        size, weights = risk.loss.scaled_derivative(there, risk.source.targets(there))
        weights = weights.reshape(-1) * jnp.exp(size - scale) / risk.count(there)
        own_bend = jax.hessian(lambda x: outputs(x) @ weights)(theta)
        definite[1] = definite[1] & (2.0 * jnp.linalg.norm(own_bend) <= spans[1].least)

    # ω·2η at the distance 2η: with twice of it, ωη. The next of Newton's steps starts at the distance η.
    white = jnp.concatenate([span.white for span in spans], axis=1)
    steps = [-span.white @ span.step for span in spans]
    away = [
        x
        for span, step in zip(spans, steps, strict=True)
        for x in (2.0 * step, 2.0 * span.white @ span.softest, -2.0 * span.white @ span.softest, step)
    ]
    gradients, changed = jax.lax.map(lambda x: bent(theta + x, white), jnp.stack(away))
    bounds, left = [], []
    for k, span in enumerate(spans):
        columns = changed[4 * k : 4 * k + 3, :, ends[k] : ends[k + 1]]
        change = jnp.linalg.norm(span.white.T @ (columns - span.curved[None]), axis=(1, 2))
        bound = jnp.max(change)
        usable = definite[k] & ~piece.left(theta + away[4 * k]) & jnp.isfinite(bound)
        bounds.append(jnp.where(usable, bound, jnp.inf))
        left.append(2.0 * jnp.linalg.norm(span.white @ (span.white.T @ gradients[4 * k + 3])))
    alone = bounds[0] <= 0.5
    chosen = jnp.where(alone, 0, jnp.argmin(jnp.stack(bounds)))
    bound, step, length = (jnp.stack(of_each)[chosen] for of_each in (bounds, steps, left))
    return Near(bound, step, length, alone)


def flat(risk: EmpiricalRisk, model: Any) -> tuple[Float[Array, " p"], Callable[[Array], Any]]:
    """Trained parameters in one row, and the way back to a model."""
    params, frozen = eqx.partition(model, risk.filter(model))
    row, unravel = ravel_pytree(params)
    return row, lambda x: eqx.combine(unravel(x), frozen)


def orthonormal(rows: Float[Array, "m p"]) -> Float[Array, "r p"]:
    """An orthonormal basis of the span of the rows, whatever their units; rows of zero beyond its rank."""
    rows = jnp.where(jnp.all(jnp.isfinite(rows)), rows, 0.0)
    _, values, right = linalg.svd(rows / positive_or_one(jnp.linalg.norm(rows, axis=1, keepdims=True)))
    return jnp.where((values > ROUNDED * jnp.max(values, initial=0.0))[:, None], right, 0.0)


def _span(
    products: Float[Array, "p r"], moved: Float[Array, "r p"], gradient: Float[Array, " p"], finite: Bool[Array, ""]
) -> _Span:
    """What H is on the directions `moved`, of its products with them."""
    dead = jnp.all(moved == 0, axis=1)
    inner = moved @ products
    curves, vectors = linalg.eigh(0.5 * (inner + inner.T))
    # Rounding of eigenvalues: a curvature below it has no sign.
    rounding = len(gradient) * float(jnp.finfo(gradient.dtype).eps) * jnp.max(jnp.abs(curves), initial=0.0)
    live = jnp.sum(vectors**2 * (~dead)[:, None], axis=0) > 0.5
    definite = finite & jnp.all(jnp.where(live, curves > rounding, True)) & jnp.any(live)
    root = jnp.where(live & definite, 1.0 / jnp.sqrt(jnp.where(live & definite, curves, 1.0)), 0.0)
    turn = vectors * root[None, :]
    white = moved.T @ turn
    step = white.T @ gradient
    softest = jnp.linalg.norm(step) * jax.nn.one_hot(jnp.argmax(root), root.size, dtype=gradient.dtype)
    return _Span(definite, jnp.min(jnp.where(live, curves, jnp.inf)), white, products @ turn, step, softest)
