"""Saddles of linear networks: what is no rest, and what rises from one."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from jaxflow._core import linalg, tree_norm
from jaxflow.data import LinearData
from jaxflow.flow import AbstractStop, Situation
from jaxflow.limits.stages import STATIONARY, readable
from jaxflow.models import DiagonalLinearNetwork
from jaxflow.trajectory import Trajectory


class AtMinimum(AbstractStop):
    """Stops where β is `at_minimum`."""

    tolerance: float

    def __call__(self, situation: Situation) -> Bool[Array, ""]:
        data: Any = situation.risk.data
        here = situation.scaled
        return at_minimum(data, situation.decode(), here.multipliers, here.gradient, self.tolerance)


def at_minimum(
    data: LinearData, model: Any, multipliers: Any, gradient: PyTree, tolerance: float = STATIONARY
) -> Bool[Array, ""]:
    r"""Whether $\|X^\top p\|\le\text{tolerance}\sum_i|p_i|$ over coordinates of β that move, or none does.

    The loss is convex in β: this is a minimum. At a saddle, where the gradient of the layers vanishes too, X^T p pulls
    at what is small. `gradient` of the layers, at any scale.
    """
    pull = multipliers @ data.inputs
    moves = coordinates_that_move(model) if isinstance(model, DiagonalLinearNetwork) else True
    rests = jnp.linalg.norm(jnp.where(moves, pull, 0.0)) <= tolerance * jnp.sum(jnp.abs(multipliers))
    # Of its own scale: far out the gradient's exponent is minus infinity.
    return rests | (tree_norm(gradient) == 0)


def network_at_rest(data: LinearData, model: Any, trajectory: Trajectory) -> Bool[Array, ""]:
    """Whether the path of a network from `model` is at a minimum, on data of order one (see `jaxflow.limits.units`)."""
    final = trajectory.final
    return at_minimum(data, model, final.multipliers, final.velocity) & readable(final)


def coordinates_that_move(model: DiagonalLinearNetwork) -> Bool[Array, " d"]:
    """Two layers that are zero in a coordinate keep it at zero."""
    return jnp.sum(jnp.stack([w == 0 for w in model.weights]), axis=0) <= 1


class Hurried(AbstractStop):
    """Stops where the path is `hurried`."""

    rtol: Float[Array, ""]

    def __call__(self, situation: Situation) -> Bool[Array, ""]:
        model = situation.decode()
        log_norm = jnp.log(tree_norm(eqx.filter(model, situation.risk.filter(model))))
        return hurried(self.rtol, situation.log_time, situation.scaled.log_norm, log_norm)


def hurried(rtol: Array, log_time: Array, log_gradient_norm: Array, log_norm: Array) -> Bool[Array, ""]:
    r"""Whether a rounding of log t moves the weights by more than `rtol` of their size,
    $t\|\nabla L\|\,\varepsilon\log t>\text{rtol}\,\|\theta\|$, by a gradient that is more than roundings."""
    rounding = jnp.log(jnp.finfo(log_time.dtype).eps * jnp.maximum(log_time, 1.0))
    speed = log_gradient_norm - log_norm
    return (log_time + speed + rounding > jnp.log(rtol)) & (speed > jnp.log(linalg.ROUNDED))
