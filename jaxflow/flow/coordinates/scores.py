"""Attention logits as state: the flow of W, in one layer or several in parallel, in the directions that it can take."""

from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from jaxflow._core import ScaledGradient, checked, linalg, positive_or_one, tree_norm
from jaxflow.data import TokenData
from jaxflow.flow.constraints import AttentionConstraints, attention_constraints, together
from jaxflow.flow.coordinates.base import AbstractCoordinates, risk_of_own
from jaxflow.flow.margins import AffineMargins, against_others
from jaxflow.models import AbstractAttention, CombinedAttention, Head, MultiHeadAttention
from jaxflow.models.base import mark_trainable
from jaxflow.risk import EmpiricalRisk


class ScoreAttention(AbstractAttention):
    r"""`CombinedAttention` in orthonormal coordinates b of its flow-invariant affine space $W_0+\mathrm{span}$.

    $W = W_0+\sum_j b_jE_j$, $a = a_0 + R^\top b$. The fields other than `offset` never move. Where d is larger than
    the spans of tokens and queries, `basis` is in coordinates of the two, whose orthonormal `frames` are.
    """

    offset: Float[Array, " r"]
    initial_logits: Float[Array, "*n T"]
    to_logits: Float[Array, "r c"]
    basis: Float[Array, "pq r"]
    frames: tuple[Float[Array, "d p"], Float[Array, "d q"]] | None
    initial: CombinedAttention
    head: Head
    degree: ClassVar[int] = 1

    def logits(self, data: TokenData) -> Float[Array, "*n T"]:
        *outputs, T = self.initial_logits.shape
        relative = (self.offset @ self.to_logits).reshape(*outputs, T - 1)
        return self.initial_logits + jnp.pad(relative, [(0, 0)] * len(outputs) + [(1, 0)])

    def combined_weights(self) -> Float[Array, "d d"]:
        return self.initial.W + self.along(self.offset)

    def along(self, offset: Float[Array, " r"]) -> Float[Array, "d d"]:
        r"""$\sum_jb_jE_j$."""
        moved = self.basis @ offset
        if self.frames is None:
            return moved.reshape(self.initial.W.shape)
        left, right = self.frames
        return left @ moved.reshape(left.shape[1], right.shape[1]) @ right.T

    def within(self) -> Float[Array, "d d"]:
        """The part of the initial weights in the span."""
        W = self.initial.W if self.frames is None else self.frames[0].T @ self.initial.W @ self.frames[1]
        return self.along(W.reshape(-1) @ self.basis)

    def trainable(self) -> PyTree:
        return mark_trainable(self, ("offset",))

    def check(self, data: TokenData) -> None:
        self.initial.check(data)


