"""The derivative of the risk by the attention logits, at any distance from the origin."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from jaxflow._core import checked, exp_nonpositive


@checked(infinite=["logits"])
def log_attention(logits: Float[Array, "*n T"], visible: Bool[Array, "*n T"]) -> Float[Array, "*n T"]:
    r"""$\log s_{it}$ for $s_i=\mathrm{softmax}(a_i)$ over the visible tokens; −inf at hidden ones.

    **Example:**

    ```python
    logits = jnp.array([[0.0, 1000.0]])
    assert jf.models.log_attention(logits, jnp.ones((1, 2), bool))[0, 0] == -1000  # where e^(-1000) is zero
    ```
    """
    return jax.nn.log_softmax(jnp.where(visible, logits, -jnp.inf), axis=-1)


@checked(infinite=["logits"])
def logit_multipliers(
    logits: Float[Array, "*n T"],
    visible: Bool[Array, "*n T"],
    slopes: Float[Array, "*n T"],
    weights: Float[Array, "*n"],
) -> tuple[Float[Array, ""], Float[Array, "*n T"]]:
    r"""$p_{it} = w_i\,s_{it}\,(\gamma_{it}-\gamma_i^\top s_i)$ as `(M, P)` with $p = e^M P$.

    Where attention saturates every p vanishes like $e^{-\text{margin}}$, and long before that the difference
    $\gamma_{it}-\gamma_i^\top s_i$ and the top token's $s-s^2$ lose all digits. Here

    - the difference is $\sum_\tau s_{i\tau}(\gamma_{it}-\gamma_{i\tau})$, whose diagonal term is exactly zero;
    - M is the largest $\log s_{it}$ over all tokens but each sequence's top one, and is never exponentiated;
    - a token whose slope equals the top one's has no term from the top token, the only one of order one: the
      largest $\log s_{i\tau}$ of the tokens that it does differ from is added to its logarithm, so that M is the
      scale of the largest multiplier that is not zero;
    - the top token takes minus the sum of the others ($\sum_t p_{it}=0$ exactly).

    **Arguments:** logits $a_{it}$, visible tokens, slopes $\gamma_{it}=\langle\nabla h(X_i^\top s_i),x_{it}\rangle$,
    output weights $w_i=\partial L/\partial f_i$ of order one.

    M is constant under differentiation: $e^M P$ is what is being represented.

    **Example:**

    ```python
    logits, visible = jnp.array([[0.0, 1.0]]), jnp.ones((1, 2), bool)
    jf.models.logit_multipliers(logits, visible, jnp.array([[1.0, 0.0]]), jnp.ones(1))  # log scale, multipliers
    ```
    """
    log_s = log_attention(logits, visible)
    s = jnp.exp(log_s)
    top = jax.nn.one_hot(jnp.argmax(log_s, axis=-1), logits.shape[-1], dtype=bool)
    differences = slopes[..., :, None] - slopes[..., None, :]
    rest = visible & ~top
    tied = rest & (jnp.sum(jnp.where(top[..., None, :], differences, 0.0), axis=-1) == 0)
    differs = visible[..., None, :] & (differences != 0)
    reach = lax.stop_gradient(jnp.max(jnp.where(differs, log_s[..., None, :], -jnp.inf), axis=-1))
    # A token that differs from none has no multiplier at all.
    log_size = log_s + jnp.where(tied, reach, 0.0)
    finite = jnp.where(jnp.isneginf(reach), 0.0, reach)[..., None]
    shares = exp_nonpositive(jnp.where(differs, log_s[..., None, :], -jnp.inf) - finite)
    centred = jnp.sum(jnp.where(tied[..., None], shares, s[..., None, :]) * differences, axis=-1)
    largest = jnp.max(jnp.where(rest, log_size, -jnp.inf))
    # -inf: no query sees two tokens that differ, so every multiplier is zero.
    scale = lax.stop_gradient(jnp.where(jnp.isneginf(largest), 0.0, largest))
    relative = exp_nonpositive(jnp.where(rest, log_size, -jnp.inf) - scale)
    others = relative * centred * weights[..., None]
    return scale, jnp.where(top, -jnp.sum(others, axis=-1, keepdims=True), others)
