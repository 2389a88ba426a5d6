r"""K and Q in the only directions that gradient flow can take, for every d and m."""

from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from jaxflow._core import ScaledGradient, linalg, tree_scale
from jaxflow.data import TokenData
from jaxflow.flow.constraints import AttentionConstraints, attention_constraints, rows_against_others
from jaxflow.flow.coordinates.base import AbstractCoordinates, risk_of_own
from jaxflow.flow.margins import BilinearMargins
from jaxflow.models import AbstractAttention, FactoredAttention, Head
from jaxflow.models.attention import bilinear
from jaxflow.models.base import mark_trainable
from jaxflow.risk import EmpiricalRisk


class ReducedFactors(AbstractAttention):
    r"""`FactoredAttention` in orthonormal coordinates of the spaces that the flow keeps.

    $K=K_\perp+B_x\tilde KC^\top$, $Q=Q_\perp+B_z\tilde QC^\top$ with orthonormal columns $B_x$ of
    $\mathrm{span}\{x_{it}-x_{i1}\}$, $B_z$ of $\mathrm{span}\{z_i\}$ and C of the row space of
    $[B_x^\top K;B_z^\top Q]$. The logits are those of the model minus a constant for each query:
    $a_{it}-a_{i1}=(x_{it}-x_{i1})^\top B_x\tilde K\tilde Q^\top B_z^\top z_i$.

    `keys` `(n, T, p)` are $B_x^\top(x_{it}-x_{i1})$, `queries` $B_z^\top z_i$. Only `K` and `Q` move.
    """

    K: Float[Array, "p c"]
    Q: Float[Array, "q c"]
    keys: Float[Array, "n T p"]
    queries: Float[Array, "*n q"]
    head: Head
    degree: ClassVar[int] = 2

    def logits(self, data: TokenData) -> Float[Array, "*n T"]:
        return bilinear(data, self.queries @ self.Q @ self.K.T, self.keys)

    def combined_weights(self) -> Float[Array, "p q"]:
        return self.K @ self.Q.T

    def trainable(self) -> PyTree:
        return mark_trainable(self, ("K", "Q"))

    def check(self, data: TokenData) -> None:
        pass


class Factors(AbstractCoordinates):
    r"""For `FactoredAttention` with a fixed head: at most $\min(d,n(T-1))+\min(d,n)$ rows and as many columns.

    $\dot K=-GQ$ and $\dot Q=-G^\top K$ with $G=\sum_{it}p_{it}x_{it}z_i^\top$ and $\sum_tp_{it}=0$ (the gradient of
    (KQ-ERM), Tarzanagh et al. 2023): K moves in the span of token differences, Q in that of the queries, and both keep
    their common row space. Path, speed and norms are the same as in the weights; the parts that never move stay in the
    context.

    **Example:**

    ```python
    factored = jf.models.FactoredAttention.init(jax.random.key(1), data, head)
    jf.integrate(risk, factored, clock="log_time", until=1.0, coordinates=jf.Factors())
    ```
    """

    def encode(self, risk: EmpiricalRisk, model: Any) -> tuple[PyTree, PyTree]:
        data = risk.data
        if not isinstance(model, FactoredAttention) or not isinstance(data, TokenData):
            raise ValueError("coordinates: Factors need FactoredAttention on TokenData; use Weights")
        moving = risk_of_own(risk, model, "Factors move K and Q alone")
        d, differences = data.tokens.shape[-1], data.tokens - data.tokens[:, :1]

        def basis(rows: Float[Array, "r d"]) -> Float[Array, "d p"]:
            """An orthonormal basis of a space that contains the span; the identity where nothing would be saved."""
            return jnp.eye(d, dtype=rows.dtype) if len(rows) >= d else linalg.qr(rows.T)[0]

        along_keys, along_queries = basis(differences[:, 1:].reshape(-1, d)), basis(data.queries.reshape(-1, d))
        K, Q = along_keys.T @ model.K, along_queries.T @ model.Q
        columns, _ = linalg.qr(jnp.concatenate([K, Q]).T)
        proxy = ReducedFactors(
            K=K @ columns,
            Q=Q @ columns,
            keys=differences @ along_keys,
            queries=data.queries @ along_queries,
            head=model.head,
        )
        rest = (model.K - along_keys @ K, model.Q - along_queries @ Q)
        frames, frozen = (along_keys, along_queries, columns), eqx.tree_at(_factors, proxy, (None, None))
        return _factors(proxy), (frozen, moving, frames, rest, model)

    def decode(self, context: PyTree, state: PyTree) -> Any:
        _, _, (along_keys, along_queries, columns), (K_rest, Q_rest), model = context
        K = K_rest + along_keys @ state[0] @ columns.T
        Q = Q_rest + along_queries @ state[1] @ columns.T
        return eqx.tree_at(_factors, model, (K, Q))

    def shortened(self, context: PyTree, share: Float[Array, ""]) -> PyTree:
        *known, rest, model = context
        return *known, tree_scale(share, rest), model

    def attention(self, context: PyTree, state: PyTree, data: Any) -> Float[Array, "*n T"]:
        return self.proxy(context, state).attention(data)

    def constraints(self, context: PyTree, state: PyTree) -> AttentionConstraints:
        proxy, data = self.proxy(context, state), context[1].data
        queries = proxy.queries.reshape(-1, proxy.queries.shape[-1])

        def margins(index: Array) -> BilinearMargins:
            return BilinearMargins(rows_against_others(data, index, proxy.keys), queries)

        return attention_constraints(context[1], proxy, margins)

    def field(self, context: PyTree, state: PyTree) -> ScaledGradient:
        scaled = context[1].scaled_gradient(self.proxy(context, state))
        return ScaledGradient(scaled.log_scale, (scaled.gradient.K, scaled.gradient.Q), scaled.multipliers)

    def proxy(self, context: PyTree, state: PyTree) -> ReducedFactors:
        """The reduced model at a state."""
        return eqx.tree_at(_factors, context[0], state, is_leaf=lambda x: x is None)


def _factors(model: Any) -> tuple[Any, Any]:
    return model.K, model.Q
