r"""What every max-margin or minimum-norm program offers to solvers and to `certify`."""

import abc

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Inexact, Int

from jaxflow._core import AbstractPrinted
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


class DenseRows(AbstractRows):
    r"""$A_k$ a real or complex vector, `rows` `(m, d)`; $\langle a,v\rangle=\mathrm{Re}\,a^*v$."""

    rows: Inexact[Array, "m d"]

    def values(self, primal: Inexact[Array, " d"]) -> Float[Array, " m"]:
        return jnp.real(jnp.conj(self.rows) @ primal)

    def combine(self, weights: Float[Array, " m"]) -> Inexact[Array, " d"]:
        return weights @ self.rows

    def gram(self) -> Float[Array, "m m"]:
        return jnp.real(jnp.conj(self.rows) @ self.rows.T)

    def sizes(self) -> Float[Array, " m"]:
        return jnp.linalg.norm(self.rows, axis=1)


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

    @abc.abstractmethod
    def values(self, primal: Inexact[Array, "..."]) -> Float[Array, "..."]:
        r"""$\langle A_k,V\rangle$ in the shape of a dual array; unspecified at empty entries."""

    @abc.abstractmethod
    def adjoint(self, dual: Float[Array, "..."]) -> Inexact[Array, "..."]:
        r"""$\sum_k\lambda_kA_k$ over inequalities and equalities, in the shape of a primal array."""

    @abc.abstractmethod
    def row_sizes(self) -> Float[Array, "..."]:
        r"""$\|A_k\|_F$ in the shape of a dual array."""

    @abc.abstractmethod
    def compact(self) -> Compact:
        """The constraints in the form the solvers use."""

    def margins(self, primal: Inexact[Array, "..."]) -> Float[Array, "..."]:
        r"""$\langle A_k,V\rangle$ at the inequalities, +inf elsewhere."""
        return jnp.where(self.active, self.values(primal), jnp.inf)

    def expand(self, weights: Float[Array, " m"], slots: Int[Array, " m"]) -> Float[Array, "..."]:
        """Multipliers of the compact slots in the shape of a dual array."""
        flat = jnp.zeros(self.active.size, dtype=weights.dtype)
        return flat.at[slots].set(weights).reshape(self.active.shape)
