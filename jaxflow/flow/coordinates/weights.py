"""The trainable parameters themselves as state."""

from typing import Any

import equinox as eqx
from jaxtyping import PyTree

from jaxflow._core import ScaledGradient
from jaxflow.flow.coordinates.base import AbstractCoordinates
from jaxflow.risk import EmpiricalRisk


class Weights(AbstractCoordinates):
    r"""$\dot\theta=-\nabla L(\theta)$ in the trainable parameters; for every model."""

    def encode(self, risk: EmpiricalRisk, model: Any) -> tuple[PyTree, PyTree]:
        params, frozen = eqx.partition(model, risk.filter(model))
        return params, (risk, frozen)

    def decode(self, context: PyTree, state: PyTree) -> Any:
        _, frozen = context
        return eqx.combine(state, frozen)

    def field(self, context: PyTree, state: PyTree) -> ScaledGradient:
        risk, frozen = context
        return risk.scaled_gradient(eqx.combine(state, frozen))
