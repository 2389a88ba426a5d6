r"""The potentials $\frac1r\|v\|_r^r$, r > 1, of entries and of singular values (Schatten).

The gradient of the second one is $U\mathrm{diag}(\sigma^{r-1})V^\top$ for $v=U\mathrm{diag}(\sigma)V^\top$. Its change
with v is that of a function of a symmetric matrix, the dilation of v with eigenvalues $\pm\sigma_i$: divided
differences of $g(\sigma)=\mathrm{sign}(\sigma)|\sigma|^{r-1}$ (Daleckii and Krein 1965), with limits where singular
values are equal. A decomposition is never differentiated.
"""

import abc
import dataclasses
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from jaxflow._core import check_real, linalg, positive_or_one, require
from jaxflow.margin.norms import Lp, Schatten


class AbstractPotential(eqx.Module):
    """A potential, homogeneous of degree `exponent` r, of real points, flat or of a shape."""

    exponent: eqx.AbstractVar[float]

    @property
    def conjugate(self) -> "AbstractPotential":
        """The potential whose gradient is the inverse map."""
        return dataclasses.replace(self, exponent=self.exponent / (self.exponent - 1.0))

    @abc.abstractmethod
    def power(self, point: Float[Array, " v"]) -> Float[Array, ""]:
        """r times the potential."""

    @abc.abstractmethod
    def map(self, point: Float[Array, "..."]) -> Float[Array, "..."]:
        """The gradient."""

    @abc.abstractmethod
    def bent(self, point: Float[Array, " v"], changes: Float[Array, "v c"]) -> Float[Array, "v c"]:
        """How the gradient changes with the point, for several changes of it."""

    def turned(self, point: Float[Array, "..."], change: Float[Array, "..."]) -> Float[Array, "..."]:
        """How the gradient changes with the point; finite everywhere, where `bent` is not."""
        return jax.jvp(self.map, (point,), (change,))[1]

    @abc.abstractmethod
    def beyond(
        self, base: Float[Array, " v"], image: Float[Array, " v"], share: Float[Array, " v"]
    ) -> Float[Array, " v"]:
        """The gradient at `base` + `share`, less that at `base`, which is `image`."""


class EntryPotential(AbstractPotential):
    """Of the moduli of entries, each of which has so many real `parts`: two where it is complex."""

    exponent: float = eqx.field(static=True)
    parts: int = eqx.field(static=True, default=1)

    def power(self, point: Float[Array, " v"]) -> Float[Array, ""]:
        return jnp.sum(jnp.abs(point) ** self.exponent)

    def map(self, point: Float[Array, "..."]) -> Float[Array, "..."]:
        return power_map(point, self.exponent, self.parts)

    def bent(self, point: Float[Array, " v"], changes: Float[Array, "v c"]) -> Float[Array, "v c"]:
        size = moduli(point, self.parts)
        unit = (point / positive_or_one(size))[:, None]
        along = jnp.sum((unit * changes).reshape(self.parts, -1, changes.shape[1]), axis=0)
        return (size ** (self.exponent - 2))[:, None] * (
            changes + (self.exponent - 2) * unit * jnp.tile(along, (self.parts, 1))
        )

    def beyond(
        self, base: Float[Array, " v"], image: Float[Array, " v"], share: Float[Array, " v"]
    ) -> Float[Array, " v"]:
        """Without the roundings of the image."""
        ratio = share / positive_or_one(jnp.abs(base)) * jnp.sign(base)
        # Half of the base: beyond, the difference loses no digit.
        near = (base != 0) & (jnp.abs(ratio) <= 0.5)
        small = image * jnp.expm1((self.exponent - 1.0) * jnp.log1p(jnp.where(near, ratio, 0.0)))
        return jnp.where(near, small, power_map(base + share, self.exponent) - image)


class SpectralPotential(AbstractPotential):
    """Of the singular values of a matrix of a `shape`."""

    exponent: float = eqx.field(static=True)
    shape: tuple[int, int] = eqx.field(static=True)

    def power(self, point: Float[Array, " v"]) -> Float[Array, ""]:
        return jnp.sum(linalg.singular_values(point.reshape(self.shape)) ** self.exponent)

    def map(self, point: Float[Array, "..."]) -> Float[Array, "..."]:
        return spectral_map(point.reshape(self.shape), self.exponent).reshape(point.shape)

    def bent(self, point: Float[Array, " v"], changes: Float[Array, "v c"]) -> Float[Array, "v c"]:
        factors = _factors(point.reshape(self.shape))
        moved = jax.vmap(lambda change: _changed(factors, self.exponent, change.reshape(self.shape)), 1, 2)(changes)
        return moved.reshape(changes.shape)

    def beyond(
        self, base: Float[Array, " v"], image: Float[Array, " v"], share: Float[Array, " v"]
    ) -> Float[Array, " v"]:
        """With the roundings of the image."""
        return self.map(base + share) - image


