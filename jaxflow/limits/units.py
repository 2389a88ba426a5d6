r"""Tokens and queries of any size: attention is followed in units in which both are of order one.

Logits are $x_{it}^\top Wz_i$. With tokens a times and queries b times as large as in those units, $W'=abW$ gives the
same logits; parameters of a model of degree L are $(ab)^{1/L}$ times as large, arc lengths too, and times
$(ab)^{2/L}$. Lengths of stages and tolerances of rest are those of data of order one. Data within a factor of a
thousand of order one have no units, and their path has the same bits as without units.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxflow.data import TokenData
from jaxflow.limits.stages import ORDER_ONE
from jaxflow.models import LinearHead
from jaxflow.risk import EmpiricalRisk
from jaxflow.trajectory import Point, Trajectory


class Units(eqx.Module):
    r"""`tokens` and `queries`: a and b, powers of two, one where data are of order one. `degree`: L."""

    tokens: Float[Array, ""]
    queries: Float[Array, ""]
    degree: int = eqx.field(static=True)

    @property
    def weights(self) -> Float[Array, ""]:
        """$(ab)^{1/L}$: the parameters' size in these units over that of the model."""
        return self.tokens ** (1.0 / self.degree) * self.queries ** (1.0 / self.degree)

    def inward(self, risk: EmpiricalRisk, model: Any) -> tuple[EmpiricalRisk, Any]:
        """Data and model in these units. The attention of a sequence with a zero query never changes and has no
        gradient: its tokens become zero, so that its multipliers do not count beside the others."""
        data: Any = risk.data
        a, b = self.tokens, self.queries
        tokens = data.tokens / a
        if data.single_query:
            tokens = jnp.where(jnp.any(data.queries != 0, axis=-1)[:, None, None], tokens, 0.0)
        moved = TokenData(tokens, data.queries / b, data.labels, data.mask)
        inside = eqx.tree_at(lambda r: r.source.data, risk, moved)
        params, frozen = eqx.partition(model, model.trainable())
        params = jax.tree.map(lambda x: x * self.weights, params)
        return inside, eqx.tree_at(lambda m: m.head.v, eqx.combine(params, frozen), model.head.v * a)

    def outward(self, path: Trajectory, model: Any) -> Trajectory:
        """A path in these units, in those of the model."""
        saved = None if path.saved is None else jax.vmap(lambda p: self._point(p, model))(path.saved)
        final = self._point(path.final, model)
        return eqx.tree_at(lambda t: (t.final, t.saved), path, (final, saved), is_leaf=lambda x: x is path.saved)

    def lengths_inward(self, path: Trajectory) -> Trajectory:
        """The end of a path with its lengths and its gradient in these units: what judges it knows no others."""
        log, final = jnp.log(self.weights), path.final
        params, frozen = eqx.partition(final.model, final.model.trainable())
        inside = eqx.combine(jax.tree.map(lambda x: x * self.weights, params), frozen)
        return eqx.tree_at(
            lambda t: (t.final.model, t.final.log_arc_length, t.final.log_norm, t.final.log_gradient_norm),
            path,
            (inside, final.log_arc_length + log, final.log_norm + log, final.log_gradient_norm - log),
        )

    def _point(self, point: Point, model: Any) -> Point:
        log = jnp.log(self.weights)
        params, frozen = eqx.partition(point.model, point.model.trainable())
        back = eqx.combine(jax.tree.map(lambda x: x / self.weights, params), frozen)
        log_time = point.log_time - 2.0 * log
        known = jnp.isfinite(log_time) & (log != 0)
        return eqx.tree_at(
            lambda p: (p.model, p.log_time, p.log_log_time, p.log_arc_length, p.log_norm, p.log_gradient_norm),
            point,
            (
                eqx.tree_at(lambda m: m.head.v, back, model.head.v),
                log_time,
                jnp.where(known, jnp.log(jnp.maximum(log_time, 0.0)), point.log_log_time),
                point.log_arc_length - log,
                point.log_norm - log,
                point.log_gradient_norm + log,
            ),
        )


def units_of(risk: EmpiricalRisk, model: Any) -> Units | None:
    """The units of an instance; None where the model is not attention with one value vector, in its own parameters."""
    data: Any = risk.data
    degree = getattr(model, "degree", None)
    known = isinstance(data, TokenData) and isinstance(getattr(model, "head", None), LinearHead)
    if not known or degree not in (1, 2) or risk.filter(model) != model.trainable():
        return None
    a, b = exponent_of(data.tokens), exponent_of(data.queries)
    size = a + b
    # Only together do they matter: the root of the product is a power of two as well.
    b = jnp.where((size % degree) == 0, b, b + 1)
    ordinary = jnp.abs(size) <= ORDER_ONE
    return Units(power_of_two(jnp.where(ordinary, 0, a)), power_of_two(jnp.where(ordinary, 0, b)), degree)


def exponent_of(vectors: Float[Array, "*n d"]) -> Array:
    """The power of two next to the largest norm, zero where there is none."""
    largest = jnp.max(jnp.abs(vectors))
    some = (largest > 0) & jnp.isfinite(largest)
    scale = jnp.where(some, largest, 1.0)
    norm = jnp.max(jnp.linalg.norm(vectors / scale, axis=-1))
    size = jnp.log2(scale) + jnp.log2(jnp.where(some, norm, 1.0))
    return jnp.where(some, jnp.round(size), 0.0)


def power_of_two(exponent: Array) -> Array:
    return jnp.ldexp(jnp.ones_like(exponent), exponent.astype(int))
