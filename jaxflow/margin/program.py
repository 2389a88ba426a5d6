r"""What every max-margin or minimum-norm program offers to solvers and to `certify`."""

import abc
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Inexact, Int

from jaxflow._core import AbstractPrinted, all_finite, linalg
from jaxflow.margin.norms import AbstractNorm


class AbstractRows(eqx.Module):
    """m constraint elements $A_k$ in a form that a solver can use."""

    @abc.abstractmethod
    def values(self, primal: Inexact[Array, "..."]) -> Float[Array, " m"]:
        r"""$\langle A_k, V\rangle$."""

    @abc.abstractmethod
    def combine(self, weights: Float[Array, " m"]) -> Inexact[Array, "..."]:
        r"""$\sum_k\lambda_kA_k$."""

    @abc.abstractmethod
    def gram(self) -> Float[Array, "m m"]:
        r"""$\langle A_k, A_l\rangle$."""

    @abc.abstractmethod
    def sizes(self) -> Float[Array, " m"]:
        r"""$\|A_k\|_F$."""

    @abc.abstractmethod
    def kept(self, slots: Int[Array, " s"] | slice, finite: Bool[Array, ""]) -> "AbstractRows":
        """Those at `slots`, of every run equally many; zeros unless `finite`."""


class RankOneRows(AbstractRows):
    r"""$A_k = f_k g_{i(k)}^\top$: `left` `(m, p)` with rows $f_k$ in equal runs for each row $g_i$ of
    `right`."""

    left: Float[Array, "m p"]
    right: Float[Array, "outputs q"]

    def repeat(self, right: Float[Array, "outputs c"]) -> Float[Array, "m c"]:
        """Rows of queries as rows of constraints."""
        run = self.left.shape[0] // self.right.shape[0]
        return jnp.broadcast_to(right[:, None], (right.shape[0], run, right.shape[1])).reshape(-1, right.shape[1])

    def values(self, primal: Float[Array, "p q"]) -> Float[Array, " m"]:
        return jnp.sum(self.left * self.repeat(self.right @ primal.T), axis=1)

    def combine(self, weights: Float[Array, " m"]) -> Float[Array, "p q"]:
        return self.left.T @ (weights[:, None] * self.repeat(self.right))

    def gram(self) -> Float[Array, "m m"]:
        right = self.repeat(self.right)
        return (self.left @ self.left.T) * (right @ right.T)

    def sizes(self) -> Float[Array, " m"]:
        return jnp.linalg.norm(self.left, axis=1) * self.repeat(jnp.linalg.norm(self.right, axis=1)[:, None])[:, 0]

    def kept(self, slots: Int[Array, " s"] | slice, finite: Bool[Array, ""]) -> "RankOneRows":
        return RankOneRows(jnp.where(finite, self.left[slots], 0.0), jnp.where(finite, self.right, 0.0))


class DenseRows(AbstractRows):
    r"""$A_k$ a real or complex vector, `rows` `(m, d)`; $\langle a,v\rangle=\mathrm{Re}\,a^*v$."""

    rows: Inexact[Array, "m d"]

    def values(self, primal: Inexact[Array, "..."]) -> Float[Array, " m"]:
        return jnp.real(jnp.conj(self.rows) @ primal.reshape(-1))

    def combine(self, weights: Float[Array, " m"]) -> Inexact[Array, " d"]:
        return weights @ self.rows

    def gram(self) -> Float[Array, "m m"]:
        return jnp.real(jnp.conj(self.rows) @ self.rows.T)

    def sizes(self) -> Float[Array, " m"]:
        return jnp.linalg.norm(self.rows, axis=1)

    def kept(self, slots: Int[Array, " s"] | slice, finite: Bool[Array, ""]) -> "DenseRows":
        return DenseRows(jnp.where(finite, self.rows[slots], 0.0))


