"""What the prediction head looks like where the flow ended: smooth, on a kink, or flat."""

import enum
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxflow._core import Code
from jaxflow.data import TokenData
from jaxflow.models import AbstractAttention, PositionHeads, head_gradients, mix

# Distance from a kink, relative to sizes, that counts as on it. A smooth integrator that stalls steps to and fro by
# 1e-5 of a length of order one (measured); a flow that has nothing to do with the kink ends this close in one of
# some ten thousand units.
ON_KINK = 1e-4


class HeadState(enum.IntEnum):
    """How regular the head is at the outputs where the flow ended.

    - `smooth`: differentiable with a gradient at every output.
    - `on_kink`: some output sits on a kink: the flow slides along it, and a smooth integrator stalls there.
    - `flat`: some output's gradient is exactly zero (all units of an `MLPHead` off); its query moves no more.

    **Example:**

    ```python
    assert limit.head_state == jf.limits.HeadState.smooth
    ```
    """

    smooth = 1
    on_kink = 2
    flat = 3


def kink_distances(head: Any, points: Float[Array, "*n d"]) -> Float[Array, "*n"]:
    """Least distance of each output from a kink, relative to sizes; +inf where the head names none.

    A head with kinks has a method `kinks(x) -> (r,)`, zero there (`jaxflow.models.MLPHead.kinks`).
    """
    if isinstance(head, PositionHeads):
        return jnp.stack([kink_distances(h, points[:, k]) for k, h in enumerate(head.heads)], axis=1)
    if not hasattr(head, "kinks"):
        return jnp.full(points.shape[:-1], jnp.inf, points.dtype)
    distances = head.kinks
    for _ in range(points.ndim - 1):
        distances = jax.vmap(distances)
    return jnp.min(jnp.abs(distances(points)), axis=-1)


def head_state(model: AbstractAttention, data: TokenData) -> Code:
    """`HeadState` at the model's outputs on the data. A kink outweighs a flat output."""
    points = mix(data, model.attention(data))
    flat = jnp.any(jnp.all(head_gradients(model.head, points) == 0, axis=-1))
    kink = jnp.min(kink_distances(model.head, points)) <= ON_KINK
    state = jnp.where(flat, HeadState.flat.value, HeadState.smooth.value)
    return Code(jnp.where(kink, HeadState.on_kink.value, state), HeadState)
