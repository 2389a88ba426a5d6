"""Optimal tokens (Definition 1 of Tarzanagh et al. 2023) of given scores."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxflow._core import checked, is_concrete


@checked(nan=["scores"])
def optimal_tokens(scores: Float[Array, "*n T"], visible: Bool[Array, "*n T"]) -> Bool[Array, "*n T"]:
    r"""True at every visible token whose score $\gamma_{it}$ is the largest of its sequence (ties: several).

    **Example:**

    ```python
    scores = jf.models.token_scores(data, head)
    assert jf.data.optimal_tokens(scores, data.visible).sum() == 3
    ```
    """
    masked = jnp.where(visible, scores, -jnp.inf)
    return visible & (masked == jnp.max(masked, axis=-1, keepdims=True))


@checked(nan=["scores"])
def tied_sequences(scores: Float[Array, "*n T"], visible: Bool[Array, "*n T"]) -> Bool[Array, "*n"]:
    """True where the optimal token is not unique, so that no theorem names the selected one.

    **Example:**

    ```python
    scores = jnp.array([[1.0, 1.0, 0.0], [2.0, 1.0, 0.0]])
    assert jf.data.tied_sequences(scores, jnp.ones((2, 3), bool)).tolist() == [True, False]
    ```
    """
    return jnp.sum(optimal_tokens(scores, visible), axis=-1) > 1


@checked(infinite=["scores"])
def require_untied(scores: Float[Array, "*n T"], visible: Bool[Array, "*n T"]) -> None:
    """Raises a `ValueError` that lists the tied optimal tokens. Does nothing to traced values."""
    if not is_concrete(scores, visible):
        return
    # In NumPy: every operation of JAX on concrete values would be compiled for itself.
    masked = np.where(visible, scores, -np.inf)
    optimal = np.asarray(visible) & (masked == masked.max(axis=-1, keepdims=True))
    tied = np.argwhere(optimal.sum(-1) > 1)
    if len(tied):
        listing = "; ".join(
            f"sequence {tuple(int(i) for i in index)}: tokens {np.flatnonzero(optimal[tuple(index)]).tolist()}"
            for index in tied[:5]
        )
        raise ValueError(f"data: ambiguous, optimal tokens are tied ({listing})")
