r"""What the risk is above the value that it has where given tokens are selected, without cancellation or underflow."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float

from jaxflow._core import checked, exp_nonpositive
from jaxflow.data import TokenData
from jaxflow.models import AbstractAttention, head_outputs, log_attention
from jaxflow.risk import EmpiricalRisk

# Gauss-Legendre is exact to rounding for losses and heads that are smooth over score gaps of order one.
NODES, WEIGHTS = np.polynomial.legendre.leggauss(16)


@checked()
def log_excess(risk: EmpiricalRisk, model: AbstractAttention, selection: Bool[Array, "n ..."]) -> Float[Array, ""]:
    r"""$\log(L(\theta)-L_\alpha)$ with $L_\alpha=\frac1n\sum_i\ell(Y_ih(x_{i\alpha_i}))$; NaN where $L\le L_\alpha$.

    L tends to $L_\alpha$ exponentially where attention saturates on α, and the difference of the two is rounding
    from margins of about 36 on. Here $X_i^\top s_i=x_{i\alpha_i}+e^{m_i}\hat e_i$ with
    $e^{m_i}\hat e_i=\sum_{t\ne\alpha_i}s_{it}(x_{it}-x_{i\alpha_i})$ on a logarithmic scale, and

    $$L-L_\alpha=\frac1n\sum_ie^{m_i}\int_0^1\ell'\left(Y_ih(x_u)\right)Y_i\langle\nabla h(x_u),\hat e_i\rangle\,du,
    \qquad x_u=x_{i\alpha_i}+u\,e^{m_i}\hat e_i$$

    by a Gauss rule. Its derivatives by the weights are ordinary autodiff: nothing in them underflows or cancels
    while α has most of the attention.

    **Arguments:** `risk` on `TokenData`, with a head and a loss that are smooth between the tokens; `model`;
    `selection`: one token α for each query, Booleans in the shape of the logits.

    **Example:**

    ```python
    from jaxflow.papers.tarzanagh2023.verify.excess import log_excess

    log_excess(risk, limit.trajectory.final.model, limit.selection)
    ```
    """
    data = risk.data
    assert isinstance(data, TokenData)
    visible = data.visible
    log_s = log_attention(model.logits(data), visible)
    tokens = data.tokens if data.single_query else data.tokens[:, None]
    anchor = jnp.sum(jnp.where(selection[..., None], tokens, 0.0), axis=-2)
    others = jnp.where(visible & ~selection, log_s, -jnp.inf)
    largest = jnp.max(others, axis=-1)
    # A query that sees one token only has no excess.
    scale = lax.stop_gradient(jnp.where(jnp.isneginf(largest), 0.0, largest))
    shares = exp_nonpositive(others - scale[..., None])
    step = jnp.sum(shares[..., None] * (tokens - anchor[..., None, :]), axis=-2)
    # The finite part of the step may underflow: then the integrand is constant.
    far = jnp.exp(scale)[..., None] * step

    def slope(u: Array) -> tuple[Array, Array]:
        return jax.jvp(lambda x: head_outputs(model.head, x), (anchor + u * far,), (step,))

    nodes, weights = jnp.asarray(0.5 * (NODES + 1.0)), jnp.asarray(0.5 * WEIGHTS)
    values, slopes = jax.vmap(slope)(nodes)
    targets = jnp.broadcast_to(data.labels, values.shape)
    log_size, derivative = risk.loss.scaled_derivative(values, targets)
    parts = jnp.tensordot(weights, derivative * slopes, axes=1)
    total = log_size + jax.nn.logsumexp(scale, b=parts)
    return total - (jnp.log(parts.size) if risk.reduction == "mean" else 0.0)
