r"""Models of your own: any callable on one input, and attention with any parametrisation of its weights."""

from typing import Any, ClassVar

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, PyTree

from jaxflow._core import AbstractPrinted, require
from jaxflow.data import TokenData
from jaxflow.models.attention import AbstractAttention
from jaxflow.models.base import mark_trainable, outputs_of, require_shape
from jaxflow.models.heads import Head, arrays_and_rest, as_head, check_head


class OwnModel(AbstractPrinted):
    r"""Any model as a pytree of arrays, so that `jit` and `vmap` treat it like a model of the library.

    Arrays are `params`; everything else (activation functions, sizes) is `rest`, fixed when a program is compiled.
    `module` is your model again. It is called on every input $x_i$; if it has a method `outputs`, `outputs(data)` is
    called instead.

    **Raises:** `ValueError` naming `model` where a fixed part has no hash.
    """

    params: PyTree
    rest: PyTree = eqx.field(static=True)

    def __init__(self, module: Any):
        # A caller's margins are a function of any pytree of arrays.
        arrays = any(isinstance(leaf, jax.Array | np.ndarray) for leaf in jax.tree.leaves(module))
        known = callable(module) or hasattr(module, "outputs") or arrays
        require(known, "model", "expected a callable", got=module)
        self.params, self.rest = arrays_and_rest("model", module)

    @property
    def module(self) -> Any:
        """Your model."""
        return eqx.combine(self.params, self.rest)

    def outputs(self, data: Any) -> Float[Array, "..."]:
        return outputs_of(self.module, data)


class AbstractOwnAttention(AbstractAttention):
    r"""One-layer attention with any parametrisation of W: a subclass defines its `combined_weights()`.

    All of its arrays are trained except those of the `head`, which is the first field: a callable, or an array `(d,)`
    for a linear one. `degree` is that of W in the trained parameters; where it is not declared, `find_limit` measures
    it.

    ```python
    class SymmetricAttention(jf.models.AbstractOwnAttention):
        U: jax.Array

        def combined_weights(self):
            return self.U @ self.U.T
    ```
    """

    head: Head = eqx.field(converter=as_head)
    degree: ClassVar[Any] = None

    def trainable(self) -> PyTree:
        return mark_trainable(self, tuple(name for name in vars(self) if name != "head"))

    def check(self, data: TokenData) -> None:
        d = data.tokens.shape[-1]
        require_shape("combined_weights()", self.combined_weights(), (d, d), f"for tokens of dimension {d}")
        check_head(self.head, data)
