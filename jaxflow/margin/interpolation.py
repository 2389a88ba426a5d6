r"""Minimum-norm interpolation in the Frobenius (ℓ2) norm, and whether an interpolation exists."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxflow._core import linalg
from jaxflow.margin.certificate import Solution
from jaxflow.margin.conclude import conclude, default_tolerance
from jaxflow.margin.program import AbstractProgram, Compact

REFINEMENTS = 2


class LeastNorm(eqx.Module):
    r"""`weights` ν with $\rho=\sum\nu_kA_k$, or, where no interpolation exists, the ray that proves it."""

    weights: Float[Array, " m"]
    consistent: Bool[Array, ""]


def least_norm(compact: Compact) -> LeastNorm:
    r"""$\nu=G^+b$ with G the Gram matrix of the equalities, by one eigendecomposition and refinement.

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
    for _ in range(REFINEMENTS):
        seen = compact.rows.values(compact.rows.combine(weights))
        weights = weights + pseudo(jnp.where(equality, targets - seen, 0.0))
    unseen = jnp.where(equality, vectors @ jnp.where(null, vectors.T @ targets, 0.0), 0.0)
    consistent = jnp.linalg.norm(unseen) <= eps**0.5 * jnp.linalg.norm(targets)
    return LeastNorm(jnp.where(consistent, weights, unseen), consistent)


def solve_interpolation(program: AbstractProgram, tolerance: float | None, max_steps: int | None) -> Solution:
    r"""$\rho=A^*G^+b$. Direct: `max_steps` is not used. Default tolerance: gap 1e-12 in float64."""
    compact = program.compact()
    tolerance = default_tolerance(compact.targets.dtype, 4.5e3) if tolerance is None else tolerance
    least = least_norm(compact)
    primal = jnp.where(least.consistent, 1.0, 0.0) * compact.rows.combine(least.weights)
    return conclude(
        program,
        compact,
        [(primal, least.weights)],
        steps=jnp.zeros((), int),
        spent=jnp.asarray(False),
        tolerance=tolerance,
    )
