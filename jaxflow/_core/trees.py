"""Inner products over pytrees of arrays, and choices by row; `None` leaves (frozen parameters) count as nothing."""

import functools
import operator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree


def tree_dot(a: PyTree, b: PyTree) -> Float[Array, ""]:
    """⟨a, b⟩ summed over all leaves."""
    return sum((jnp.sum(x * y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)), jnp.zeros(()))


def tree_norm(a: PyTree) -> Float[Array, ""]:
    """‖a‖₂ over all leaves, differentiable at zero (derivative 0 there, where `sqrt` has none)."""
    square = tree_dot(a, a)
    positive = square > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, square, 1.0)), 0.0)


def positive_or_one(x: Any) -> Array:
    """x where it is positive, else one: for a quotient that counts only where x is positive."""
    return jnp.where(x > 0, x, 1.0)


def tree_scale(factor: Float[Array, ""] | float, a: PyTree) -> PyTree:
    """factor · a on every leaf."""
    return jax.tree.map(lambda x: factor * x, a)


def tree_unit(a: PyTree) -> PyTree:
    """a/‖a‖₂; zeros stay."""
    return tree_scale(1.0 / positive_or_one(tree_norm(a)), a)


def tree_where(mask: Bool[Array, "*b"], a: PyTree, b: PyTree) -> PyTree:
    """Rows of a where the mask holds, else those of b; what is no array is a's."""

    def rows(x: Any, y: Any) -> Any:
        return jnp.where(mask.reshape(mask.shape + (1,) * (x.ndim - mask.ndim)), x, y) if eqx.is_array(x) else x

    return jax.tree.map(rows, a, b)


def tree_cast(a: PyTree, inexact: Any, integer: Any, device: Any) -> PyTree:
    """Numbers as `inexact` and signed integers as `integer` of their widths, all arrays on `device`. Narrower integers
    (codes, Booleans) stay as they are."""

    def cast(x: Any) -> Any:
        if not eqx.is_array(x):
            return x
        if jnp.issubdtype(x.dtype, jnp.inexact):
            x = x.astype(inexact)
        elif x.dtype in (jnp.int32, jnp.int64):
            x = x.astype(integer)
        return jax.device_put(x, device)

    return jax.tree.map(cast, a)


def tree_in_float(a: PyTree) -> PyTree:
    """Real floating-point arrays in JAX's default precision, which clocks have too: a loop needs one dtype."""
    default = jnp.result_type(float)

    def cast(x: Any) -> Any:
        real = isinstance(x, jax.Array | np.ndarray) and jnp.issubdtype(x.dtype, jnp.floating)
        return x.astype(default) if real and x.dtype != default else x

    return jax.tree.map(cast, a)


def all_finite(a: PyTree) -> Bool[Array, ""]:
    """Whether every inexact leaf is finite. A check of *input*; success is read from a result."""
    leaves = [x for x in jax.tree.leaves(a) if jnp.issubdtype(jnp.result_type(x), jnp.inexact)]
    return functools.reduce(operator.and_, [jnp.all(jnp.isfinite(x)) for x in leaves], jnp.asarray(True))