class Compact(eqx.Module):
    """The constraints in as few slots as shapes allow, with what each slot is.

    Where the data are not finite every slot is empty and every row zero, so that no solver meets a NaN.
    """

    rows: AbstractRows
    inequality: Bool[Array, " m"]
    equality: Bool[Array, " m"]
    targets: Float[Array, " m"]
    slots: Int[Array, " m"]
    finite: Bool[Array, ""]

    def least_norm(self) -> tuple[Float[Array, " m"], Bool[Array, ""]]:
        r"""The weights $\nu=G^+b$ of the interpolation $\rho=\sum\nu_kA_k$ of least Frobenius norm, and True; or, where
        there is no interpolation, the ray that proves it.

        G is the Gram matrix of the equalities, its pseudo-inverse that of one eigendecomposition, refined.

        A component of b in the null space of G, larger than half the digits of b, is a combination of equalities
        that cancels on the left and not on the right (Fredholm's alternative).
        """
        equality = self.equality
        both = equality[:, None] & equality[None, :]
        gram = jnp.where(both, self.rows.gram(), 0.0)
        targets = jnp.where(equality, self.targets, 0.0)
        values, vectors = linalg.eigh(gram)
        eps = float(jnp.finfo(gram.dtype).eps)
        null = values <= gram.shape[0] * eps * jnp.maximum(values[-1], 0.0)
        inverse = jnp.where(null, 0.0, 1.0 / jnp.where(null, 1.0, values))

        def pseudo(right: Array) -> Array:
            return vectors @ (inverse * (vectors.T @ right))

        weights = pseudo(targets)
        for _ in range(2):
            seen = self.rows.values(self.rows.combine(weights))
            weights = weights + pseudo(jnp.where(equality, targets - seen, 0.0))
        unseen = jnp.where(equality, vectors @ jnp.where(null, vectors.T @ targets, 0.0), 0.0)
        consistent = jnp.linalg.norm(unseen) <= eps**0.5 * jnp.linalg.norm(targets)
        return jnp.where(consistent, weights, unseen), consistent


class AbstractProgram(AbstractPrinted):
    r"""$\min N(V)$ subject to $\langle A_k,V\rangle\ge1$ and $\langle A_j,V\rangle=b_j$.

    `active` marks the inequalities and `equal` the equalities among the entries of a dual array.
    """

    norm: eqx.AbstractVar[AbstractNorm]
    # Whether all right-hand sides of equalities are zero, so that a direction can be scaled to feasibility.
    conic: eqx.AbstractClassVar[bool]

    @property
    @abc.abstractmethod
    def active(self) -> Bool[Array, "..."]:
        """The entries of a dual array that are inequalities."""

    @property
    @abc.abstractmethod
    def equal(self) -> Bool[Array, "..."]:
        """The entries of a dual array that are equalities."""

    @property
    @abc.abstractmethod
    def targets(self) -> Float[Array, "..."]:
        """Right-hand sides in the shape of a dual array, zero at empty entries."""

    @property
    @abc.abstractmethod
    def primal_zero(self) -> Inexact[Array, "..."]:
        """Zeros in the shape and dtype of a primal array."""

    @property
    @abc.abstractmethod
    def elements(self) -> AbstractRows:
        """The $A_k$ of all entries of a dual array, flat; unspecified at empty ones."""

    @property
    def slots(self) -> Int[Array, " m"] | slice:
        """The flat entries of a dual array that may be constraints, of every run of `elements` equally many; all of
        them unless overridden."""
        return slice(None)

    @property
    def data(self) -> Any:
        """The arrays that must be finite: the elements, unless overridden."""
        return self.elements

    def values(self, primal: Inexact[Array, "..."]) -> Float[Array, "..."]:
        r"""$\langle A_k,V\rangle$ in the shape of a dual array; unspecified at empty entries."""
        return self.elements.values(primal).reshape(self.active.shape)

    def adjoint(self, dual: Float[Array, "..."]) -> Inexact[Array, "..."]:
        r"""$\sum_k\lambda_kA_k$ over inequalities and equalities, in the shape of a primal array."""
        return self.elements.combine(dual.reshape(-1)).reshape(self.primal_zero.shape)

    def row_sizes(self) -> Float[Array, "..."]:
        r"""$\|A_k\|_F$ in the shape of a dual array."""
        return self.elements.sizes().reshape(self.active.shape)

    def compact(self) -> Compact:
        """The constraints in the form the solvers use."""
        elements, slots, targets = self.elements, self.slots, self.targets.reshape(-1)
        finite = all_finite((self.data, targets))
        return Compact(
            rows=elements.kept(slots, finite),
            inequality=self.active.reshape(-1)[slots] & finite,
            equality=self.equal.reshape(-1)[slots] & finite,
            targets=jnp.where(finite, targets[slots], 0.0),
            slots=jnp.arange(targets.size) if isinstance(slots, slice) else slots,
            finite=finite,
        )

    def margins(self, primal: Inexact[Array, "..."]) -> Float[Array, "..."]:
        r"""$\langle A_k,V\rangle$ at the inequalities, +inf elsewhere."""
        return jnp.where(self.active, self.values(primal), jnp.inf)

    def expand(self, weights: Float[Array, " m"], slots: Int[Array, " m"]) -> Float[Array, "..."]:
        """Multipliers of the compact slots in the shape of a dual array."""
        flat = jnp.zeros(self.active.size, dtype=weights.dtype)
        return flat.at[slots].set(weights).reshape(self.active.shape)
