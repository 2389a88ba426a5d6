"""The interface of coordinates: encode, decode, field."""

import abc
from typing import Any

import equinox as eqx
from jaxtyping import PyTree

from jaxflow._core import ScaledGradient
from jaxflow.risk import EmpiricalRisk


class AbstractCoordinates(eqx.Module):
    """A state whose image under `decode` follows the gradient flow.

    `encode` returns the initial state, a pytree of arrays, and a context with whatever `decode` and `field`
    need beside it; both belong to one risk and one initial model.
    """

    @abc.abstractmethod
    def encode(self, risk: EmpiricalRisk, model: Any) -> tuple[PyTree, PyTree]:
        """The initial state and the context."""

    @abc.abstractmethod
    def decode(self, context: PyTree, state: PyTree) -> Any:
        """The model at a state."""

    @abc.abstractmethod
    def field(self, context: PyTree, state: PyTree) -> ScaledGradient:
        r"""Minus the state's velocity, $-\dot x = e^{c}G$, with $\|G\|e^c$ the norm of the *weights'* gradient."""
