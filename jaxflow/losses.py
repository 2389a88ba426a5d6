r"""Pointwise losses with derivatives that survive their own underflow (floor 1).

A loss knows outputs $f$ and targets $y$. Margin losses depend on $q = yf$ alone and have infimum 0 at
$q\to\infty$ (but for `Correlation`, which has none).
"""

import abc
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxflow._core import exp_nonpositive

Outputs = Float[Array, "..."]


class AbstractLoss(eqx.Module):
    """A loss of outputs and targets of equal shape."""

    margin: eqx.AbstractClassVar[bool]

    @abc.abstractmethod
    def value(self, outputs: Outputs, targets: Outputs) -> Outputs:
        """ℓ at every output; may underflow to zero."""

    @abc.abstractmethod
    def log_value(self, outputs: Outputs, targets: Outputs) -> Outputs:
        """log ℓ at every output, without underflow."""

    @abc.abstractmethod
    def scaled_derivative(self, outputs: Outputs, targets: Outputs) -> tuple[Float[Array, ""], Outputs]:
        r"""$\partial\ell/\partial f = e^{c}w$ as `(c, w)` with one scale c and $\max|w| = 1$.

        The scale is constant under differentiation; $e^c w$ is what is being represented.
        """


def _from_logarithms(log_size: Outputs, sign: Outputs) -> tuple[Float[Array, ""], Outputs]:
    scale = lax.stop_gradient(jnp.max(log_size))
    return scale, sign * exp_nonpositive(log_size - scale)


class Logistic(AbstractLoss):
    r"""$\ell = \log(1+e^{-yf})$."""

    margin: ClassVar[bool] = True

    def value(self, outputs: Outputs, targets: Outputs) -> Outputs:
        return jax.nn.softplus(-targets * outputs)

    def log_value(self, outputs: Outputs, targets: Outputs) -> Outputs:
        q = targets * outputs
        # log log(1 + u) = log u - u/2 + O(u^2) with u = e^-q: exact to 1e-17 from q = 20 on.
        far = q > 20.0
        near = jnp.log(jax.nn.softplus(-jnp.where(far, 0.0, q)))
        return jnp.where(far, -q - 0.5 * jnp.exp(-jnp.where(far, q, 20.0)), near)

    def scaled_derivative(self, outputs: Outputs, targets: Outputs) -> tuple[Float[Array, ""], Outputs]:
        return _from_logarithms(-jax.nn.softplus(targets * outputs), -targets)


class Exponential(AbstractLoss):
    r"""$\ell = e^{-yf}$."""

    margin: ClassVar[bool] = True

    def value(self, outputs: Outputs, targets: Outputs) -> Outputs:
        return jnp.exp(-targets * outputs)

    def log_value(self, outputs: Outputs, targets: Outputs) -> Outputs:
        return -targets * outputs

    def scaled_derivative(self, outputs: Outputs, targets: Outputs) -> tuple[Float[Array, ""], Outputs]:
        return _from_logarithms(-targets * outputs, -targets)


class Correlation(AbstractLoss):
    r"""$\ell = -yf$ (Assumption A of Tarzanagh et al. 2023 allows it). It is negative: no logarithm."""

    margin: ClassVar[bool] = True

    def value(self, outputs: Outputs, targets: Outputs) -> Outputs:
        return -targets * outputs

    def log_value(self, outputs: Outputs, targets: Outputs) -> Outputs:
        return jnp.log(-targets * outputs)

    def scaled_derivative(self, outputs: Outputs, targets: Outputs) -> tuple[Float[Array, ""], Outputs]:
        return _from_logarithms(jnp.zeros_like(outputs), -targets)


class Squared(AbstractLoss):
    r"""$\ell = \tfrac12(f-y)^2$."""

    margin: ClassVar[bool] = False

    def value(self, outputs: Outputs, targets: Outputs) -> Outputs:
        return 0.5 * (outputs - targets) ** 2

    def log_value(self, outputs: Outputs, targets: Outputs) -> Outputs:
        return 2.0 * jnp.log(jnp.abs(outputs - targets)) - jnp.log(2.0)

    def scaled_derivative(self, outputs: Outputs, targets: Outputs) -> tuple[Float[Array, ""], Outputs]:
        residual = outputs - targets
        size = lax.stop_gradient(jnp.max(jnp.abs(residual)))
        return jnp.log(size), residual / jnp.where(size > 0, size, 1.0)
