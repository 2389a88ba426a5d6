"""The derivative of the risk by the attention logits, at any distance from the origin."""

import equinox as eqx
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


class Saturation(eqx.Module):
    r"""Attention by logits and slopes, in the parts from which outputs and multipliers are computed; one exponential
    for each token.

    Of output i let α be the token with the largest logit (of several, the one with the largest slope),
    $\delta_t=\gamma_t-\gamma_\alpha$, and b the largest logit of those with δ ≠ 0, the *differing* tokens. Then with

    $$u_t=e^{a_t-b}\;(\delta_t\ne0),\quad u_t=e^{a_t-a_\alpha}\;(\delta_t=0),\quad f=e^{b-a_\alpha},\quad
    Z=\sum_{\delta_t=0}u_t+f\sum_{\delta_t\ne0}u_t,\quad D=\sum_tu_t\delta_t$$

    attention is $u_t/Z$ for tied tokens and $fu_t/Z$ for differing ones, and the mean slope is
    $\gamma_\alpha+fD/Z$. What vanishes as attention saturates is f alone, and $\log f=b-a_\alpha$ does not underflow.

    `sizes`: u; `differ`: whether δ ≠ 0; `gains`: δ; by output: `log_ratio`: log f, `total`: Z, `push`: D,
    `own`: $\gamma_\alpha$.
    """

    sizes: Float[Array, "*n T"]
    differ: Bool[Array, "*n T"]
    gains: Float[Array, "*n T"]
    log_ratio: Float[Array, "*n"]
    total: Float[Array, "*n"]
    push: Float[Array, "*n"]
    own: Float[Array, "*n"]

    @classmethod
    @checked(infinite=["logits"])
    def at(
        cls, logits: Float[Array, "*n T"], visible: Bool[Array, "*n T"], slopes: Float[Array, "*n T"]
    ) -> "Saturation":
        r"""From logits $a_{it}$, visible tokens and slopes $\gamma_{it}$."""
        shown = jnp.where(visible, logits, -jnp.inf)
        # Both are references that cancel out of everything: nothing is differentiated through them.
        top = lax.stop_gradient(jnp.max(shown, axis=-1, keepdims=True))
        own = jnp.max(jnp.where(shown == top, slopes, -jnp.inf), axis=-1, keepdims=True)
        gains = slopes - own
        differ = visible & (gains != 0)
        next_one = lax.stop_gradient(jnp.max(jnp.where(differ, shown, -jnp.inf), axis=-1, keepdims=True))
        # Not above zero: rounding is monotone, and each is compared with the largest of its kind.
        sizes = jnp.exp(shown - jnp.where(differ, next_one, top))
        log_ratio = (next_one - top)[..., 0]
        far = jnp.where(differ, sizes, 0.0)
        total = jnp.sum(sizes - far, axis=-1) + jnp.exp(log_ratio) * jnp.sum(far, axis=-1)
        gains = jnp.where(differ, gains, 0.0)
        return cls(sizes, differ, gains, log_ratio, total, jnp.sum(far * gains, axis=-1), own[..., 0])

    def mean_slopes(self) -> Float[Array, "*n"]:
        r"""$\gamma_i^\top s_i$: the outputs of a linear head."""
        return self.own + jnp.exp(self.log_ratio) * (self.push / self.total)

    def multipliers(
        self, scales: Float[Array, "*n"], weights: Float[Array, "*n"]
    ) -> tuple[Float[Array, ""], Float[Array, "*n T"]]:
        r"""$p_{it}=e^{c_i}w_is_{it}(\gamma_{it}-\gamma_i^\top s_i)$ as `(M, P)` with $p=e^MP$.

        Where attention saturates every p vanishes like $e^{-\text{margin}}$, and long before that the difference
        $\gamma_{it}-\gamma_i^\top s_i$ and the top token's $s-s^2$ lose all digits. Here

        - slopes are relative to the top token's, $\delta_t=\gamma_t-\gamma_\alpha$, and the mean of δ is $fD/Z$, which
          keeps all its digits as it vanishes;
        - M is the largest $c_i+\log s_{it}$ over all tokens that differ from their top one, and is never exponentiated.
          It is a maximum of the sum, because the output with the steepest loss may be the one whose attention has
          vanished;
        - tokens with δ ≠ 0 have $P_t\propto u_t(\delta_t-fD/Z)$. No other has more attention than the top one, so the
          two do not cancel but for a factor of T;
        - tokens with δ = 0, the top one among them, have no term from the top token, the only one of order one. The
          factor f is taken out of them, $P_t\propto-u_tD/Z$. The sum over a sequence is zero to rounding.

        **Arguments:** output weights $e^{c_i}w_i=\partial L/\partial f_i$ with w of order one. M is constant under
        differentiation: the represented quantity is $e^MP$.
        """
        reach = self.log_ratio - jnp.log(self.total) + jnp.where(weights != 0, scales, -jnp.inf)
        largest = lax.stop_gradient(jnp.max(reach))
        # -inf: no output with a weight sees two tokens that differ, so every multiplier is zero.
        scale = jnp.where(jnp.isneginf(largest), 0.0, largest)
        weights = weights * exp_nonpositive(reach - scale)
        shift = self.push / self.total
        share = jnp.where(self.differ, jnp.exp(self.log_ratio)[..., None], 1.0)
        return scale, self.sizes * (self.gains - share * shift[..., None]) * weights[..., None]
