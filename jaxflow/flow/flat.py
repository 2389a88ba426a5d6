"""The state of an explicit method as one vector beside its bookkeeping: a step is then made of fewer, longer loops."""

import math
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optimistix
from jaxtyping import PyTree

from jaxflow.flow.solvers import state_norm


class FlatState(eqx.Module):
    """`(y, w, a)` with the coordinates y raveled, and back.

    Runge-Kutta stages, the error and its norm are sums over y: of K and Q of 10 × 10 numbers a step of Tsit5 costs half
    of what it costs leaf by leaf (23 against 36 µs in a batch of 16). w and a stay on their own: a vector with
    one number more would be copied at each evaluation.
    """

    tree: Any = eqx.field(static=True)
    shapes: tuple[tuple[int, ...], ...] = eqx.field(static=True)

    @classmethod
    def of(cls, extended: PyTree) -> "FlatState | None":
        """The form of this state; None where its leaves are not of one dtype."""
        leaves, tree = jax.tree.flatten(extended[0])
        same = len({jnp.result_type(leaf) for leaf in leaves}) == 1
        return cls(tree, tuple(jnp.shape(leaf) for leaf in leaves)) if same else None

    def pack(self, extended: PyTree) -> PyTree:
        y, *rest = extended
        parts = [jnp.ravel(leaf) for leaf in jax.tree.leaves(y)]
        return (parts[0] if len(parts) == 1 else jnp.concatenate(parts), *rest)

    def unpack(self, flat: PyTree) -> PyTree:
        y, *rest = flat
        ends = np.cumsum([math.prod(shape) for shape in self.shapes])[:-1]
        leaves = [part.reshape(shape) for part, shape in zip(jnp.split(y, ends), self.shapes, strict=True)]
        return (jax.tree.unflatten(self.tree, leaves), *rest)


def flat_state(
    solver: diffrax.AbstractSolver, controller: diffrax.AbstractStepSizeController, extended: PyTree
) -> FlatState | None:
    """The form in which a state is integrated: None, which is as it is, where the method may look at its structure.

    Explicit methods do not, nor do controllers whose norm is over all numbers, or over those of y.
    """
    if not isinstance(solver, diffrax.AbstractERK):
        return None
    if isinstance(controller, diffrax.PIDController):
        numbers = all(eqx.is_array_like(x) and jnp.ndim(x) == 0 for x in (controller.rtol, controller.atol))
        known = controller.norm is optimistix.rms_norm or controller.norm is state_norm
        return FlatState.of(extended) if numbers and known else None
    return FlatState.of(extended) if isinstance(controller, diffrax.ConstantStepSize) else None
