r"""Whether a minimum is near a point of a loss that is not convex: Newton and Kantorovich, as far as it was looked.

Kantorovich (1948), in the affine invariant form of Deuflhard: with the Hessian H at θ definite, $\eta=\|g\|_{H^{-1}}$
and $\|H^{-1/2}(H(\theta')-H)H^{-1/2}\|\le\omega\|\theta'-\theta\|_H$ on a ball, $\omega\eta\le\frac12$ proves a
stationary point there. A small gradient proves nothing, and in no units: along a channel to infinity in which the loss
falls like $e^{-q}$, ω is $1/\sqrt{H_{qq}}$ and η is $\sqrt{H_{qq}}$, so that $\omega\eta$ is one however far out.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxflow._core import linalg, positive_or_one
from jaxflow._core.kinks import gated
from jaxflow.limits.model_point import RANK
from jaxflow.risk import EmpiricalRisk

# ω is the largest of a few directions' and not of all: of twice that the half is allowed.
SAFETY = 2.0
# Random directions beside Newton's step and the softest one.
DIRECTIONS = 2


def kantorovich(risk: EmpiricalRisk, unravel: Callable[[Array], Any], theta: Float[Array, " p"]) -> Float[Array, ""]:
    r"""An estimate of $\omega\eta$ on the directions that change outputs; +inf where H is not definite on these.

    At most one half says that a minimum is there. ω is that of third derivatives at θ, along Newton's step, the
    softest eigenvector and `DIRECTIONS` random ones, times `SAFETY`; where a kink of the model is
    crossed within two of Newton's steps, +inf.

    **Example:**

    ```python
    from jaxflow.limits.kantorovich import kantorovich

    squared = jf.EmpiricalRisk((jnp.ones((1, 1)), jnp.ones(1)), "squared")
    assert kantorovich(squared, lambda theta: lambda x: theta @ x, jnp.ones(1)) == 0.0
    ```
    """

    def outputs(x: Array) -> Array:
        return risk.source.outputs(unravel(x)).reshape(-1)

    slope_of = jax.grad(lambda x: risk(unravel(x)))
    hessian_of = jax.jacfwd(slope_of)
    gradient, hessian, jacobian = slope_of(theta), hessian_of(theta), jax.jacrev(outputs)(theta)
    finite = jnp.all(jnp.isfinite(hessian)) & jnp.all(jnp.isfinite(jacobian)) & jnp.all(jnp.isfinite(gradient))
    _, values, right = linalg.svd(jnp.where(finite, jacobian, 0.0))
    moved = jnp.where((values > RANK * jnp.max(values, initial=0.0))[:, None], right, 0.0)
    dead = jnp.all(moved == 0, axis=1)
    inner = moved @ jnp.where(finite, hessian, 0.0) @ moved.T
    curves, vectors = linalg.eigh(0.5 * (inner + inner.T))
    # Rounding of eigenvalues: a curvature below it has no sign.
    rounding = len(theta) * float(jnp.finfo(theta.dtype).eps) * jnp.max(jnp.abs(curves), initial=0.0)
    live = jnp.sum(vectors**2 * (~dead)[:, None], axis=0) > 0.5
    definite = finite & jnp.all(jnp.where(live, curves > rounding, True)) & jnp.any(live)
    root = jnp.where(live & definite, 1.0 / jnp.sqrt(jnp.where(live & definite, curves, 1.0)), 0.0)
    # Columns of length one in the norm of H.
    white = moved.T @ (vectors * root[None, :])
    step = white.T @ gradient
    size = jnp.linalg.norm(step)
    softest = jax.nn.one_hot(jnp.argmax(root), root.size, dtype=theta.dtype)
    others = jax.random.normal(jax.random.key(0), (DIRECTIONS, root.size), theta.dtype)
    looked = jnp.concatenate([step[None, :], softest[None, :], jnp.where((root > 0)[None, :], others, 0.0)])
    lengths = jnp.linalg.norm(looked, axis=1, keepdims=True)
    looked = looked / positive_or_one(lengths)

    def bend(z: Array) -> Array:
        _, change = jax.jvp(hessian_of, (theta,), (white @ z,))
        return jnp.linalg.norm(white.T @ change @ white)

    omega = SAFETY * jnp.max(jax.lax.map(bend, looked))
    there = gated(outputs, theta - 2.0 * white @ step).switches
    crossed = jnp.any((gated(outputs, theta).switches > 0) != (there > 0))
    return jnp.where(definite & ~crossed & jnp.isfinite(omega), omega * size, jnp.inf)
