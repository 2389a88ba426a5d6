r"""Max-margin classification and minimum-norm interpolation by predictors that are linear in their input, a vector or
a matrix; completion of a matrix."""

import abc
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Inexact

from jaxflow._core import as_array, as_arrays, as_signs, is_concrete, raw_array, require, require_signs, unknown_name
from jaxflow.data import LinearData
from jaxflow.margin.norms import AbstractNorm, Nuclear, as_norm
from jaxflow.margin.program import AbstractProgram, DenseRows


class AbstractRowsProgram(AbstractProgram):
    """A program in a vector or a matrix whose constraints, all inequalities (`conic`) or all equalities, are stacked
    in one array. An equality 0 = 0 is none."""

    @property
    @abc.abstractmethod
    def constraint_rows(self) -> Inexact[Array, "n ..."]:
        r"""$A_k$, `(n, m)` or `(n, p, q)`; $\langle a,v\rangle=\mathrm{Re}\,a^*v$."""

    @property
    def elements(self) -> DenseRows:
        rows = self.constraint_rows
        return DenseRows(rows.reshape(len(rows), -1))

    @property
    def active(self) -> Bool[Array, " n"]:
        return jnp.full(self.targets.shape, self.conic)

    @property
    def equal(self) -> Bool[Array, " n"]:
        if self.conic:
            return jnp.full(self.targets.shape, False)
        return jnp.any(self.elements.rows != 0, axis=1) | (self.targets != 0)

    @property
    def primal_zero(self) -> Inexact[Array, "..."]:
        return jnp.zeros_like(self.constraint_rows[0])


class AbstractLinearProgram(AbstractRowsProgram):
    r"""A program in $\rho$ for the predictor $x^\top\beta$, $\beta=\mathrm{Re}(S^\top\rho)$; without S,
    $\rho=\beta$, which may be a matrix as the inputs are."""

    inputs: eqx.AbstractVar[Float[Array, "n ..."]]
    transform: eqx.AbstractVar[Inexact[Array, "m d"] | None]

    @property
    def rows(self) -> Inexact[Array, "n ..."]:
        r"""$\overline{Sx_i}$, so that $\mathrm{Re}\langle\overline{Sx_i},\rho\rangle=x_i^\top\beta$."""
        return self.inputs if self.transform is None else jnp.conj(self.inputs @ self.transform.T)

    def coefficients(self, primal: Inexact[Array, "..."]) -> Float[Array, "..."]:
        r"""The linear coefficients $\beta=\mathrm{Re}(S^\top\rho)$."""
        return primal if self.transform is None else jnp.real(self.transform.T @ primal)


class MaxMarginProgram(AbstractLinearProgram):
    r"""$\min N(\rho)$ s.t. $y_i\,\mathrm{Re}(x_i^\top S^\top\rho)\ge1$. Yun et al. (2021) eq. (38), Cor.
    1–3.
    """

    norm: AbstractNorm
    inputs: Float[Array, "n ..."]
    labels: Float[Array, " n"]
    transform: Inexact[Array, "m d"] | None
    conic: ClassVar[bool] = True

    @property
    def targets(self) -> Float[Array, " n"]:
        return jnp.ones_like(self.labels)

    @property
    def constraint_rows(self) -> Inexact[Array, "n ..."]:
        return self.labels.reshape(-1, *[1] * (self.rows.ndim - 1)) * self.rows


class MinimumNormProgram(AbstractLinearProgram):
    r"""$\min N(\rho)$ s.t. $\mathrm{Re}(x_i^\top S^\top\rho)=y_i$. Yun et al. (2021) Theorems 4 and 6 in
    their limits.
    """

    norm: AbstractNorm
    inputs: Float[Array, "n ..."]
    values_at_inputs: Float[Array, " n"]
    transform: Inexact[Array, "m d"] | None
    conic: ClassVar[bool] = False

    @property
    def targets(self) -> Float[Array, " n"]:
        return self.values_at_inputs

    @property
    def constraint_rows(self) -> Inexact[Array, "n ..."]:
        return self.rows


