"""Numbers too small for floating point, carried as a logarithm and a factor of order one."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, PyTree

from jaxflow._core.printing import AbstractPrinted
from jaxflow._core.trees import tree_norm


def exp_nonpositive(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """exp(x) for x = y − max(y), which rounding may leave above zero: with fused multiply-adds at |y| beyond
    2^53 by so much that exp overflows. `minimum(x, 0)` would do, but its derivative at the maximum, where
    x = 0, is one half, and wrong Jacobians ruin Newton's method.
    """
    return jnp.exp(x - lax.stop_gradient(jnp.maximum(x, 0.0)))


class ScaledGradient(AbstractPrinted):
    r"""$\nabla L = e^{\text{log\_scale}}\cdot\text{gradient}$, with the multipliers that formed it.

    - `log_scale`: scalar; may be far below −745, where `exp` underflows. It is 0 where the gradient is exactly zero.
    - `gradient`: the model's structure, `None` where a parameter is frozen.
    - `multipliers`: the derivatives by which the gradient is a weighted sum of features, on the same
      scale: $p_{it}=\partial L/\partial a_{it}$ `(n, [k,] T)` for attention logits, $\partial L/\partial f_i$
      for other models; `None` for an opaque loss.

    **Example:**

    ```python
    scaled = risk.scaled_gradient(model)
    scaled.log_scale, scaled.gradient, scaled.multipliers  # the gradient is exp(log_scale) * gradient
    ```
    """

    log_scale: Float[Array, ""]
    gradient: PyTree
    multipliers: Float[Array, "..."] | None

    @property
    def log_norm(self) -> Float[Array, ""]:
        r"""$\log\|\nabla L\|$; −inf where the gradient is exactly zero."""
        return self.log_scale + jnp.log(tree_norm(self.gradient))
