r"""The program of Theorem 4, $\min Q_{L,\alpha,\bar\eta}(\rho)$ s.t. $XS^\top\rho=y$, with a certificate."""

from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Inexact

from jaxflow._core import Code, checked, linalg, positive_or_one, require
from jaxflow.data import LinearData
from jaxflow.margin import AbstractNorm, Certificate, Solution
from jaxflow.margin.certificate import CertificateSource, ProgramResult
from jaxflow.margin.linear import AbstractRowsProgram
from jaxflow.margin.norms import Measured
from jaxflow.models import (
    AbstractLinearNetwork,
    Decomposition,
    DeepMatrixSensing,
    LinearConvolutionalNetwork,
    even_part,
    real_decomposition,
)
from jaxflow.models.profiles import angle_of, angle_of_height, height_slope, norm_like, time_of
from jaxflow.theory.interpolation_limit import interpolation_limit, solve_scaled
from jaxflow.theory.prediction import Assumption

# One sample of roundings stands for all of them; see `InterpolationProgram.error`.
SAMPLES = 10.0


class NormLike(AbstractNorm):
    r"""$Q_{L,\alpha,\bar\eta}(\rho)=\sum_je_j^2H_L(\rho_j/e_j^L)$, $e=\alpha|\bar\eta|$: between weighted ℓ1 and ℓ2.

    Not a norm: it is not homogeneous. `dual` is its convex conjugate, $\tfrac12\sum_je_j^2q_L(e_j^{L-2}g_j)^2$.

    **Arguments:** `start`: e, positive; `depth`: L.
    """

    start: Float[Array, " m"]
    depth: int = eqx.field(static=True)
    alias: ClassVar[str] = "norm_like"

    def __call__(self, primal: Inexact[Array, "..."]) -> Float[Array, ""]:
        e = self.start
        return jnp.sum(e**2 * norm_like(self.depth, primal / e**self.depth))

    def dual(self, adjoint: Inexact[Array, "..."]) -> Float[Array, ""]:
        e = self.start
        return 0.5 * jnp.sum((e * jnp.sinh(angle_of(self.depth, e ** (self.depth - 2) * adjoint))) ** 2)

    def slope(self, primal: Inexact[Array, "..."]) -> Float[Array, "..."]:
        r"""$\nabla Q$."""
        e = self.start
        return e ** (2 - self.depth) * time_of(self.depth, angle_of_height(self.depth, primal / e**self.depth))

    def curvature(self, primal: Inexact[Array, "..."]) -> Float[Array, "..."]:
        r"""The diagonal of $\nabla^2Q$, inverted: $d\rho_j/dg_j=e_j^{2L-2}\cosh^{L-2}s_j\,dh_L/ds_j$."""
        e, depth = self.start, self.depth
        angle = angle_of_height(depth, primal / e**depth)
        return e ** (2 * depth - 2) * jnp.cosh(angle) ** (depth - 2) * height_slope(depth, angle)

    def measure(self, primal: Inexact[Array, "..."], adjoint: Inexact[Array, "..."]) -> Measured:
        slope = self.slope(primal)
        size = jnp.max(jnp.abs(slope))
        off = jnp.max(jnp.abs(slope - adjoint)) / positive_or_one(size)
        return self(primal), self.dual(adjoint), off

    def expression(self, variable: Any) -> Any:
        raise NotImplementedError("norm: Q is no expression of CVXPY; see jaxflow.theory.interpolation_limit")


