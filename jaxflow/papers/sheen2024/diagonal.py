r"""Diagonal weights, Sheen et al. (2024) §4 and App. A.2–A.5: two parametrisations, starts, multipliers."""

from typing import Any, ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key, PyTree

from jaxflow._core import as_array, as_vector, checked, require
from jaxflow.data import TokenData
from jaxflow.margin import AbstractProgram, AttentionProgram
from jaxflow.models import AbstractAttention, DiagonalAttention, Head, as_head
from jaxflow.models.base import mark_trainable, require_shape
from jaxflow.papers.table import Table

# Multipliers of a certified solution below this share of the largest are zeros of the program.
ZERO = 1e-7


class PlusMinusAttention(AbstractAttention):
    r"""Attention trained through $W=\mathrm{diag}(w)$, $w=\frac12(w_+^{\odot2}-w_-^{\odot2})$ (Lemma 4.1)."""

    w_plus: Float[Array, " d"]
    w_minus: Float[Array, " d"]
    head: Head
    degree: ClassVar[int] = 2

    def __init__(self, w_plus: Any, w_minus: Any, head: Any):
        self.w_plus = as_vector("w_plus", w_plus)
        self.w_minus = as_array("w_minus", w_minus)
        self.head = as_head(head)

    def __check_init__(self) -> None:
        require(self.w_plus.shape == self.w_minus.shape, "w_minus", f"expected w_plus's shape {self.w_plus.shape}")

    @classmethod
    def init(cls, key: Key[Array, ""], data: TokenData, head: Any) -> "PlusMinusAttention":
        r"""$w_+(0)=w_-(0)=d^{-1/2}\mathbf 1$, that is W(0) = 0; nothing is random."""
        d = data.tokens.shape[-1]
        return cls(jnp.full(d, d**-0.5), jnp.full(d, d**-0.5), head)

    def coefficients(self) -> Float[Array, " d"]:
        """w, the diagonal of W."""
        return 0.5 * (self.w_plus - self.w_minus) * (self.w_plus + self.w_minus)

    def logits(self, data: TokenData) -> Float[Array, "*n T"]:
        keyed = jnp.einsum("...d,d->...d", data.queries, self.coefficients())
        return jnp.einsum("ntm,nm->nt" if data.single_query else "ntm,nkm->nkt", data.tokens, keyed)

    def combined_weights(self) -> Float[Array, "d d"]:
        return jnp.diag(self.coefficients())

    def conserved(self) -> Float[Array, " d"]:
        r"""$w_+\odot w_-$, constant along the gradient flow."""
        return self.w_plus * self.w_minus

    def trainable(self) -> PyTree:
        return mark_trainable(self, ("w_plus", "w_minus"))

    def check(self, data: TokenData) -> None:
        d = data.tokens.shape[-1]
        require_shape("w_plus", self.w_plus, (d,), f"for tokens of dimension {d}")
        require_shape("w_minus", self.w_minus, (d,), f"for tokens of dimension {d}")


@checked()
def unbalanced_start(
    omega: Float[Array, " d"], head: Any, in_key: Bool[Array, " d"] | None = None
) -> tuple[DiagonalAttention, PlusMinusAttention]:
    r"""The start (5) in both parametrisations: $\xi_k\odot\xi_q=0$, $\xi_k^{\odot2}+\xi_q^{\odot2}=2\omega_0^{\odot2}$.

    In every coordinate one factor is $\sqrt2\,\omega_0$ and the other zero, as unbalanced as can be; the signs and
    `in_key` (True: $\xi_k$ is the one; None: all) make no difference to β(t).

    **Arguments:** `omega`: $\omega_0$ `(d,)`, no entry zero.
    """
    chosen = jnp.ones(omega.shape, bool) if in_key is None else in_key
    size = jnp.sqrt(2.0) * omega
    return (
        DiagonalAttention(jnp.where(chosen, size, 0.0), jnp.where(chosen, 0.0, size), head),
        PlusMinusAttention(omega, omega, head),
    )


