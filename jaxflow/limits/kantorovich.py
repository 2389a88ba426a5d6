r"""Whether a minimum is near a point of a loss that is not convex: Newton and Kantorovich, as far as it was looked.

Kantorovich (1948), in the affine invariant form of Deuflhard: with the Hessian H at θ definite, $\eta=\|g\|_{H^{-1}}$
and $\|H^{-1/2}(H(\theta')-H)H^{-1/2}\|\le\omega\|\theta'-\theta\|_H$ on a ball of radius 2η, $\omega\eta\le\frac12$
proves a stationary point there. A small gradient proves nothing, and in no units: along a channel to infinity in which
the loss falls like $e^{-q}$, Newton's step is one unit of q however far out, and H changes by a factor of e.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from jaxflow._core import linalg, positive_or_one
from jaxflow._core.kinks import gated
from jaxflow.risk import EmpiricalRisk

# Singular values below this share of the largest belong to no range: roundings of a product of a few matrices.
RANK = 1e-10


def kantorovich(
    risk: EmpiricalRisk,
    unravel: Callable[[Array], Any],
    theta: Float[Array, " p"],
    moves: Callable[[Array], Array] | None = None,
    fitted: bool = False,
) -> Float[Array, ""]:
    r"""An estimate of $\omega\eta$ on the directions that move anything; +inf where H is not definite on these.

    A value of at most one half means that a minimum is within two of Newton's steps. The change of H is measured at
    that distance, along Newton's step and along the softest eigenvector both ways; as these are not all directions, it
    is doubled. Where a kink of the model is crossed within two of Newton's steps, +inf. Gradients are
    relative to the scale of `scaled_gradient` at θ, so that nothing underflows.

    **Arguments:** `unravel`: from θ to the model; `moves`: a function of θ whose derivatives span the directions in
    which the loss changes (None: the margins; of a loss without, the outputs), whatever its units; `fitted`: +inf
    unless what pushes the outputs cancels output by output, so that θ may move as long as these stand: what their
    second derivatives add to H, $\sum_iw_i\nabla^2f_i$ with $w_i=\partial L/\partial f_i$, is at most half of its least
    eigenvalue there.

    **Example:**

    ```python
    from jaxflow.limits.kantorovich import kantorovich

    squared = jf.EmpiricalRisk((jnp.ones((1, 1)), jnp.ones(1)), "squared")
    assert kantorovich(squared, lambda theta: lambda x: theta @ x, jnp.ones(1)) == 0.0
    ```
    """

    def outputs(x: Array) -> Array:
        return risk.source.outputs(unravel(x)).reshape(-1)

    def own(x: Array) -> Array:
        # A shift of all outputs of a datum changes no loss of its classes.
        return risk.margins(unravel(x)).reshape(-1) if risk.loss.margin else outputs(x)

    scale = risk.scaled_gradient(unravel(theta)).log_scale

    def slope_of(x: Array) -> Array:
        scaled = risk.scaled_gradient(unravel(x))
        return ravel_pytree(scaled.gradient)[0] * jnp.exp(scaled.log_scale - scale)

    def bent(x: Array, columns: Array) -> Array:
        """The Hessian's products with the columns, without the Hessian."""
        return jax.vmap(lambda v: jax.jvp(slope_of, (x,), (v,))[1], in_axes=1, out_axes=1)(columns)

    gradient = slope_of(theta)
    rows = jax.jacrev(own if moves is None else moves)(theta)
    finite = jnp.all(jnp.isfinite(rows)) & jnp.all(jnp.isfinite(gradient))
    rows = jnp.where(finite, rows, 0.0)
    rows = rows / positive_or_one(jnp.linalg.norm(rows, axis=1, keepdims=True))
    _, values, right = linalg.svd(rows)
    moved = jnp.where((values > RANK * jnp.max(values, initial=0.0))[:, None], right, 0.0)
    dead = jnp.all(moved == 0, axis=1)
    products = bent(theta, moved.T)
    finite = finite & jnp.all(jnp.isfinite(products))
    inner = moved @ jnp.where(finite, products, 0.0)
    curves, vectors = linalg.eigh(0.5 * (inner + inner.T))
    # Rounding of eigenvalues: a curvature below it has no sign.
    rounding = len(theta) * float(jnp.finfo(theta.dtype).eps) * jnp.max(jnp.abs(curves), initial=0.0)
    live = jnp.sum(vectors**2 * (~dead)[:, None], axis=0) > 0.5
    definite = finite & jnp.all(jnp.where(live, curves > rounding, True)) & jnp.any(live)
    if fitted:
        there = risk.source.outputs(unravel(theta))
        size, weights = risk.loss.scaled_derivative(there, risk.source.targets(there))
        weights = weights.reshape(-1) * jnp.exp(size - scale) / risk.count(there)
        own_bend = jax.hessian(lambda x: outputs(x) @ weights)(theta)
        definite = definite & (2.0 * jnp.linalg.norm(own_bend) <= jnp.min(jnp.where(live, curves, jnp.inf)))
    root = jnp.where(live & definite, 1.0 / jnp.sqrt(jnp.where(live & definite, curves, 1.0)), 0.0)
    # Columns of length one in the norm of H.
    white = moved.T @ (vectors * root[None, :])
    step = white.T @ gradient
    softest = jnp.linalg.norm(step) * jax.nn.one_hot(jnp.argmax(root), root.size, dtype=theta.dtype)

    here = white.T @ bent(theta, white)

    def change(z: Array) -> Array:
        return jnp.linalg.norm(white.T @ bent(theta + 2.0 * white @ z, white) - here)

    # ω·2η at the distance 2η: with twice of it, ωη.
    bound = jnp.max(jax.lax.map(change, jnp.stack([-step, softest, -softest])))
    beyond = gated(outputs, theta - 2.0 * white @ step).switches
    crossed = jnp.any((gated(outputs, theta).switches > 0) != (beyond > 0))
    return jnp.where(definite & ~crossed & jnp.isfinite(bound), bound, jnp.inf)
