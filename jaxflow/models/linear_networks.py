r"""Networks that are linear in their input, $f(x;\Theta)=x^\top\beta(\Theta)$, in forms that build no tensor.

Yun, Krishnan, Mobahi (2021), §3 and appendix A. Every layer is one array; β is multilinear in the layers, so that a
network of depth L is homogeneous of degree L. The convolutional network and the general form have files of their own.
"""

import abc
import functools
import math
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from jaxflow._core import as_array, check_name, checked, compiled_once, require
from jaxflow.data import LinearData
from jaxflow.models.base import AbstractModel

# What each scheme of `init` starts from, with the theorems that ask for it.
SCHEMES = ("random", "zero_last", "equal", "identity")


def as_layers(weights: Any) -> tuple[Array, ...]:
    """Parameters as a tuple of at least two inexact arrays. **Raises:** `ValueError` naming `weights`."""
    require(isinstance(weights, tuple | list), "weights", f"expected a tuple of layers, got {type(weights).__name__}")
    require(len(weights) >= 2, "weights", f"expected at least two layers, got {len(weights)}")
    arrays = [as_array("weights", w) for w in weights]
    dtype = jnp.result_type(float, *arrays)
    return tuple(w.astype(dtype) for w in arrays)


class AbstractLinearNetwork(AbstractModel):
    r"""$f(x;\Theta)=x^\top\beta(\Theta)$ for `LinearData`; `layers` is Θ, all of it trained."""

    weights: eqx.AbstractVar[tuple[Array, ...]]
    trained: ClassVar[tuple[str, ...]] = ("weights",)

    @property
    def layers(self) -> tuple[Array, ...]:
        """The L parameter arrays."""
        return self.weights

    @abc.abstractmethod
    def linear_coefficients(self) -> Float[Array, " d"]:
        r"""$\beta(\Theta)$, with $f(x;\Theta)=x^\top\beta(\Theta)$."""

    @abc.abstractmethod
    def conserved(self) -> PyTree:
        """What gradient flow keeps constant, for every loss."""

    @property
    def depth(self) -> int:
        """L."""
        return len(self.layers)

    @property
    def degree(self) -> int:
        """The degree of homogeneity in the trained parameters: L."""
        return len(self.layers)

    def outputs(self, data: LinearData) -> Float[Array, " n"]:
        return data.inputs @ self.linear_coefficients()

    def check(self, data: Any) -> None:
        require(isinstance(data, LinearData), "data", f"expected LinearData, got {type(data).__name__}")
        d = jax.eval_shape(lambda m: m.linear_coefficients(), self).shape[0]
        seen = data.inputs.shape[-1]
        require(d == seen, "inputs", f"the network takes inputs of dimension {d}, the data have {seen}")


class DiagonalLinearNetwork(AbstractLinearNetwork):
    r"""$\beta=w_1\odot\cdots\odot w_L$, equation (11).

    **Arguments:** `weights`: $(w_1,\dots,w_L)$, each `(d,)`, L ≥ 2. **Raises:** `ValueError` naming `weights`.
    """

    weights: tuple[Float[Array, " d"], ...] = eqx.field(converter=as_layers)

    def __check_init__(self) -> None:
        shapes = [w.shape for w in self.weights]
        require(all(s == shapes[0] and len(s) == 1 for s in shapes), "weights", f"expected equal (d,), got {shapes}")

    @classmethod
    @checked(least={"depth": 2, "width": 1})
    def init(
        cls,
        key: Key[Array, ""],
        data: LinearData,
        head: None = None,
        *,
        depth: int = 2,
        alpha: float | Float[Array, ""] = 1.0,
        scheme: str = "zero_last",
    ) -> "DiagonalLinearNetwork":
        r"""$w_l=\alpha\bar w_l$.

        `scheme` (`head` is not used):

        - `"random"`: standard normal $\bar w_l$;
        - `"zero_last"`: the same with $\bar w_L=0$, as Theorems 2, 3 and 5 allow (Remark 2);
        - `"equal"`: $\bar w_1=\dots=\bar w_{L-1}=\bar w$ and $\bar w_L=0$, Theorem 4 and Corollary 5;
        - `"identity"`: the same with $\bar w=1$.
        """
        d = data.inputs.shape[-1]
        return cls(start_layers(key, [(d,)] * depth, scheme, alpha, lambda shape: jnp.ones(shape)))

    def linear_coefficients(self) -> Float[Array, " d"]:
        beta: Any = math.prod(self.weights)
        return beta

    def conserved(self) -> Float[Array, "layers d"]:
        r"""$w_l\odot w_l-w_L\odot w_L$ for l < L."""
        return jnp.stack([w**2 - self.weights[-1] ** 2 for w in self.weights[:-1]])


