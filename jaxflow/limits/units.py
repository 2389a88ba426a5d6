r"""Data of any size: attention and linear networks are followed in units in which their data are of order one.

**Attention** has logits $x_{it}^\top Wz_i$. With tokens a times and queries b times as large as in those units,
$W'=abW$ gives the same logits: the parameters of a model of degree L are $c=(ab)^{1/L}$ times as large, arc lengths
too, and times $c^2$.

**Linear networks** have outputs $x_i^\top\beta(\theta)$ with β homogeneous of degree L in the layers. With inputs a
times and targets b times as large, $\theta'=c\,\theta$ with $c=(a/b)^{1/L}$ gives outputs b times smaller:

- a margin loss (b = 1, labels have no size): the same margins, lengths c times as large, and times $c^2$;
- squared loss: $b^2$ times the loss, lengths c times and times $c^2b^2$ as large.

Lengths of stages, tolerances and what counts as standing still are those of data of order one. Data within a factor of
a thousand of order one have no units: the path is to the last bit what it is without them.
"""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from jaxflow._core import positive_or_one
from jaxflow.data import LinearData, TokenData
from jaxflow.models import AbstractLinearNetwork, LinearHead
from jaxflow.risk import EmpiricalRisk
from jaxflow.trajectory import Point, Trajectory

# Sizes of data up to this power of two, or down to its inverse, are of order one.
ORDER_ONE = 10


class Units(eqx.Module):
    """Powers of two, one where data are of order one: `inputs` a, of inputs or tokens; `others` b, of targets or
    queries; `weights` c; `loss`, the root of the loss's factor: b of squared loss, else one."""

    inputs: Float[Array, ""]
    others: Float[Array, ""]
    weights: Float[Array, ""]
    loss: Float[Array, ""]

    def inward(self, risk: EmpiricalRisk, model: Any) -> tuple[EmpiricalRisk, Any]:
        """Data and model in these units. The attention of a sequence with a zero query never changes and has no
        gradient: its tokens become zero, so that its multipliers do not count beside the others."""
        data: Any = risk.data
        scaled = _scaled(model, self.weights)
        if isinstance(data, LinearData):
            moved = LinearData(data.inputs / self.inputs, data.targets / self.others)
            return eqx.tree_at(lambda r: r.source.data, risk, moved), scaled
        tokens = data.tokens / self.inputs
        if data.single_query:
            asked = jnp.any(model.keys_and_queries(data)[1] != 0, axis=-1)
            tokens = jnp.where(asked[:, None, None], tokens, 0.0)
        moved = TokenData(tokens, data.queries / self.others, data.labels, data.mask)
        inside = eqx.tree_at(lambda r: r.source.data, risk, moved)
        return inside, eqx.tree_at(lambda m: m.head.v, scaled, model.head.v * self.inputs)

    def outward(self, path: Trajectory, model: Any) -> Trajectory:
        """A path in these units, in those of its start `model`."""
        saved = None if path.saved is None else jax.vmap(lambda p: self._point(p, model))(path.saved)
        return replace(path, final=self._point(path.final, model), saved=saved)

    def _point(self, point: Point, model: Any) -> Point:
        c, b = jnp.log(self.weights), jnp.log(self.loss)
        log_time = point.log_time - 2.0 * (c + b)
        known = jnp.isfinite(log_time) & ((c != 0) | (b != 0))
        moved, _ = eqx.partition(_scaled(point.model, 1.0 / self.weights), model.trainable())
        _, fixed = eqx.partition(model, model.trainable())
        return replace(
            point,
            model=eqx.combine(moved, fixed),
            log_time=log_time,
            log_log_time=jnp.where(known, jnp.log(jnp.maximum(log_time, 0.0)), point.log_log_time),
            log_arc_length=point.log_arc_length - c,
            log_norm=point.log_norm - c,
            log_scale=point.log_scale + b,
            log_gradient_norm=point.log_gradient_norm + c + 2.0 * b,
        )


