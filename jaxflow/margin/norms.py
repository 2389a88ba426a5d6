r"""Norms of a max-margin program, each with its dual norm."""

import abc
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Inexact

from jaxflow._core import as_plain, linalg, positive_or_one, require, shown, unknown_name
from jaxflow._core.checks import LARGEST

# Singular values and entries below this share of the largest count as zero. Certified solutions have theirs at 1e-12 or
# below, and genuine ones rarely under 1e-6; solvers at default accuracy fill the space between (NUMERICS).
RANK_TOLERANCE = 1e-8


# N(primal), N*(adjoint) and the stationarity residual of the pair.
Measured = tuple[Float[Array, ""], Float[Array, ""], Float[Array, ""]]


class AbstractNorm(eqx.Module):
    r"""A norm $N$ and its dual $N^*(a)=\max_{N(v)\le1}\langle a,v\rangle$: the $\diamond$-norm of App. D,
    Tarzanagh et al. (2023).

    A norm of your own (a final subclass) can be certified as it is. The built-in solvers are for the norms of this
    file; for your norm, define a method as `solver`, or use `solve_cvxpy`.
    """

    alias: eqx.AbstractClassVar[str]
    # Of singular values, and so of matrices alone.
    of_matrices: ClassVar[bool] = False

    @abc.abstractmethod
    def __call__(self, primal: Inexact[Array, "..."]) -> Float[Array, ""]:
        """N(primal)."""

    @abc.abstractmethod
    def dual(self, adjoint: Inexact[Array, "..."]) -> Float[Array, ""]:
        """N*(adjoint)."""

    def measure(self, primal: Inexact[Array, "..."], adjoint: Inexact[Array, "..."]) -> Measured:
        r"""N(primal), N*(adjoint) and the stationarity residual of the pair.

        The residual is zero where `adjoint` is a multiple of a subgradient of N at `primal`; unless overridden
        $1-\langle v,a\rangle/(N(v)N^*(a))$, zero exactly there (Hölder's equality), and +inf at zero.
        """
        size, dual_size = self(primal), self.dual(adjoint)
        return size, dual_size, _misaligned(primal, adjoint, size, dual_size)

    @abc.abstractmethod
    def expression(self, variable: Any) -> Any:
        """The norm of a CVXPY variable. **Raises:** `NotImplementedError` where it is not convex."""

    def solver(self) -> Callable[[Any], tuple[Any, Any]] | None:
        """How `solve` solves programs of this norm: a function of the program that returns a primal and a dual point
        (in the shapes of `primal_zero` and `active`); None, unless overridden, for the built-in methods. The points
        that it returns are certified from the constraints."""
        return None


def _misaligned(
    primal: Inexact[Array, "..."],
    adjoint: Inexact[Array, "..."],
    size: Float[Array, ""],
    dual_size: Float[Array, ""],
) -> Float[Array, ""]:
    product = size * dual_size
    inner = jnp.sum(jnp.real(jnp.conj(primal) * adjoint))
    return jnp.where(product > 0, 1.0 - inner / positive_or_one(product), jnp.inf)


class Frobenius(AbstractNorm):
    r"""$\sqrt{\sum_j|x_j|^2}$ over all entries: Frobenius for matrices, $\ell_2$ for vectors; its own
    dual.
    """

    alias: ClassVar[str] = "frobenius"

    def __call__(self, primal: Inexact[Array, "..."]) -> Float[Array, ""]:
        return jnp.sqrt(jnp.sum(jnp.abs(primal) ** 2))

    def dual(self, adjoint: Inexact[Array, "..."]) -> Float[Array, ""]:
        return self(adjoint)

    def expression(self, variable: Any) -> Any:
        import cvxpy as cp

        return cp.norm(variable, "fro" if variable.ndim == 2 else 2)


