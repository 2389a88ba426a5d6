r"""Max-margin classification and minimum-norm interpolation for networks that are linear in their input."""

import abc
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Inexact

from jaxflow._core import as_array, as_signs, is_concrete, require, require_signs, unknown_name
from jaxflow.data import LinearData
from jaxflow.margin.norms import AbstractNorm, Nuclear, as_norm
from jaxflow.margin.program import AbstractProgram, Compact, DenseRows


class AbstractRowsProgram(AbstractProgram):
    """A program in a vector whose constraints, all inequalities (`conic`) or all equalities, are rows of one matrix."""

    @property
    @abc.abstractmethod
    def constraint_rows(self) -> Inexact[Array, "n m"]:
        r"""$A_k$ as rows; $\langle a,v\rangle=\mathrm{Re}\,a^*v$."""

    @property
    def active(self) -> Bool[Array, " n"]:
        return jnp.full(self.targets.shape, self.conic)

    @property
    def equal(self) -> Bool[Array, " n"]:
        return jnp.full(self.targets.shape, not self.conic)

    @property
    def primal_zero(self) -> Inexact[Array, " m"]:
        return jnp.zeros_like(self.constraint_rows[0])

    def values(self, primal: Inexact[Array, " m"]) -> Float[Array, " n"]:
        return DenseRows(self.constraint_rows).values(primal)

    def adjoint(self, dual: Float[Array, " n"]) -> Inexact[Array, " m"]:
        return DenseRows(self.constraint_rows).combine(dual)

    def row_sizes(self) -> Float[Array, " n"]:
        return DenseRows(self.constraint_rows).sizes()

    def compact(self) -> Compact:
        rows, targets = self.constraint_rows, self.targets
        finite = jnp.all(jnp.isfinite(rows)) & jnp.all(jnp.isfinite(targets))
        return Compact(
            rows=DenseRows(jnp.where(finite, rows, 0.0)),
            inequality=self.active & finite,
            equality=self.equal & finite,
            targets=jnp.where(finite, targets, 0.0),
            slots=jnp.arange(targets.shape[0]),
            finite=finite,
        )


class AbstractLinearProgram(AbstractRowsProgram):
    r"""A program in $\rho$ for the predictor $x^\top\beta$, $\beta=\mathrm{Re}(S^\top\rho)$; without S,
    $\rho=\beta$."""

    inputs: eqx.AbstractVar[Float[Array, "n d"]]
    transform: eqx.AbstractVar[Inexact[Array, "m d"] | None]

    @property
    def rows(self) -> Inexact[Array, "n m"]:
        r"""$\overline{Sx_i}$, so that $\mathrm{Re}\langle\overline{Sx_i},\rho\rangle=x_i^\top\beta$."""
        return self.inputs if self.transform is None else jnp.conj(self.inputs @ self.transform.T)

    def coefficients(self, primal: Inexact[Array, " m"]) -> Float[Array, " d"]:
        r"""The linear coefficients $\beta=\mathrm{Re}(S^\top\rho)$."""
        return primal if self.transform is None else jnp.real(self.transform.T @ primal)


class MaxMarginProgram(AbstractLinearProgram):
    r"""$\min N(\rho)$ s.t. $y_i\,\mathrm{Re}(x_i^\top S^\top\rho)\ge1$. Yun et al. (2021) eq. (38), Cor.
    1–3.
    """

    norm: AbstractNorm
    inputs: Float[Array, "n d"]
    labels: Float[Array, " n"]
    transform: Inexact[Array, "m d"] | None
    conic: ClassVar[bool] = True

    @property
    def targets(self) -> Float[Array, " n"]:
        return jnp.ones_like(self.labels)

    @property
    def constraint_rows(self) -> Inexact[Array, "n m"]:
        return self.labels[:, None] * self.rows


