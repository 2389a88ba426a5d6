r"""The pieces of a piecewise smooth flow: its field at given gates, its kinks, and their tangent space (floor 6).

A risk is smooth between its kinks (`jaxflow._core.kinks`): those of the model's outputs (of an attention model: of its
head), and those of the loss. With gates given, each side of every kink has a field of its own that goes on smoothly
beyond it; kinks that the flow slides on take the component across them out of the field.
"""

from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PyTree

from jaxflow._core import ScaledGradient, linalg, positive_or_one
from jaxflow._core.kinks import Gated, gated, kink_count
from jaxflow.data import TokenData
from jaxflow.flow.coordinates import AbstractCoordinates, Scores, Weights
from jaxflow.losses import AbstractLoss, MarginLoss, Tail, margins_of
from jaxflow.models import (
    AbstractAttention,
    AbstractLinearNetwork,
    GatedHead,
    MultiHeadAttention,
    Pullback,
    head_outputs,
    is_linear,
    linearize_outputs,
    mix,
)
from jaxflow.risk import AbstractSource, EmpiricalRisk

# What is left of a gradient by the projection onto a tangent space, where the tangent space is a point: roundings.
ROUNDINGS = 1e-13
# Normals this far below the largest are none: units without weights, and tokens that attention has left for good. Kinks
# with the same normal (of two data that are equal) share what they carry: systems in units of one are moved by as much,
# so that their gates are known to roundings over it.
VANISHING = 1e-12


class PieceSource(AbstractSource):
    """Outputs with the gates of their kinks given."""

    base: AbstractSource
    gates: Float[Array, " g"]

    def linearize(self, model: Any, trainable: PyTree) -> tuple[Float[Array, "..."], Pullback]:
        if not isinstance(model, AbstractAttention):
            # The gates of what is trained alone: a kink of the rest is none.
            params, frozen = eqx.partition(model, trainable)

            def outputs(params: PyTree) -> Array:
                return gated(lambda p: self.base.outputs(eqx.combine(p, frozen)), params, self.gates).value

            return linearize_outputs(outputs, params, jax.tree.map(lambda _: True, params))
        head = GatedHead(model.head, self.gates)
        inside = eqx.tree_at(lambda m: m.head, model, head)
        frozen = jax.tree.map(lambda _: False, head)
        moving = eqx.tree_at(lambda m: m.head, trainable, eqx.tree_at(lambda h: h.head, frozen, trainable.head))
        values, pullback = self.base.linearize(inside, moving)

        def unwrapped(scale: Array, weights: Array) -> ScaledGradient:
            scaled = pullback(scale, weights)
            found = eqx.tree_at(
                lambda g: g.head, scaled.gradient, scaled.gradient.head.head, is_leaf=lambda x: isinstance(x, GatedHead)
            )
            return ScaledGradient(scaled.log_scale, found, scaled.multipliers)

        return values, unwrapped

    def outputs(self, model: Any) -> Float[Array, "..."]:
        return self.base.outputs(model)

    def targets(self, outputs: Float[Array, "..."]) -> Array:
        return self.base.targets(outputs)


class PieceLoss(AbstractLoss):
    """A loss of the margin with the gates of its kinks given. Hinges end flat: their slopes need no logarithm."""

    base: MarginLoss
    gates: Float[Array, " g"]
    margin: ClassVar[bool] = True

    def value(self, outputs: Float[Array, "..."], targets: Float[Array, "..."]) -> Float[Array, "..."]:
        return self.base.value(outputs, targets)

    def log_value(self, outputs: Float[Array, "..."], targets: Float[Array, "..."]) -> Float[Array, "..."]:
        return self.base.log_value(outputs, targets)

    def scaled_derivative(
        self, outputs: Float[Array, "..."], targets: Float[Array, "..."]
    ) -> tuple[Float[Array, ""], Float[Array, "..."]]:
        def total(q: Array) -> Array:
            return jnp.sum(gated(jax.vmap(self.base.function), q, self.gates).value)

        slopes = jax.grad(total)((targets * outputs).reshape(-1)).reshape(targets.shape)
        return jnp.zeros((), slopes.dtype), slopes * targets