def potential_of(norm: Lp | Schatten, shape: tuple[int, ...], parts: int = 1) -> AbstractPotential:
    r"""$\frac1p\|v\|^p$ of a norm of points of a shape, whose entries have so many real `parts`."""
    if isinstance(norm, Lp):
        return EntryPotential(norm.p, parts)
    rows, columns = shape
    return SpectralPotential(norm.p, (rows, columns))


def check_potential(name: str, p: float | Schatten) -> None:
    """A number above one, or a Schatten norm."""
    if not isinstance(p, Schatten):
        check_real(name, p, positive=True)
        require(p > 1, name, "expected a number above one", got=p)


def check_parameters(name: str, p: Any, trained: PyTree) -> None:
    """A potential of singular values is one of a single matrix."""
    shapes = [x.shape for x in jax.tree.leaves(trained)]
    one = len(shapes) == 1 and len(shapes[0]) == 2
    message = f"a Schatten potential is for models whose trained parameters are one matrix, got shapes {shapes}"
    require(one or not isinstance(p, Schatten), name, message)


def moduli(point: Float[Array, "..."], parts: int = 1) -> Float[Array, "..."]:
    """The modulus of its entry, for each of the real `parts` of a point."""
    return jnp.tile(jnp.linalg.norm(point.reshape(parts, -1), axis=0), parts) if parts > 1 else jnp.abs(point)


def power_map(point: Float[Array, "..."], exponent: float, parts: int = 1) -> Float[Array, "..."]:
    r"""$|v_j|^{r-2}v_j$, the gradient of $\frac1r\|v\|_r^r$."""
    size = moduli(point, parts)
    return positive_or_one(size) ** (exponent - 2) * point


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def spectral_map(matrix: Float[Array, "m n"], exponent: float) -> Float[Array, "m n"]:
    r"""$U\mathrm{diag}(\sigma^{r-1})V^\top$; NaN where the matrix is not finite."""
    return _mapped(matrix, _factors(matrix), exponent)


@spectral_map.defjvp
def _spectral_map_jvp(exponent: float, primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    factors = _factors(primals[0])
    return _mapped(primals[0], factors, exponent), _changed(factors, exponent, tangents[0], finite=True)


def _factors(matrix: Float[Array, "m n"]) -> tuple[Array, Array, Array]:
    """The decomposition, in which singular values that are roundings are zero: a power less than one makes them
    large."""
    # LAPACK may hang on NaN.
    u, s, vt = linalg.svd(jnp.where(jnp.all(jnp.isfinite(matrix)), matrix, 0.0))
    return u, jnp.where(s > max(matrix.shape) * jnp.finfo(s.dtype).eps * s[0], s, 0.0), vt


def _mapped(matrix: Array, factors: tuple[Array, Array, Array], exponent: float) -> Float[Array, "m n"]:
    u, s, vt = factors
    return jnp.where(jnp.all(jnp.isfinite(matrix)), (u * s[None, :] ** (exponent - 1.0)) @ vt, jnp.nan)


def _changed(
    factors: tuple[Array, Array, Array], exponent: float, change: Float[Array, "m n"], finite: bool = False
) -> Float[Array, "m n"]:
    r"""How the map changes, by divided differences of $g(\sigma)=\sigma^{r-1}$ at $\pm\sigma_i$; `finite`: at zero
    those at one, as of `power_map`, where they would be infinite (r < 2) or of a singular matrix (r > 2)."""
    u, s, vt = factors
    power = exponent - 1.0
    larger = jnp.maximum(s[:, None], s[None, :])
    share = jnp.minimum(s[:, None], s[None, :]) / positive_or_one(larger)
    growth = (positive_or_one(larger) if finite else larger) ** (power - 1.0)
    apart = jnp.abs(s[:, None] - s[None, :]) / positive_or_one(larger)
    some = positive_or_one(apart)
    alike = growth * jnp.where(apart > 0, -jnp.expm1(power * jnp.log1p(-some)) / some, power)
    opposite = growth * (1.0 + share**power) / (1.0 + share)
    core = u.T @ change @ vt.T
    moved = u @ (0.5 * (alike + opposite) * core + 0.5 * (alike - opposite) * core.T) @ vt
    # Of what is orthogonal to all columns, or rows: differences with the other eigenvalues of the dilation, zero.
    (rows, columns), rates = change.shape, jnp.diagonal(growth)[None, :]
    if rows > columns:
        moved = moved + ((change @ vt.T - u @ core) * rates) @ vt
    if columns > rows:
        moved = moved + (u * rates) @ (u.T @ change - core @ vt)
    return moved
