r"""What the multipliers push towards, $X^\top r$: Remark 1 and Theorem 2 of Yun et al. (2021) for L = 2."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxflow._core import checked
from jaxflow.data import LinearData
from jaxflow.models import AbstractLinearNetwork, Decomposition
from jaxflow.theory import Assumption, push_direction


@checked(positive=["tolerance"])
def push_converges(directions: Float[Array, "saves d"], tolerance: float = 1e-6) -> Assumption:
    r"""Directional convergence of $X^\top r$, which Theorem 2 needs and does not prove (Remark 1).

    **Arguments:** `directions`: unit vectors at save points far out. The slack is `tolerance` less
    $1-\cos$ between the last one and the middle one.
    """
    drift = 0.5 * jnp.sum((directions[-1] - directions[directions.shape[0] // 2]) ** 2)
    return Assumption("X^T r converges in direction (Remark 1)", drift <= tolerance, tolerance - drift)


@checked()
def top_singular_share(
    network: AbstractLinearNetwork, decomposition: Decomposition, data: LinearData, multipliers: Float[Array, " n"]
) -> Float[Array, ""]:
    r"""Theorem 2 for L = 2: the least $|[S u]_j|/\max_k|[Su]_k|$ over components that stay in ρ, weighted.

    $\sum_j|\rho_j||[Su]_j|/(\sum_j|\rho_j|\max_k|[Su]_k|)$, one exactly where ρ lives on top singular vectors only.
    """
    push = jnp.abs(decomposition.transform @ push_direction(data.inputs, multipliers))
    rho = jnp.abs(decomposition.singular_coefficients(network.layers))
    return jnp.sum(rho * push) / (jnp.sum(rho) * jnp.max(push))
