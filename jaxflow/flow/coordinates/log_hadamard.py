"""Logarithms of u + v as state: a start of size e^(−10000) is as accurate as one of size 0.1."""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from jaxflow._core import ScaledGradient, by_columns, checked, is_concrete, require
from jaxflow.flow.coordinates.base import AbstractCoordinates, risk_of_own, safe_log
from jaxflow.models import HadamardNetwork, LogWeights, ProductNetwork
from jaxflow.risk import EmpiricalRisk


@checked()
class LogHadamard(AbstractCoordinates):
    r"""For `HadamardNetwork`: $\omega=\log(u+v)$, $\dot\omega=g(\theta)=-\partial L/\partial(u\odot v)$.

    Equations (6) and (7) of Boix-Adserà et al. (2023), with the signs of Appendix C.3. The conserved
    $c=u^2-v^2$ stays in logarithms: $u\odot v=(e^{2\omega}-e^{2\log c-2\omega})/4$.

    **Arguments:** `separate`: integrate $\tilde\omega=\log(u-v)$ beside ω instead of using
    $\omega+\tilde\omega=\log c$, to measure how well the integration conserves it. `sparse`: for implicit methods, form
    the columns of the Jacobian once and only for the learned coordinates, since
    $\partial(u_iv_i)/\partial\omega_i=u_i^2+v_i^2$ vanishes for all others. The flow is the same. Do not use it with a
    clock that integrates time and so differentiates the field: a single derivative becomes more expensive.

    **Example:**

    ```python
    start = jf.models.HadamardNetwork.init(jax.random.key(0), jf.models.DiagonalLinear(), p=3).scaled(-20.0)
    clock = jf.RescaledTime(-20.0)
    jf.integrate(jf.EmpiricalRisk(linear, "squared"), start, clock=clock, until=0.5, coordinates=jf.LogHadamard())
    ```
    """

    separate: bool = False
    sparse: bool = False
    stretched: ClassVar[bool] = True

    def check(self, risk: EmpiricalRisk, model: Any) -> None:
        if not isinstance(model, HadamardNetwork) or risk.data is None:
            raise ValueError("coordinates: LogHadamard needs a HadamardNetwork and a risk on data; use Weights")
        risk_of_own(risk, model, "LogHadamard moves u and v together")
        # Computed once: under a trace, −inf among the logarithms ends in the result `nonfinite_data`.
        conserved = model.log_weights.log_conserved
        if is_concrete(conserved):
            equal = np.flatnonzero(~np.isfinite(np.asarray(conserved)))
            listed = ", ".join(map(str, equal[:5]))
            message = f"|u_i| = |v_i| or no number at i = {listed}: Assumption 4.3 excludes it; use Weights"
            require(equal.size == 0, "u", message)

    def encode(self, risk: EmpiricalRisk, model: Any) -> tuple[PyTree, PyTree]:
        self.check(risk, model)
        logs = model.log_weights
        # The proxy's own default, the products, is what is differentiated.
        products = EmpiricalRisk(risk.source, risk.loss, None, risk.reduction)
        state = (logs.log_sum, logs.log_difference) if self.separate else logs.log_sum
        return state, (products, model.h, logs)

    def decode(self, context: PyTree, state: PyTree) -> Any:
        _, h, _ = context
        return HadamardNetwork(h, jnp.zeros(0), jnp.zeros(0)).with_weights(self.logs(context, state))

    def logs(self, context: PyTree, state: PyTree) -> LogWeights:
        """The weights by logarithms."""
        _, _, start = context
        total, difference = state if self.separate else (state, start.log_conserved - state)
        return eqx.tree_at(lambda x: (x.log_sum, x.log_difference), start, (total, difference))

    def field(self, context: PyTree, state: PyTree) -> ScaledGradient:
        risk, h, _ = context
        logs = self.logs(context, state)
        scaled = risk.scaled_gradient(ProductNetwork(h, logs.products))
        slopes = scaled.gradient.products
        if self.sparse:
            # The scale is constant under differentiation, and what the multipliers change by is not asked for.
            squares = jnp.exp(2.0 * logs.log_sum) + jnp.exp(2.0 * logs.log_difference)
            slopes = by_columns(
                lambda products: risk.scaled_gradient(ProductNetwork(h, products)).gradient.products,
                logs.products,
                0.5 * squares,
            )
        gradient = (slopes, -slopes) if self.separate else slopes
        return ScaledGradient(scaled.log_scale, gradient, scaled.multipliers)

    def log_norm(self, context: PyTree, state: PyTree, scaled: ScaledGradient) -> Float[Array, ""]:
        logs = self.logs(context, state)
        slopes = scaled.gradient[0] if self.separate else scaled.gradient
        # (∂L/∂u_i)² + (∂L/∂v_i)² on the gradient's scale.
        squares = 2.0 * safe_log(jnp.abs(slopes)) + jnp.logaddexp(2.0 * logs.log_sum, 2.0 * logs.log_difference)
        return 0.5 * jax.nn.logsumexp(squares - jnp.log(2.0))

    def velocity(self, context: PyTree, state: PyTree, scaled: ScaledGradient) -> PyTree:
        logs = self.logs(context, state)
        slopes = scaled.gradient[0] if self.separate else scaled.gradient
        u, v = logs.mantissas(self.log_norm(context, state, scaled))
        model = self.decode(context, state)
        moving = jax.tree.map(lambda moves: None, model.trainable())
        return eqx.tree_at(lambda m: (m.u, m.v), moving, (-v * slopes, -u * slopes), is_leaf=lambda x: x is None)
