"""What roundings do to a limit: the same flow, seen through a fixed error of many of them."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from jaxflow._core import ScaledGradient
from jaxflow.flow import AbstractCoordinates
from jaxflow.models import DiagonalLinearNetwork

# Those of 4,000 steps, added up at random.
ROUNDED = 64.0


class Shaken(AbstractCoordinates):
    r"""The coordinates `inside`, whose field is taken at $x+64\,\varepsilon\,\text{amount}\,\max_j|x_j|\,\sigma$ with
    signs σ that stand still.

    A mode that is as small as the start, or has decayed below it, is added to weights that have grown,
    and has their roundings. Where its size decides the limit, these roundings do too, at every tolerance. The
    coordinates of a diagonal network do not mix: there every entry is shaken by its own size. `amount` of zero
    changes no bit.
    """

    inside: AbstractCoordinates
    amount: Float[Array, ""]

    def encode(self, risk: Any, model: Any) -> tuple[PyTree, PyTree]:
        state, context = self.inside.encode(risk, model)
        return state, (context, isinstance(model, DiagonalLinearNetwork))

    def decode(self, context: PyTree, state: PyTree) -> Any:
        return self.inside.decode(context[0], state)

    def left_behind(self, context: PyTree) -> Float[Array, ""] | float:
        return self.inside.left_behind(context[0])

    def field(self, context: PyTree, state: PyTree) -> ScaledGradient:
        inner, each = context
        leaves, structure = jax.tree.flatten(state)
        largest = jnp.max(jnp.stack([jnp.max(jnp.abs(x)) for x in leaves]))
        size = ROUNDED * float(jnp.finfo(largest.dtype).eps) * self.amount

        def shaken(key: int, x: Array) -> Array:
            signs = jax.random.rademacher(jax.random.key(key), x.shape, x.dtype)
            return x + size * signs * (x if each else largest)

        moved = jax.tree.unflatten(structure, [shaken(k, x) for k, x in enumerate(leaves)])
        return self.inside.field(inner, moved)
