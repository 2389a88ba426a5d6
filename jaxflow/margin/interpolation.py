r"""Minimum-norm interpolation in the Frobenius (ℓ2) norm, and whether an interpolation exists."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxflow._core import linalg
from jaxflow.margin.program import Compact


def least_norm(compact: Compact) -> tuple[Float[Array, " m"], Bool[Array, ""]]:
    r"""$\nu=G^+b$, so that $\rho=\sum\nu_kA_k$, and True; or, where no interpolation exists, the ray that proves it.

    G is the Gram matrix of the equalities, its pseudo-inverse that of one eigendecomposition, refined.

    A component of b in the null space of G, larger than half the digits of b, is a combination of equalities
    that cancels on the left and not on the right (Fredholm's alternative).
    """
    equality = compact.equality
    both = equality[:, None] & equality[None, :]
    gram = jnp.where(both, compact.rows.gram(), 0.0)
    targets = jnp.where(equality, compact.targets, 0.0)
    values, vectors = linalg.eigh(gram)
    eps = float(jnp.finfo(gram.dtype).eps)
    null = values <= gram.shape[0] * eps * jnp.maximum(values[-1], 0.0)
    inverse = jnp.where(null, 0.0, 1.0 / jnp.where(null, 1.0, values))

    def pseudo(right: Array) -> Array:
        return vectors @ (inverse * (vectors.T @ right))

    weights = pseudo(targets)
    for _ in range(2):
        seen = compact.rows.values(compact.rows.combine(weights))
        weights = weights + pseudo(jnp.where(equality, targets - seen, 0.0))
    unseen = jnp.where(equality, vectors @ jnp.where(null, vectors.T @ targets, 0.0), 0.0)
    consistent = jnp.linalg.norm(unseen) <= eps**0.5 * jnp.linalg.norm(targets)
    return jnp.where(consistent, weights, unseen), consistent
