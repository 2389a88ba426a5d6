"""The interfaces of coordinates: encode, decode, field."""

import abc
from typing import Any

import equinox as eqx
from jaxtyping import Array, Float, PyTree

from jaxflow._core import ScaledGradient, require
from jaxflow.data import TokenData
from jaxflow.flow.margins import AbstractConstraints
from jaxflow.models import AbstractAttention, MultiHeadAttention
from jaxflow.risk import EmpiricalRisk

# Stands for log 0 where −inf would turn exponents, or derivatives, into NaN.
LOG_ZERO = -1e30


class AbstractCoordinates(eqx.Module):
    """A state whose image under `decode` follows the gradient flow (of `Mirror`, the mirror flow).

    `encode` returns the initial state, a pytree of arrays, and a context with everything else that `decode` and `field`
    need; both belong to one risk and one initial model.
    """

    @abc.abstractmethod
    def encode(self, risk: EmpiricalRisk, model: Any) -> tuple[PyTree, PyTree]:
        """The initial state and the context."""

    @abc.abstractmethod
    def decode(self, context: PyTree, state: PyTree) -> Any:
        """The model at a state."""

    def left_behind(self, context: PyTree) -> Float[Array, ""] | float:
        r"""The size of the part of the weights that the state does not contain but that enters the margins; zero where
        the state contains all of it. At lengths far above this size the direction of the state is the direction of the
        weights."""
        return 0.0

    def attention(self, context: PyTree, state: PyTree, data: Any) -> Float[Array, "*n T"]:
        """Attention of the model at a state; computed without the model where the coordinates allow that."""
        model = self.decode(context, state)
        if not isinstance(model, AbstractAttention | MultiHeadAttention) or not isinstance(data, TokenData):
            raise ValueError("stop: this rule needs attention, which only an attention model on TokenData has")
        return model.attention(data)

    def constraints(self, context: PyTree, state: PyTree) -> AbstractConstraints:
        """The margins and their multipliers under the loss, around a state; for `MultiplierNewton`.

        **Raises:** `ValueError` where the coordinates have no such structure.
        """
        raise ValueError(f"coordinates: {type(self).__name__} gives no margins of this model; use another solver")

    def growth(self, state: PyTree, gradient: PyTree) -> Float[Array, ""]:
        """The rate of the fastest growing component at a state, however small that component is (`jaxflow.flow.pairs`).

        **Raises:** `ValueError` where the state is not made of pairs.
        """
        raise ValueError(f"stop: {type(self).__name__} of this model has no pairs; leave `pairs` out")

    @abc.abstractmethod
    def field(self, context: PyTree, state: PyTree) -> ScaledGradient:
        r"""Minus the state's velocity, $-\dot x = e^{c}G$, with $\|G\|e^c$ the norm of the *weights'* gradient."""


def require_own(risk: EmpiricalRisk, model: Any, why: str) -> None:
    """**Raises:** `ValueError` beginning with `why` where the trained parameters are not those that the model trains by
    default."""
    own = risk.filter(model) == model.trainable()
    require(own, "coordinates", f"{why}; use Weights with another `trainable`")


class AbstractStretchedCoordinates(AbstractCoordinates):
    r"""Coordinates in which lengths are not those of the weights: $\|G\|e^c$ is not $\|\nabla L\|$."""

    @abc.abstractmethod
    def check(self, risk: EmpiricalRisk, model: Any) -> None:
        """Checks concrete weights before anything is traced. **Raises:** `ValueError` naming the argument."""

    @abc.abstractmethod
    def log_norm(self, context: PyTree, state: PyTree, scaled: ScaledGradient) -> Float[Array, ""]:
        r"""$\log\|\nabla L\|-c$ in the *weights*, from the result of `field` at this state."""

    @abc.abstractmethod
    def velocity(self, context: PyTree, state: PyTree, scaled: ScaledGradient) -> PyTree:
        r"""$-\nabla L/\|\nabla L\|$ in the weights, in the structure of the model."""
