"""The minimum of the loss of some rows of a model that is affine in its parameters, with a bound for its error."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxflow._core import linalg, positive_or_one
from jaxflow.limits.affine_flow import AffineFlow, convex_newton
from jaxflow.losses import value_of_margins
from jaxflow.margin.recession import orthonormal_columns


class Rest(eqx.Module):
    r"""The minimum of the loss of some rows, over their span.

    - `point` x `(m,)`, without a part outside of the span.
    - `error`: a bound on $\|x-x^*\|$, +inf where there is none. With M of `jaxflow.losses.self_concordance` what a
      datum has in the Hessian falls by a factor of at most e where none of its margins moves by more than 1/M. In the
      ball of radius $4e\|g\|_{H^{-1}}$ in the norm of H (g is the gradient at x, roundings included) a margin moves by
      $\|b_k\|_{H^{-1}}$ times that at most; where data that may move further have a share $\delta\le\frac12$ of the
      Hessian ($b_kb_k^\top\preceq\|b_k\|_{H^{-1}}^2H$), the Hessian is at least $(1-\delta)/e$ of H there, and the
      minimum is at a distance of at most $2e\|g\|_{H^{-1}}/(1-\delta)$.
    - `eigenvalue`: a lower bound for the Hessian's on the span; `rank`: the dimension of the span.
    """

    point: Float[Array, " m"]
    error: Float[Array, ""]
    eigenvalue: Float[Array, ""]
    rank: Int[Array, ""]


def rest_of(flow: AffineFlow, still: Bool[Array, " n"], away: Float[Array, "m m"], bend: float) -> Rest:
    """The minimum for the rows `still` of a loss with $M=$ `bend`; `away`, in its rows, spans what moves none of
    them."""
    none = jnp.zeros_like(flow.rows[0])
    unknown = jnp.full((), jnp.inf, none.dtype)
    nothing = Rest(none, unknown, none[0] * jnp.nan, jnp.zeros((), int))
    return lax.cond(jnp.any(still), lambda: _rest_of(flow, still, away, bend), lambda: nothing)


def _rest_of(flow: AffineFlow, still: Bool[Array, " n"], away: Float[Array, "m m"], bend: float) -> Rest:
    """By `convex_newton` from margins of zero, as far as the rows allow: there the Hessian is that of an orthonormal
    basis, whatever the units of the data and wherever the flow begins. Other margins count as infinite."""
    rows = jnp.where(still[:, None], flow.rows, 0.0)
    basis, back = orthonormal_columns(flow.rows, still)
    dead = jnp.all(basis == 0, axis=0)
    eps = float(jnp.finfo(rows.dtype).eps)
    begun = jnp.where(still, flow.offsets, 0.0)
    # What margins that diverge are taken for beside others of their datum under `CrossEntropy`: e^-q is zero.
    gone = -2.0 * math.log(float(jnp.finfo(rows.dtype).tiny))

    def value(q: Array, weight: Array) -> Array:
        return weight * value_of_margins(flow.loss, q)

    def derivatives(z: Array, *kinds: Any) -> list[Array]:
        # By the rows: a small one has in the basis the roundings of a large one.
        q = jnp.where(still, begun + rows @ (back @ z), gone).reshape(-1, flow.group)
        return [jax.vmap(kind(value))(q, flow.weights) for kind in kinds]

    def slopes(z: Array) -> Array:
        return jnp.where(still, derivatives(z, jax.grad)[0].reshape(-1), 0.0)

    def factored(z: Array) -> tuple[Array, Array]:
        (second,) = derivatives(z, jax.hessian)
        curved = jnp.einsum("ijk,ikm->ijm", second, basis.reshape(*second.shape[:2], -1)).reshape(basis.shape)
        hessian = basis.T @ curved
        scale = 1.0 / jnp.sqrt(jnp.where(dead, 1.0, jnp.diagonal(hessian)))
        scaled = hessian * scale[:, None] * scale[None, :] + jnp.diag(jnp.where(dead, 1.0, 0.0))
        return scale, linalg.cholesky(scaled)

    def solve(kept: tuple[Array, Array], rest: Array) -> Array:
        return kept[0] * linalg.cholesky_solve(kept[1], kept[0] * rest)

    def changed(z: Array, way: Array) -> Array:
        return jnp.max(jnp.abs(basis @ way))

    def left(z: Array) -> Array:
        return -(back.T @ (rows.T @ slopes(z)))

    z, _ = convex_newton(left, factored, solve, changed, -(basis.T @ begun), eps)
    first, (second,), (scale, factor) = slopes(z), derivatives(z, jax.hessian), factored(z)
    seen = linalg.lower_solve(factor, scale[:, None] * basis.T)
    sizes = jnp.linalg.norm(seen, axis=0)
    terms = jnp.abs(begun) + jnp.abs(rows) @ jnp.abs(back @ z)
    # A slope has the roundings of all margins of its datum.
    terms = jnp.repeat(jnp.max(terms.reshape(-1, flow.group), axis=1), flow.group)
    rounding = jnp.sum(jnp.abs(first) * sizes * (1.0 + terms))
    # And the sums of slopes times rows, coordinate by coordinate.
    gradients = linalg.lower_solve(factor, scale[:, None] * back.T)
    rounding += jnp.linalg.norm(gradients, axis=0) @ (jnp.abs(rows).T @ jnp.abs(first))
    decrement = jnp.linalg.norm(gradients @ (rows.T @ first)) + 8.0 * eps * rounding
    # Data that may move further than 1/M are left out of the Hessian, of which they have a share.
    wide = sizes.reshape(-1, flow.group)
    far = jnp.max(wide, axis=1) * bend * 4.0 * math.e * decrement > 1.0
    shares = jnp.einsum("ij,ijk,ik->i", wide, jnp.abs(second), wide)
    share = jnp.sum(jnp.where(far, shares, 0.0))
    proved = share <= 0.5
    reach = 2.0 * math.e * decrement / jnp.where(proved, 1.0 - share, 1.0)
    point = back @ z
    point = point - away.T @ (away @ point)
    step = (scale[:, None] * (back - away.T @ (away @ back)).T).T
    spread = jnp.linalg.norm(linalg.lower_solve(factor, step.T))
    rank = jnp.sum(~dead)
    proved = proved & (rank > 0)
    return Rest(
        point=point,
        error=jnp.where(proved, reach * spread, jnp.inf),
        eigenvalue=jnp.where(rank > 0, 1.0 / positive_or_one(spread) ** 2, jnp.nan),
        rank=rank,
    )
