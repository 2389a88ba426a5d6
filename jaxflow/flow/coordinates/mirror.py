r"""The dual variable of mirror flow as state."""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from jaxflow._core import ScaledGradient, as_plain, positive_or_one, tree_unit
from jaxflow.flow.coordinates.base import AbstractCoordinates
from jaxflow.margin import Schatten
from jaxflow.margin.potential import AbstractPotential, EntryPotential, check_parameters, check_potential, potential_of
from jaxflow.risk import EmpiricalRisk


class Mirror(AbstractCoordinates):
    r"""$z=\nabla\psi(\theta)$ with $\dot z=-\nabla L(\theta)$, $\psi(\theta)=\frac1p\sum_j|\theta_j|^p$, $p>1$; for
    every model.

    **The path is that of mirror flow, and of gradient flow for p = 2 alone.** With $1/p+1/q=1$ it is
    $\theta=\mathrm{sign}(z)|z|^{q-1}$, and $\dot\theta=-(q-1)|z|^{q-2}\nabla L$. Lengths are those of z: clocks and
    rules that use an arc length measure $\int\|\nabla L\|dt$, and `log_gradient_norm` is that of $\nabla L$. Times are
    those of the flow. `velocity` of a trajectory is $\dot\theta$ at norm one.

    For a linear model, separable data and a loss with an exponential tail the direction tends to that of the largest
    $\ell_p$ margin: Sun, Ahn, Thrampoulidis, Azizan (2022), *Mirror Descent Maximizes Generalized Margin and Can Be
    Implemented Efficiently*. With squared error on an underdetermined problem the limit is the interpolation of least
    Bregman divergence $D_\psi(\theta,\theta_0)$: Gunasekar, Lee, Soudry, Srebro (2018), *Characterizing Implicit Bias
    in Terms of Optimization Geometry*, Theorem 1.

    **Arguments:** `p`: a number above one, or `jf.margin.Schatten(p)`, of the singular values of one trained matrix:
    $\psi(W)=\frac1p\sum_i\sigma_i(W)^p$, $W=U\mathrm{diag}(\sigma^{q-1})V^\top$ of $Z=U\mathrm{diag}(\sigma)V^\top$.
    The direction is then that of the largest margin in that norm: Sun, Gatmiry, Ahn, Azizan (2023), *A Unified
    Approach to Controlling Implicit Regularization via Mirror Descent*.
    """

    p: float | Schatten = eqx.field(static=True, converter=as_plain)
    stretched: ClassVar[bool] = True

    def __check_init__(self) -> None:
        check_potential("p", self.p)

    def check(self, risk: EmpiricalRisk, model: Any) -> None:
        """A Schatten potential asks for one matrix."""
        check_parameters("coordinates", self.p, eqx.filter(model, risk.filter(model)))

    def encode(self, risk: EmpiricalRisk, model: Any) -> tuple[PyTree, PyTree]:
        params, frozen = eqx.partition(model, risk.filter(model))
        return jax.tree.map(lambda x: self._potential(x).map(x), params), (risk, frozen)

    def decode(self, context: PyTree, state: PyTree) -> Any:
        _, frozen = context
        return eqx.combine(jax.tree.map(lambda z: self._potential(z).conjugate.map(z), state), frozen)

    def field(self, context: PyTree, state: PyTree) -> ScaledGradient:
        return context[0].scaled_gradient(self.decode(context, state))

    def velocity(self, context: PyTree, state: PyTree, scaled: ScaledGradient) -> PyTree:
        if isinstance(self.p, Schatten):

            def rate(z: Array, slope: Array) -> Array:
                return -self._potential(z).conjugate.turned(z, slope)

            return tree_unit(jax.tree.map(rate, state, scaled.gradient))
        dual = self.p / (self.p - 1.0)

        # In logarithms, since |z|^(q-2) is infinite at zero for q < 2: there z is the smallest number.
        def log_rate(z: Array, slope: Array) -> Array:
            size = jnp.maximum(jnp.abs(z), jnp.finfo(z.dtype).tiny)
            return (dual - 2.0) * jnp.log(size) + jnp.log(positive_or_one(jnp.abs(slope)))

        logs = jax.tree.map(log_rate, state, scaled.gradient)
        top = jnp.max(jnp.stack([jnp.max(x) for x in jax.tree.leaves(logs)]))
        return tree_unit(jax.tree.map(lambda x, slope: -jnp.sign(slope) * jnp.exp(x - top), logs, scaled.gradient))

    def _potential(self, leaf: Array) -> AbstractPotential:
        return potential_of(self.p, leaf.shape) if isinstance(self.p, Schatten) else EntryPotential(self.p)
