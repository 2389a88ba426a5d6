"""An order between computations that do not depend on each other."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array


def after(tree: Any, first: Array) -> Any:
    """`tree`, whose arrays are not used before `first` (a number) is known.

    XLA on CPU runs independent parts of a program at the same time, and two batched LAPACK calls that meet can
    wait for each other for good. An `optimization_barrier` is gone before anything is scheduled; a
    dependence on data is not.
    """
    # A value that no computation here gives, and that the compiler cannot rule out: in any precision a normal number,
    # unlike one written out, which single precision might round to zero.
    value = -1.2345 * float(jnp.finfo(first.dtype).tiny)
    never = jnp.any(first == jnp.asarray(value, first.dtype))
    return jax.tree.map(lambda x: jnp.where(never, jnp.zeros_like(x), x) if eqx.is_inexact_array(x) else x, tree)
