r"""What a loss makes of logits and margins: multipliers on a logarithmic scale, of attention and linear networks."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxflow.data import TokenData
from jaxflow.flow.margins import AbstractConstraints, AbstractMargins, AffineMargins, against_others, entry, without
from jaxflow.losses import scaled_by_output
from jaxflow.models import is_linear, token_scores
from jaxflow.risk import EmpiricalRisk


class AttentionConstraints(AbstractConstraints):
    r"""$q_{it}=a_{i\alpha_i}-a_{it}$ for every token but the one with the most attention, $o(T-1)$ of them.

    With a linear head, $s_i=\mathrm{softmax}(a_i)$, gains $g_{it}=\gamma_{it}-\gamma_{i\alpha_i}$ and output weights
    $w_i=\partial L/\partial f_i$ at $f_i=\gamma_{i\alpha_i}+\sum_ts_{it}g_{it}$,

    $$p_{it}=w_is_{it}\Big(g_{it}-\sum_\tau s_{i\tau}g_{i\tau}\Big),$$

    in which nothing cancels. p is positive where t scores less than $\alpha_i$: then it pushes the margin up.

    `index` `(o,)` is $\alpha$; `seen`, `copies`, `gains` `(o, T - 1)` are of the other tokens; `outputs` `(o,)` is
    $\gamma_{i\alpha_i}$. Copies of α have the same attention as α and impose no constraint.

    `layers`: how many attention layers in parallel these are, one after the other in every array, whose outputs add up;
    None of a model that is one layer.
    """

    margins: AbstractMargins
    signs: Float[Array, " N"]
    risk: EmpiricalRisk
    index: Int[Array, " o"]
    seen: Bool[Array, "o t"]
    copies: Bool[Array, "o t"]
    gains: Float[Array, "o t"]
    outputs: Float[Array, " o"]
    layers: int | None = eqx.field(static=True, default=None)

    @property
    def present(self) -> Bool[Array, " N"]:
        return (self.seen & ~self.copies).reshape(-1)

    def log_multipliers(self, q: Float[Array, " N"]) -> Float[Array, " N"]:
        relative = jnp.where(self.seen, -q.reshape(self.seen.shape), -jnp.inf)
        top = -jnp.log1p(jnp.sum(jnp.exp(relative), axis=1, keepdims=True))
        moved = jnp.exp(relative + top) * self.gains
        moved = jnp.sum(moved, axis=1, keepdims=True)
        size = jnp.abs(self.gains - moved)
        live = self.seen & (size > 0)
        data: Any = self.risk.data
        labels, layers = data.labels, self.layers or 1
        outputs = jnp.sum((self.outputs + moved[:, 0]).reshape(layers, *labels.shape), axis=0)
        scales, weights = scaled_by_output(self.risk.loss, outputs, labels)
        count = labels.size if self.risk.reduction == "mean" else 1
        logs = jnp.tile((scales + jnp.log(jnp.abs(weights) / count)).reshape(-1, 1), (layers, 1)) + top
        return jnp.where(live, relative + logs + jnp.log(jnp.where(live, size, 1.0)), 0.0).reshape(-1)

    def as_multipliers(self, weights: Float[Array, " N"]) -> Float[Array, "..."]:
        rows = weights.reshape(self.seen.shape)
        own = -jnp.sum(rows, axis=1, keepdims=True)
        token, index = jnp.arange(rows.shape[1] + 1)[None, :], self.index[:, None]
        before, after = jnp.pad(rows, ((0, 0), (0, 1))), jnp.pad(rows, ((0, 0), (1, 0)))
        table = jnp.where(token == index, own, jnp.where(token < index, before, after))
        data: Any = self.risk.data
        return table.reshape(*(() if self.layers is None else (self.layers,)), *data.labels.shape, -1)


def together(layers: list[AttentionConstraints]) -> AttentionConstraints:
    """The constraints of layers in parallel, of affine margins, as those of one state: the states in a row."""
    margins: list[Any] = [layer.margins for layer in layers]
    stacked, count = jnp.stack([own.rows for own in margins])[:, :, None], len(margins)
    rows = jnp.where(jnp.eye(count, dtype=bool)[:, None, :, None], stacked, 0.0).reshape(-1, count * stacked.shape[-1])
    whole = AffineMargins(jnp.concatenate([own.offset for own in margins]), rows, count)
    names = ("signs", "index", "seen", "copies", "gains", "outputs")
    signs, *others = (jnp.concatenate([getattr(layer, name) for layer in layers]) for name in names)
    return AttentionConstraints(whole, signs, layers[0].risk, *others, layers=len(layers))


def attention_constraints(
    risk: EmpiricalRisk, model: Any, margins: Callable[[Int[Array, " o"]], AbstractMargins]
) -> AttentionConstraints:
    """The constraints that keep attention on the token with the most attention of each output.

    `margins`: a function of these tokens `(o,)`, which gives their margins over the others.

    **Raises:** `ValueError` for a head that is not linear: its slopes change with the mixture of tokens.
    """
    if not is_linear(model.head):
        raise ValueError("solver: MultiplierNewton needs a linear head; use another solver")
    data: Any = risk.data
    T = data.tokens.shape[-2]
    index = jnp.argmax(jnp.where(data.visible, model.logits(data), -jnp.inf), axis=-1).reshape(-1)
    # Scores carry the label, outputs do not.
    gamma = token_scores(data, model.head).reshape(-1, T) * data.labels.reshape(-1, 1)
    outputs = entry(index, gamma)
    gains = without(index, gamma) - outputs
    seen = without(index, data.visible.reshape(-1, T))
    copies = without(index, data.copies(index.reshape(data.output_shape)).reshape(-1, T))
    downhill = -data.labels.reshape(-1, 1)
    signs = jnp.where(seen & ~copies, jnp.sign(gains * downhill), 0.0).reshape(-1)
    return AttentionConstraints(margins(index), signs, risk, index, seen, copies, gains, outputs[:, 0])


def rows_against_others(data: TokenData, index: Int[Array, " o"], tokens: Float[Array, "n T e"]) -> Float[Array, "N e"]:
    """The token `index` of each output less each of the others, of what stands for the tokens of the data."""
    outputs = tokens if data.single_query else jnp.repeat(tokens, data.labels.shape[1], axis=0)
    return against_others(index, outputs).reshape(-1, tokens.shape[-1])


def leading(attention: Float[Array, "*n T"], data: Any) -> tuple[Bool[Array, "*n T"], Float[Array, "*n"]]:
    """The token with the most attention of each query (of each layer), and its copies; and their share of it."""
    index, copies = jnp.argmax(attention, axis=-1), data.copies
    for _ in range(index.ndim - data.labels.ndim):
        copies = jax.vmap(copies)
    top = copies(index)
    return top, jnp.sum(attention, axis=-1, where=top)


class NetworkConstraints(AbstractConstraints):
    r"""$q_i=y_if(x_i)$, every one pushed up: $\pi_i=-\ell'(q_i)$."""

    margins: AbstractMargins
    signs: Float[Array, " N"]
    risk: EmpiricalRisk

    @property
    def present(self) -> Bool[Array, " N"]:
        return self.signs != 0

    @property
    def keeps(self) -> Bool[Array, " N"]:
        # Margins of data that are not fitted yet may have any sign.
        return self.signs == 0

    def log_multipliers(self, q: Float[Array, " N"]) -> Float[Array, " N"]:
        scales, weights = scaled_by_output(self.risk.loss, q, jnp.ones_like(q))
        return scales + jnp.log(jnp.abs(weights)) - (jnp.log(q.size) if self.risk.reduction == "mean" else 0.0)

    def as_multipliers(self, weights: Float[Array, " N"]) -> Float[Array, "..."]:
        data: Any = self.risk.data
        return -data.targets * weights
