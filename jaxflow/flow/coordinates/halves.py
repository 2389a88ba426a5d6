r"""Sum and difference of the two vectors of diagonal models: small ones stay exact beside large ones, and what leaves
a saddle is seen however small it is."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from jaxflow._core import ScaledGradient, checked
from jaxflow.data import LinearData, TokenData
from jaxflow.flow.constraints import NetworkConstraints, attention_constraints, rows_against_others
from jaxflow.flow.coordinates.base import AbstractCoordinates, risk_of_own
from jaxflow.flow.margins import AbstractConstraints, PairMargins, nonzero
from jaxflow.losses import scaled_by_output
from jaxflow.models import DiagonalAttention, DiagonalLinearNetwork, Saturation, is_linear, token_scores
from jaxflow.models.attention import bilinear
from jaxflow.risk import EmpiricalRisk


@checked()
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

    def encode(self, risk: EmpiricalRisk, model: Any) -> tuple[PyTree, PyTree]:
        data = risk.data
        attends = isinstance(model, DiagonalAttention) and isinstance(data, TokenData) and is_linear(model.head)
        network = isinstance(model, DiagonalLinearNetwork) and isinstance(data, LinearData) and model.depth == 2
        if not (attends or network):
            raise ValueError(
                "coordinates: Halves need DiagonalAttention with a linear head on TokenData, or two layers of "
                "DiagonalLinearNetwork; use Weights"
            )
        risk_of_own(risk, model, "Halves move k and q alone")
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
        risk, data = context[0], context[0].data
        if isinstance(data, TokenData):
            model = self.decode(context, state)
            return attention_constraints(risk, model, lambda index: PairMargins(pair_rows(data, index)))
        if not risk.loss.margin:
            return super().constraints(context, state)
        return NetworkConstraints(PairMargins(data.targets[:, None] * data.inputs), jnp.ones(data.targets.size), risk)

    def growth(self, context: PyTree, state: PyTree, gradient: PyTree) -> Float[Array, ""]:
        logarithmic = [jnp.where(x == 0, -jnp.inf, -g / nonzero(x)) for x, g in zip(state, gradient, strict=True)]
        return jnp.max(jnp.stack(logarithmic))

    def field(self, context: PyTree, state: PyTree) -> ScaledGradient:
        risk, model = context
        data, (u, v) = risk.data, state
        # k ⊙ q without cancellation.
        both = 0.5 * (u - v) * (u + v)
        if isinstance(data, LinearData):
            log_scale, pushes = risk.loss.scaled_derivative(data.inputs @ both, data.targets)
            pushes = pushes / (data.targets.size if risk.reduction == "mean" else 1)
            slope = pushes @ data.inputs
            return ScaledGradient(log_scale, (slope * u, -slope * v), pushes)
        logits = bilinear(data, jnp.einsum("...d,d->...d", data.queries, both), data.tokens)
        # Scores carry the label, outputs do not.
        saturation = Saturation.at(logits, data.visible, token_scores(data, model.head) * data.labels[..., None])
        scales, weights = scaled_by_output(risk.loss, saturation.mean_slopes(), data.labels)
        weights = weights / (weights.size if risk.reduction == "mean" else 1)
        log_scale, multipliers = saturation.multipliers(scales, weights)
        # The multipliers of a query sum to zero: differences of tokens lose nothing to what they have in common.
        rule = "nt,ntd,nd->d" if data.single_query else "nkt,ntd,nkd->d"
        slope = jnp.einsum(rule, multipliers, data.tokens - data.tokens[:, :1], data.queries)
        return ScaledGradient(log_scale, (slope * u, -slope * v), multipliers)


_ROOT = 0.5**0.5


def _pair(model: Any) -> tuple[Any, Any]:
    return (model.k, model.q) if isinstance(model, DiagonalAttention) else model.weights


def pair_rows(data: TokenData, index: Int[Array, " o"]) -> Float[Array, "N d"]:
    r"""A of $q=A(k\odot q)$ in diagonal attention: $(x_{i\alpha_i}-x_{it})\odot z_i$ for the tokens α = `index`."""
    queries = jnp.repeat(data.queries.reshape(-1, data.tokens.shape[-1]), data.tokens.shape[1] - 1, axis=0)
    return rows_against_others(data, index, data.tokens) * queries


def has_pairs(model: Any) -> bool:
    r"""Whether the weights are two vectors a, b with products $a\odot b$: diagonal attention, two diagonal layers."""
    return isinstance(model, DiagonalAttention) or (isinstance(model, DiagonalLinearNetwork) and model.depth == 2)


def pair_growth(weights: PyTree, velocity: PyTree, conserved: Any = None) -> Float[Array, ""]:
    r"""The largest rate at which $a_j+b_j$ or $a_j-b_j$ grows, of those that are not zero; −inf where all are.

    Gradient flow of $\beta=a\odot b$ has $\dot a=g\odot b$ and $\dot b=g\odot a$: the sum grows at the rate $g_j$, the
    difference at $-g_j$, and their product never changes. One that is $10^{-100}$ of the whole still takes over where
    it grows faster. The rates are read as $\dot a_j/b_j$, without cancellation.

    **Arguments:** `weights`, `velocity`: pytrees of the two vectors; `conserved`: $a^2-b^2$ of the start, which says
    that neither is zero although rounding has made them so.
    """
    (a, b), (moving_a, moving_b) = jax.tree.leaves(weights), jax.tree.leaves(velocity)
    larger = jnp.abs(b) >= jnp.abs(a)
    rate = jnp.where(larger, moving_a, moving_b) / nonzero(jnp.where(larger, b, a))
    known = jnp.zeros_like(rate) if conserved is None else conserved
    no_sum, no_difference = (a == -b) & (known == 0), (a == b) & (known == 0)
    return jnp.max(jnp.maximum(jnp.where(no_sum, -jnp.inf, rate), jnp.where(no_difference, -jnp.inf, -rate)))
