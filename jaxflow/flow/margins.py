r"""Margins of a model as functions of its coordinates, with the linear algebra that their shape allows (floor 6).

A model whose margins are $q_k(x)=c_k+\langle A_k,x\rangle$, or $q_k(x)=\tfrac12x^\top H_kx$, is pushed by multipliers π
along $S(\pi)x=\sum_k\pi_k\nabla q_k(x)$, which is linear in π, and in x where the margins are quadratic. Given the
multipliers, a stage of an implicit method is then one linear system with

$$B=(1+\kappa)I-\kappa S(\pi),$$

and what its solution does to the margins is the matrix $C_{jk}=\langle\nabla q_j,B^{-1}\nabla q_k\rangle$. Each class
below solves and multiplies in the structure of its own models; `QuadraticMargins` take any. A state may be any pytree
whose leaves are those that the class names, a model's trainable part say.
"""

import abc
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, PyTree

from jaxflow._core import linalg


def nonzero(x: Array) -> Array:
    """x, and one where it is zero: for quotients that are not used there."""
    return jnp.where(x == 0, 1.0, x)


class AbstractMargins(eqx.Module):
    """Margins of one instance. `degree`: 1 where they are affine in the state, 2 where they are quadratic forms."""

    degree: eqx.AbstractClassVar[int]

    @abc.abstractmethod
    def __call__(self, x: PyTree) -> Float[Array, " N"]:
        """$q(x)$."""

    def pull(self, multipliers: Float[Array, " N"], x: PyTree) -> PyTree:
        r"""$\sum_k\pi_k\nabla q_k(x)$: of quadratic forms $S(\pi)x$."""
        return self.curved(multipliers, x)

    @abc.abstractmethod
    def slopes(self, x: PyTree, direction: PyTree) -> Float[Array, " N"]:
        r"""$\langle\nabla q_k(x),v\rangle$."""

    @abc.abstractmethod
    def curved(self, multipliers: Float[Array, " N"], direction: PyTree) -> PyTree:
        r"""$S(\pi)v$; zeros where the margins are affine."""

    @abc.abstractmethod
    def factored(self, multipliers: Float[Array, " N"], kappa: Float[Array, ""]) -> Any:
        """The numbers by which the methods below know B at one set of multipliers."""

    @abc.abstractmethod
    def solve(self, factors: Any, right: PyTree) -> PyTree:
        """$B^{-1}b$."""

    @abc.abstractmethod
    def gram(self, factors: Any, x: PyTree) -> Float[Array, "N N"]:
        r"""$C_{jk}=\langle\nabla q_j(x),B^{-1}\nabla q_k(x)\rangle$."""

    @abc.abstractmethod
    def regular(self, factors: Any) -> Bool[Array, ""]:
        r"""Whether B is positive definite, $\kappa\sigma_1(S)<1+\kappa$.

        Where it is not, the flow has a direction that grows faster than the step is long: an implicit step over that
        would come out on the wrong side of a saddle.
        """

    def bounded(self, multipliers: Float[Array, " N"], kappa: Float[Array, ""]) -> Bool[Array, ""]:
        r"""Whether B is positive definite, $\sigma_1(S)<1+1/\kappa$."""
        return self.regular(self.factored(multipliers, kappa))


class AffineMargins(AbstractMargins):
    r"""$q=c+Ax$ of a state of one vector: attention trained through W, in score coordinates, or through a prompt.

    `blocks`: A has this many diagonal blocks of one size, each with a program of its own (layers in parallel).
    """

    offset: Float[Array, " N"]
    rows: Float[Array, "N r"]
    blocks: int = eqx.field(static=True, default=1)
    degree: ClassVar[int] = 1

    def __call__(self, x: PyTree) -> Float[Array, " N"]:
        return self.offset + self.slopes(x, x)

    def pull(self, multipliers: Float[Array, " N"], x: PyTree) -> PyTree:
        return _like(x, multipliers @ self.rows)

    def slopes(self, x: PyTree, direction: PyTree) -> Float[Array, " N"]:
        (vector,) = jax.tree.leaves(direction)
        return self.rows @ vector

    def curved(self, multipliers: Float[Array, " N"], direction: PyTree) -> PyTree:
        return jax.tree.map(jnp.zeros_like, direction)

    def factored(self, multipliers: Float[Array, " N"], kappa: Float[Array, ""]) -> Float[Array, ""]:
        return 1.0 + kappa

    def solve(self, factors: Float[Array, ""], right: PyTree) -> PyTree:
        return jax.tree.map(lambda x: x / factors, right)

    def gram(self, factors: Float[Array, ""], x: PyTree) -> Float[Array, "N N"]:
        return self.rows @ self.rows.T / factors

    def regular(self, factors: Float[Array, ""]) -> Bool[Array, ""]:
        return jnp.asarray(True)