class Mode(eqx.Module):
    """Which piece the flow is on: `gates` `(g,)`, and `sliding` `(g,)`, the kinks that it stays on; `size`: the largest
    switch so far, against which the others are roundings or not."""

    gates: Float[Array, " g"]
    sliding: Bool[Array, " g"]
    size: Float[Array, ""]

    @staticmethod
    def of(found: Gated) -> "Mode":
        """The piece around a state, on no kink."""
        return Mode(found.gates, jnp.zeros(found.gates.shape, bool), largest(found.switches))


def largest(switches: Float[Array, " g"]) -> Float[Array, ""]:
    """The size of the largest switch that is finite."""
    return jnp.max(jnp.where(jnp.isfinite(switches), jnp.abs(switches), 0.0), initial=0.0)


class Crossing(NamedTuple):
    r"""How fast kinks that a state is on are left, as a function of their gates: $\dot z=a+M(c-c_0)$ around the gates
    that they have. It is affine where kinks do not follow each other, as those of two layers, or of model and loss, do.

    `index` `(m,)`: which kinks, `on` `(m,)`: whether each is one of those asked for; `nearest` $c_0$ `(m,)`, the side
    whose gate is nearer, so that gates of any smallness keep their relative accuracy; `speed` a `(m,)` there and
    `matrix` M `(m, m)`, to the scale of the field.
    """

    index: Int[Array, " m"]
    on: Bool[Array, " m"]
    nearest: Float[Array, " m"]
    speed: Float[Array, " m"]
    matrix: Float[Array, "m m"]

    @property
    def unit(self) -> Float[Array, " m"]:
        """Speeds that the whole of a gate is worth."""
        size = jnp.abs(jnp.diagonal(self.matrix))
        largest = jnp.max(size, initial=0.0)
        return jnp.maximum(size, jnp.where(largest > 0, VANISHING * largest, 1.0))

    @property
    def size(self) -> Float[Array, ""]:
        """The size of what gates are moved from their nearest sides, at most one."""
        return jnp.clip(jnp.max(jnp.where(self.on, jnp.abs(self.speed) / self.unit, 0.0), initial=0.0), 1e-300, 1.0)

    def turned(self, free: Array, fixed: Array) -> Float[Array, " m"]:
        r"""$c-c_0$ for which the `free` kinks are not left; `fixed` are the gates of the others."""
        both = free[:, None] & free[None, :]
        unit = self.unit
        rows = jnp.where(both, self.matrix / unit[:, None], 0.0) + jnp.diag(jnp.where(free, -VANISHING, 1.0))
        known = jnp.where(free, 0.0, fixed - self.nearest)
        return linalg.solve(rows, jnp.where(free, -(self.speed + self.matrix @ known) / unit, known))

    def speeds(self, turned: Array) -> Float[Array, " m"]:
        r"""$\dot z$ in units of gates."""
        return (self.speed + self.matrix @ turned) / self.unit

    def inside(self, turned: Array) -> Float[Array, " m"]:
        """How far a gate is inside of [0, 1]; negative where it is not."""
        away = jnp.where(self.nearest > 0.5, -turned, turned)
        return jnp.minimum(away, 1.0 - away)


