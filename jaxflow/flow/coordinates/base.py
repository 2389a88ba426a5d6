"""The interfaces of coordinates: encode, decode, field."""

import abc
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from jaxflow._core import ScaledGradient, positive_or_one, require, tree_norm, tree_scale, tree_unit
from jaxflow.data import TokenData
from jaxflow.flow.margins import AbstractConstraints
from jaxflow.models import AbstractAttention, MultiHeadAttention
from jaxflow.risk import EmpiricalRisk

# Stands for log 0 where −inf would turn exponents, or derivatives, into NaN.
LOG_ZERO = -1e30


def safe_log(x: Array) -> Array:
    """The logarithm of what is positive, `LOG_ZERO` of what is not."""
    return jnp.where(x > 0, jnp.log(positive_or_one(x)), LOG_ZERO)


class AbstractCoordinates(eqx.Module):
    """A state whose image under `decode` follows the gradient flow (of `Mirror`, the mirror flow).

    `encode` returns the initial state, a pytree of arrays, and a context with everything else that `decode` and `field`
    need; both belong to one risk and one initial model.
    """

    # Whether lengths are not those of the weights: ‖G‖e^c is then not ‖∇L‖.
    stretched: ClassVar[bool] = False

    def check(self, risk: EmpiricalRisk, model: Any) -> None:
        """Checks concrete weights before anything is traced. **Raises:** `ValueError` naming the argument."""

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

    def shortened(self, context: PyTree, share: Float[Array, ""]) -> PyTree:
        """The context of models that stand for longer ones, of which they are this `share`: with as much of the part of
        the weights that neither moves nor enters the margins."""
        return context

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

    def growth(self, context: PyTree, state: PyTree, gradient: PyTree) -> Float[Array, ""]:
        """The rate of the fastest growing component, however small that component is, where components grow by
        themselves; −inf where they mix."""
        return jnp.asarray(-jnp.inf)

    @abc.abstractmethod
    def field(self, context: PyTree, state: PyTree) -> ScaledGradient:
        r"""Minus the state's velocity, $-\dot x = e^{c}G$, with $\|G\|e^c$ the norm of the *weights'* gradient."""

    def log_norm(self, context: PyTree, state: PyTree, scaled: ScaledGradient) -> Float[Array, ""]:
        r"""$\log\|\nabla L\|-c$ in the *weights*, from the result of `field` at this state."""
        return safe_log(tree_norm(scaled.gradient))

    def velocity(self, context: PyTree, state: PyTree, scaled: ScaledGradient) -> PyTree:
        r"""$-\nabla L/\|\nabla L\|$ in the weights, in the structure of the model."""
        unit = tree_scale(-1.0 / positive_or_one(tree_norm(scaled.gradient)), scaled.gradient)
        return eqx.filter_jvp(lambda x: self.decode(context, x), (state,), (unit,))[1]


class AbstractStretched(AbstractCoordinates):
    """Coordinates with other lengths than the weights have, whose norm and velocity are computed from the weights. The
    context begins with the risk."""

    stretched: ClassVar[bool] = True

    def log_norm(self, context: PyTree, state: PyTree, scaled: ScaledGradient) -> Float[Array, ""]:
        return self.of_weights(context, state).log_norm - scaled.log_scale

    def velocity(self, context: PyTree, state: PyTree, scaled: ScaledGradient) -> PyTree:
        return tree_scale(-1.0, tree_unit(self.of_weights(context, state).gradient))

    def of_weights(self, context: PyTree, state: PyTree) -> ScaledGradient:
        """The gradient in the weights."""
        return context[0].scaled_gradient(self.decode(context, state))


def risk_of_own(risk: EmpiricalRisk, model: Any, why: str) -> EmpiricalRisk:
    """The risk of a model that stands for this one, in which its own default parameters move.

    **Raises:** `ValueError` beginning with `why` where the trained parameters are not those that the model trains by
    default.
    """
    own = risk.filter(model) == model.trainable()
    require(own, "coordinates", f"{why}; use Weights with another `trainable`")
    return EmpiricalRisk(risk.source, risk.loss, None, risk.reduction)
