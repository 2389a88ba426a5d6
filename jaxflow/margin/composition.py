r"""Attention that composes several tokens: the finite component and the best combination (§6 of Tarzanagh et
al.).

When a head is not linear, attention may converge to a mixture $s_i^\star$ of a set $O_i$ of tokens. Then
$W(k)\approx W^{fin}+\|W(k)\|_F\bar W^{mm}$ (eq. 6): $W^{mm}$ solves (Gen-SVM), which is `attention_svm` with
a set as selection, and $W^{fin}$ sets the proportions inside the set (eq. 7).
"""

from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxflow._core import as_array, is_concrete, require, require_finite
from jaxflow.data import TokenData
from jaxflow.margin.attention import AbstractAttentionProgram, attention_svm


class FiniteComponentProgram(AbstractAttentionProgram):
    r"""$\min\|W\|_F$ s.t. $(x_{it}-x_{ia_i})^\top Wz_i=\log(s_{it}/s_{ia_i})$ for selected t (eq. 7)."""

    log_ratios: Float[Array, "n ..."]
    conic: ClassVar[bool] = False

    @property
    def active(self) -> Bool[Array, "n ..."]:
        return jnp.zeros_like(self.selection)

    @property
    def targets(self) -> Float[Array, "n ..."]:
        return jnp.where(self.equal, self.log_ratios, 0.0)


def finite_component(data: TokenData, selection: Any, attention: Any) -> FiniteComponentProgram:
    r"""The program of $W^{fin}$, of least Frobenius norm among all W that give the proportions of
    `attention`.

    **Arguments:** `selection`: mask of the sets $O_i$, as for `attention_svm`; `attention`: probabilities in
    the same shape, positive on the selected tokens (the others are ignored, the scale of each query is free).

    **Returns:** a program; `solve` gives $W^{fin}$, or `infeasible` where no W reaches the proportions.

    **Raises:** `ValueError` naming the argument.

    **Example:**

    ```python
    both = jnp.zeros((3, 4), bool).at[:, :2].set(True)
    jf.margin.finite_component(data, both, jnp.full((3, 4), 0.25))
    ```
    """
    base = attention_svm(data, selection)
    attention = as_array("attention", attention)
    require_finite("attention", attention)
    require(
        attention.shape == base.selection.shape,
        "attention",
        f"expected shape {base.selection.shape}, got {attention.shape}",
    )
    if is_concrete(attention, base.selection):
        chosen = np.asarray(attention)[np.asarray(base.selection)]
        require(bool((chosen > 0).all()), "attention", "selected tokens need positive probabilities")
    log = jnp.log(jnp.where(base.selection, attention, 1.0))
    anchor = jnp.sum(jnp.where(base.anchor, log, 0.0), axis=-1, keepdims=True)
    return FiniteComponentProgram(**vars(base), log_ratios=log - anchor)
