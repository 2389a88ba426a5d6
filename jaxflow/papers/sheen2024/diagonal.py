r"""Diagonal weights, Sheen et al. (2024) §4 and App. A.2–A.5: two parametrisations, starts, multipliers."""

from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key, PyTree

from jaxflow._core import as_array, as_vector, checked, require
from jaxflow.data import TokenData
from jaxflow.models import AbstractAttention, DiagonalAttention, Head, as_head
from jaxflow.models.base import mark_trainable, require_shape

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
def constraint_rows(data: TokenData, selection: Bool[Array, "n T"]) -> Float[Array, "n T d"]:
    r"""$B_{il}=z_i\odot(x_{i\,\mathrm{opt}(i)}-x_{il})$, zero at the selected tokens ($\ell_1$-SVM)."""
    best = jnp.sum(jnp.where(selection[..., None], data.tokens, 0.0), axis=1, keepdims=True)
    rows = (best - data.tokens) * data.queries[:, None, :]
    return jnp.where(selection[..., None], 0.0, rows)


@checked()
def integral_form(
    data: TokenData, selection: Bool[Array, "n T"], omega: Float[Array, " d"], pushes: Float[Array, "n T"]
) -> Float[Array, " d"]:
    r"""$\beta=\omega_0^{\odot2}\odot\sinh(B\phi)$, equation (19), with $\phi=2\int p\,d\tau$.

    An identity between β(t) and an integral along the path, not a closed form.
    """
    B = constraint_rows(data, selection)
    return omega**2 * jnp.sinh(jnp.einsum("ntd,nt->d", B, 2.0 * pushes))


class AveragedResiduals(eqx.Module):
    r"""How far the multipliers $\lambda_{il}(t)=\phi_{il}(t)/\ln\mu(t)$ of the proof (A.5) are from KKT.

    - `stationarity`: (C1), $\max_j\mathrm{dist}((B\lambda)_j,\partial|\hat\beta^\infty_j|)$.
    - `slackness`: (C3), $\max_{il}|\lambda_{il}(1-\hat\beta^\top B_{il})|$.
    - `predicted`: $\max_{j}|\ln(2|\hat\beta_j|/\omega_{0j}^2)|/\ln\mu$ over the support, what
      $(B\lambda)_j=\mathrm{arcsinh}(\beta_j/\omega_{0j}^2)/\ln\mu$ leaves of `stationarity` there as μ → ∞.
    - `log_margin`: ln μ; without a meaning, as all the others, while μ ≤ 1 (then NaN).
    """

    stationarity: Float[Array, ""]
    slackness: Float[Array, ""]
    predicted: Float[Array, ""]
    log_margin: Float[Array, ""]


@checked()
def averaged_residuals(
    data: TokenData,
    selection: Bool[Array, "n T"],
    omega: Float[Array, " d"],
    beta: Float[Array, " d"],
    pushes: Float[Array, "n T"],
    optimum: Float[Array, " d"],
) -> AveragedResiduals:
    r"""Residuals of (C1) and (C3) for the averaged multipliers of A.5, with the support of `optimum`.

    The factor is that of A.5, $\lambda=\frac{2}{\ln\mu}\int p$ with 1/n inside of p. (A.7 recalls λ as
    $\frac2{n\ln\mu}\phi$, which would apply 2/n twice.)
    """
    B = constraint_rows(data, selection)
    margins = jnp.where(selection | ~data.visible, jnp.inf, jnp.einsum("ntd,d->nt", B, beta))
    mu = jnp.min(margins)
    defined = mu > 1.0
    log_mu = jnp.where(defined, jnp.log(jnp.where(defined, mu, 2.0)), jnp.nan)
    weights = jnp.where(selection, 0.0, 2.0 * pushes) / log_mu
    combined = jnp.einsum("ntd,nt->d", B, weights)
    # A certified solution's entries below 1e-7 of the largest are zeros of the program (gap 1e-10).
    support = jnp.abs(optimum) > 1e-7 * jnp.max(jnp.abs(optimum))
    distance = jnp.where(support, jnp.abs(combined - jnp.sign(optimum)), jnp.maximum(jnp.abs(combined) - 1.0, 0.0))
    slack = jnp.where(jnp.isfinite(margins), weights * (1.0 - margins / mu), 0.0)
    scale = jnp.abs(jnp.log(2.0 * jnp.where(support, jnp.abs(beta) / mu, 0.5) / jnp.where(support, omega, 1.0) ** 2))
    return AveragedResiduals(jnp.max(distance), jnp.max(jnp.abs(slack)), jnp.max(scale) / log_mu, log_mu)


@checked()
def behind_face(rows: Float[Array, "n T d"], dual: Float[Array, "n T"], beta: Float[Array, " d"]) -> Float[Array, ""]:
    r"""How far β is from the face of its ℓ1-SVM (A.5): $\max\,\beta^\top B_{il}/\mu-1$ over $\lambda_{il}>0$.

    Zero in the limit. By (19) the integrals $\phi_{il}$ tend to $\lambda_{il}\ln\mu$ plus a constant; where that would
    still be negative the constraint is not active yet, and the instantaneous multipliers certify another face: until
    $\ln\mu$ of order $1/\lambda_{il}$.

    **Arguments:** `rows`: $B_{il}$ (`constraint_rows`, zero at the selected tokens); `dual`: λ, of a certified solution
    of the ℓ1-SVM; `beta`: of the flow, with a positive margin.
    """
    active = dual > ZERO * jnp.max(dual)
    values = jnp.einsum("ntd,d->nt", rows, beta)
    margin = jnp.min(jnp.where(jnp.any(rows != 0.0, axis=-1), values, jnp.inf))
    return jnp.max(jnp.where(active, values, -jnp.inf)) / margin - 1.0