@checked(nonnegative=["lead"])
class Scores(AbstractCoordinates):
    r"""For `CombinedAttention` with a fixed head: W stays in $W_0+\mathrm{span}\{(x_{it}-x_{i1})z_i^\top\}$.

    (The multipliers of an output sum to zero, so one token may be taken from the others.) The state holds coordinates
    in an orthonormal basis of the span, min(nk(T−1), d²) numbers with k outputs a sequence. Path, speed and norms are
    the same as in the weights, and $\partial a/\partial b$ is the triangular factor of the features. No digits are lost
    to cancellation where the Gram matrix is singular.

    **Arguments:** `lead`: how far the origin of the coordinates is behind the start, against its velocity (None: at the
    start). Far out the state of `LogArcLength`, x/ρ, then begins at the velocity, near its limit; from an origin at the
    start it begins at zero, and the steps have to resolve the way from there.

    **Example:**

    ```python
    jf.integrate(risk, model, clock="log_time", until=1.0, coordinates=jf.Scores())
    ```
    """

    lead: float | Float[Array, ""] | None = None

    def encode(self, risk: EmpiricalRisk, model: Any) -> tuple[PyTree, PyTree]:
        data = risk.data
        if not isinstance(model, CombinedAttention) or not isinstance(data, TokenData):
            raise ValueError("coordinates: Scores need CombinedAttention on TokenData; use Weights")
        own = risk_of_own(risk, model, "Scores move W alone")
        features, frames = score_features(data)
        if data.mask is None:
            basis, to_logits = linalg.qr(features.T)
        else:
            # Columns of padding after the others, whose coordinates are then what they are without them.
            order = jnp.argsort(~_moving(data.mask, data), stable=True)
            basis, upper = linalg.qr(features[order].T)
            to_logits = jnp.zeros_like(upper).at[:, order].set(upper)
        proxy = ScoreAttention(
            offset=jnp.zeros(to_logits.shape[0], features.dtype),
            initial_logits=model.logits(data),
            to_logits=to_logits,
            basis=basis,
            frames=frames,
            initial=model,
            head=model.head,
        )
        context = (eqx.tree_at(lambda p: p.offset, proxy, None), own)
        return (proxy.offset, context) if self.lead is None else self._moved(context, proxy.offset, self.lead)

    def _moved(self, context: PyTree, state: PyTree, lead: Any) -> tuple[PyTree, PyTree]:
        """The same point from an origin that lies `lead` behind it."""
        gradient = self.field(context, state).gradient
        offset = (-lead / positive_or_one(tree_norm(gradient))) * gradient
        behind = _at(context, -offset)
        origin = eqx.tree_at(lambda m: m.W, behind.initial, behind.combined_weights())
        proxy = eqx.tree_at(
            lambda p: (p.initial_logits, p.initial), context[0], (behind.logits(context[1].data), origin)
        )
        return offset, (proxy, context[1])

    def decode(self, context: PyTree, state: PyTree) -> Any:
        proxy = _at(context, state)
        return eqx.tree_at(lambda m: m.W, proxy.initial, proxy.combined_weights())

    def left_behind(self, context: PyTree) -> Float[Array, ""]:
        return tree_norm(context[0].initial.W)

    def shortened(self, context: PyTree, share: Float[Array, ""]) -> PyTree:
        proxy, own = context
        kept = proxy.within()
        return eqx.tree_at(lambda p: p.initial.W, proxy, kept + share * (proxy.initial.W - kept)), own

    def attention(self, context: PyTree, state: PyTree, data: Any) -> Float[Array, "*n T"]:
        # The weights would be summed from n(T - 1) matrices and multiplied with every token again.
        return _at(context, state).attention(data)

    def constraints(self, context: PyTree, state: PyTree) -> AttentionConstraints:
        proxy, data = _at(context, state), context[1].data
        T = data.tokens.shape[-2]
        flat = proxy.initial_logits.reshape(-1, T)
        # The logits of an output relative to its first token's are affine in the state.
        rows = jnp.pad(proxy.to_logits.T.reshape(-1, T - 1, proxy.offset.size), ((0, 0), (1, 0), (0, 0)))

        def margins(index: Array) -> AffineMargins:
            below, slopes = (against_others(index, table) for table in (flat, rows))
            return AffineMargins(below.reshape(-1), slopes.reshape(-1, proxy.offset.size))

        return attention_constraints(context[1], proxy, margins)

    def field(self, context: PyTree, state: PyTree) -> ScaledGradient:
        scaled = context[1].scaled_gradient(_at(context, state))
        return ScaledGradient(scaled.log_scale, scaled.gradient.offset, scaled.multipliers)


