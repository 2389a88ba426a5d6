r"""How far a flow of diagonal weights is from the face of its ℓ1-SVM's solution (Sheen et al. 2024, A.5)."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxflow._core import checked

# Multipliers of a certified solution below this share of the largest are zeros of the program.
ZERO = 1e-7


class LimitingFace(eqx.Module):
    r"""Where β(t) is, seen from a certified dual λ.

    - `behind`: $\max\,\beta^\top B_{il}/\mu-1$ over the constraints with $\lambda_{il}>0$, zero in the limit. By (19)
      their integrals $\phi_{il}$ tend to $\lambda_{il}\ln\mu$ plus a constant; where that would still be negative the
      constraint is not active yet, and the instantaneous multipliers certify another face: until $\ln\mu$ of order
      $1/\lambda_{il}$.
    - `least_multiplier`: the least positive $\lambda_{il}$, over their sum.
    """

    behind: Float[Array, ""]
    least_multiplier: Float[Array, ""]


@checked()
def limiting_face(rows: Float[Array, "n T d"], dual: Float[Array, "n T"], beta: Float[Array, " d"]) -> LimitingFace:
    r"""**Arguments:** `rows`: $B_{il}$ (`constraint_rows`, zero at the selected tokens); `dual`: of a certified
    solution of the ℓ1-SVM; `beta`: of the flow, with a positive margin.
    """
    active = dual > ZERO * jnp.max(dual)
    values = jnp.einsum("ntd,d->nt", rows, beta)
    margin = jnp.min(jnp.where(jnp.any(rows != 0.0, axis=-1), values, jnp.inf))
    return LimitingFace(
        jnp.max(jnp.where(active, values, -jnp.inf)) / margin - 1.0,
        jnp.min(jnp.where(active, dual, jnp.inf)) / jnp.sum(jnp.where(active, dual, 0.0)),
    )


@checked()
def second_order_multipliers(
    log_times: Float[Array, " m"], multipliers: Float[Array, "m n T"]
) -> Float[Array, "m n T"]:
    r"""Instantaneous multipliers without their error of order $1/\log t$, `(m, n, T)`.

    On the support $\beta_j=\mu\hat\beta_j+c_j+o(1)$ gives
    $(B\dot\phi)_j=\dot\beta_j/\beta_j\propto1-c_j/(\mu\hat\beta_j)$, hence multipliers, over their sum, of the form
    $\lambda+c/\log t+o(1/\log t)$. Two successive times give λ (Richardson's extrapolation); the first time, and those
    with $\log t\le0$, keep what they have.
    """
    shares = multipliers / jnp.sum(jnp.abs(multipliers), axis=(-2, -1), keepdims=True)
    before, now = log_times[:-1, None, None], log_times[1:, None, None]
    better = (now * shares[1:] - before * shares[:-1]) / (now - before)
    return shares.at[1:].set(jnp.where(before > 0, better, shares[1:]))