class Kinks(eqx.Module):
    """The kinks of a flow in its coordinates."""

    coordinates: AbstractCoordinates
    context: PyTree

    @property
    def risk(self) -> EmpiricalRisk:
        leaves = jax.tree.leaves(self.context, is_leaf=lambda x: isinstance(x, EmpiricalRisk))
        return next(x for x in leaves if isinstance(x, EmpiricalRisk))

    def at(self, state: PyTree, gates: Any = None) -> Gated:
        """Switches and gates of all kinks at a state, those of the model first; `gates` None: those of the state."""
        risk, model = self.risk, self.coordinates.decode(self.context, state)
        inner, outer = self._parted(state, gates)
        if isinstance(model, AbstractAttention) and isinstance(risk.data, TokenData):
            points = mix(risk.data, self.coordinates.attention(self.context, state, risk.data))
            found = gated(lambda x: head_outputs(model.head, x), points, inner)
        else:
            found = gated(lambda x: risk.source.outputs(self.coordinates.decode(self.context, x)), state, inner)
        if self._of_loss(state) == 0:
            return found
        loss: Any = risk.loss
        q = margins_of(loss, found.value, risk.source.targets(found.value)).reshape(-1)
        ends = gated(jax.vmap(loss.function), q, outer)
        joined = (jnp.concatenate(pair) for pair in ((found.switches, ends.switches), (found.gates, ends.gates)))
        return Gated(found.value, *joined)

    def loss_at(self, state: PyTree, gates: Float[Array, " g"]) -> AbstractLoss:
        """The loss with gates given."""
        loss, outer = self.risk.loss, self._parted(state, gates)[1]
        return PieceLoss(loss, outer) if outer.size and isinstance(loss, MarginLoss) else loss

    def field(self, state: PyTree, gates: Float[Array, " g"]) -> ScaledGradient:
        """The field of the coordinates with gates given."""
        inner, loss = self._parted(state, gates)[0], self.loss_at(state, gates)

        def piece(x: Any) -> Any:
            if not isinstance(x, EmpiricalRisk):
                return x
            return EmpiricalRisk(PieceSource(x.source, inner), loss, x.trainable, x.reduction)

        within = jax.tree.map(piece, self.context, is_leaf=lambda x: isinstance(x, EmpiricalRisk))
        return self.coordinates.field(within, state)

    def _of_loss(self, state: PyTree) -> int:
        """How many kinks the loss has, over all outputs."""
        loss = self.risk.loss
        # What looks like a kink of a loss with an exponential tail is a guard of its exponential; it keeps its
        # logarithms.
        if not isinstance(loss, MarginLoss) or loss.tail is Tail.exponential:
            return 0
        outputs = eqx.filter_eval_shape(self.risk.source.outputs, self.coordinates.decode(self.context, state))
        return kink_count(jax.vmap(loss.function), jnp.zeros(outputs.size, outputs.dtype))

    def _parted(self, state: PyTree, gates: Any) -> tuple[Any, Any]:
        """Gates of the model and of the loss."""
        count = 0 if gates is None else gates.size - self._of_loss(state)
        return (None, None) if gates is None else (gates[:count], gates[count:])

    def _normals(self, state: PyTree, gates: Array) -> tuple[Array, Array, Array]:
        """Normals `(g, p)`, switches `(g,)`, and the normals' lengths, zero for what vanishes beside the largest."""
        flat, unravel = ravel_pytree(state)

        def switches(x: Array) -> tuple[Array, Array]:
            z = self.at(unravel(x), gates).switches
            return z, z

        rows, z = jax.jacfwd(switches, has_aux=True)(flat)
        sizes = jnp.linalg.norm(rows, axis=1)
        return rows, z, jnp.where(sizes > VANISHING * jnp.max(sizes, initial=0.0), sizes, 0.0)

    def distances(self, state: PyTree, gates: Float[Array, " g"]) -> Float[Array, " g"]:
        """Signed distances to first order; infinite of kinks that no state is nearer to than this one."""
        _, z, sizes = self._normals(state, gates)
        return jnp.where(sizes > 0, z / positive_or_one(sizes), jnp.inf)

    def normals(self, state: PyTree, gates: Array, kinks: Bool[Array, " g"]) -> tuple[Array, Array, Array, Array]:
        """The chosen kinks, at most as many as the state has numbers.

        **Returns:** which they are `(m,)`; whether each is one of `kinks` `(m,)`; unit normals `(m, p)`, zero for
        others; signed distances `(m,)`.
        """
        rows, z, sizes = self._normals(state, gates)
        there = kinks & (sizes > 0)
        index = jnp.argsort(~there, stable=True)[: min(rows.shape)]
        on = there[index]
        scale = jnp.where(on, 1.0 / jnp.where(on, sizes[index], 1.0), 0.0)
        return index, on, rows[index] * scale[:, None], z[index] * scale

    def projected(self, state: PyTree, mode: Mode, kinks: Array) -> PyTree:
        """The state moved onto `kinks` that it is close to, by a Newton step along their normals."""
        flat, unravel = ravel_pytree(state)
        _, on, rows, distances = self.normals(state, mode.gates, kinks)
        return unravel(flat - rows.T @ _gram_solve(rows, on, distances))

    def across(self, state: PyTree, mode: Mode, kinks: Bool[Array, " g"]) -> Crossing:
        """How fast `kinks` that the state is on are left."""
        index, on, rows, _ = self.normals(state, mode.gates, kinks)
        chosen = mode.gates[index]
        nearest = jnp.where(on, jnp.round(chosen), chosen)

        def velocity(c: Array) -> tuple[Array, Array]:
            scaled = self.field(state, mode.gates.at[index].set(c))
            return -ravel_pytree(scaled.gradient)[0], scaled.log_scale

        # On a side itself the other piece is left out, and the field has no derivative by the gate.
        between = jnp.clip(chosen, VANISHING, 1.0 - VANISHING)
        jumps, scale = jax.jacfwd(velocity, has_aux=True)(jnp.where(on, between, chosen))
        matrix = jnp.where(on[:, None] & on[None, :], rows @ jumps, 0.0)
        there, scale_there = velocity(chosen)
        speed = jnp.exp(scale_there - scale) * (rows @ there)
        return Crossing(index, on, nearest, speed - matrix @ (chosen - nearest), matrix)