class MinimumNormProgram(AbstractLinearProgram):
    r"""$\min N(\rho)$ s.t. $\mathrm{Re}(x_i^\top S^\top\rho)=y_i$. Yun et al. (2021) Theorems 4 and 6 in
    their limits.
    """

    norm: AbstractNorm
    inputs: Float[Array, "n d"]
    values_at_inputs: Float[Array, " n"]
    transform: Inexact[Array, "m d"] | None
    conic: ClassVar[bool] = False

    @property
    def targets(self) -> Float[Array, " n"]:
        return self.values_at_inputs

    @property
    def constraint_rows(self) -> Inexact[Array, "n m"]:
        return self.rows


def _as_transform(transform: Any, d: int) -> Inexact[Array, "m d"] | None:
    if transform is None:
        return None
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


def _as_vector_norm(norm: Any) -> AbstractNorm:
    norm = as_norm(norm)
    require(not isinstance(norm, Nuclear), "norm", "the nuclear norm needs a matrix: see attention_svm")
    return norm


def max_margin(inputs: Any, labels: Any, norm: Any = "l2", transform: Any = None) -> MaxMarginProgram:
    r"""The max-margin program of a linear classifier.

    $$\min_\rho N(\rho)\quad\text{s.t.}\quad y_i\,x_i^\top S^\top\rho\ge1,\qquad\beta=S^\top\rho$$

    **Arguments:**

    - `inputs`: $x_i$, `(n, d)`. `labels`: ±1, `(n,)`, or two classes in another form, as in
      `TokenData`.
    - `norm`: `"l2"` (fully connected networks, Cor. 1), `"l1"` (diagonal networks of depth 2, Cor. 2),
      `Lp(2 / L)` (depth L > 2; not convex) or a norm object.
    - `transform`: None, a real or complex S `(m, d)` with full column rank, or `"dft"`, the unitary discrete
      Fourier transform (full-length convolutional networks, Cor. 3).

    **Returns:** a program whose primal is ρ; `program.coefficients(primal)` is β.

    **Raises:** `ValueError` naming the argument.

    Source: Yun, Krishnan, Mobahi (2021), Theorem 2 with eq. (38), Corollaries 1–3.

    **Example:**

    ```python
    jf.margin.solve(jf.margin.max_margin(linear.inputs, linear.targets)).primal
    ```
    """
    inputs, labels = as_array("inputs", inputs), as_array("labels", as_signs("labels", labels), integers=True)
    require(inputs.ndim == 2, "inputs", f"expected shape (n, d), got {inputs.shape}")
    n = inputs.shape[0]
    require(labels.shape == (n,), "labels", f"expected one label for each input, shape {(n,)}, got {labels.shape}")
    require_signs("labels", labels)
    data = LinearData(inputs, labels)
    data.check()
    return MaxMarginProgram(
        norm=_as_vector_norm(norm),
        inputs=data.inputs,
        labels=data.targets,
        transform=_as_transform(transform, data.inputs.shape[1]),
    )


def minimum_norm(inputs: Any, targets: Any, norm: Any = "l2", transform: Any = None) -> MinimumNormProgram:
    r"""The interpolation of least norm: $\min_\rho N(\rho)$ s.t. $x_i^\top S^\top\rho=y_i$.

    **Arguments:** as `max_margin`, with real `targets` $y_i$.

    **Raises:** `ValueError` naming the argument.

    Source: Yun, Krishnan, Mobahi (2021), Theorem 6 (ℓ2) and Remark 4 (ℓ1 as α → 0).

    **Example:**

    ```python
    jf.margin.solve(jf.margin.minimum_norm(linear.inputs, linear.targets)).primal
    ```
    """
    data = LinearData(inputs, as_array("targets", targets, integers=True))
    data.check()
    return MinimumNormProgram(
        norm=_as_vector_norm(norm),
        inputs=data.inputs,
        values_at_inputs=data.targets,
        transform=_as_transform(transform, data.inputs.shape[1]),
    )
