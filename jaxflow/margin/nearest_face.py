r"""The face of a convex hull that holds its point of least norm, by principal pivots.

With $G_{kl}=\langle A_k,A_l\rangle$ and $e_k=1$ for inequalities, 0 for equalities,
$$\min_\lambda\ \tfrac12\lambda^\top G\lambda+\tfrac12(1-e^\top\lambda)^2,\qquad
\lambda_k\ge0\ (k\in I),\ \lambda_j\text{ free}\ (j\in E)$$
is nonnegative least squares, always feasible and bounded, and its solution divided by $s=e^\top\lambda$ is the point of
least norm: $G\lambda\ge(1-s)e$ with equality on the support.

Method: Wolfe's for the nearest point in a polytope (Math. Program. 11, 1976), which is that of Lawson and Hanson
(Solving Least Squares Problems, 1974, ch. 23) for this least-squares problem: one constraint enters, the one that
lowers the objective the most while the others on the face follow; those whose weight would turn negative leave. The
objective falls, so that no face comes twice. It is kept as a tableau, swept at one entry a step (Goodnight, The
American Statistician 33, 1979): plain operations on a batch where an interior point step factorises. Random programs
take about as many pivots as constraints are active.
"""

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxflow._core.linalg import ROUNDED
from jaxflow.margin.l1_vertex import PIVOTS

# A constraint enters where its margin is too small by this many rounding errors: the tableau's own.
VIOLATED = 100.0


class Face(eqx.Module):
    r"""`weights` $\lambda$, zero off the face, which has the `support`; `pivots` done, and whether they came to their
    `end`."""

    weights: Float[Array, " m"]
    support: Bool[Array, " m"]
    pivots: Int[Array, ""]
    end: Bool[Array, ""]


def nearest_face(gram: Float[Array, "m m"], inequality: Bool[Array, " m"], equality: Bool[Array, " m"]) -> Face:
    """The face, from a `gram` with a diagonal of order one; slots that are neither kind are left alone."""
    dtype = gram.dtype
    eps = float(jnp.finfo(dtype).eps)
    on = inequality.astype(dtype)
    used = inequality | equality
    slots = jnp.arange(len(gram))
    table = gram + on[:, None] * on[None, :]
    # What must lie outside of the span of the face of a constraint's square, lest the face lose its dimension.
    least = max(ROUNDED, 100 * eps) * jnp.diagonal(table)

    def choose(square: Array, reached: Array, weights: Array, support: Array) -> tuple:
        """The step towards the solution on the face, and the pivot that follows it."""
        falling = support & inequality & (reached <= 0)
        lost = weights - reached
        length = jnp.where(falling, weights / jnp.where(falling & (lost > 0), lost, 1.0), jnp.inf)
        weights = jnp.where(support, weights + jnp.minimum(1.0, jnp.min(length)) * (reached - weights), 0.0)
        able = used & ~support & (square > least) & (equality | (reached > VIOLATED * eps))
        gain = jnp.where(equality, jnp.inf, reached**2 / jnp.where(able, square, 1.0))
        leaves = jnp.any(falling)
        key = jnp.where(leaves, -length, jnp.where(able, gain, -jnp.inf))
        return weights, jnp.argmax(key), leaves, leaves | jnp.any(able)

    def body(state: tuple) -> tuple:
        pivots, table, square, reached, support, weights, place, leaves, _ = state
        here = slots == place
        row = jnp.where(here, jnp.where(leaves, 1.0, -1.0), table[place])
        pivot = square[place]
        table = jnp.where(here[:, None] | here[None, :], 0.0, table) - row[:, None] * (row / pivot)[None, :]
        reached = jnp.where(here, 0.0, reached) - row * (reached[place] / pivot)
        square = jnp.where(here, 0.0, square) - row * (row / pivot)
        support, weights = support ^ here, jnp.where(here, 0.0, weights)
        return pivots + 1, table, square, reached, support, *choose(square, reached, weights, support)

    def unfinished(state: tuple) -> Bool[Array, ""]:
        # Random programs take at most one and a half for each *active* constraint.
        return state[-1] & (state[0] < PIVOTS * len(gram))

    # `reached` is the solution on the face, and off it what the margins lack.
    square, reached, support = jnp.diagonal(table), on, jnp.zeros_like(used)
    start = (jnp.zeros((), int), table, square, reached, support)
    state = (*start, *choose(square, reached, jnp.zeros_like(on), support))
    pivots, _, _, reached, support, weights, _, _, going = lax.while_loop(unfinished, body, state)
    # A constraint that lies next to the span of the face does not enter, and may be violated by the root of its square.
    lacks = jnp.max(jnp.where(inequality & ~support, reached, 0.0), initial=0.0)
    solved = lacks <= ROUNDED * (1.0 - jnp.sum(on * weights))
    return Face(weights, support, pivots, ~going & solved)
