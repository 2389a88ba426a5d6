"""Derivatives formed column by column, where most entries of the argument do not count."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

# Columns are used by Newton's method alone, whose residual is exact. Against entries of order one an entry that enters
# with less than this changes a step by less than rounding does.
NEGLIGIBLE = 1e-14


def by_columns(fn: Callable[[Float[Array, " p"]], Any], x: Float[Array, " p"], influence: Float[Array, " p"]) -> Any:
    r"""fn(x), with the columns $\partial f/\partial x_i$ formed once, one after the other, and none for entries whose
    influence is negligible.

    An implicit method asks for the products of one Jacobian with p tangents. Each of them is a pass over all data;
    and p at once hold p copies of what a pass needs. Here k passes are made, k the number of influential entries, and
    p products with a p × p matrix; k is found along the way, and may be p.

    Not for a single tangent, where it is k passes instead of one. Derivatives are without the columns that are left
    out; values are exact.

    **Arguments:** `fn`: of x `(p,)` to a pytree of arrays; `influence` `(p,)`: a bound of the change of $x_i$ per unit
    change of what it is computed from. Below `NEGLIGIBLE` the column of i is taken for zero.
    """
    return _evaluate(eqx.filter_closure_convert(fn, x), x, influence)


@eqx.filter_custom_jvp
def _evaluate(fn: Any, x: Any, influence: Any) -> Any:
    return fn(x)


@_evaluate.def_jvp
def _rule(primals: Any, tangents: Any) -> Any:
    fn, x, influence = primals
    fn_tangent, x_tangent, _ = tangents
    value, linear = jax.linearize(fn, x)
    moved = jax.tree.map(jnp.zeros_like, value)
    if x_tangent is not None:
        columns = _columns(linear, value, x, influence)
        moved = jax.tree.map(lambda all_: jnp.tensordot(x_tangent, all_, axes=1), columns)
    if any(leaf is not None for leaf in jax.tree.leaves(fn_tangent, is_leaf=lambda leaf: leaf is None)):
        _, others = eqx.filter_jvp(lambda f: f(x), (fn,), (fn_tangent,))
        moved = jax.tree.map(jnp.add, moved, others)
    return value, moved


def _columns(linear: Any, value: Any, x: Any, influence: Any) -> Any:
    """The derivative, with a leading axis of length p."""
    p = x.shape[0]
    counts = influence > NEGLIGIBLE
    (index,) = jnp.nonzero(counts, size=p, fill_value=p)

    def one(k: Any, columns: Any) -> Any:
        column = linear(jnp.zeros(p, x.dtype).at[index[k]].set(1.0))
        return jax.tree.map(lambda all_, new: all_.at[index[k]].set(new), columns, column)

    empty = jax.tree.map(lambda leaf: jnp.zeros((p, *leaf.shape), leaf.dtype), value)
    return jax.lax.fori_loop(0, jnp.sum(counts), one, empty)
