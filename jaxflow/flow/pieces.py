r"""The pieces of a piecewise smooth flow: its field at given gates, its kinks, and their tangent space (floor 6).

A risk is smooth between its kinks (`jaxflow._core.kinks`): those of the model's outputs (of an attention model: of its
head), and those of the loss. With gates given, each side of every kink has a field of its own that goes on smoothly
beyond it; kinks that the flow slides on take the component across them out of the field.
"""

import math
from collections.abc import Callable
from dataclasses import replace
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
    """Which piece the flow is on: `gates` `(g,)`, and `sliding` `(g,)`, the kinks that it stays on; `size` `(g,)`: the
    largest that each switch, or the sum of its terms, was so far, against which it is roundings or not."""

    gates: Float[Array, " g"]
    sliding: Bool[Array, " g"]
    size: Float[Array, " g"]

    @staticmethod
    def of(found: Gated) -> "Mode":
        """The piece around a state, on no kink."""
        return Mode(found.gates, jnp.zeros(found.gates.shape, bool), size_of(found.switches))


def size_of(switches: Float[Array, " g"]) -> Float[Array, " g"]:
    """The size of each switch that is finite, else 0."""
    return jnp.where(jnp.isfinite(switches), jnp.abs(switches), 0.0)


class Crossing(NamedTuple):
    r"""How fast kinks that a state is on are left, as a function of their gates: $\dot z=a+M(c-c_0)$ around the gates
    that they have. It is affine where kinks do not follow each other, as those of two layers, or of model and loss, do.

    `index` `(m,)`: which kinks, `on` `(m,)`: whether each is one of those asked for; `nearest` $c_0$ `(m,)`, the side
    whose gate is nearer, so that gates of any smallness keep their relative accuracy; `speed` a `(m,)` there and
    `matrix` M `(m, m)`, to the scale of the field; `terms`: the size of what cancels in the field at a rest.
    """

    index: Int[Array, " m"]
    on: Bool[Array, " m"]
    nearest: Float[Array, " m"]
    speed: Float[Array, " m"]
    matrix: Float[Array, "m m"]
    terms: Float[Array, ""]

    @property
    def unit(self) -> Float[Array, " m"]:
        """Speeds that the whole of a gate is worth."""
        size = jnp.abs(jnp.diagonal(self.matrix))
        largest = jnp.max(size, initial=0.0)
        return jnp.maximum(size, jnp.where(largest > 0, VANISHING * largest, 1.0))

    def doubt(self, share: float) -> Float[Array, " m"]:
        """What gates and speeds may be off by: a share of what gates are moved from their nearest sides, and what the
        roundings of the field leave of them. Close to a rest, and where a datum is fitted, these are larger."""
        moved = jnp.max(jnp.where(self.on, jnp.abs(self.speed) / self.unit, 0.0), initial=0.0)
        rounding = 4.0 * float(jnp.finfo(self.terms.dtype).eps) * self.terms
        return share * jnp.clip(moved, 1e-300, 1.0) + rounding / self.unit

    def turned(self, free: Array, fixed: Array) -> Float[Array, " m"]:
        r"""$c-c_0$ for which the `free` kinks are not left; `fixed` are the gates of the others."""
        both = free[:, None] & free[None, :]
        unit = self.unit
        rows = jnp.where(both, self.matrix / unit[:, None], 0.0) + jnp.diag(jnp.where(free, -VANISHING, 1.0))
        known = jnp.where(free, 0.0, fixed - self.nearest)
        count = jnp.max(jnp.where(free, jnp.arange(1, free.size + 1), 0), initial=0)
        return linalg.leading_solve(rows, jnp.where(free, -(self.speed + self.matrix @ known) / unit, known), count)

    def speeds(self, turned: Array) -> Float[Array, " m"]:
        r"""$\dot z$ in units of gates."""
        return (self.speed + self.matrix @ turned) / self.unit

    def inside(self, turned: Array) -> Float[Array, " m"]:
        """How far a gate is inside of [0, 1]; negative where it is not."""
        away = jnp.where(self.nearest > 0.5, -turned, turned)
        return jnp.minimum(away, 1.0 - away)


