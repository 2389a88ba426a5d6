"""An order between computations that do not depend on each other."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

# A value that no computation here gives, and that the compiler cannot rule out.
_NEVER = -1.2345e-300


def after(tree: Any, first: Array) -> Any:
    """`tree`, whose arrays are not used before `first` (a number) is known.

    XLA on CPU runs independent parts of a program at the same time, and two batched LAPACK calls that meet can
    wait for each other for good. An `optimization_barrier` is gone before anything is scheduled; a
    dependence on data is not.
    """
    never = jnp.any(first == jnp.asarray(_NEVER, first.dtype))
    return jax.tree.map(lambda x: jnp.where(never, jnp.zeros_like(x), x) if eqx.is_inexact_array(x) else x, tree)
