"""The one result type of continuous and discrete descent (floor 5)."""

import enum
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from jaxflow._core import RESULTS, Code, good, is_concrete


class Regime(enum.IntEnum):
    """What the integrated equation is to the gradient flow."""

    exact = 1
    limiting = 2
    discrete = 3


class Point(eqx.Module):
    r"""A point on a trajectory, or several with a leading axis.

    - `model`: the model there.
    - `log_time`: $\log t$; `log_log_time`: its logarithm, finite where log t overflows, −inf before t = 1.
    - `log_arc_length`: log of $\int\|\dot\theta\|dt$.
    - `log_norm`: $\log\|\theta\|$ over the trainable parameters.
    - `log_scale`: the common scale of gradient and multipliers; `log_gradient_norm`: $\log\|\nabla L\|$.
    - `velocity`: $-\nabla L/\|\nabla L\|$, in the structure of the model (`None` where frozen).
    - `multipliers`: signed, of order one, to be read times $e^{\text{log\_scale}}$; None for an opaque loss.
    - `reached`: False for save points past the end of the integration, whose numbers mean nothing.
    """

    model: Any
    log_time: Float[Array, "..."]
    log_log_time: Float[Array, "..."]
    log_arc_length: Float[Array, "..."]
    log_norm: Float[Array, "..."]
    log_scale: Float[Array, "..."]
    log_gradient_norm: Float[Array, "..."]
    velocity: PyTree
    multipliers: Float[Array, "..."] | None
    reached: Bool[Array, "..."]


class Trajectory(eqx.Module):
    """Where a flow, or a discrete descent, went.

    The properties below describe the save points (with a leading axis) where `save_at` asked for any, and
    the final point (without one) otherwise; `final` is always the last point.
    """

    final: Point
    saved: Point | None
    regime: Code
    result: Any
    stats: dict[str, Any]

    @property
    def points(self) -> Point:
        """The save points, or the final point where none were asked for."""
        return self.final if self.saved is None else self.saved

    @property
    def model(self) -> Any:
        """The final model, checked: an integration that failed has none.

        **Raises:** `RuntimeError` if the (concrete) result is not a success. Under a trace nothing raises;
        read `result`. `final.model` is the last state whatever happened.
        """
        if is_concrete(self.result) and not bool(jnp.all(good(self.result))):
            raise RuntimeError(f"the trajectory has no valid final model: {describe(self.result)}")
        return self.final.model

    @property
    def direction(self) -> PyTree:
        r"""$\theta/\|\theta\|$ over the trainable parameters, `None` where frozen."""
        points = self.points
        params = jax.tree.map(
            lambda v, p: None if v is None else p, points.velocity, points.model, is_leaf=lambda x: x is None
        )
        scale = jnp.exp(-points.log_norm)
        return jax.tree.map(lambda p: p * scale.reshape(scale.shape + (1,) * (p.ndim - scale.ndim)), params)

    @property
    def log_norm(self) -> Float[Array, "..."]:
        r"""$\log\|\theta\|$."""
        return self.points.log_norm

    @property
    def log_multipliers(self) -> Float[Array, "..."]:
        r"""$\log|p|$ of every multiplier on its true scale; −inf where it is zero.

        **Raises:** `AttributeError` for an opaque loss, which has none.
        """
        points = self.points
        if points.multipliers is None:
            raise AttributeError("an opaque loss has no multipliers")
        extra = points.multipliers.ndim - points.log_scale.ndim
        return points.log_scale.reshape(points.log_scale.shape + (1,) * extra) + jnp.log(jnp.abs(points.multipliers))

    @property
    def log_time(self) -> Float[Array, "..."]:
        r"""$\log t$."""
        return self.points.log_time

    @property
    def log_log_time(self) -> Float[Array, "..."]:
        r"""$\log\log t$, which limiting dynamics carry on where log t overflows; −inf before t = 1 has been passed."""
        return self.points.log_log_time

    @property
    def log_arc_length(self) -> Float[Array, "..."]:
        """Log of the length of the path so far."""
        return self.points.log_arc_length

    @property
    def log_gradient_norm(self) -> Float[Array, "..."]:
        r"""$\log\|\nabla L\|$."""
        return self.points.log_gradient_norm


def describe(result: Any) -> str:
    """The message of a result, or of a batch of results; "successful" where Diffrax's is empty."""
    return RESULTS[result] or "successful"
