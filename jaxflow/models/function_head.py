"""A head that a user wrote: any function, or any module whatever its leaves are."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from jaxflow._core import require


class FunctionHead(eqx.Module):
    r"""A callable $h:\mathbb R^d\to\mathbb R$ as a pytree of arrays.

    Arrays of the callable (the weights of a module) are `params`; everything else, among it a plain function
    itself and activation functions, is `rest`, fixed when a program is compiled. Models made of it can then be
    mapped over, stacked and chosen from like any other.

    **Raises:** `ValueError` naming `head` where what is fixed has no hash (a list of arrays hidden in a static
    field, say).

    **Example:**

    ```python
    h = jf.models.FunctionHead(lambda x: jnp.tanh(x[0]))
    assert h(jnp.zeros(3)) == 0
    ```
    """

    params: PyTree
    rest: PyTree = eqx.field(static=True)

    def __init__(self, function: Any):
        require(callable(function), "head", "expected a function of a token", got=function)
        arrays = jax.tree.map(lambda x: jnp.asarray(x) if isinstance(x, np.ndarray) else x, function)
        self.params, self.rest = eqx.partition(arrays, eqx.is_array)

    def __check_init__(self) -> None:
        hashable = all(getattr(leaf, "__hash__", None) is not None for leaf in jax.tree.leaves(self.rest))
        require(hashable, "head", f"what is no array in {self.rest!r} must be hashable")

    @property
    def function(self) -> Any:
        """The callable."""
        return eqx.combine(self.params, self.rest)

    def __call__(self, x: Float[Array, " d"]) -> Float[Array, ""]:
        return self.function(x)
