r"""What a loss makes of logits and margins: multipliers on a logarithmic scale, of attention and linear networks."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxflow.data import TokenData
from jaxflow.flow.margins import AbstractConstraints, AbstractMargins, AffineMargins, entry, without
from jaxflow.losses import scaled_by_output
from jaxflow.models import AbstractAttention, Saturation, is_linear, token_scores
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
        labels, layers = _of(self.risk).labels, self.layers or 1
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
        stacked = () if self.layers is None else (self.layers,)
        return table.reshape(*stacked, *_of(self.risk).labels.shape, -1)


def together(layers: list[AttentionConstraints]) -> AttentionConstraints:
    """The constraints of layers in parallel, of affine margins, as those of one state: the states in a row."""

    def joined(name: str) -> Array:
        return jnp.concatenate([getattr(layer, name) for layer in layers])

    margins: list[Any] = [layer.margins for layer in layers]
    widths = [own.rows.shape[1] for own in margins]
    before = np.cumsum([0, *widths[:-1]]).tolist()
    rows = [
        jnp.pad(own.rows, ((0, 0), (left, sum(widths) - left - width)))
        for own, left, width in zip(margins, before, widths, strict=True)
    ]
    whole = AffineMargins(jnp.concatenate([own.offset for own in margins]), jnp.concatenate(rows), len(margins))
    names = ("index", "seen", "copies", "gains", "outputs")
    return AttentionConstraints(whole, joined("signs"), layers[0].risk, *map(joined, names), layers=len(layers))


def attention_constraints(
    risk: EmpiricalRisk, head: Any, data: TokenData, index: Int[Array, " o"], margins: AbstractMargins
) -> AttentionConstraints:
    """The constraints that keep attention on the tokens `index`.

    **Raises:** `ValueError` for a head that is not linear: its slopes change with the mixture of tokens.
    """
    if not is_linear(head):
        raise ValueError("solver: MultiplierNewton needs a linear head; use another solver")
    T = data.tokens.shape[-2]
    # Scores carry the label, outputs do not.
    gamma = token_scores(data, head).reshape(-1, T) * data.labels.reshape(-1, 1)
    outputs = entry(index, gamma)
    gains = without(index, gamma) - outputs
    seen = without(index, data.visible.reshape(-1, T))
    copies = without(index, data.copies(index.reshape(data.output_shape)).reshape(-1, T))
    downhill = -data.labels.reshape(-1, 1)
    signs = jnp.where(seen & ~copies, jnp.sign(gains * downhill), 0.0).reshape(-1)
    return AttentionConstraints(margins, signs, risk, index, seen, copies, gains, outputs[:, 0])


def linear_multipliers(
    risk: EmpiricalRisk, head: Any, logits: Float[Array, "*n T"]
) -> tuple[Float[Array, ""], Float[Array, "*n T"]]:
    r"""$\partial L/\partial a_{it}=e^MP_{it}$ as `(M, P)` for a linear head, whose slopes are scores and stand still.

    What `EmpiricalRisk.scaled_gradient` finds for any head.
    """
    data = _of(risk)
    # Scores carry the label, outputs do not.
    slopes = token_scores(data, head) * data.labels[..., None]
    saturation = Saturation.at(logits, data.visible, slopes)
    scales, weights = scaled_by_output(risk.loss, saturation.mean_slopes(), data.labels)
    return saturation.multipliers(scales, weights / (weights.size if risk.reduction == "mean" else 1))


def _of(risk: EmpiricalRisk) -> Any:
    """The data of a risk that has some."""
    return risk.data


def top_tokens(model: AbstractAttention, data: TokenData) -> Int[Array, " o"]:
    """The token with the most attention for every output, in one row."""
    logits = jnp.where(data.visible, model.logits(data), -jnp.inf)
    return jnp.argmax(logits, axis=-1).reshape(-1)


def leading(attention: Float[Array, "*n T"], data: TokenData) -> Bool[Array, "*n T"]:
    """The token with the most attention of each query (of each layer), and its copies."""
    index, copies = jnp.argmax(attention, axis=-1), data.copies
    for _ in range(index.ndim - data.labels.ndim):
        copies = jax.vmap(copies)
    return copies(index)


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
        return -_of(self.risk).targets * weights
