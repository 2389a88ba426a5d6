"""The logits of attention layers in parallel as one state."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from jaxflow._core import ScaledGradient, tree_norm
from jaxflow.flow.constraints import AttentionConstraints, together
from jaxflow.flow.coordinates.base import AbstractCoordinates, require_own
from jaxflow.flow.coordinates.scores import Scores
from jaxflow.models import CombinedAttention, MultiHeadAttention
from jaxflow.risk import EmpiricalRisk


class LayerScores(AbstractCoordinates):
    r"""For `MultiHeadAttention` of `CombinedAttention` layers with fixed heads: the `Scores` of each layer,
    concatenated. The layers are coupled only by the output weights $\partial L/\partial f_i$, which they share.
    """

    def encode(self, risk: EmpiricalRisk, model: Any) -> tuple[PyTree, PyTree]:
        layers = isinstance(model, MultiHeadAttention) and all(isinstance(p, CombinedAttention) for p in model.parts)
        if not layers:
            raise ValueError("coordinates: LayerScores need MultiHeadAttention of CombinedAttention; use Weights")
        require_own(risk, model, "LayerScores move the weights W alone")
        own = EmpiricalRisk(risk.source, risk.loss, None, risk.reduction)
        states, contexts = zip(*(Scores().encode(own, part) for part in model.parts), strict=True)
        return jnp.concatenate(states), (contexts, own)

    def _each(self, context: PyTree, state: PyTree) -> Any:
        """Context and state of each layer. All states have one length: it depends on the data alone."""
        contexts, _ = context
        return zip(contexts, jnp.split(state, len(contexts)), strict=True)

    def decode(self, context: PyTree, state: PyTree) -> Any:
        return MultiHeadAttention(Scores().decode(own, x) for own, x in self._each(context, state))

    def left_behind(self, context: PyTree) -> Float[Array, ""]:
        return tree_norm([proxy.initial.W for proxy, _ in context[0]])

    def constraints(self, context: PyTree, state: PyTree) -> AttentionConstraints:
        return together([Scores().constraints(own, x) for own, x in self._each(context, state)])

    def field(self, context: PyTree, state: PyTree) -> ScaledGradient:
        parts = [
            eqx.tree_at(lambda p: p.offset, proxy, x, is_leaf=lambda leaf: leaf is None)
            for (proxy, _), x in self._each(context, state)
        ]
        scaled = context[1].scaled_gradient(MultiHeadAttention(parts))
        offsets = [part.offset for part in scaled.gradient.parts]
        return ScaledGradient(scaled.log_scale, jnp.concatenate(offsets), scaled.multipliers)

    def attention(self, context: PyTree, state: PyTree, data: Any) -> Float[Array, "H *n T"]:
        return jnp.stack([Scores().attention(own, x, data) for own, x in self._each(context, state)])