def in_units(risk: EmpiricalRisk, model: Any, path: Trajectory) -> tuple[EmpiricalRisk, Any, Trajectory]:
    """Data, start and the end of a path in units in which data are of order one: in them it is judged."""
    units = units_of(risk, model)
    if units is None:
        return risk, model, path
    inverse = jax.tree.map(lambda x: 1.0 / x, units)
    final = inverse._point(path.final, path.final.model)
    return *units.inward(risk, model), replace(path, final=final, saved=None)


def units_of(risk: EmpiricalRisk, model: Any) -> Units | None:
    """The units of an instance. None where the model is neither attention with one value vector nor a linear network,
    in its own parameters."""
    data: Any = risk.data
    if isinstance(data, TokenData):
        known = isinstance(getattr(model, "head", None), LinearHead) and getattr(model, "degree", None) in (1, 2)
    else:
        linear = isinstance(data, LinearData) and isinstance(model, AbstractLinearNetwork)
        known = linear and getattr(model, "activation", None) is None
    if not known or risk.filter(model) != model.trainable():
        return None
    if not isinstance(data, TokenData):
        return _of_inputs(risk, model)
    keys, queries = model.keys_and_queries(data)  # pyright: ignore[reportAttributeAccessIssue]
    return _of_tokens(keys, queries, model.degree)


def _of_tokens(tokens: Float[Array, "n T d"], queries: Float[Array, "... e"], degree: int) -> Units:
    a, b = exponent_of(tokens), exponent_of(queries)
    size = a + b
    # Only together do they matter: the root of the product is a power of two as well.
    b = jnp.where((size % degree) == 0, b, b + 1)
    ordinary = jnp.abs(size) <= ORDER_ONE
    a, b = jnp.where(ordinary, 0.0, a), jnp.where(ordinary, 0.0, b)
    return Units(power_of_two(a), power_of_two(b), power_of_two((a + b) / degree), jnp.ones_like(a))


def _of_inputs(risk: EmpiricalRisk, model: Any) -> Units:
    def beyond(exponent: Array) -> Array:
        return jnp.where(jnp.abs(exponent) <= ORDER_ONE, 0.0, exponent)

    data: Any = risk.data
    a = beyond(exponent_of(data.inputs))
    b = jnp.zeros_like(a) if risk.loss.margin else beyond(exponent_of(data.targets[:, None]))
    # The root of a/b is a power of two as well: the inputs take up what is left over.
    root = jnp.round((a - b) / model.degree)
    largest = largest_entry(model.layers)
    # A start whose margins have no digits in these units (inputs of 1e150) has none in any: nothing is claimed of it.
    # Margins of weights of 2^k keep the bits that k leaves: half of them at least.
    lost = jnp.log2(positive_or_one(largest)) + root > 0.5 * jnp.finfo(largest.dtype).nmant
    root, b = jnp.where(lost, 0.0, root), jnp.where(lost, 0.0, b)
    targets = power_of_two(b)
    return Units(power_of_two(b + model.degree * root), targets, power_of_two(root), targets)


def exponent_of(vectors: Float[Array, "*n d"]) -> Array:
    """The power of two next to the largest norm, zero where there is none."""
    largest = jnp.max(jnp.abs(vectors))
    some = (largest > 0) & jnp.isfinite(largest)
    scale = jnp.where(some, largest, 1.0)
    norm = jnp.max(jnp.linalg.norm(vectors / scale, axis=-1))
    size = jnp.log2(scale) + jnp.log2(jnp.where(some, norm, 1.0))
    return jnp.where(some, jnp.round(size), 0.0)


def largest_entry(layers: PyTree) -> Float[Array, ""]:
    """The size of the largest number in any array."""
    return jnp.max(jnp.stack([jnp.max(jnp.abs(w)) for w in jax.tree.leaves(layers)]))


def power_of_two(exponent: Array) -> Array:
    return jnp.ldexp(jnp.ones_like(exponent), exponent.astype(int))


def _scaled(model: Any, size: Array) -> Any:
    params, frozen = eqx.partition(model, model.trainable())
    return eqx.combine(jax.tree.map(lambda x: x * size, params), frozen)
