r"""Sum and difference of the two vectors of diagonal models: small ones stay exact beside large ones."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from jaxflow._core import ScaledGradient, as_vector, require_finite, tree_scale
from jaxflow.data import LinearData, TokenData
from jaxflow.flow.constraints import NetworkConstraints, attention_constraints, linear_multipliers, top_tokens
from jaxflow.flow.coordinates.base import AbstractCoordinates, require_own
from jaxflow.flow.margins import AbstractConstraints, PairMargins, against_others
from jaxflow.flow.pairs import entry_growth, nonzero
from jaxflow.models import DiagonalAttention, DiagonalLinearNetwork, is_linear
from jaxflow.models.attention import bilinear
from jaxflow.risk import EmpiricalRisk


class Halves(AbstractCoordinates):
    r"""For `DiagonalAttention` with a linear head: $u=(k+q)/\sqrt2$, $v=(k-q)/\sqrt2$, $k\odot q=\frac12(u^2-v^2)$; and
    for a `DiagonalLinearNetwork` of two layers, which are k and q here.

    With $g=-\partial L/\partial(k\odot q)$ the flow is $\dot u=g\odot u$, $\dot v=-g\odot v$: (u, v) is a rotation of
    (k, q), in which lengths are those of the weights, and $u\odot v=\frac12(k^2-q^2)$ is constant. Where $g_j$ has had
    one sign for long, one of the two is $10^{-100}$ of the other, and it becomes the larger one after the sign changes.
    In k and q, which are then equal to the last digit up to a sign, it is lost.

    **Arguments:** `conserved`: $k\odot k-q\odot q$ `(d,)` of the start, which gives the smaller of the two where the
    path continues from a model; None: u and v of the model itself.
    """

    conserved: Float[Array, " d"] | None = None

    def __check_init__(self) -> None:
        if self.conserved is not None:
            as_vector("conserved", self.conserved)
            require_finite("conserved", self.conserved)

    def encode(self, risk: EmpiricalRisk, model: Any) -> tuple[PyTree, PyTree]:
        data = risk.data
        attends = isinstance(model, DiagonalAttention) and isinstance(data, TokenData) and is_linear(model.head)
        network = isinstance(model, DiagonalLinearNetwork) and isinstance(data, LinearData) and model.depth == 2
        if not (attends or network):
            raise ValueError(
                "coordinates: Halves need DiagonalAttention with a linear head on TokenData, or two layers of "
                "DiagonalLinearNetwork; use Weights"
            )
        require_own(risk, model, "Halves move k and q alone")
        k, q = _pair(model)
        u, v = (k + q) * _ROOT, (k - q) * _ROOT
        if self.conserved is not None:
            half = 0.5 * self.conserved
            # Squares of less than 1e-154 underflow: u and v themselves know more than a product that is zero.
            known, smaller = half != 0, jnp.abs(u) < jnp.abs(v)
            u = jnp.where(known & smaller, half / nonzero(v), u)
            v = jnp.where(known & ~smaller, half / nonzero(u), v)
        return (u, v), (risk, model)

    def decode(self, context: PyTree, state: PyTree) -> Any:
        u, v = state
        return eqx.tree_at(_pair, context[1], ((u + v) * _ROOT, (u - v) * _ROOT))

    def constraints(self, context: PyTree, state: PyTree) -> AbstractConstraints:
        risk, model = context[0], self.decode(context, state)
        if isinstance(risk.data, LinearData):
            if not risk.loss.margin:
                return super().constraints(context, state)
            signed = risk.data.targets[:, None] * risk.data.inputs
            return NetworkConstraints(PairMargins(signed, rotated=True), jnp.ones(len(signed)), risk)
        index = top_tokens(model, risk.data)
        margins = PairMargins(diagonal_rows(risk.data, index), rotated=True)
        return attention_constraints(risk, model.head, risk.data, index, margins)

    def growth(self, state: PyTree, gradient: PyTree) -> Float[Array, ""]:
        return entry_growth(state, tree_scale(-1.0, gradient))

    def field(self, context: PyTree, state: PyTree) -> ScaledGradient:
        risk, model = context
        data, (u, v) = risk.data, state
        if isinstance(data, LinearData):
            log_scale, pushes = risk.loss.scaled_derivative(data.inputs @ product(state), data.targets)
            pushes = pushes / (data.targets.size if risk.reduction == "mean" else 1)
            slope = pushes @ data.inputs
            return ScaledGradient(log_scale, (slope * u, -slope * v), pushes)
        logits = bilinear(data, jnp.einsum("...d,d->...d", data.queries, product(state)), data.tokens)
        log_scale, multipliers = linear_multipliers(risk, model.head, logits)
        # The multipliers of a query sum to zero: differences of tokens lose nothing to what they have in common.
        rule = "nt,ntd,nd->d" if data.single_query else "nkt,ntd,nkd->d"
        slope = jnp.einsum(rule, multipliers, data.tokens - data.tokens[:, :1], data.queries)
        return ScaledGradient(log_scale, (slope * u, -slope * v), multipliers)


_ROOT = 0.5**0.5


def _pair(model: Any) -> tuple[Any, Any]:
    return (model.k, model.q) if isinstance(model, DiagonalAttention) else model.weights


def product(state: PyTree) -> Float[Array, " d"]:
    r"""$k\odot q$ of (u, v), without cancellation."""
    u, v = state
    return 0.5 * (u - v) * (u + v)


def diagonal_rows(data: TokenData, index: Int[Array, " o"]) -> Float[Array, "N d"]:
    r"""A in $a_{i\alpha_i}-a_{it}=\langle(x_{i\alpha_i}-x_{it})\odot z_i,\;k\odot q\rangle$, $\alpha$ the `index`."""
    d = data.tokens.shape[-1]
    tokens = data.tokens if data.single_query else jnp.repeat(data.tokens, data.labels.shape[1], axis=0)
    return (against_others(index, tokens) * data.queries.reshape(-1, 1, d)).reshape(-1, d)