class DeepLinearNetwork(AbstractLinearNetwork):
    r"""Fully connected, $\beta=W_1\cdots W_{L-1}w_L$, equation (10).

    **Arguments:** `weights`: $(W_1,\dots,W_{L-1},w_L)$, $W_l$ of shape $(d_l,d_{l+1})$, $w_L$ of shape $(d_L,)$; any
    widths. **Raises:** `ValueError` naming `weights`.
    """

    weights: tuple[Float[Array, "..."], ...] = eqx.field(converter=as_layers)

    def __check_init__(self) -> None:
        shapes = [w.shape for w in self.weights]
        ranks = all(len(s) == 2 for s in shapes[:-1]) and len(shapes[-1]) == 1
        chained = ranks and all(a[1] == b[0] for a, b in zip(shapes, shapes[1:], strict=False))
        require(chained, "weights", f"expected (d1, d2), (d2, d3), ..., (dL,), got {shapes}")

    @classmethod
    @checked(least={"depth": 2, "width": 1})
    def init(
        cls,
        key: Key[Array, ""],
        data: LinearData,
        head: None = None,
        *,
        depth: int = 2,
        alpha: float | Float[Array, ""] = 1.0,
        scheme: str = "zero_last",
        width: int | None = None,
    ) -> "DeepLinearNetwork":
        r"""$W_l=\alpha\bar W_l$, $w_L=\alpha\bar w_L$; `width` of all hidden layers, None: d (`head` is not used).

        `scheme`: `"random"`, entries of $\bar W_l$ normal with variance $1/d_l$; `"zero_last"`, the same with
        $\bar w_L=0$; `"identity"`, $\bar W_l=I$ and $\bar w_L=0$, which satisfies Theorem 6.1 (width ≥ d).
        """
        d = data.inputs.shape[-1]
        hidden = d if width is None else width
        shapes = [(d if layer == 0 else hidden, hidden) for layer in range(depth - 1)] + [(hidden,)]
        return cls(start_layers(key, shapes, scheme, alpha, lambda shape: jnp.eye(shape[0], shape[1]), scaled=True))

    def linear_coefficients(self) -> Float[Array, " d"]:
        return _chain(self.weights)

    def conserved(self) -> tuple[Float[Array, "..."], ...]:
        r"""$W_l^\top W_l-W_{l+1}W_{l+1}^\top$ for l < L, (81)."""
        return _balances((*self.weights[:-1], self.weights[-1][:, None]))


class DeepMatrixSensing(AbstractLinearNetwork):
    r"""$f(A;\Theta)=\langle A,W_1\cdots W_L\rangle$, (13). Inputs are sensor matrices, `(n, d, d)` as rows `(n, d²)`.

    With `jaxflow.losses.Squared`, $\tfrac12(f-y)^2$, its flow is the one of the proof of Corollary 7; the factor ½ that
    (13) omits only rescales time.

    **Arguments:** `weights`: $(W_1,\dots,W_L)$, matrices that can be multiplied. **Raises:** `ValueError`.
    """

    weights: tuple[Float[Array, "a b"], ...] = eqx.field(converter=as_layers)

    def __check_init__(self) -> None:
        shapes = [w.shape for w in self.weights]
        chained = all(len(s) == 2 for s in shapes)
        chained = chained and all(a[1] == b[0] for a, b in zip(shapes, shapes[1:], strict=False))
        require(chained, "weights", f"expected matrices that can be multiplied, got {shapes}")

    @classmethod
    @checked(least={"depth": 2, "width": 1})
    def init(
        cls,
        key: Key[Array, ""],
        data: LinearData,
        head: None = None,
        *,
        depth: int = 2,
        alpha: float | Float[Array, ""] = 1.0,
        scheme: str = "identity",
    ) -> "DeepMatrixSensing":
        r"""`"identity"`: $W_l=\alpha I$ and $W_L=0$, Corollary 7. `"random"`, `"zero_last"`: as for other networks."""
        size = data.inputs.shape[-1]
        d = round(size**0.5)
        require(d * d == size, "data", f"expected flattened square matrices, got inputs of dimension {size}")
        return cls(
            start_layers(key, [(d, d)] * depth, scheme, alpha, lambda shape: jnp.eye(shape[0], shape[1]), scaled=True)
        )

    def product(self) -> Float[Array, "a b"]:
        r"""$W_1\cdots W_L$."""
        return _chain(self.weights)

    def linear_coefficients(self) -> Float[Array, " dd"]:
        return self.product().reshape(-1)

    def conserved(self) -> tuple[Float[Array, "..."], ...]:
        r"""$W_l^\top W_l-W_{l+1}W_{l+1}^\top$ for l < L."""
        return _balances(self.weights)


def start_layers(
    key: Key[Array, ""],
    shapes: list[tuple[int, ...]],
    scheme: str,
    alpha: float | Float[Array, ""],
    one: Callable[[tuple[int, ...]], Array],
    *,
    scaled: bool = False,
) -> tuple[Array, ...]:
    """Layers of a scheme times α; `one` is the layer of `"identity"`, `scaled` divides by the root of the fan-in."""
    check_name("scheme", scheme, SCHEMES)
    require(len(shapes) >= 2, "depth", f"expected at least 2, got {len(shapes)}")
    drawn = _normals(key, tuple(shapes), scaled)
    if scheme in ("random", "zero_last"):
        layers = list(drawn)
    else:
        same = len(set(shapes)) == 1 or scheme == "identity"
        require(same, "scheme", f"'equal' needs layers of one shape, got {shapes}")
        layers = [drawn[0] if scheme == "equal" else one(shape) for shape in shapes[:-1]] + [jnp.zeros(shapes[-1])]
    if scheme == "zero_last":
        layers[-1] = jnp.zeros(shapes[-1])
    return tuple(jnp.asarray(alpha) * layer for layer in layers)


@compiled_once
def _normals(key: Key[Array, ""], shapes: tuple[tuple[int, ...], ...], scaled: bool) -> list[Array]:
    keys = jax.random.split(key, len(shapes))
    draws = [jax.random.normal(k, shape) for k, shape in zip(keys, shapes, strict=True)]
    return [w / (w.shape[0] ** 0.5) for w in draws] if scaled else draws


def _chain(weights: tuple[Array, ...]) -> Array:
    return functools.reduce(lambda product, w: w @ product, weights[-2::-1], weights[-1])


def _balances(weights: tuple[Array, ...]) -> tuple[Array, ...]:
    return tuple(a.T @ a - b @ b.T for a, b in zip(weights, weights[1:], strict=False))
