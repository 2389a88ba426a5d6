r"""What a loss makes of margins: multipliers on a logarithmic scale, for attention and for linear networks (floor 6)."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxflow.data import LinearData, TokenData
from jaxflow.flow.margins import AbstractConstraints, AbstractMargins, without
from jaxflow.models import AbstractAttention, head_gradients, head_outputs
from jaxflow.risk import EmpiricalRisk


class AttentionConstraints(AbstractConstraints):
    r"""$q_{it}=a_{i\alpha_i}-a_{it}$ for every token but the one with the most attention, $o(T-1)$ of them.

    With $s_i=\mathrm{softmax}(a_i)$ and output weights $w_i=\partial L/\partial f_i$,
    $p_{it}=w_is_{it}(\gamma_{it}-f_i)$ (NUMERICS: nothing cancels, since $f_i-\gamma_{i\alpha_i}$ is summed from the
    small shares) is positive where t scores less than $\alpha_i$: then it pushes the margin up.

    `others` and `anchor` are the tokens that margins compare, `(o, T - 1, d)` and `(o, d)`; `index` is $\alpha$.
    """

    margins: AbstractMargins
    signs: Float[Array, " N"]
    risk: EmpiricalRisk
    head: Any
    index: Int[Array, " o"]
    seen: Bool[Array, "o t"]
    steps: Float[Array, "o t d"]
    anchor: Float[Array, "o d"]

    def _shares(self, q: Float[Array, " N"]) -> tuple[Float[Array, "o t"], Float[Array, "o 1"]]:
        """log s of the other tokens relative to the selected one's, and the selected one's log s."""
        relative = jnp.where(self.seen, -q.reshape(self.seen.shape), -jnp.inf)
        return relative, -jnp.log1p(jnp.sum(jnp.exp(relative), axis=1, keepdims=True))

    def log_multipliers(self, q: Float[Array, " N"]) -> Float[Array, " N"]:
        relative, top = self._shares(q)
        shares = jnp.exp(relative + top)
        mixture = self.anchor + jnp.einsum("ot,otd->od", shares, self.steps)
        labels = self.risk.data.labels  # pyright: ignore[reportOptionalMemberAccess]
        shape = labels.shape
        at = mixture.reshape(*shape, -1)
        scale, weights = self.risk.loss.scaled_derivative(head_outputs(self.head, at), labels)
        slopes = head_gradients(self.head, at).reshape(mixture.shape)
        gains = jnp.einsum("otd,od->ot", self.steps, slopes)
        centred = gains - jnp.sum(shares * gains, axis=1, keepdims=True)
        size = jnp.abs(centred * weights.reshape(-1, 1))
        count = labels.size if self.risk.reduction == "mean" else 1
        logs = scale - jnp.log(count) + jnp.log(jnp.where(size > 0, size, 1.0)) + top
        return (jnp.where(self.seen, relative, 0.0) + jnp.where(size > 0, logs, 0.0)).reshape(-1)

    def as_multipliers(self, weights: Float[Array, " N"]) -> Float[Array, "..."]:
        o, t = self.seen.shape
        rows = weights.reshape(o, t)
        token = jnp.arange(t)[None, :]
        token = token + (token >= self.index[:, None])
        table = jnp.zeros((o, t + 1), rows.dtype).at[jnp.arange(o)[:, None], token].set(rows)
        table = table.at[jnp.arange(o), self.index].set(-jnp.sum(rows, axis=1))
        shape = self.risk.data.labels.shape  # pyright: ignore[reportOptionalMemberAccess]
        return table.reshape(*shape, t + 1)


def attention_constraints(
    risk: EmpiricalRisk, head: Any, data: TokenData, index: Int[Array, " o"], margins: AbstractMargins
) -> AttentionConstraints:
    """The constraints that keep attention on the tokens `index`."""
    T, d = data.tokens.shape[-2:]
    tokens = data.tokens if data.single_query else jnp.repeat(data.tokens, data.labels.shape[1], axis=0)
    anchor = jnp.take_along_axis(tokens, index[:, None, None], axis=1)
    steps = without(index, tokens) - anchor
    seen = without(index, data.visible.reshape(-1, T))
    at = anchor[:, 0].reshape(*data.labels.shape, d)
    _, weights = risk.loss.scaled_derivative(head_outputs(head, at), data.labels)
    gains = jnp.einsum("otd,od->ot", steps, head_gradients(head, at).reshape(-1, d))
    signs = jnp.where(seen, jnp.sign(gains * weights.reshape(-1, 1)), 0.0).reshape(-1)
    return AttentionConstraints(margins, signs, risk, head, index, seen, steps, anchor[:, 0])


def top_tokens(model: AbstractAttention, data: TokenData) -> Int[Array, " o"]:
    """The token with the most attention for every output, in one row."""
    logits = jnp.where(data.visible, model.logits(data), -jnp.inf)
    return jnp.argmax(logits, axis=-1).reshape(-1)


class NetworkConstraints(AbstractConstraints):
    r"""$q_i=y_if(x_i)$, every one pushed up: $\pi_i=-\ell'(q_i)$."""

    margins: AbstractMargins
    signs: Float[Array, " N"]
    risk: EmpiricalRisk

    def log_multipliers(self, q: Float[Array, " N"]) -> Float[Array, " N"]:
        # One at a time: a common scale would underflow for the others.
        ones = jnp.ones_like(q)
        scale, weight = jax.vmap(lambda q, one: self.risk.loss.scaled_derivative(q[None], one[None]))(q, ones)
        return scale + jnp.log(jnp.abs(weight[:, 0])) - (jnp.log(q.size) if self.risk.reduction == "mean" else 0.0)

    def as_multipliers(self, weights: Float[Array, " N"]) -> Float[Array, "..."]:
        data = self.risk.data
        if not isinstance(data, LinearData):
            raise ValueError("risk: expected a risk on LinearData")
        return -data.targets * weights


def network_constraints(risk: EmpiricalRisk, margins: AbstractMargins, n: int) -> NetworkConstraints:
    """The constraints of a linear network on n data."""
    return NetworkConstraints(margins, jnp.ones(n), risk)