class Normals(NamedTuple):
    """Kinks that a state is on or near to.

    `index` `(m,)`: which they are; `on` `(m,)`: whether each is one of those asked for; zero for others are `scale`
    `(m,)`, what a switch is to be multiplied by to be a distance, and `rows` N `(m, p)`, unit normals. `basis` Q
    `(m, p)`: orthonormal rows with the same span, zero where a normal is of the span of those before it; `turn` T
    `(m, m)`: Q = T N.
    """

    index: Int[Array, " m"]
    on: Bool[Array, " m"]
    scale: Float[Array, " m"]
    rows: Float[Array, "m p"]
    basis: Float[Array, "m p"]
    turn: Float[Array, "m m"]

    def shortest(self, right: Float[Array, " m"]) -> Float[Array, " p"]:
        """The shortest x with N x = `right`."""
        return self.basis.T @ (self.turn @ right)

    def along(self, x: Float[Array, " p"]) -> Float[Array, " p"]:
        """The part of x that is tangent to the kinks."""
        for _ in range(2):
            x = x - self.basis.T @ (self.basis @ x)
        return x


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
        return Gated(found.value, *(jnp.concatenate(pair) for pair in zip(found[1:], ends[1:], strict=True)))

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

    def switches(self, state: PyTree, gates: Array) -> tuple[Array, Callable[[Array], Array]]:
        """A state in one row, and the switches `(g,)` as a function of such a row."""
        flat, unravel = ravel_pytree(state)
        return flat, lambda x: self.at(unravel(x), gates).switches

    def distances(self, state: PyTree, gates: Float[Array, " g"]) -> tuple[Float[Array, " g"], Float[Array, " g"]]:
        r"""Signed distances to first order, infinite of kinks that no state is nearer to than this one; and what the
        terms of each switch add up to, $\sum_p|\partial z/\partial\theta_p||\theta_p|$."""
        flat, switches = self.switches(state, gates)
        rows, z = jax.jacfwd(lambda x: (switches(x),) * 2, has_aux=True)(flat)
        sizes = jnp.linalg.norm(rows, axis=1)
        return jnp.where(sizes > 0, z / positive_or_one(sizes), jnp.inf), jnp.abs(rows) @ jnp.abs(flat)

    def normals(self, state: PyTree, mode: Mode, kinks: Bool[Array, " g"]) -> Normals:
        """Of the chosen kinks, at most as many as the state has numbers."""
        flat, switches = self.switches(state, mode.gates)
        z, pull = jax.vjp(switches, flat)
        most = min(z.size, flat.size)
        index = jnp.argsort(~kinks, stable=True)[:most]
        # A normal along which the whole length of the state changes the switch by roundings alone is none.
        least = VANISHING * mode.size / positive_or_one(jnp.linalg.norm(flat))

        def one(k: Array, found: Normals) -> Normals:
            row = pull(jax.nn.one_hot(index[k], z.size, dtype=z.dtype))[0]
            size = jnp.linalg.norm(row)
            there = size > least[index[k]]
            unit = jnp.where(there, row / positive_or_one(size), 0.0)
            rest, parts = unit, jnp.zeros_like(found.scale)
            for _ in range(2):
                part = found.basis @ rest
                rest, parts = rest - found.basis.T @ part, parts + part
            length = jnp.linalg.norm(rest)
            # A normal that roundings may have turned by a millionth is one of the span of the others.
            share = jnp.where(there & (length > math.sqrt(VANISHING)), 1.0 / positive_or_one(length), 0.0)
            return Normals(
                index,
                found.on.at[k].set(there),
                found.scale.at[k].set(jnp.where(there, 1.0 / positive_or_one(size), 0.0)),
                found.rows.at[k].set(unit),
                found.basis.at[k].set(share * rest),
                found.turn.at[k].set(-share * (parts @ found.turn)).at[k, k].set(share),
            )

        rows, square = jnp.zeros((most, flat.size), z.dtype), jnp.zeros((most, most), z.dtype)
        none = Normals(index, jnp.zeros(most, bool), jnp.zeros_like(rows[:, 0]), rows, rows, square)
        return jax.lax.fori_loop(0, jnp.minimum(jnp.sum(kinks), most), one, none)

    def projected(self, state: PyTree, mode: Mode, kinks: Array) -> tuple[PyTree, Mode]:
        """The state moved onto `kinks` that it is close to, by a Newton step along their normals; the mode with the
        sizes of their terms."""
        flat, unravel = ravel_pytree(state)
        found = self.normals(state, mode, kinks)
        distances = jnp.where(found.on, self.at(state, mode.gates).switches[found.index] * found.scale, 0.0)
        terms = jnp.where(found.on, (jnp.abs(found.rows) @ jnp.abs(flat)) / positive_or_one(found.scale), 0.0)
        size = mode.size.at[found.index].max(terms)
        return unravel(flat - found.shortest(distances)), replace(mode, size=size)

    def across(self, state: PyTree, mode: Mode, kinks: Bool[Array, " g"]) -> Crossing:
        """How fast `kinks` that the state is on are left."""
        found = self.normals(state, mode, kinks)
        index, on, rows = found.index, found.on, found.rows
        chosen = mode.gates[index]
        nearest = jnp.where(on, jnp.round(chosen), chosen)

        def velocity(c: Array) -> tuple[Array, Array]:
            scaled = self.field(state, mode.gates.at[index].set(c))
            return -ravel_pytree(scaled.gradient)[0], scaled.log_scale

        # On a side itself the other piece is left out, and the field has no derivative by the gate.
        between = jnp.clip(chosen, VANISHING, 1.0 - VANISHING)
        _, jump, scale = jax.linearize(velocity, jnp.where(on, between, chosen), has_aux=True)

        def column(k: Array, matrix: Array) -> Array:
            return matrix.at[:, k].set(rows @ jump(jax.nn.one_hot(k, index.size, dtype=rows.dtype)))

        matrix = jnp.zeros((index.size, index.size), rows.dtype)
        matrix = jax.lax.fori_loop(0, jnp.sum(kinks), column, matrix)
        matrix = jnp.where(on[None, :], matrix, 0.0)
        there, scale_there = velocity(chosen)
        speed = jnp.exp(scale_there - scale) * (rows @ there)
        # At a rest what every other output pushes is minus what the rest of them do.
        flat, unravel = ravel_pytree(state)
        outputs, pull = jax.vjp(lambda x: self.at(unravel(x), mode.gates).value, flat)
        own, pushes = self.loss_at(state, mode.gates).scaled_derivative(outputs, self.risk.source.targets(outputs))
        pushes = pushes / self.risk.count(outputs) * (jnp.arange(outputs.size) % 2).reshape(outputs.shape)
        terms = jnp.exp(own - scale + jnp.log(jnp.linalg.norm(pull(pushes.astype(outputs.dtype))[0])))
        return Crossing(index, on, nearest, speed - matrix @ (chosen - nearest), matrix, terms)


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
            fixed = jax.lax.stop_gradient
            found = kinks.normals(fixed(state), mode, mode.sliding)
            along = found.along(flat)
            # Its derivative, without one of the basis: normals turn with the multipliers λ of the part across them,
            # $dN^T\lambda$, and what is tangent is so no longer by $dN$ of it.
            multipliers = found.turn.T @ (found.basis @ fixed(flat)) * found.scale
            row, switches = kinks.switches(state, mode.gates)
            bent = jax.grad(lambda x: multipliers @ switches(x)[found.index])(row)
            straight = jax.jvp(switches, (row,), (fixed(along),))[1][found.index] * found.scale
            along = found.along(flat - (bent - fixed(bent))) - found.shortest(straight - fixed(straight))
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