@checked()
def integral_form(
    program: AttentionProgram, omega: Float[Array, " d"], pushes: Float[Array, "n T"]
) -> Float[Array, " d"]:
    r"""$\beta=\omega_0^{\odot2}\odot\sinh(B\phi)$, equation (19), with $\phi=2\int p\,d\tau$ and B of the ℓ1-SVM.

    An identity between β(t) and an integral along the path, not a closed form.
    """
    return omega**2 * jnp.sinh(program.adjoint(2.0 * pushes))


@checked()
def averaged_residuals(
    program: AttentionProgram,
    omega: Float[Array, " d"],
    beta: Float[Array, " d"],
    pushes: Float[Array, "n T"],
    optimum: Float[Array, " d"],
) -> Table:
    r"""How far the multipliers $\lambda_{il}(t)=\phi_{il}(t)/\ln\mu(t)$ of the proof (A.5) are from KKT for the ℓ1-SVM,
    with the support of its `optimum`.

    The factor is that of A.5, $\lambda=\frac{2}{\ln\mu}\int p$ with 1/n inside of p. (A.7 recalls λ as
    $\frac2{n\ln\mu}\phi$, which would apply 2/n twice.)

    - `averaged` `(d,)`: Bλ; `stationarity`: (C1), $\max_j\mathrm{dist}((B\lambda)_j,\partial|\hat\beta^\infty_j|)$.
    - `slackness`: (C3), $\max_{il}|\lambda_{il}(1-\hat\beta^\top B_{il})|$.
    - `predicted`: $\max_{j}|\ln(2|\hat\beta_j|/\omega_{0j}^2)|/\ln\mu$ over the support, what
      $(B\lambda)_j=\mathrm{arcsinh}(\beta_j/\omega_{0j}^2)/\ln\mu$ leaves of `stationarity` there as μ → ∞.
    - `log_margin`: ln μ; without a meaning, as all the others, while μ ≤ 1 (then NaN).
    """
    margins = program.margins(beta)
    mu = jnp.min(margins)
    defined = mu > 1.0
    log_mu = jnp.where(defined, jnp.log(jnp.where(defined, mu, 2.0)), jnp.nan)
    weights = jnp.where(program.active, 2.0 * pushes, 0.0) / log_mu
    combined = program.adjoint(weights)
    # A certified solution's entries below 1e-7 of the largest are zeros of the program (gap 1e-10).
    support = jnp.abs(optimum) > 1e-7 * jnp.max(jnp.abs(optimum))
    distance = jnp.where(support, jnp.abs(combined - jnp.sign(optimum)), jnp.maximum(jnp.abs(combined) - 1.0, 0.0))
    slack = jnp.where(jnp.isfinite(margins), weights * (1.0 - margins / mu), 0.0)
    scale = jnp.abs(jnp.log(2.0 * jnp.where(support, jnp.abs(beta) / mu, 0.5) / jnp.where(support, omega, 1.0) ** 2))
    return Table(
        averaged=combined,
        stationarity=jnp.max(distance),
        slackness=jnp.max(jnp.abs(slack)),
        predicted=jnp.max(scale) / log_mu,
        log_margin=log_mu,
    )


def behind_face(program: AbstractProgram, dual: Array, primal: Array) -> Float[Array, ""]:
    r"""How far a flow is from the face of its program (A.5): $\max\,\langle B_k,W\rangle/\mu-1$ over $\lambda_k>0$.

    Zero in the limit. By (19) the integrals $\phi_{il}$ tend to $\lambda_{il}\ln\mu$ plus a constant; where that would
    still be negative the constraint is not active yet, and the instantaneous multipliers certify another face: until
    $\ln\mu$ of order $1/\lambda_{il}$.

    **Arguments:** `dual`: λ, of a certified solution; `primal`: of the flow, with a positive margin.
    """
    active = dual > ZERO * jnp.max(dual)
    margins = program.margins(primal)
    return jnp.max(jnp.where(active, margins, -jnp.inf)) / jnp.min(margins) - 1.0