class InterpolationProgram(AbstractRowsProgram):
    r"""$\min_\rho Q(\rho)$ s.t. $A\rho=y$, $A=XS^\top$; `decomposition`: S and $U_l$, `etas`: the start $U_l^\top v_l$.

    Use `solve` and `certify` of this class; `jaxflow.margin.solve` and `certify` are for norms.
    """

    norm: NormLike
    rows: Float[Array, "n m"]
    values_at_inputs: Float[Array, " n"]
    decomposition: Decomposition
    etas: tuple[Float[Array, " m"], ...]
    conic: ClassVar[bool] = False

    @property
    def targets(self) -> Float[Array, " n"]:
        return self.values_at_inputs

    @property
    def constraint_rows(self) -> Float[Array, "n m"]:
        return self.rows

    def coefficients(self, primal: Float[Array, " m"]) -> Float[Array, " d"]:
        r"""$\beta=S^\top\rho$."""
        return self.decomposition.transform.T @ primal

    def certify(self, primal: Float[Array, " m"], dual: Float[Array, " n"], source: CertificateSource) -> Certificate:
        r"""$Q(\rho)$ against $y^\top\nu-Q^*(A^\top\nu)$: Fenchel's bounds, for any ρ that interpolates and any ν."""
        value, conjugate, off = self.norm.measure(primal, self.adjoint(dual))
        bound = self.values_at_inputs @ dual - conjugate
        scale = jnp.max(jnp.abs(self.values_at_inputs))
        miss = jnp.max(jnp.abs(self.values(primal) - self.values_at_inputs)) / positive_or_one(scale)
        usable = jnp.isfinite(value) & jnp.isfinite(bound) & (bound > 0)
        return Certificate(
            primal_value=value,
            dual_value=bound,
            duality_gap=jnp.where(usable, value / jnp.where(usable, bound, 1.0) - 1.0, jnp.inf),
            feasibility=miss,
            stationarity=off,
            source=Code(source, CertificateSource),
        )

    def solve(self) -> Solution:
        """`interpolation_limit`, with its certificate."""
        found = interpolation_limit(self.rows, self.values_at_inputs, self.norm.start, self.norm.depth)
        certificate = self.certify(found.singular, found.dual, CertificateSource.program)
        result = jnp.where(found.converged, ProgramResult.optimal.value, ProgramResult.budget_spent.value)
        return Solution(found.singular, found.dual, certificate, Code(result, ProgramResult), found.steps)

    def error(self, primal: Float[Array, " m"], dual: Float[Array, " n"]) -> Float[Array, ""]:
        r"""The relative distance of β from the solution: ten times the next Newton step, plus some roundings.

        With $W=(\nabla^2Q)^{-1}$, $r=y-A\rho$ and $m=\nabla Q(\rho)-A^\top\nu$ the step is
        $\delta\rho=W(A^\top\delta\nu-m)$, $AWA^\top\delta\nu=r+AWm$. At the end of Newton's method this step is the
        effect of the roundings of r and m; the factor ten covers roundings that happen to be small. +inf where the step
        is not finite.
        """
        inverse = self.norm.curvature(primal)
        miss = self.norm.slope(primal) - self.adjoint(dual)
        right = self.values_at_inputs - self.values(primal) + self.rows @ (inverse * miss)
        move = solve_scaled((self.rows * inverse[None, :]) @ self.rows.T, right)
        step = self.coefficients(inverse * (self.adjoint(move) - miss))
        size = jnp.linalg.norm(self.coefficients(primal))
        eps = float(jnp.finfo(primal.dtype).eps)
        found = SAMPLES * jnp.linalg.norm(step) / positive_or_one(size) + SAMPLES * eps * self.norm.depth
        return jnp.where(jnp.isfinite(found) & (size > 0), found, jnp.inf)

    def assumptions(self, network: AbstractLinearNetwork, data: LinearData) -> tuple[Assumption, ...]:
        """The assumptions of the decomposition on data and start."""
        if isinstance(network, LinearConvolutionalNetwork):
            parts = (data.inputs, *network.layers)
            off = jnp.max(jnp.stack([jnp.max(jnp.abs(x - even_part(x))) for x in parts]))
            return (Assumption("data and start are even (Corollary 6)", off <= 1e-10, 1e-10 - off),)
        if isinstance(network, DeepMatrixSensing):
            return _sensing_assumptions(self.decomposition, network, data)
        return ()


@checked()
def interpolation_program(network: AbstractLinearNetwork, data: LinearData) -> InterpolationProgram:
    """The program of Theorem 4 for a network with a real decomposition, from its start.

    **Raises:** `ValueError` for a network without one.

    **Example:**

    ```python
    program = jf.theory.interpolation_program(network, linear)
    program.norm(jnp.ones(3))
    ```
    """
    if isinstance(network, DeepMatrixSensing):
        found, etas = _sensing(network, data)
    else:
        found = real_decomposition(network, data.inputs)
        etas = found.transformed(network.layers)
    require(found.is_real, "model", "Theorem 4 needs a real decomposition")
    norm = NormLike(jnp.abs(etas[0]), network.depth)
    return InterpolationProgram(norm, data.inputs @ found.transform.T, data.targets, found, etas)


def _sensing(network: DeepMatrixSensing, data: LinearData) -> tuple[Decomposition, tuple[Array, ...]]:
    r"""Common eigenvectors V of the sensor matrices: $\mathrm{eig}(A)=SA$, $S_j=\mathrm{vec}(V_jV_j^\top)$ (F.5)."""
    d = network.layers[0].shape[0]
    sensors = data.inputs.reshape(-1, d, d)
    # Any fixed combination without symmetries of its own; eigenvectors of a sum that commutes with all are common.
    weights = 1.0 / (1.0 + jnp.arange(sensors.shape[0]) * 0.6180339887498949)
    mixed = jnp.tensordot(weights, sensors, axes=1)
    _, vectors = linalg.eigh(0.5 * (mixed + mixed.T))
    transform = jnp.einsum("aj,bj->jab", vectors, vectors).reshape(d, -1)
    etas = tuple(jnp.einsum("aj,ab,bj->j", vectors, W, vectors) for W in network.layers)
    return Decomposition(transform, (transform.T,) * network.depth), etas


def _sensing_assumptions(
    found: Decomposition, network: DeepMatrixSensing, data: LinearData
) -> tuple[Assumption, Assumption]:
    """Every sensor and every layer is diagonal in the common eigenvectors."""

    def off(flat: Array) -> Array:
        projected = (flat @ found.transform.T) @ found.transform
        return jnp.max(jnp.abs(flat - projected)) / jnp.maximum(jnp.max(jnp.abs(flat)), jnp.finfo(flat.dtype).tiny)

    sensors = off(data.inputs)
    start = jnp.max(jnp.stack([off(W.reshape(1, -1)) for W in network.layers]))
    return (
        Assumption("sensor matrices are symmetric and commute (Corollary 7)", sensors <= 1e-10, 1e-10 - sensors),
        Assumption("layers are diagonal in their eigenvectors (Corollary 7)", start <= 1e-10, 1e-10 - start),
    )
