r"""Max-margin programs of attention: Att-SVM, Att-SVM$_\star$, $\ell_1$-SVM, Gen-SVM and their sequence
variants; the finite component of a mixture."""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxflow._core import as_array, as_matrix, is_concrete, raw_array, require, require_finite
from jaxflow.data import TokenData
from jaxflow.data.tokens import first_index
from jaxflow.margin.norms import L1, AbstractNorm, Lp, as_norm
from jaxflow.margin.program import AbstractProgram, DenseRows, RankOneRows


class AbstractAttentionProgram(AbstractProgram):
    r"""Inequalities for masked tokens t and equalities for selected ones, on $(x_{it}-x_{ia_i})^\top Wz_i$.

    $a_i$, the anchor, is the first selected token of query i; with one selected token there is no equality.
    In a dual array, of the shape of `selection`, entries of masked tokens are the multipliers of inequalities
    (nonnegative), entries of selected tokens those of equalities (any sign; ignored at the anchor).

    With `diagonal` the weights are $W=\mathrm{diag}(\beta)$, the primal is $\beta$ `(d,)` and
    $A_{it}=(x_{ia_i}-x_{it})\odot z_i$; otherwise the primal is W `(d, d)` and
    $A_{it}=(x_{ia_i}-x_{it})z_i^\top$.
    """

    norm: AbstractNorm
    tokens: Float[Array, "n T d"]
    queries: Float[Array, "..."]
    selection: Bool[Array, "n ..."]
    visible: Bool[Array, "n ..."]
    diagonal: bool = eqx.field(static=True)

    @property
    def _selected(self) -> Bool[Array, "n ..."]:
        return self.selection & self.visible

    @property
    def anchor(self) -> Bool[Array, "n ..."]:
        """The first selected token of each query, one-hot; all False where none is selected."""
        selected = self._selected
        first = jax.nn.one_hot(jnp.argmax(selected, axis=-1), selected.shape[-1], dtype=bool)
        return first & selected

    @property
    def equal(self) -> Bool[Array, "n ..."]:
        """Selected beside the anchor."""
        return self._selected & ~self.anchor

    @property
    def primal_zero(self) -> Float[Array, "..."]:
        d = self.tokens.shape[-1]
        return jnp.zeros((d,) if self.diagonal else (d, d), dtype=self.tokens.dtype)

    def features(self) -> Float[Array, "n ... d"]:
        """Differences of tokens, `selection.shape + (d,)`, zero at empty entries."""
        tokens = self.tokens if self.selection.ndim == 2 else self.tokens[:, None]
        anchor = jnp.sum(jnp.where(self.anchor[..., None], tokens, 0.0), axis=-2, keepdims=True)
        difference = jnp.where(self.active[..., None], anchor - tokens, tokens - anchor)
        return jnp.where((self.active | self.equal)[..., None], difference, 0.0)

    @property
    def elements(self) -> RankOneRows | DenseRows:
        d = self.tokens.shape[-1]
        rows = RankOneRows(self.features().reshape(-1, d), self.queries.reshape(-1, d))
        return DenseRows(rows.left * rows.repeat(rows.right)) if self.diagonal else rows

    @property
    def data(self) -> Any:
        """Hidden tokens are no elements, and data all the same."""
        return self.tokens, self.queries

    @property
    def slots(self) -> Int[Array, " m"]:
        """One for each token but the anchor: n·k·(T−1) of them (the dual's size in exact reduction)."""
        T, outputs = self.tokens.shape[-2], self.selection[..., 0].size
        anchor = jnp.argmax(self.anchor, axis=-1).reshape(outputs, 1)
        # The anchor's slot is the one left out; without any selected token all slots are empty anyway.
        token = jnp.arange(T - 1)[None, :]
        token = token + (token >= anchor)
        return (jnp.arange(outputs)[:, None] * T + token).reshape(-1)


class AttentionProgram(AbstractAttentionProgram):
    r"""$\min N(W)$ s.t. $(x_{ia_i}-x_{it})^\top Wz_i\ge1$ for masked $t$, $(x_{it}-x_{ia_i})^\top Wz_i=0$
    for selected $t$.
    """

    conic: ClassVar[bool] = True

    @property
    def active(self) -> Bool[Array, "n ..."]:
        """Visible, not selected, and its query has a selected token."""
        selected = self._selected
        return self.visible & ~selected & jnp.any(selected, axis=-1, keepdims=True)

    @property
    def targets(self) -> Float[Array, "n ..."]:
        return self.active.astype(self.tokens.dtype)


class FiniteComponentProgram(AbstractAttentionProgram):
    r"""$\min\|W\|_F$ s.t. $(x_{it}-x_{ia_i})^\top Wz_i=\log(s_{it}/s_{ia_i})$ for selected t (eq. 7).

    When a head is not linear, attention may converge to a mixture $s_i^\star$ of a set $O_i$ of tokens. Then
    $W(k)\approx W^{fin}+\|W(k)\|_F\bar W^{mm}$ (eq. 6 of §6 of Tarzanagh et al.): $W^{mm}$ solves (Gen-SVM), which is
    `attention_svm` with a set as selection, and $W^{fin}$ sets the proportions inside the set.
    """

    log_ratios: Float[Array, "n ..."]
    conic: ClassVar[bool] = False

    @property
    def active(self) -> Bool[Array, "n ..."]:
        return jnp.zeros_like(self.selection)

    @property
    def targets(self) -> Float[Array, "n ..."]:
        return jnp.where(self.equal, self.log_ratios, 0.0)