class BilinearMargins(AbstractMargins):
    r"""$q_k=f_k^\top KQ^\top z_{o(k)}$ with leaves K, Q: factored attention, two-layer fully connected networks.

    `left` `(N, p)` has the rows $f_k$ in equal runs for each row of `right` `(o, q)`. For q = 1 Q may be a vector.

    With $S=\begin{pmatrix}0&G\\G^\top&0\end{pmatrix}\otimes I$, $\alpha=1+\kappa$, $H=(\kappa/\alpha)G$ and
    $E=(I-H^\top H)^{-1}$, one Cholesky factor as large as the queries' span:
    $\alpha B^{-1}=\begin{pmatrix}I+HEH^\top&HE\\EH^\top&E\end{pmatrix}$.
    """

    left: Float[Array, "N p"]
    right: Float[Array, "o q"]
    degree: ClassVar[int] = 2

    def spread(self, rows: Float[Array, "o c"]) -> Float[Array, "N c"]:
        """Rows of queries as rows of margins."""
        N = self.left.shape[0]
        return jnp.repeat(rows, N // self.right.shape[0], axis=0, total_repeat_length=N)

    def factors(self, x: PyTree) -> tuple[Float[Array, "p c"], Float[Array, "q c"]]:
        """K and Q as matrices."""
        K, Q = jax.tree.leaves(x)
        return K, Q.reshape(self.right.shape[1], -1)

    def partners(self, x: PyTree) -> tuple[Float[Array, "N c"], Float[Array, "N c"]]:
        r"""$Q^\top z_{o(k)}$ and $K^\top f_k$, with which $f_k$ and $z_{o(k)}$ make up $\nabla q_k$."""
        K, Q = self.factors(x)
        return self.spread(self.right @ Q), self.left @ K

    def __call__(self, x: PyTree) -> Float[Array, " N"]:
        keyed, asked = self.partners(x)
        return jnp.sum(keyed * asked, axis=1)

    def matrix(self, multipliers: Float[Array, " N"]) -> Float[Array, "p q"]:
        r"""$G=\sum_k\pi_kf_kz_{o(k)}^\top$."""
        return self.left.T @ (multipliers[:, None] * self.spread(self.right))

    def slopes(self, x: PyTree, direction: PyTree) -> Float[Array, " N"]:
        keyed, asked = self.partners(x)
        moved, carried = self.partners(direction)
        return jnp.sum(keyed * carried + moved * asked, axis=1)

    def curved(self, multipliers: Float[Array, " N"], direction: PyTree) -> PyTree:
        G = self.matrix(multipliers)
        K, Q = self.factors(direction)
        return _like(direction, G @ Q, G.T @ K)

    def factored(self, multipliers: Float[Array, " N"], kappa: Float[Array, ""]) -> tuple[Array, Array, Array]:
        alpha = 1.0 + kappa
        scaled = (kappa / alpha) * self.matrix(multipliers)
        identity = jnp.eye(scaled.shape[1])
        factor = linalg.cholesky(identity - scaled.T @ scaled)
        return scaled, linalg.lower_solve(factor, identity), alpha

    def solve(self, factors: tuple[Array, Array, Array], right: PyTree) -> PyTree:
        (K, Q), (scaled, lower, alpha) = self.factors(right), factors
        inner = lower.T @ (lower @ (Q + scaled.T @ K))
        return _like(right, (K + scaled @ inner) / alpha, inner / alpha)

    def gram(self, factors: tuple[Array, Array, Array], x: PyTree) -> Float[Array, "N N"]:
        # alpha C = (F F^T) o (a a^T) + R R^T with a = Q^T z, R = near (x) keyed + own (x) asked: products of products.
        F, Z, (scaled, lower, alpha) = self.left, self.spread(self.right), factors
        N, (keyed, asked) = len(F), self.partners(x)
        near, own = F @ scaled @ lower.T, Z @ lower.T
        one, other = (rows @ rows.T for rows in (jnp.concatenate([near, own]), jnp.concatenate([keyed, asked])))
        square = (F @ F.T + one[:N, :N]) * other[:N, :N] + one[N:, N:] * other[N:, N:]
        cross = one[:N, N:] * other[:N, N:]
        return (square + cross + cross.T) / alpha

    def regular(self, factors: tuple[Array, Array, Array]) -> Bool[Array, ""]:
        # A Cholesky factor that does not exist is NaN.
        return jnp.all(jnp.isfinite(factors[1]))

    def bounded(self, multipliers: Float[Array, " N"], kappa: Float[Array, ""]) -> Bool[Array, ""]:
        scaled = (kappa / (1.0 + kappa)) * self.matrix(multipliers)
        return linalg.definite(jnp.eye(scaled.shape[1]) - scaled.T @ scaled)


class PairMargins(AbstractMargins):
    r"""$q=\tfrac12A(u\odot u-v\odot v)$ with two vectors u, v as leaves: diagonal attention and two-layer diagonal
    networks, of $a\odot b$ with $u=(a+b)/\sqrt2$ and $v=(a-b)/\sqrt2$. B is diagonal."""

    rows: Float[Array, "N d"]
    degree: ClassVar[int] = 2

    def __call__(self, x: PyTree) -> Float[Array, " N"]:
        u, v = jax.tree.leaves(x)
        # Without cancellation.
        return self.rows @ (0.5 * (u - v) * (u + v))

    def turned(self, x: PyTree) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
        """The gradient of the products by the two leaves."""
        u, v = jax.tree.leaves(x)
        return u, -v

    def slopes(self, x: PyTree, direction: PyTree) -> Float[Array, " N"]:
        (a, b), (c, d) = self.turned(x), jax.tree.leaves(direction)
        return self.rows @ (a * c + b * d)

    def curved(self, multipliers: Float[Array, " N"], direction: PyTree) -> PyTree:
        g, (a, b) = multipliers @ self.rows, self.turned(direction)
        return _like(direction, g * a, g * b)

    def factored(self, multipliers: Float[Array, " N"], kappa: Float[Array, ""]) -> tuple[Array, Array]:
        push = kappa * (multipliers @ self.rows)
        # A block that is not regular has a negative inverse; a zero block is given one.
        plus, minus = (jnp.where(x == 0, -1.0, 1.0 / nonzero(x)) for x in (1.0 + kappa - push, 1.0 + kappa + push))
        return plus, minus

    def solve(self, factors: tuple[Array, Array], right: PyTree) -> PyTree:
        (u, v), (plus, minus) = jax.tree.leaves(right), factors
        return _like(right, plus * u, minus * v)

    def gram(self, factors: tuple[Array, Array], x: PyTree) -> Float[Array, "N N"]:
        # The gradient of a margin is a row times the turned state, and turning commutes with the inverse.
        a, b = (x * y for x, y in zip(jax.tree.leaves(x), jax.tree.leaves(self.solve(factors, x)), strict=True))
        return (self.rows * (a + b)[None, :]) @ self.rows.T

    def regular(self, factors: tuple[Array, Array]) -> Bool[Array, ""]:
        return jnp.all(factors[0] > 0) & jnp.all(factors[1] > 0)


class QuadraticMargins(AbstractMargins):
    r"""$q_k=\tfrac12x^\top H_kx$, x the state as one vector: any model of degree two, for its size cubed. $B^{-1}$ is
    made of a Cholesky factor of all of B."""

    hessians: Float[Array, "N D D"]
    degree: ClassVar[int] = 2

    def __call__(self, x: PyTree) -> Float[Array, " N"]:
        return 0.5 * self.slopes(x, x)

    def slopes(self, x: PyTree, direction: PyTree) -> Float[Array, " N"]:
        return (self.hessians @ ravel_pytree(x)[0]) @ ravel_pytree(direction)[0]

    def curved(self, multipliers: Float[Array, " N"], direction: PyTree) -> PyTree:
        flat, unravel = ravel_pytree(direction)
        return unravel(jnp.tensordot(multipliers, self.hessians, axes=1) @ flat)

    def factored(self, multipliers: Float[Array, " N"], kappa: Float[Array, ""]) -> Float[Array, "D D"]:
        S = jnp.tensordot(multipliers, self.hessians, axes=1)
        identity = jnp.eye(S.shape[0])
        factor = linalg.cholesky(identity - (kappa / (1.0 + kappa)) * S)
        lower = linalg.lower_solve(factor, identity)
        return lower.T @ lower / (1.0 + kappa)

    def solve(self, factors: Float[Array, "D D"], right: PyTree) -> PyTree:
        flat, unravel = ravel_pytree(right)
        return unravel(factors @ flat)

    def gram(self, factors: Float[Array, "D D"], x: PyTree) -> Float[Array, "N N"]:
        rows = self.hessians @ ravel_pytree(x)[0]
        return rows @ factors @ rows.T

    def regular(self, factors: Float[Array, "D D"]) -> Bool[Array, ""]:
        return jnp.all(jnp.isfinite(factors))


def _like(x: PyTree, *leaves: Array) -> PyTree:
    """A state with the structure and shapes of x."""
    old, structure = jax.tree.flatten(x)
    return jax.tree.unflatten(structure, [new.reshape(leaf.shape) for new, leaf in zip(leaves, old, strict=True)])


class AbstractConstraints(eqx.Module):
    """Margins together with what the loss makes of them: the logarithms of the multipliers and their signs."""

    margins: eqx.AbstractVar[AbstractMargins]
    signs: eqx.AbstractVar[Float[Array, " N"]]

    @property
    @abc.abstractmethod
    def present(self) -> Bool[Array, " N"]:
        """The margins that are constraints of the limit, whatever their multipliers do."""

    @property
    def keeps(self) -> Bool[Array, " N"]:
        """The margins that are positive for as long as these constraints are the right ones: else, of attention,
        another token would have it."""
        return self.present

    @abc.abstractmethod
    def log_multipliers(self, q: Float[Array, " N"]) -> Float[Array, " N"]:
        r"""$\log|\partial L/\partial q_k|$; anything where `signs` is zero."""

    @abc.abstractmethod
    def as_multipliers(self, weights: Float[Array, " N"]) -> Float[Array, "..."]:
        r"""$-\partial L/\partial q_k$ as the multipliers of the risk, in the shape of its outputs or logits."""


def without(index: Any, array: Array) -> Array:
    """`(o, T, ...)` less the entry `index` `(o,)` of each row: `(o, T - 1, ...)`."""
    before = jnp.arange(array.shape[1] - 1)[None, :] < index[:, None]
    return jnp.where(before.reshape(before.shape + (1,) * (array.ndim - 2)), array[:, :-1], array[:, 1:])


def entry(index: Any, array: Array) -> Array:
    """The entry `index` `(o,)` of each row of `array` `(o, T, ...)`: `(o, 1, ...)`."""
    # A gather takes XLA many times longer to compile, with its checks of bounds.
    here = jnp.arange(array.shape[1])[None, :] == index[:, None]
    here = here.reshape(here.shape + (1,) * (array.ndim - 2))
    return jnp.sum(jnp.where(here, array, 0.0), axis=1, keepdims=True)


def against_others(index: Any, array: Array) -> Array:
    """The entry `index` `(o,)` of each row less each of the others: `(o, T - 1, ...)`."""
    return entry(index, array) - without(index, array)