class Nuclear(AbstractNorm):
    r"""Sum of singular values; the dual is the spectral norm.

    **Arguments:** `rank`: the bound m of $\mathrm{rank}(W)\le m$ in (Att-SVM$_\star$), or None for $m\ge d$.
    With a bound the program is not convex unless its convex solution happens to satisfy it.
    """

    rank: int | None = eqx.field(static=True, default=None)
    alias: ClassVar[str] = "nuclear"
    of_matrices: ClassVar[bool] = True

    def __check_init__(self) -> None:
        plain = as_plain(self.rank)
        valid = plain is None or (isinstance(plain, int) and not isinstance(plain, bool) and 1 <= plain <= LARGEST)
        require(valid, "rank", "expected a positive integer or None", got=self.rank)

    def __call__(self, primal: Inexact[Array, "..."]) -> Float[Array, ""]:
        return jnp.sum(linalg.singular_values(primal))

    def dual(self, adjoint: Inexact[Array, "..."]) -> Float[Array, ""]:
        return linalg.singular_values(adjoint)[0]

    def measure(self, primal: Inexact[Array, "..."], adjoint: Inexact[Array, "..."]) -> Measured:
        both = jnp.stack([primal, adjoint])
        if self.rank is None:
            values = linalg.singular_values(both)
            size, dual_size = jnp.sum(values[0]), values[1, 0]
            return size, dual_size, _misaligned(primal, adjoint, size, dual_size)
        left, values, right = linalg.svd(both)
        size, dual_size = jnp.sum(values[0]), values[1, 0]
        # (KQ-SVM) with m columns: M V = U and M^T U = V on the range of W = U diag(s) V^T, M = adjoint·scale.
        r = min(self.rank, values.shape[1])
        kept = values[0, :r] > RANK_TOLERANCE * values[0, 0]
        u, v = left[0, :, :r], right[0, :r].T
        u, v = jnp.where(kept[None, :], u, 0.0), jnp.where(kept[None, :], v, 0.0)
        pull = jnp.sum(u * (adjoint @ v))
        scale = jnp.sum(kept) / positive_or_one(pull)
        defect = jnp.maximum(jnp.max(jnp.abs(scale * adjoint @ v - u)), jnp.max(jnp.abs(scale * adjoint.T @ u - v)))
        return size, dual_size, jnp.where(pull > 0, defect, jnp.inf)

    def expression(self, variable: Any) -> Any:
        import cvxpy as cp

        return cp.normNuc(variable)


class Spectral(AbstractNorm):
    r"""The largest singular value; the dual is the nuclear norm.

    The norm of steepest descent by orthogonalised gradients, as Muon's: Bernstein, Newhouse (2024), *Old Optimizer, New
    Norm*.
    """

    alias: ClassVar[str] = "spectral"
    of_matrices: ClassVar[bool] = True

    def __call__(self, primal: Inexact[Array, "..."]) -> Float[Array, ""]:
        return linalg.singular_values(primal)[0]

    def dual(self, adjoint: Inexact[Array, "..."]) -> Float[Array, ""]:
        return jnp.sum(linalg.singular_values(adjoint))

    def expression(self, variable: Any) -> Any:
        import cvxpy as cp

        return cp.sigma_max(variable)


class L1(AbstractNorm):
    r"""$\sum_j|x_j|$ (moduli where complex); the dual is $\max_j|x_j|$."""

    alias: ClassVar[str] = "l1"

    def __call__(self, primal: Inexact[Array, "..."]) -> Float[Array, ""]:
        return jnp.sum(jnp.abs(primal))

    def dual(self, adjoint: Inexact[Array, "..."]) -> Float[Array, ""]:
        return jnp.max(jnp.abs(adjoint))

    def expression(self, variable: Any) -> Any:
        import cvxpy as cp

        # Of the entries: `norm(variable, 1)` of a matrix is another one.
        return cp.sum(cp.abs(variable))


class Linf(AbstractNorm):
    r"""$\max_j|x_j|$ (moduli where complex); the dual is $\sum_j|x_j|$.

    The norm of steepest descent by signs of gradients.
    """

    alias: ClassVar[str] = "linf"

    def __call__(self, primal: Inexact[Array, "..."]) -> Float[Array, ""]:
        return jnp.max(jnp.abs(primal))

    def dual(self, adjoint: Inexact[Array, "..."]) -> Float[Array, ""]:
        return jnp.sum(jnp.abs(adjoint))

    def expression(self, variable: Any) -> Any:
        import cvxpy as cp

        return cp.max(cp.abs(variable))


def _as_exponent(p: Any) -> Any:
    """One number for 3 and 3.0, which are one exponent."""
    plain = as_plain(p)
    whole = isinstance(plain, int) and not isinstance(plain, bool) and abs(plain) <= LARGEST
    return float(plain) if whole else plain


