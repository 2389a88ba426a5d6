r"""The ℓ2 max-margin program of many data with few parameters, solved in the dimension of the parameters.

$$\min\tfrac12\|w\|^2\quad\text{s.t.}\quad Aw\ge1$$

`min_norm_point` works on the Gram matrix of the data. Here a step of Mehrotra's predictor-corrector factorises
$I+A^\top\mathrm{diag}(\lambda/s)A$, of the size of w: 10,000 data with 20 inputs take some milliseconds a step. The
start is a u with $Au>0$, which `recession_cone` has found; w is then refined on the constraints that are active.
"""

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxflow._core import linalg, positive_or_one
from jaxflow.margin._linear_algebra import corrected_step, scaled_cholesky
from jaxflow.margin.mehrotra import MAX_STEPS


class ThinMargin(eqx.Module):
    r"""`primal` w at margin one `(m,)`; `dual` λ `(n,)`, with $w=A^\top\lambda$ to the method's accuracy; `steps`."""

    primal: Float[Array, " m"]
    dual: Float[Array, " n"]
    steps: Int[Array, ""]


def thin_margin(rows: Float[Array, "n m"], present: Bool[Array, " n"], interior: Float[Array, " m"]) -> ThinMargin:
    r"""The least w with margins of one at the rows that are `present`; `interior` makes all of these positive."""
    rows = jnp.where(present[:, None], rows, 0.0)
    margin = _margin(rows, present, interior)
    usable = jnp.any(present) & (margin > 0)
    # In the length of the start at margin one the optimum is at most one long.
    first = interior / jnp.where(usable, margin, 1.0)
    length = positive_or_one(jnp.linalg.norm(first))
    scaled = rows * length
    steps, w, weights, slack = _follow(scaled, present, first / length, usable)
    active = present & (weights > slack)
    # In the length of w: that of the start may be hundreds of times larger, and its square times a penalty too much.
    size = positive_or_one(jnp.linalg.norm(w))
    fine = size * _refined(scaled * size, active, w / size, weights / size**2)
    sharp, sharper = (_margin(scaled, present, x) / positive_or_one(jnp.linalg.norm(x)) for x in (w, fine))
    w = jnp.where(sharper > sharp, fine, w)
    w = w / positive_or_one(_margin(scaled, present, w))
    return ThinMargin(jnp.where(usable, w * length, 0.0), jnp.where(present & usable, weights, 0.0), steps)


def _margin(rows: Array, present: Array, w: Array) -> Float[Array, ""]:
    return jnp.min(jnp.where(present, rows @ w, jnp.inf), initial=jnp.inf)


def _refined(
    rows: Float[Array, "n m"], active: Bool[Array, " n"], w: Float[Array, " m"], weights: Float[Array, " n"]
) -> Float[Array, " m"]:
    """The least vector with margins of one on the active rows, from w and its multipliers.

    Steps of the method of multipliers, in corrections, whose roundings are those of the residuals, until the margins
    come no closer to one. No rank is decided: an SVD takes rows that are equal to their roundings for independent ones.
    """
    chosen = jnp.where(active[:, None], rows, 0.0)
    penalty = 1.0 / jnp.sqrt(jnp.finfo(w.dtype).eps)
    factor = linalg.cholesky(penalty * chosen.T @ chosen + jnp.eye(w.size, dtype=w.dtype))

    def short(w: Array) -> Array:
        return jnp.where(active, 1.0 - chosen @ w, 0.0)

    def going(state: tuple) -> Array:
        steps, *_, before, now = state
        return (steps < 2) | ((steps < MAX_STEPS) & (now < before))

    def body(state: tuple) -> tuple:
        steps, w, weights, _, now = state
        w = w + linalg.cholesky_solve(factor, chosen.T @ (weights + penalty * short(w)) - w)
        return steps + 1, w, weights + penalty * short(w), now, jnp.max(jnp.abs(short(w)), initial=0.0)

    first = jnp.max(jnp.abs(short(w)), initial=0.0)
    return lax.while_loop(going, body, (0, w, jnp.where(active, weights, 0.0), first, first))[1]


def _follow(
    rows: Float[Array, "n m"], present: Bool[Array, " n"], first: Float[Array, " m"], usable: Bool[Array, ""]
) -> tuple[Int[Array, ""], Float[Array, " m"], Float[Array, " n"], Float[Array, " n"]]:
    """Steps, w, λ and slack at the end of the interior point."""
    m, on = rows.shape[1], present.astype(rows.dtype)
    count = jnp.maximum(jnp.sum(on), 1.0)
    eps = float(jnp.finfo(rows.dtype).eps)

    def body(state: tuple) -> tuple:
        steps, w, weights, slack, _ = state
        ratio = jnp.where(present, weights / slack, 0.0)
        matrix = (rows * ratio[:, None]).T @ rows + jnp.eye(m, dtype=rows.dtype)
        factor, scale = scaled_cholesky(matrix, eps)
        off, short = w - rows.T @ weights, on * (rows @ w - slack - 1.0)

        def direction(target: Array) -> tuple[Array, Array, Array]:
            share = on * (target - weights * short) / slack
            change = scale * linalg.cholesky_solve(factor, scale * (rows.T @ share - off))
            change_slack = on * (rows @ change) + short
            return change, on * (target - weights * change_slack) / slack, change_slack

        (w, weights, slack), moved = corrected_step(direction, (w, weights, slack), present)
        # Products of slack and multiplier are roundings of the optimum: w, whose error is the root of that, has half of
        # the digits, which tells what is active, and the refinement has all of them.
        small = jnp.sum(on * weights * slack) <= 4.0 * eps * (w @ w)
        return steps + 1, w, weights, slack, small | ~moved

    # Twice the start has a slack of one and more; with these multipliers all products are equal.
    slack = jnp.where(present, 2.0 * (rows @ first) - 1.0, 1.0)
    state = (jnp.zeros((), int), 2.0 * first, on / (count * slack), slack, ~usable)
    steps, w, weights, slack, _ = lax.while_loop(lambda s: (s[0] < MAX_STEPS) & ~s[4], body, state)
    return steps, w, weights, slack
