"""Instances in the dimensions that their vectors span, or in a few more: one size for many."""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxflow._core import linalg
from jaxflow.data import TokenData
from jaxflow.limits.attention import coordinates_of
from jaxflow.limits.limit import Limit, LimitKind
from jaxflow.margin import Frobenius, Nuclear
from jaxflow.models import CombinedAttention, FactoredAttention, LinearHead
from jaxflow.risk import EmpiricalRisk
from jaxflow.theory import Rule, predict
from jaxflow.trajectory import Point

# Dimensions are filled up to a multiple of this: one program serves so many of them, and products of matrices of
# size 12 in place of 9 cost less than the call does otherwise.
BUCKET = 4


class Reduction(eqx.Module):
    r"""An instance in D other dimensions: U `(d, D)` has orthonormal columns, or (`wider`) rows.

    D = n·T + outputs + 1 < d: U is a basis of tokens, queries and head. $a_{it}=x_{it}^\top Wz_i$ depends on
    $U^\top WU$ alone, the gradient lies in it, and Frobenius and nuclear norms of programs are the same in either. Of
    factors the columns are reduced too, to the row space C `(m, c)` of $[U^\top K;U^\top Q]$. What lies outside never
    moves: it is added again to the limit's model and left out of its directions, in which it vanishes against what
    grows. Points on the way there are not kept: `limit.trajectory.saved` is None, and `integrate` gives it.

    D > d: U is the identity and columns of zeros. Dimensions and columns of zeros stay zero, so that the flow is the
    same one, and several d share what is compiled.
    """

    risk: EmpiricalRisk
    model: Any
    full: Any
    basis: Float[Array, "d D"]
    columns: Float[Array, "m c"] | None
    wider: bool = eqx.field(static=True)

    def lift(self, risk: EmpiricalRisk, limit: Limit) -> Limit:
        """The limit of the whole instance."""
        U, C = self.basis, self.basis if self.columns is None else self.columns

        def matrix(x: Array) -> Array:
            return U @ x @ U.T

        names = ("W",) if self.columns is None else ("K", "Q")

        def fields(model: Any) -> list[Any]:
            return [getattr(model, name) for name in names]

        whole, inside = fields(self.full), fields(self.model)
        # What lies outside of the basis (and the columns) is orthogonal to what lies inside. None of it where rounding
        # would make it negative.
        outside = sum(jnp.sum(x**2) - jnp.sum(y**2) for x, y in zip(whole, inside, strict=True))

        def point(p: Point) -> Point:
            # The start, and how far it moved within the basis: matrices as large as K are formed once each.
            moved = [x + U @ (z - y) @ C.T for x, y, z in zip(whole, inside, fields(p.model), strict=True)]
            model = eqx.tree_at(fields, self.full, moved)
            velocity = eqx.tree_at(fields, p.velocity, [U @ x @ C.T for x in fields(p.velocity)])
            log_norm = 0.5 * jnp.logaddexp(2.0 * p.log_norm, 2.0 * jnp.log(jnp.sqrt(jnp.maximum(outside, 0.0))))
            return replace(p, model=model, velocity=velocity, log_norm=log_norm)

        path = limit.trajectory
        # Saved points served the rate; where they are large, a few matrices as large as K for each of them would cost
        # more than the flow.
        saved = jax.vmap(point)(path.saved) if self.wider and path.saved is not None else None
        path = replace(path, final=point(path.final), saved=saved)
        solution = limit.program_solution
        # At a point what does not move is part of the answer; a direction leaves it behind.
        end = path.final.model.combined_weights()
        return replace(
            limit,
            flow_direction=jnp.where(limit.kind == LimitKind.point, end, matrix(limit.flow_direction)),
            end=end,
            program_solution=replace(solution, primal=matrix(solution.primal)),
            prediction=predict(risk, self.full, limit.selection),
            trajectory=path,
        )


def reduced(risk: EmpiricalRisk, model: Any, rule: Rule, shared: bool = False) -> Reduction | None:
    """The instance in fewer dimensions, or None where it has as many as it spans or its program depends on the axes.

    `shared`: where there are no fewer, in the next size that several d share. `rule`: of the model's program.
    """
    data = risk.data
    if not isinstance(data, TokenData) or not isinstance(model, CombinedAttention | FactoredAttention):
        return None
    if not isinstance(model.head, LinearHead):  # one vector for all outputs
        return None
    d, spanned = data.tokens.shape[-1], data.tokens[..., 0].size + data.labels.size + 1
    wide = -(-d // BUCKET) * BUCKET
    # More columns than d add nothing, and fewer constrain the rank: such factors keep their shape.
    square = isinstance(model, CombinedAttention) or model.K.shape == (d, d)
    if coordinates_of(risk, model) is None or (spanned >= d and not (shared and square and wide > d)):
        return None
    # The norm is that of the rule, whatever is selected.
    first = jnp.arange(data.tokens.shape[-2]) == 0
    norm = rule(risk, model, jnp.broadcast_to(first, data.visible.shape)).program.norm
    if not isinstance(norm, Frobenius | Nuclear):
        return None
    v = model.head.v
    if spanned < d:
        vectors = jnp.concatenate([data.tokens.reshape(-1, d), data.queries.reshape(-1, d), v[None]])
        basis, _ = linalg.qr(vectors.T)
    else:
        basis = jnp.eye(d, wide, dtype=v.dtype)
    head = eqx.tree_at(lambda h: h.v, model.head, v @ basis)
    small = TokenData(data.tokens @ basis, data.queries @ basis, data.labels, data.mask)
    if isinstance(model, CombinedAttention):
        columns = None
        inside: Any = CombinedAttention(basis.T @ model.W @ basis, head)
    else:
        K, Q = basis.T @ model.K, basis.T @ model.Q
        columns = linalg.qr(jnp.concatenate([K, Q]).T)[0] if spanned < d else basis
        inside = FactoredAttention(K @ columns, Q @ columns, head)
    return Reduction(EmpiricalRisk(small, risk.loss, None, risk.reduction), inside, model, basis, columns, spanned >= d)
