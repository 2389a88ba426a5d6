r"""Inputs and targets of any size: linear networks are followed in units in which both are of order one.

Outputs are $x_i^\top\beta(\theta)$ with β homogeneous of degree L in the layers. With inputs a times and targets b
times as large as in those units, $\theta'=c\,\theta$ with $c=(a/b)^{1/L}$ gives outputs b times smaller:

- a margin loss (b = 1, labels have no size): the same margins, lengths c times as large, and times $c^2$;
- squared loss: $b^2$ times the loss, lengths c times and times $c^2b^2$ as large.

As for attention (`jaxflow.limits.units`) lengths of stages, tolerances and what counts as standing still are those of
data of order one. Data within a thousand of it have no units: the path is to the last bit what it is without them.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxflow._core import positive_or_one
from jaxflow.data import LinearData
from jaxflow.limits.stages import ORDER_ONE
from jaxflow.limits.units import exponent_of, power_of_two
from jaxflow.models import AbstractLinearNetwork
from jaxflow.risk import EmpiricalRisk
from jaxflow.trajectory import Point, Trajectory

# The power of two of the largest weight of a start, in these units.
MOST = 26.0


class NetworkUnits(eqx.Module):
    """`inputs` and `targets`: a and b, powers of two, one where data are of order one; `weights`: c, one as well."""

    inputs: Float[Array, ""]
    targets: Float[Array, ""]
    weights: Float[Array, ""]

    def inward(self, risk: EmpiricalRisk, model: Any) -> tuple[EmpiricalRisk, Any]:
        """Data and network in these units."""
        data: Any = risk.data
        moved = LinearData(data.inputs / self.inputs, data.targets / self.targets)
        return eqx.tree_at(lambda r: r.source.data, risk, moved), _scaled(model, self.weights)

    def outward(self, path: Trajectory) -> Trajectory:
        """A path in these units, in those of the network."""
        saved = None if path.saved is None else jax.vmap(self._point)(path.saved)
        return eqx.tree_at(
            lambda t: (t.final, t.saved), path, (self._point(path.final), saved), is_leaf=lambda x: x is path.saved
        )

    def _point(self, point: Point) -> Point:
        c, b = jnp.log(self.weights), jnp.log(self.targets)
        log_time = point.log_time - 2.0 * (c + b)
        known = jnp.isfinite(log_time) & ((c != 0) | (b != 0))
        return eqx.tree_at(
            lambda p: (
                p.model,
                p.log_time,
                p.log_log_time,
                p.log_arc_length,
                p.log_norm,
                p.log_scale,
                p.log_gradient_norm,
            ),
            point,
            (
                _scaled(point.model, 1.0 / self.weights),
                log_time,
                jnp.where(known, jnp.log(jnp.maximum(log_time, 0.0)), point.log_log_time),
                point.log_arc_length - c,
                point.log_norm - c,
                point.log_scale + b,
                point.log_gradient_norm + c + 2.0 * b,
            ),
        )


def network_units(risk: EmpiricalRisk, model: Any) -> NetworkUnits | None:
    """The units of an instance; None for what is no linear network in its own layers."""
    data: Any = risk.data
    known = isinstance(data, LinearData) and isinstance(model, AbstractLinearNetwork)
    if not known or getattr(model, "activation", None) is not None or risk.filter(model) != model.trainable():
        return None
    a = _beyond(exponent_of(data.inputs))
    b = jnp.zeros_like(a) if risk.loss.margin else _beyond(exponent_of(data.targets[:, None]))
    # The root of a/b is a power of two as well: the inputs take up what is left over.
    root = jnp.round((a - b) / model.degree)
    largest = jnp.max(jnp.stack([jnp.max(jnp.abs(w)) for w in model.layers]))
    # A start whose margins have no digits in these units (inputs of 1e150) has none in any: nothing is claimed of it.
    lost = jnp.log2(positive_or_one(largest)) + root > MOST
    root, b = jnp.where(lost, 0.0, root), jnp.where(lost, 0.0, b)
    return NetworkUnits(power_of_two(b + model.degree * root), power_of_two(b), power_of_two(root))


def _beyond(exponent: Array) -> Array:
    return jnp.where(jnp.abs(exponent) <= ORDER_ONE, 0.0, exponent)


def _scaled(model: Any, size: Array) -> Any:
    params, frozen = eqx.partition(model, model.trainable())
    return eqx.combine(jax.tree.map(lambda x: x * size, params), frozen)