def _gram_solve(rows: Array, on: Array, right: Array) -> Array:
    gram = rows @ rows.T + jnp.diag(jnp.where(on, VANISHING, 1.0))
    return linalg.linear_solve(gram, right)


class Pieces(AbstractCoordinates):
    """Coordinates of one piece: the context carries the `Mode` beside the one of `base`."""

    base: AbstractCoordinates

    def encode(self, risk: EmpiricalRisk, model: Any) -> tuple[PyTree, PyTree]:
        state, context = self.base.encode(risk, model)
        return state, (context, Mode.of(Kinks(self.base, context).at(state)))

    def decode(self, context: PyTree, state: PyTree) -> Any:
        return self.base.decode(context[0], state)

    def field(self, context: PyTree, state: PyTree) -> ScaledGradient:
        inner, mode = context
        kinks = Kinks(self.base, inner)
        scaled = kinks.field(state, mode.gates)
        flat, unravel = ravel_pytree(scaled.gradient)

        def tangent() -> Array:
            _, on, rows, _ = kinks.normals(state, mode.gates, mode.sliding)
            along = flat - rows.T @ _gram_solve(rows, on, rows @ flat)
            along = along - rows.T @ _gram_solve(rows, on, rows @ along)
            rests = jax.lax.stop_gradient(jnp.linalg.norm(along) <= ROUNDINGS * jnp.linalg.norm(flat))
            return jnp.where(rests, 0.0, along)

        found = jax.lax.cond(jnp.any(mode.sliding), tangent, lambda: flat)
        return ScaledGradient(scaled.log_scale, unravel(found), scaled.multipliers)


def knows_pieces(coordinates: AbstractCoordinates, model: Any) -> bool:
    """Whether kinks can be looked for: their outputs, or those of one head, are differentiated piece by piece."""
    return isinstance(coordinates, Weights | Scores) and not isinstance(model, MultiHeadAttention)


def has_kinks(coordinates: AbstractCoordinates, risk: EmpiricalRisk, model: Any) -> bool:
    """Whether a flow in these coordinates has kinks that can be found."""
    if not knows_pieces(coordinates, model) or isinstance(model, AbstractLinearNetwork):
        return False
    if not isinstance(risk.loss, MarginLoss) and isinstance(model, AbstractAttention) and is_linear(model.head):
        return False

    def switches(risk: EmpiricalRisk, model: Any) -> Array:
        state, context = coordinates.encode(risk, model)
        return Kinks(coordinates, context).at(state).switches

    return eqx.filter_eval_shape(switches, risk, model).size > 0