class LayerScores(AbstractCoordinates):
    r"""For `MultiHeadAttention` of `CombinedAttention` layers with fixed heads: the `Scores` of each layer,
    concatenated. The layers are coupled only by the output weights $\partial L/\partial f_i$, which they share.
    """

    def encode(self, risk: EmpiricalRisk, model: Any) -> tuple[PyTree, PyTree]:
        layers = isinstance(model, MultiHeadAttention) and all(isinstance(p, CombinedAttention) for p in model.parts)
        if not layers:
            raise ValueError("coordinates: LayerScores need MultiHeadAttention of CombinedAttention; use Weights")
        own = risk_of_own(risk, model, "LayerScores move the weights W alone")
        states, contexts = zip(*(Scores().encode(own, part) for part in model.parts), strict=True)
        return jnp.concatenate(states), (contexts, own)

    def _each(self, context: PyTree, state: PyTree) -> Any:
        """Context and state of each layer. All states have one length: it depends on the data alone."""
        contexts, _ = context
        return zip(contexts, jnp.split(state, len(contexts)), strict=True)

    def decode(self, context: PyTree, state: PyTree) -> Any:
        return MultiHeadAttention(Scores().decode(own, x) for own, x in self._each(context, state))

    def left_behind(self, context: PyTree) -> Float[Array, ""]:
        return tree_norm([proxy.initial.W for proxy, _ in context[0]])

    def shortened(self, context: PyTree, share: Float[Array, ""]) -> PyTree:
        return tuple(Scores().shortened(own, share) for own in context[0]), context[1]

    def constraints(self, context: PyTree, state: PyTree) -> AttentionConstraints:
        return together([Scores().constraints(own, x) for own, x in self._each(context, state)])

    def field(self, context: PyTree, state: PyTree) -> ScaledGradient:
        layers = MultiHeadAttention(_at(own, x) for own, x in self._each(context, state))
        scaled = context[1].scaled_gradient(layers)
        offsets = [part.offset for part in scaled.gradient.parts]
        return ScaledGradient(scaled.log_scale, jnp.concatenate(offsets), scaled.multipliers)

    def attention(self, context: PyTree, state: PyTree, data: Any) -> Float[Array, "H *n T"]:
        return jnp.stack([Scores().attention(own, x, data) for own, x in self._each(context, state)])


def _moving(mask: Bool[Array, "*n T"], data: TokenData) -> Bool[Array, " c"]:
    """Which rows of `score_features` are not those of padding, which equals the first visible token."""
    seen = mask if mask.ndim == 2 else jnp.any(mask, axis=1)
    first = jnp.argmax(seen, axis=-1, keepdims=True)
    moving = (seen & (jnp.arange(seen.shape[1])[None, :] != first))[:, 1:]
    copies = 1 if data.single_query else data.queries.shape[1]
    return jnp.repeat(moving[:, None], copies, axis=1).reshape(-1)


def score_features(data: TokenData) -> tuple[Float[Array, "c pq"], Any]:
    r"""$\mathrm{vec}\,(x_{it}-x_{i1})z_i^\top$ for every output and t ≥ 2, as rows, and the frames P, Q they are in.

    A row has d² entries. Where the differences span fewer dimensions than d, and so do the queries, $P^\top(\cdot)Q$
    has the same inner products: for d = 1,000 the factors of rows of a million entries took two seconds.
    """
    differences, queries = data.tokens[:, 1:] - data.tokens[:, :1], data.queries
    d = data.tokens.shape[-1]
    frames = None
    if max(differences.size, queries.size) < d * d:
        (left, differences), (right, queries) = _framed(differences), _framed(queries)
        frames = left, right
    rule = "ntp,nq->ntpq" if data.single_query else "ntp,nkq->nktpq"
    features = jnp.einsum(rule, differences, queries)
    return features.reshape(-1, differences.shape[-1] * queries.shape[-1]), frames


def _framed(vectors: Float[Array, "... d"]) -> tuple[Float[Array, "d p"], Float[Array, "... p"]]:
    """An orthonormal frame of fewer than d vectors, and their coordinates in it."""
    frame, coordinates = linalg.qr(vectors.reshape(-1, vectors.shape[-1]).T)
    return frame, coordinates.T.reshape(*vectors.shape[:-1], -1)


def _at(context: PyTree, state: PyTree) -> ScoreAttention:
    return eqx.tree_at(lambda p: p.offset, context[0], state, is_leaf=lambda x: x is None)
