r"""Finite component and direction together, $W^{SVMeq}=W^{fin}+\gamma\bar W^{mm}$ (Fig. 8 of Tarzanagh et al. 2023)."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxflow._core import checked, positive_or_one


class Combination(eqx.Module):
    r"""$W^{SVMeq}=W^{fin}+\gamma\bar W^{mm}$ with its correlation; γ is +inf where the correlation grows
    with γ without limit, and then `weights` is $\bar W^{mm}$.
    """

    weights: Float[Array, "d d"]
    gamma: Float[Array, ""]
    correlation: Float[Array, ""]


@checked()
def best_combination(
    weights: Float[Array, "d d"], finite: Float[Array, "d d"], direction: Float[Array, "d d"]
) -> Combination:
    r"""The $\gamma\ge0$ for which $W^{fin}+\gamma\bar W^{mm}$ correlates most with given weights (Fig. 8).

    With $\bar W$ of norm one and $F=f\bar W+F_\perp$, the best direction is the projection of the weights
    onto the plane of F and $\bar W$:
    $\gamma=\langle W,\bar W\rangle\|F_\perp\|^2/\langle W,F_\perp\rangle-f$ where
    $\langle W,F_\perp\rangle>0$.
    """
    unit = direction / jnp.linalg.norm(direction)
    inside = jnp.sum(finite * unit)
    across = finite - inside * unit
    square, pull = jnp.sum(across**2), jnp.sum(weights * across)
    toward = jnp.sum(weights * unit)
    aligned = pull > 0
    gamma = jnp.maximum(toward * square / jnp.where(aligned, pull, 1.0) - inside, 0.0)

    def correlation(candidate: Array) -> Array:
        size = jnp.linalg.norm(candidate) * jnp.linalg.norm(weights)
        return jnp.sum(candidate * weights) / positive_or_one(size)

    bounded = finite + gamma * unit
    # Where the weights lean away from F⊥ the correlation has no maximum: its supremum is at infinity, or at
    # 0.
    use_bounded = aligned | (correlation(finite) > correlation(unit))
    gamma = jnp.where(use_bounded, jnp.where(aligned, gamma, 0.0), jnp.inf)
    best = jnp.where(use_bounded, jnp.where(aligned, bounded, finite), unit)
    return Combination(best, gamma, correlation(best))