def _as_selection(data: TokenData, selection: Any) -> Bool[Array, "n ..."]:
    """A Boolean mask from a mask or from token indices. **Raises:** `ValueError` naming `selection`."""
    array = jnp.asarray(raw_array("selection", selection))
    shape = (*data.output_shape, data.tokens.shape[-2])
    if array.dtype == bool:
        require(array.shape == shape, "selection", f"expected a mask of shape {shape}, got {array.shape}")
        return array
    require(
        bool(jnp.issubdtype(array.dtype, jnp.integer)) and array.shape == data.output_shape,
        "selection",
        f"expected a Boolean mask of shape {shape} or token indices of shape {data.output_shape}, "
        f"got {array.dtype} of shape {array.shape}",
    )
    if is_concrete(array):
        values = np.asarray(array)
        wrong = (values < 0) | (values >= shape[-1])
        require(
            not wrong.any(),
            "selection",
            f"token {values[wrong][:1]} is out of range for T = {shape[-1]} tokens",
        )
    return jax.nn.one_hot(array, shape[-1], dtype=bool)


def _check_selection(selection: Bool[Array, "n ..."], visible: Bool[Array, "n ..."]) -> None:
    if not is_concrete(selection, visible):
        return
    mask, seen = np.asarray(selection), np.asarray(visible)
    empty, hidden = ~mask.any(-1), mask & ~seen
    require(not empty.any(), "selection", f"no token is selected for query {first_index(empty)}")
    require(not hidden.any(), "selection", f"the mask hides the selected token at index {first_index(hidden)}")


def attention_svm(data: TokenData, selection: Any, norm: Any = "frobenius") -> AttentionProgram:
    r"""The program whose solution separates the selected tokens from the others with the least norm.

    $$\min_W N(W)\quad\text{s.t.}\quad (x_{i\alpha_i}-x_{it})^\top Wz_i\ge1\ \ (t\ne\alpha_i)$$

    **Arguments:**

    - `data`: one instance. Hidden tokens make no constraint (causal and other masks); k queries a sequence
      make the program (11).
    - `selection`: Booleans of the shape of `data.visible`, `(n, T)` or `(n, k, T)`, True at selected tokens:
      one for each query, or a set (Gen-SVM: equal logits inside, margins against the rest); or integer
      indices of shape `(n,)` or `(n, k)`.
    - `norm`: `"frobenius"` (Att-SVM, flow of W), `"nuclear"` (Att-SVM$_\star$, flow of K and Q),
      `"l1"` ($W=\mathrm{diag}(\beta)$, diagonal K and Q), `"spectral"`, `"linf"` (of the entries of W), or a
      norm object such as `Nuclear(rank=2)`.

    **Raises:** `ValueError` naming the argument: unknown norm, empty set, index out of range, hidden selected
    token, NaN data, a mask that hides every token of a query. Traced values become outcomes instead.

    Source: Tarzanagh et al. (2023) eq. (Att-SVM), (Att-SVM$_\star$), (11), (Gen-SVM), (SAtt-SVM);
    Sheen et al. (2024) ($\ell_1$-SVM).
    """
    require(isinstance(data, TokenData), "data", f"expected TokenData, got {type(data).__name__}")
    data.check()
    norm = as_norm(norm)
    require(not isinstance(norm, Lp) or norm.convex, "norm", "p < 1 belongs to linear networks: see max_margin")
    mask = _as_selection(data, selection)
    _check_selection(mask, data.visible)
    return AttentionProgram(norm, data.tokens, data.queries, mask, data.visible, isinstance(norm, L1))


def prompt_svm(data: TokenData, selection: Any, K: Any = None) -> AttentionProgram:
    r"""$\min\|p\|$ s.t. $(k_{i\alpha_i}-k_{it})^\top p\ge1$ for $t\ne\alpha_i$: the program of a trained prompt.

    **Arguments, errors:** `data`, `selection` as for `attention_svm`; `K` `(d, e)`, of keys $k_{it}=K^\top x_{it}$;
    None: keys are the tokens. The primal is p `(e,)`. The program is that of a diagonal matrix $\mathrm{diag}(p)$ with
    queries of ones.

    Source: (ATT-SVM) of Ataee Tarzanagh, Li, Zhang, Oymak (2023), *Max-Margin Token Selection in Attention Mechanism*.
    """
    program = attention_svm(data, selection)
    keys = data.tokens
    if K is not None:
        K = as_matrix("K", K)
        require(K.shape[0] == keys.shape[-1], "K", f"expected {keys.shape[-1]} rows, one a dimension, got {K.shape}")
        keys = keys @ K
    queries = jnp.ones((*data.output_shape, keys.shape[-1]), keys.dtype)
    return AttentionProgram(program.norm, keys, queries, program.selection, program.visible, True)


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