class Lp(AbstractNorm):
    r"""$\|x\|_p=(\sum_j|x_j|^p)^{1/p}$ of all entries (moduli where complex); with p > 1 its dual is $\|a\|_q$,
    $1/p+1/q=1$.

    p > 1: the norm of mirror flow with the potential $\frac1p\|x\|_p^p$, Sun et al. (2022). p = 2 is `Frobenius()`.

    0 < p < 1, as $p=2/L$ for networks of depth $L>2$: not convex and not a norm, so that programs have several
    stationary points. Yun et al. (2021), Theorem 2. Its polar, $\max_{\|v\|_p\le1}\langle a,v\rangle=\|a\|_\infty$,
    only gives the weak bound of the $\ell_1$ relaxation. For p = 1 and p = ∞ use `L1()` and `Linf()`.

    **Arguments:** `p`: a number of any size but one. The method of `solve` is for p from about 1.1 to about 20.

    **Raises:** `ValueError` for p that is not positive, or one, or infinite.
    """

    p: float = eqx.field(static=True, converter=_as_exponent)
    alias: ClassVar[str] = "lp"

    def __check_init__(self) -> None:
        message = (
            f"expected 0 < p < 1 or 1 < p < inf, got {shown(self.p)}; p = 1 is jf.margin.L1(), p = inf jf.margin.Linf()"
        )
        require(isinstance(self.p, float) and 0 < self.p < float("inf") and self.p != 1, "p", message)

    @property
    def convex(self) -> bool:
        """Whether it is a norm: p > 1."""
        return self.p > 1

    def __call__(self, primal: Inexact[Array, "..."]) -> Float[Array, ""]:
        return _power_sum(primal, self.p)

    def dual(self, adjoint: Inexact[Array, "..."]) -> Float[Array, ""]:
        return _power_sum(adjoint, self.p / (self.p - 1)) if self.convex else jnp.max(jnp.abs(adjoint))

    def measure(self, primal: Inexact[Array, "..."], adjoint: Inexact[Array, "..."]) -> Measured:
        if self.convex:
            return super().measure(primal, adjoint)
        modulus = jnp.abs(primal)
        inside = modulus > RANK_TOLERANCE * jnp.max(modulus)
        safe = jnp.where(inside, modulus, 1.0)
        # ∂‖ρ‖_p asks nothing off the support (Yun et al., appendix D: the local subdifferential).
        wanted = jnp.where(inside, primal / safe * safe ** (self.p - 1), 0.0)
        inner = jnp.sum(jnp.real(jnp.conj(wanted) * adjoint))
        scale = jnp.sum(jnp.abs(wanted) ** 2) / positive_or_one(inner)
        defect = jnp.abs(scale * adjoint - wanted) / jnp.where(inside, jnp.abs(wanted), 1.0)
        residual = jnp.max(jnp.where(inside, defect, 0.0))
        return self(primal), self.dual(adjoint), jnp.where(inner > 0, residual, jnp.inf)

    def expression(self, variable: Any) -> Any:
        if not self.convex:
            raise NotImplementedError(f"norm: l_p with p = {self.p} < 1 is not convex; CVXPY cannot state it")
        import cvxpy as cp

        # Of the entries: `pnorm` of a matrix is that of its rows.
        # Its annotation leaves out what it takes: any number.
        exponent: Any = self.p
        moduli = cp.abs(variable) if variable.is_complex() else variable
        return cp.pnorm(cp.vec(moduli, order="C"), exponent, approx=False)


class Schatten(AbstractNorm):
    r"""$\|W\|_p=(\sum_i\sigma_i(W)^p)^{1/p}$ of the singular values of a matrix, p > 1; the dual is that of q,
    $1/p+1/q=1$.

    The norm of mirror flow with the potential $\frac1p\sum_i\sigma_i(W)^p$: Sun, Gatmiry, Ahn, Azizan (2023), *A
    Unified Approach to Controlling Implicit Regularization via Mirror Descent*, of homogeneous potentials. p = 2 is
    `Frobenius()`; for p = 1 and p = ∞ use `Nuclear()` and `Spectral()`.

    **Arguments:** `p`: a number above one. The method of `solve` is for p from about 1.1 to about 20.

    **Raises:** `ValueError` for p that is not above one, or infinite.
    """

    p: float = eqx.field(static=True, converter=_as_exponent)
    alias: ClassVar[str] = "schatten"
    of_matrices: ClassVar[bool] = True

    def __check_init__(self) -> None:
        message = (
            f"expected 1 < p < inf, got {shown(self.p)}; p = 1 is jf.margin.Nuclear(), p = inf jf.margin.Spectral()"
        )
        require(isinstance(self.p, float) and 1 < self.p < float("inf"), "p", message)

    def __call__(self, primal: Inexact[Array, "..."]) -> Float[Array, ""]:
        return _power_sum(linalg.singular_values(primal), self.p)

    def dual(self, adjoint: Inexact[Array, "..."]) -> Float[Array, ""]:
        return _power_sum(linalg.singular_values(adjoint), self.p / (self.p - 1))

    def expression(self, variable: Any) -> Any:
        raise NotImplementedError(f"norm: CVXPY has no Schatten norm, here with p = {self.p}; use jf.margin.solve")


def _power_sum(x: Inexact[Array, "..."], p: float) -> Float[Array, ""]:
    """The ℓp norm of all entries, in units of the largest."""
    size = jnp.max(jnp.abs(x))
    return size * jnp.sum((jnp.abs(x) / positive_or_one(size)) ** p) ** (1 / p)


_ALIASES: dict[str, Callable[[], AbstractNorm]] = {
    "frobenius": Frobenius,
    "l2": Frobenius,
    "nuclear": Nuclear,
    "spectral": Spectral,
    "l1": L1,
    "linf": Linf,
}


def as_norm(norm: Any, argument: str = "norm") -> AbstractNorm:
    """A norm object from an object or a name: "frobenius", "l2", "nuclear", "spectral", "l1", "linf".

    **Raises:** `ValueError` naming the `argument`, with the nearest known name.
    """
    if isinstance(norm, AbstractNorm):
        return norm
    if isinstance(norm, str) and norm.lower() in _ALIASES:
        return _ALIASES[norm.lower()]()
    raise unknown_name(argument, norm, _ALIASES)