def _as_transform(transform: Any, shape: tuple[int, ...]) -> Inexact[Array, "m d"] | None:
    if transform is None:
        return None
    require(len(shape) == 1, "transform", f"expected None for matrices as inputs, of shape {shape}")
    (d,) = shape
    if isinstance(transform, str):
        if transform.lower() != "dft":
            raise unknown_name("transform", transform, ["dft"])
        return jnp.fft.fft(jnp.eye(d), norm="ortho")
    array = as_array("transform", transform, mixed=True)
    require(
        array.ndim == 2 and array.shape[1] == d,
        "transform",
        f"expected a matrix S of shape (m, d) with d = {d}, got {array.shape}",
    )
    if is_concrete(array):
        require(bool(np.isfinite(np.asarray(array)).all()), "transform", "NaN or infinite entry")
    return array


def _as_norm(norm: Any, shape: tuple[int, ...]) -> AbstractNorm:
    norm = as_norm(norm)
    matrix = len(shape) == 2 or not norm.of_matrices
    require(matrix, "norm", f"the {norm.alias} norm needs a matrix: inputs of shape (n, p, q), or see attention_svm")
    bound = isinstance(norm, Nuclear) and norm.rank is not None
    require(not bound, "norm", "a rank bound has a method for attention_svm alone")
    return norm


def _data(inputs: Any, name: str, targets: Any) -> list[Array]:
    """Inputs and targets, which a caller knows by this name, in one dtype. **Raises:** `ValueError`."""
    inputs, targets = as_array("inputs", inputs), as_array(name, targets, integers=True)
    require(inputs.ndim >= 2, "inputs", f"expected shape (n, d) or (n, p, q), got {inputs.shape}")
    expected = f"expected one {name.removesuffix('s')} for each input, shape {inputs.shape[:1]}, got {targets.shape}"
    require(targets.shape == inputs.shape[:1], name, expected)
    inputs, targets = as_arrays(inputs=inputs, targets=targets)
    known = inputs.ndim in (2, 3)
    require(known, "inputs", f"expected one instance, (n, d) or (n, p, q), got {inputs.shape}; map batches by jax.vmap")
    require(min(inputs.shape) > 0, "inputs", f"empty axis in shape {inputs.shape}")
    LinearData(inputs.reshape(len(inputs), -1), targets).check()
    return [inputs, targets]


def max_margin(inputs: Any, labels: Any, norm: Any = "l2", transform: Any = None) -> MaxMarginProgram:
    r"""The max-margin program of a linear classifier.

    $$\min_\rho N(\rho)\quad\text{s.t.}\quad y_i\,x_i^\top S^\top\rho\ge1,\qquad\beta=S^\top\rho$$

    **Arguments:**

    - `inputs`: $x_i$, `(n, d)`, or matrices `(n, p, q)` for a predictor $\langle X_i,\rho\rangle$ with a matrix ρ.
      `labels`: ±1, `(n,)`, or two classes in another form, as in `TokenData`.
    - `norm`: `"l2"` (gradient descent, fully connected networks, Cor. 1), `"l1"` (diagonal networks of depth 2,
      Cor. 2), `"linf"` (sign descent, Adam), `Lp(p)` with p > 1 (mirror flow), `Lp(2 / L)` (depth L > 2; not convex)
      or a norm object; of matrices these of the entries, `"nuclear"`, `"spectral"` (Muon), or `Schatten(p)`.
    - `transform`: None, a real or complex S `(m, d)` with full column rank, or `"dft"`, the unitary discrete
      Fourier transform (full-length convolutional networks, Cor. 3).

    **Returns:** a program whose primal is ρ; `program.coefficients(primal)` is β.

    **Raises:** `ValueError` naming the argument.

    Source: Yun, Krishnan, Mobahi (2021), Theorem 2 with eq. (38), Corollaries 1–3.
    """
    labels = as_array("labels", as_signs("labels", labels), integers=True)
    require_signs("labels", labels)
    inputs, labels = _data(inputs, "labels", labels)
    shape = inputs.shape[1:]
    return MaxMarginProgram(
        norm=_as_norm(norm, shape), inputs=inputs, labels=labels, transform=_as_transform(transform, shape)
    )


