r"""The loss-rate bounds in the proofs of Yun, Krishnan, Mobahi (2021), as curves.

From $\dot{\mathcal L}\le-c\mathcal L^2$ follows $\mathcal L(t)\le\mathcal L(0)/(1+\mathcal L(0)\,ct)$; the displays of
D.1 and E.1 lack the factor $\mathcal L(0)$ in the denominator.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, Inexact

from jaxflow._core import linalg


def classification_rate(
    gap: Float[Array, ""], transform: Inexact[Array, "m d"], margin: Float[Array, ""], depth: int
) -> Float[Array, ""]:
    r"""$c=\alpha^{2L-2}\lambda^{L-1}s_{\min}(S)^2\gamma^2$ of D.1.

    **Arguments:** `gap`: $\alpha^2\lambda$ (see `layer_gap`); `margin`: γ, the largest margin of a unit vector. E.1 is
    the case L = 2 with $s_{\min}(S)^2\gamma^2$ replaced by $\|s\|_2^2$: S = s as a column and γ = 1.
    """
    return gap ** (depth - 1) * jnp.min(linalg.singular_values(transform)) ** 2 * margin**2


def regression_rate(
    gap: Float[Array, ""], transform: Inexact[Array, "m d"], inputs: Float[Array, "n d"], depth: int
) -> Float[Array, ""]:
    r"""$2\alpha^{2L-2}\lambda^{L-1}s_{\min}(S)^2s_{\min}(X)^2$ of (62); (73) with S = s as a column and X = 1.

    H.1 has the same with S = I and without the 2, a weaker bound.
    """
    least = jnp.min(linalg.singular_values(transform))
    smallest = jnp.min(linalg.singular_values(inputs))
    return 2.0 * gap ** (depth - 1) * least**2 * smallest**2


def algebraic_bound(start: Float[Array, ""], rate: Float[Array, ""], times: Float[Array, " t"]) -> Float[Array, " t"]:
    r"""$\mathcal L(0)/(1+\mathcal L(0)ct)$."""
    return start / (1.0 + start * rate * times)


def printed_bound(start: Float[Array, ""], rate: Float[Array, ""], times: Float[Array, " t"]) -> Float[Array, " t"]:
    r"""$\mathcal L(0)/(1+ct)$, as D.1 and E.1 have it: too small where $\mathcal L(0)<1$."""
    return start / (1.0 + rate * times)


def exponential_bound(start: Float[Array, ""], rate: Float[Array, ""], times: Float[Array, " t"]) -> Float[Array, " t"]:
    r"""$\mathcal L(0)e^{-ct}$."""
    return start * jnp.exp(-rate * times)
