"""The trainable parameters themselves as state."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from jaxflow._core import ScaledGradient, tree_scale
from jaxflow.data import LinearData, TokenData
from jaxflow.flow.constraints import NetworkConstraints, attention_constraints, rows_against_others
from jaxflow.flow.coordinates.base import AbstractCoordinates
from jaxflow.flow.coordinates.halves import has_pairs, pair_growth, pair_rows
from jaxflow.flow.margins import AbstractConstraints, AbstractMargins, AffineMargins, BilinearMargins, QuadraticMargins
from jaxflow.models import (
    AbstractLinearNetwork,
    DeepLinearNetwork,
    DiagonalAttention,
    PromptAttention,
)
from jaxflow.risk import EmpiricalRisk


class Weights(AbstractCoordinates):
    r"""$\dot\theta=-\nabla L(\theta)$ in the trainable parameters; for every model.

    **Example:**

    ```python
    jf.integrate(risk, model, clock="log_time", until=1.0, coordinates=jf.Weights())  # the default
    ```
    """

    def encode(self, risk: EmpiricalRisk, model: Any) -> tuple[PyTree, PyTree]:
        params, frozen = eqx.partition(model, risk.filter(model))
        return params, (risk, frozen)

    def decode(self, context: PyTree, state: PyTree) -> Any:
        _, frozen = context
        return eqx.combine(state, frozen)

    def field(self, context: PyTree, state: PyTree) -> ScaledGradient:
        risk, frozen = context
        return risk.scaled_gradient(eqx.combine(state, frozen))

    def growth(self, context: PyTree, state: PyTree, gradient: PyTree) -> Float[Array, ""]:
        own = has_pairs(self.decode(context, state)) and len(jax.tree.leaves(state)) == 2
        return pair_growth(state, tree_scale(-1.0, gradient)) if own else super().growth(context, state, gradient)

    def constraints(self, context: PyTree, state: PyTree) -> AbstractConstraints:
        """For `DiagonalAttention` (in `Halves` for less), `PromptAttention`, and linear networks of two layers under a
        margin loss.

        **Raises:** `ValueError` for other models, and where other parameters than the model's own move.
        """
        risk, model, data = context[0], self.decode(context, state), context[0].data
        known = DiagonalAttention | PromptAttention | AbstractLinearNetwork
        own = isinstance(model, known) and risk.filter(model) == model.trainable()
        if own and isinstance(model, DiagonalAttention) and isinstance(data, TokenData):
            swapped = jnp.asarray([[0.0, 1.0], [1.0, 0.0]])
            hessians = jax.vmap(lambda row: jnp.kron(swapped, jnp.diag(row)))
            return attention_constraints(risk, model, lambda index: QuadraticMargins(hessians(pair_rows(data, index))))
        if own and isinstance(model, PromptAttention) and isinstance(data, TokenData):

            def margins(index: Array) -> AffineMargins:
                rows = rows_against_others(data, index, model.keys_and_queries(data)[0])
                return AffineMargins(jnp.zeros(len(rows), rows.dtype), rows)

            return attention_constraints(risk, model, margins)
        # Margins of deeper networks are no quadratic forms.
        linear = own and isinstance(data, LinearData) and risk.loss.margin
        if linear and isinstance(model, AbstractLinearNetwork) and model.depth == 2:
            return NetworkConstraints(_network_margins(model, state, data), jnp.ones(data.targets.size), risk)
        return super().constraints(context, state)


def _network_margins(model: AbstractLinearNetwork, state: PyTree, data: LinearData) -> AbstractMargins:
    r"""$y_if(x_i)$ of a network of two layers, in the form that the network allows."""
    signed = data.targets[:, None] * data.inputs
    if isinstance(model, DeepLinearNetwork):
        # f = x^T W_1 w_2: keys W_1, one query, and w_2 a row.
        return BilinearMargins(signed, jnp.ones((1, 1)))
    flat, unravel = ravel_pytree(state)

    def coefficients(x: Float[Array, " D"]) -> Float[Array, " d"]:
        return eqx.combine(unravel(x), eqx.partition(model, model.trainable())[1]).linear_coefficients()

    # β is a quadratic form of both layers together: its second derivatives are the same everywhere.
    second = jax.hessian(coefficients)(jnp.zeros_like(flat))
    return QuadraticMargins(jnp.tensordot(signed, second, axes=1))
