r"""How far a flow of diagonal weights is from the face of its ℓ1-SVM's solution (Sheen et al. 2024, A.5)."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

# Entries and multipliers of a certified solution below this share of the largest are zeros of the program.
ZERO = 1e-7


class LimitingFace(eqx.Module):
    r"""Where β(t) is, seen from a certified solution β̂, λ. Both numbers vanish in the limit.

    - `behind`: $\max\,\beta^\top B_{il}/\mu-1$ over the constraints with $\lambda_{il}>0$. By (19) their integrals
      $\phi_{il}$ tend to $\lambda_{il}\ln\mu$ plus a constant; where that would still be negative the constraint is
      not active yet, and the instantaneous multipliers certify another face: until $\ln\mu$ of order
      $1/\lambda_{il}$.
    - `remaining`: $\sum_j|\beta_j|$ off the support, over μ and the least entry $|\hat\beta_j|$ on it. Each falls
      like $\mu^{-(1-\kappa_j)}$, $\kappa=|B\lambda|$, and the instantaneous
      $(B\dot\phi)_j=\dot\beta_j/\sqrt{\beta_j^2+\omega_{0j}^4}$ sees errors of an entry relative to it.
    - `least_multiplier`: the least positive $\lambda_{il}$, over their sum.
    """

    behind: Float[Array, ""]
    remaining: Float[Array, ""]
    least_multiplier: Float[Array, ""]


def limiting_face(
    rows: Float[Array, "n T d"], primal: Float[Array, " d"], dual: Float[Array, "n T"], beta: Float[Array, " d"]
) -> LimitingFace:
    r"""**Arguments:** `rows`: $B_{il}$ (`constraint_rows`, zero at the selected tokens); `primal`, `dual`: a certified
    solution of the ℓ1-SVM; `beta`: of the flow, with a positive margin.
    """
    support = jnp.abs(primal) > ZERO * jnp.max(jnp.abs(primal))
    active = dual > ZERO * jnp.max(dual)
    values = jnp.einsum("ntd,d->nt", rows, beta)
    margin = jnp.min(jnp.where(jnp.any(rows != 0.0, axis=-1), values, jnp.inf))
    least = jnp.min(jnp.where(support, jnp.abs(primal), jnp.inf))
    return LimitingFace(
        jnp.max(jnp.where(active, values, -jnp.inf)) / margin - 1.0,
        jnp.sum(jnp.where(support, 0.0, jnp.abs(beta))) / (margin * least),
        jnp.min(jnp.where(active, dual, jnp.inf)) / jnp.sum(jnp.where(active, dual, 0.0)),
    )
