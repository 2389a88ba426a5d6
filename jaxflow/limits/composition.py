"""Queries that compose several tokens: what stands in for scores, and how far the flow can be resolved."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxflow.data import TokenData
from jaxflow.flow import AbstractStop, Situation
from jaxflow.limits.self_certificate import select, settled
from jaxflow.models import AbstractAttention, head_gradients, mix, token_scores, token_slopes


def composed_scores(
    model: AbstractAttention, data: TokenData, attention: Float[Array, "*n T"], selection: Bool[Array, "*n T"]
) -> Float[Array, "*n T"]:
    r"""Scores for Definition 2: $\gamma_{it}=Y_ih(x_{it})$, but slopes where a query selects several tokens.

    A mixture $\bar x_i=X_i^\top s_i$ is held by the slopes $Y_i\langle\nabla h(\bar x_i),x_{it}\rangle$: those of the
    selected tokens agree (else proportions would still move) and take their largest value here, so that rounding
    does not tell them apart. For a concave $Y_ih$ none larger means that the mixture is the best there is.
    """
    slopes = data.labels[..., None] * token_slopes(data, head_gradients(model.head, mix(data, attention)))
    several = jnp.sum(selection, axis=-1, keepdims=True) > 1
    top = jnp.max(jnp.where(selection, slopes, -jnp.inf), axis=-1, keepdims=True)
    return jnp.where(several, jnp.where(selection, top, slopes), token_scores(data, model.head))


class CompositionResolved(AbstractStop):
    r"""Stops where some query mixes several tokens and what is masked has nearly vanished.

    Slopes of mixed tokens tend to each other, and their differences are rounding errors ε. What is masked pulls like
    its attention s: the direction is off by s, and by ε/s, which are equal at $s=\sqrt\varepsilon$.
    """

    def __call__(self, situation: Situation) -> Bool[Array, ""]:
        return composition_resolved(situation.decode(), situation.risk.data)  # pyright: ignore[reportArgumentType]


def composition_resolved(model: AbstractAttention, data: TokenData) -> Bool[Array, ""]:
    r"""Whether some query mixes several tokens and all others have less than $\sqrt\varepsilon$ of the attention."""
    attention = model.attention(data)
    chosen = select(attention)
    several = jnp.any(jnp.sum(chosen, axis=-1) > 1)
    left = jnp.max(jnp.where(chosen, 0.0, attention))
    return several & settled(attention, data.visible) & (left <= jnp.sqrt(jnp.finfo(left.dtype).eps))
