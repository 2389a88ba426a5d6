r"""One layer of a diagonal network as state: the others follow from it, to all digits."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from jaxflow._core import ScaledGradient
from jaxflow.data import LinearData
from jaxflow.flow.coordinates.base import AbstractStretched, risk_of_own
from jaxflow.models import DiagonalLinearNetwork
from jaxflow.risk import EmpiricalRisk


class OneLayer(AbstractStretched):
    r"""For a `DiagonalLinearNetwork`: in each coordinate the layer c that is the smallest at the start.

    The flow conserves $w_l^2-w_c^2=r_l^2\ge0$, so that $w_l=\pm\sqrt{c^2+r_l^2}$ with the sign of the start, and
    $\dot c=-\partial_\beta L\prod_{l\ne c}w_l$. A layer with $r_l=0$ is ±c for ever. Where a coordinate has grown all
    its layers are equal to the last digit; where it comes back, what they differed by at the start decides whether β
    passes zero. Weights have lost it by then: three layers from a start of 1e-12 took the sign of roundings, and
    ended at another point.

    **Arguments:** `start`: the network at the start of the path, where a path continues from a model; None: the model.
    """

    start: DiagonalLinearNetwork | None = None

    def encode(self, risk: EmpiricalRisk, model: Any) -> tuple[PyTree, PyTree]:
        if not (isinstance(model, DiagonalLinearNetwork) and isinstance(risk.data, LinearData)):
            raise ValueError("coordinates: OneLayer needs a DiagonalLinearNetwork on LinearData; use Weights")
        risk_of_own(risk, model, "OneLayer moves all layers")
        start = jnp.stack((model if self.start is None else self.start).weights)
        index = jnp.argmin(jnp.abs(start), axis=0)
        c = _entry(start, index)
        larger, smaller = jnp.abs(start), jnp.abs(c)[None, :]
        # No difference of squares, which underflow.
        apart = jnp.sqrt(larger - smaller) * jnp.sqrt(larger + smaller)
        # Relative to c where a layer is ±c, else its own sign.
        signs = jnp.where((apart > 0) | (c >= 0)[None, :], 1.0, -1.0) * jnp.where(start < 0, -1.0, 1.0)
        return _entry(jnp.stack(model.weights), index), (risk, model, index, apart, signs)

    def decode(self, context: PyTree, state: PyTree) -> Any:
        return eqx.tree_at(lambda m: m.weights, context[1], tuple(self._layers(context, state)))

    def field(self, context: PyTree, state: PyTree) -> ScaledGradient:
        scaled = self.of_weights(context, state)
        gradient = jnp.stack(jax.tree.leaves(scaled.gradient))
        return ScaledGradient(scaled.log_scale, _entry(gradient, context[2]), scaled.multipliers)

    def _layers(self, context: PyTree, c: Float[Array, " d"]) -> Float[Array, "layers d"]:
        *_, apart, signs = context
        follows = apart > 0
        # Whatever is not asked for has derivatives, too.
        return signs * jnp.where(follows, jnp.hypot(c[None, :], jnp.where(follows, apart, 1.0)), c[None, :])


def _entry(stack: Float[Array, "layers d"], index: Any) -> Float[Array, " d"]:
    return jnp.take_along_axis(stack, index[None, :], axis=0)[0]