def minimum_norm(inputs: Any, targets: Any, norm: Any = "l2", transform: Any = None) -> MinimumNormProgram:
    r"""The interpolation of least norm: $\min_\rho N(\rho)$ s.t. $x_i^\top S^\top\rho=y_i$.

    **Arguments:** as `max_margin`, with real `targets` $y_i$. With `inputs` `(n, p, q)`, measurements
    $\langle X_i,\rho\rangle=y_i$ of a matrix.

    **Raises:** `ValueError` naming the argument.

    Source: Yun, Krishnan, Mobahi (2021), Theorem 6 (ℓ2) and Remark 4 (ℓ1 as α → 0).
    """
    inputs, targets = _data(inputs, "targets", targets)
    shape = inputs.shape[1:]
    return MinimumNormProgram(
        norm=_as_norm(norm, shape), inputs=inputs, values_at_inputs=targets, transform=_as_transform(transform, shape)
    )


def completion(matrix: Any, mask: Any = None, norm: Any = "nuclear", symmetric: bool = False) -> MinimumNormProgram:
    r"""The matrix of least norm with given entries: $\min_WN(W)$ s.t. $W_{ij}=M_{ij}$ at known (i, j).

    **Arguments:**

    - `matrix`: M, `(p, q)`; its unknown entries are ignored.
    - `mask`: Booleans `(p, q)`, True at known entries; None: entries that are not NaN are known.
    - `norm`: of `minimum_norm` for matrices.
    - `symmetric`: W symmetric (p = q); an entry is known where it or its mirror image is.

    **Returns:** a program with a slot for each entry, empty where it is unknown, so that matrices of one shape are
    solved under `jax.vmap`, whichever entries of each are known.

    **Raises:** `ValueError` naming the argument; for concrete entries that are infinite, NaN though known, or in
    conflict with their mirror image.

    Source: Candès, Recht (2009), *Exact Matrix Completion via Convex Optimization*; the minimum that the flow of
    factored matrices from small starts was conjectured to find: Gunasekar et al. (2017).

    **Example:**

    ```python
    program = jf.margin.completion([[1.0, 2.0], [2.0, jnp.nan]])
    assert jnp.allclose(jf.margin.solve(program).primal[0], jnp.array([1.0, 2.0]))
    ```
    """
    matrix = as_array("matrix", matrix)
    require(matrix.ndim == 2 and matrix.size > 0, "matrix", f"expected shape (p, q), got {matrix.shape}")
    p, q = matrix.shape
    require(isinstance(symmetric, bool), "symmetric", "expected True or False", got=symmetric)
    require(p == q or not symmetric, "symmetric", f"a symmetric matrix is square, got {matrix.shape}")
    known = ~jnp.isnan(matrix) if mask is None else jnp.asarray(raw_array("mask", mask))
    fits = known.dtype == bool and known.shape == matrix.shape
    require(fits, "mask", f"expected Booleans of shape {matrix.shape}, got {known.dtype} of shape {known.shape}")
    if is_concrete(matrix, known):
        given = np.asarray(matrix)[np.asarray(known)]
        require(bool(np.isfinite(given).all()), "matrix", "NaN or infinite entry where one is known")
    elements = jnp.eye(p * q, dtype=matrix.dtype).reshape(p, q, p, q)
    if symmetric:
        size = jnp.maximum(jnp.abs(matrix), jnp.abs(matrix.T))
        # Products of factors agree with their mirror images but for roundings.
        apart = known & known.T & (jnp.abs(matrix - matrix.T) > jnp.finfo(matrix.dtype).eps ** 0.5 * size)
        if is_concrete(apart):
            wrong = np.argwhere(np.asarray(apart))[:1].tolist()
            require(not wrong, "matrix", f"the entry at {wrong} and its mirror image differ")
        # A conflict that cannot be seen becomes a program that fails.
        matrix = jnp.where(apart, jnp.nan, jnp.where(known, matrix, matrix.T))
        # Of symmetric elements alone some solution is symmetric, and `solve` takes that one.
        elements = 0.5 * (elements + elements.transpose(1, 0, 2, 3))
        known = (known | known.T) & np.triu(np.ones((p, p), bool))
    elements = jnp.where(known[:, :, None, None], elements, 0.0).reshape(p * q, p, q)
    values = jnp.where(known, matrix, 0.0).reshape(-1)
    return MinimumNormProgram(norm=_as_norm(norm, (p, q)), inputs=elements, values_at_inputs=values, transform=None)
