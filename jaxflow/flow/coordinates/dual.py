r"""The n-dimensional dual form of orthogonally decomposable networks: the integrated residuals as state."""

import math
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from jaxflow._core import ScaledGradient, checked, is_concrete, require
from jaxflow.data import LinearData
from jaxflow.flow.coordinates.base import AbstractStretched
from jaxflow.models import (
    AbstractLinearNetwork,
    Decomposition,
    LinearConvolutionalNetwork,
    LinearTensorNetwork,
    even_part,
    real_decomposition,
)
from jaxflow.models.profiles import angle_of
from jaxflow.risk import EmpiricalRisk


class DualForm(eqx.Module):
    r"""What is needed in addition to ν: the decomposition, $A=XS^\top$ `(n, m)` and the start
    $\eta_l(0)=U_l^\top v_l(0)$."""

    decomposition: Decomposition
    rows: Float[Array, "n m"]
    start: tuple[Float[Array, " m"], ...]

    def layers(self, dual: Float[Array, " n"]) -> tuple[Float[Array, " m"], ...]:
        r"""$\eta_l$ at ν: with $g=SX^\top\nu$, for L = 2 the matrix exponential, for L > 2 equations (64), (65)."""
        push = self.rows.T @ dual
        depth = len(self.start)
        if depth == 2:
            a, b = self.start
            # Sum and difference grow and decay by themselves: nothing cancels.
            plus, minus = (a + b) * jnp.exp(push), (a - b) * jnp.exp(-push)
            return 0.5 * (plus + minus), 0.5 * (plus - minus)
        *first, _ = self.start
        size = jnp.abs(first[0])
        sign = jnp.ones_like(size)
        for eta in first:
            sign = sign * jnp.where(eta < 0, -1.0, 1.0)
        angle = angle_of(depth, sign * size ** (depth - 2) * push)
        return (*(eta * jnp.cosh(angle) for eta in first), size * jnp.sinh(angle))


@checked()
class Dual(AbstractStretched):
    r"""ν with $\dot\nu=-r(\nu)$, $r_i=\ell'(f(x_i),y_i)$, from (66), which holds for any loss.

    For networks that satisfy Assumption 1 with real S and $U_l$ (diagonal networks; full-length convolutions of even
    data from an even start; Corollaries 5 and 6). Every component of $\eta_l=U_l^\top v_l$ moves along one curve, and
    $[SX^\top\nu]_j$ is its parameter. L = 2: any start. L > 2: $|\eta_1|=\dots=|\eta_{L-1}|$ and $\eta_L=0$ (Theorem
    4).

    The state has n numbers for every d.

    **Arguments:** `decomposition`: None: that of the network.

    **Example:**

    ```python
    small = jf.models.DiagonalLinearNetwork.init(jax.random.key(0), linear)
    jf.integrate(jf.EmpiricalRisk(linear, "squared"), small, clock="log_time", until=1.0, coordinates=jf.Dual())
    ```
    """

    decomposition: Decomposition | None = None

    def check(self, risk: EmpiricalRisk, model: Any) -> None:
        form = self._form(risk, model)
        _check_start(form, model, risk.data)

    def encode(self, risk: EmpiricalRisk, model: Any) -> tuple[PyTree, PyTree]:
        form = self._form(risk, model)
        return jnp.zeros(form.rows.shape[0], form.rows.dtype), (risk, model, form)

    def decode(self, context: PyTree, state: PyTree) -> Any:
        _, model, form = context
        moved = form.layers(state)
        # What is orthogonal to the columns of U_l never moves.
        layers = tuple(
            v + U @ (eta - start)
            for v, U, eta, start in zip(model.layers, form.decomposition.factors, moved, form.start, strict=True)
        )
        return eqx.tree_at(lambda m: m.weights, model, layers)

    def field(self, context: PyTree, state: PyTree) -> ScaledGradient:
        risk, _, form = context
        outputs = form.rows @ math.prod(form.layers(state))
        scale, weights = risk.loss.scaled_derivative(outputs, risk.source.targets(outputs))
        weights = weights / (outputs.size if risk.reduction == "mean" else 1)
        return ScaledGradient(scale, weights, weights)

    def _form(self, risk: EmpiricalRisk, model: Any) -> DualForm:
        data = risk.data
        if not isinstance(data, LinearData) or not isinstance(model, AbstractLinearNetwork):
            raise ValueError("coordinates: Dual needs a linear network on LinearData; use Weights")
        require(risk.filter(model) == model.trainable(), "coordinates", "Dual moves all layers; use Weights")
        found = real_decomposition(model, data.inputs) if self.decomposition is None else self.decomposition
        require(found.is_real, "coordinates", "Dual needs a real decomposition; use Weights")
        return DualForm(found, data.inputs @ found.transform.T, found.transformed(model.layers))


def _check_start(form: DualForm, model: AbstractLinearNetwork, data: Any) -> None:
    """**Raises:** `ValueError` for a concrete start that the dual form does not describe."""
    if not is_concrete((form, model.layers, data)):
        return
    etas = [np.asarray(eta) for eta in form.start]
    largest = max(float(np.max(np.abs(eta))) for eta in etas)
    # What should be equal, or zero, may differ by some thousand roundings of the largest entry.
    rounding = 4000.0 * float(np.finfo(etas[0].dtype).eps)
    if len(etas) > 2:
        equal = all(np.max(np.abs(np.abs(eta) - np.abs(etas[0]))) <= rounding * largest for eta in etas[:-1])
        require(equal, "coordinates", "for L > 2, Dual needs first layers of equal size: |eta_1| = ... = |eta_{L-1}|")
        require(float(np.max(np.abs(etas[-1]))) <= rounding * largest, "coordinates", "for L > 2, Dual needs eta_L = 0")
    if isinstance(model, LinearTensorNetwork):
        error = np.max(np.abs(np.asarray(form.decomposition.tensor() - model.data_tensor)))
        fits = bool(error <= rounding * np.max(np.abs(np.asarray(model.data_tensor))))
        require(fits, "decomposition", f"is not that of the data tensor: they differ by {error:.1e}")
    if isinstance(model, LinearConvolutionalNetwork):
        even = all(np.allclose(np.asarray(even_part(x)), np.asarray(x)) for x in (data.inputs, *model.layers))
        require(even, "coordinates", "for convolutions, Dual needs even data and an even start; use Weights")
