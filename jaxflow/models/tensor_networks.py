r"""The general tensor form of §3, and the data tensors of the structured networks."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Inexact, Key

from jaxflow._core import as_array, checked, is_concrete, require
from jaxflow.data import LinearData
from jaxflow.models.decomposition import Decomposition
from jaxflow.models.linear_convolution import LinearConvolutionalNetwork
from jaxflow.models.linear_networks import (
    AbstractLinearNetwork,
    DeepLinearNetwork,
    DiagonalLinearNetwork,
    as_layers,
    start_layers,
)


class LinearTensorNetwork(AbstractLinearNetwork):
    r"""$f(x;\Theta)=\mathsf M(x)\circ(v_1,\dots,v_L)$, equation (6), or with an activation φ equation (2).

    **Arguments:**

    - `data_tensor`: the linear map $\mathsf M$ as an array `(k_1, ..., k_L, d)`, so that $\mathsf M(x)$ is its product
      with x along the last axis; `LinearTensorNetwork.from_map` builds it from a function. Never trained.
    - `weights`: $(v_1,\dots,v_L)$, $v_l$ of length $k_l$.
    - `activation`: None (linear), or φ, applied after every layer but the last. The network is then no linear
      function of x, and has no linear coefficients.
    - `decomposition`: an orthogonal decomposition of the data tensor (Assumption 1) where one is known;
      in `jaxflow.papers.yun2021.decomposing` `find_decomposition` looks for one if L = 2, and `verify_decomposition`
      checks a given one.

    **Raises:** `ValueError` naming the argument.
    """

    data_tensor: Float[Array, "..."]
    weights: tuple[Float[Array, " _"], ...]
    activation: Callable[[Any], Any] | None = eqx.field(static=True)
    decomposition: Decomposition | None

    def __init__(self, data_tensor: Any, weights: Any, activation: Any = None, decomposition: Any = None):
        self.data_tensor = as_array("data_tensor", data_tensor)
        self.weights = as_layers(weights)
        self.activation = activation
        self.decomposition = decomposition

    def __check_init__(self) -> None:
        wanted = tuple(v.shape[0] if v.ndim == 1 else None for v in self.weights)
        given = self.data_tensor.shape
        require(
            given[:-1] == wanted, "data_tensor", f"expected shape (k_1, ..., k_L, d) = {(*wanted, 'd')}, got {given}"
        )
        callable_or_none = self.activation is None or callable(self.activation)
        require(callable_or_none, "activation", "expected a function or None")
        known = isinstance(self.decomposition, Decomposition | None)
        require(known, "decomposition", f"expected a Decomposition, got {type(self.decomposition).__name__}")

    @classmethod
    def from_map(
        cls, tensor_of: Callable[[Float[Array, " d"]], Array], d: int, weights: Any, activation: Any = None
    ) -> "LinearTensorNetwork":
        r"""From the function $x\mapsto\mathsf M(x)$, which must be linear, on inputs of dimension d."""
        return cls(jnp.moveaxis(jax.vmap(tensor_of)(jnp.eye(d)), 0, -1), weights, activation)

    @classmethod
    def from_decomposition(cls, decomposition: Decomposition, weights: Any) -> "LinearTensorNetwork":
        """A network designed to be orthogonally decomposable, such as for sparsity under a transform (Remark 3).

        **Raises:** `ValueError` where the tensor of a complex decomposition is not real.
        """
        tensor = decomposition.tensor()
        if jnp.iscomplexobj(tensor):
            imaginary = jnp.max(jnp.abs(jnp.imag(tensor)))
            fits = not is_concrete(tensor) or bool(imaginary <= 1e-12 * jnp.max(jnp.abs(tensor)))
            require(fits, "decomposition", f"the data tensor is not real: imaginary parts up to {imaginary:.1e}")
        return cls(jnp.real(tensor), weights, None, decomposition)

    @classmethod
    def init(
        cls,
        key: Key[Array, ""],
        data: LinearData,
        head: None = None,
        *,
        data_tensor: Any,
        alpha: float | Float[Array, ""] = 1.0,
        scheme: str = "zero_last",
        activation: Any = None,
    ) -> "LinearTensorNetwork":
        """Schemes as for `DiagonalLinearNetwork` (`head` and the values of `data` are not used)."""
        shapes = [(k,) for k in jnp.shape(data_tensor)[:-1]]
        layers = start_layers(key, shapes, scheme, alpha, lambda shape: jnp.ones(shape))
        return cls(data_tensor, layers, activation)

    def at(self, x: Float[Array, " d"]) -> Array:
        r"""The data tensor $\mathsf M(x)$, `(k_1, ..., k_L)`."""
        return self.data_tensor @ x

    def outputs(self, data: LinearData) -> Float[Array, " n"]:
        if self.activation is None:
            return data.inputs @ self.linear_coefficients()
        return jax.vmap(self._forward)(data.inputs)

    def linear_coefficients(self) -> Float[Array, " d"]:
        require(self.activation is None, "activation", "a network with an activation is not linear in its input")
        return contract(self.data_tensor, self.weights)

    def conserved(self) -> Float[Array, " layers"]:
        r"""$\|v_l\|^2-\|v_L\|^2$ for l < L (without an activation, or with a positively homogeneous one)."""
        return jnp.stack([jnp.sum(v**2) - jnp.sum(self.weights[-1] ** 2) for v in self.weights[:-1]])

    def _forward(self, x: Float[Array, " d"]) -> Float[Array, ""]:
        hidden = self.at(x)
        for v in self.weights[:-1]:
            hidden = self.activation(jnp.tensordot(v, hidden, axes=1))  # pyright: ignore[reportOptionalCall]
        return jnp.tensordot(self.weights[-1], hidden, axes=1)


@checked()
def contract(tensor: Inexact[Array, "..."], vectors: tuple[Array, ...], skip: int | None = None) -> Array:
    r"""$\mathsf A\circ(v_1,\dots,v_L)$ over the leading L axes, or with the identity in place `skip` (from 0)."""
    require(tensor.ndim >= len(vectors), "tensor", f"expected {len(vectors)} axes or more, got shape {tensor.shape}")
    lengths = tuple(vector.shape for vector in vectors)
    fits = all(len(shape) == 1 for shape in lengths) and tensor.shape[: len(lengths)] == tuple(k for (k,) in lengths)
    require(fits, "vectors", f"expected a vector for each of the leading axes of {tensor.shape}, got shapes {lengths}")
    require(skip is None or skip < len(vectors), "skip", f"expected less than {len(vectors)}, got {skip}")
    for axis, vector in reversed(list(enumerate(vectors))):
        if axis != skip:
            tensor = jnp.tensordot(tensor, vector, axes=((axis,), (0,)))
    return tensor


@checked(least={"d": 1, "depth": 2})
def diagonal_tensor(d: int, depth: int) -> Float[Array, "..."]:
    r"""$\mathsf M_{\mathrm{diag}}$: $[\mathsf M(x)]_{j,\dots,j}=[x]_j$."""
    index = jnp.arange(d)
    return jnp.zeros((d,) * (depth + 1)).at[(index,) * (depth + 1)].set(1.0)


@checked(least={"d": 1, "sizes": 1})
def convolutional_tensor(d: int, sizes: tuple[int, ...]) -> Float[Array, "..."]:
    r"""$\mathsf M_{\mathrm{conv}}$: $[\mathsf M(x)]_{j_1,\dots,j_L}=[x]_{(\sum_lj_l-L+1)\bmod d}$; `sizes`: $k_l$."""
    require(len(sizes) > 0, "sizes", "expected at least one filter")
    total = sum(jnp.ix_(*(jnp.arange(k) for k in sizes)))
    return jax.nn.one_hot(jnp.asarray(total) % d, d)


@checked(least={"dims": 1})
def fully_connected_tensor(dims: tuple[int, ...]) -> Float[Array, "..."]:
    r"""$\mathsf M_{\mathrm{fc}}$ by the block construction of appendix B, for $v_l=\mathrm{vec}(W_l)$ by columns.

    **Arguments:** `dims`: $d_1,\dots,d_L$. The tensor is large; it is for tests and for theorems on the general form.
    """
    require(len(dims) > 0, "dims", "expected at least one width")
    tensor = jnp.eye(dims[0])
    for previous, following in zip(dims, dims[1:], strict=False):
        # T_l copies T_{l−1} along the diagonal of its last two axes: rows (j−1)d_{l−1}+i and column j.
        blocks = jnp.einsum("...ix,jm->...jimx", tensor, jnp.eye(following))
        tensor = blocks.reshape(*tensor.shape[:-2], previous * following, following, dims[0])
    return tensor


@checked()
def as_tensor_network(network: AbstractLinearNetwork) -> LinearTensorNetwork:
    """The network in the general form, its data tensor built: an oracle for small sizes.

    **Raises:** `ValueError` for a network whose data tensor is not known here.

    **Example:**

    ```python
    general = jf.models.as_tensor_network(network)
    assert jnp.allclose(general.linear_coefficients(), network.linear_coefficients())
    ```
    """
    layers = network.layers
    if isinstance(network, LinearTensorNetwork):
        return network
    if isinstance(network, DiagonalLinearNetwork):
        return LinearTensorNetwork(diagonal_tensor(layers[0].shape[0], len(layers)), layers)
    if isinstance(network, LinearConvolutionalNetwork):
        sizes = tuple(w.shape[0] for w in layers)
        return LinearTensorNetwork(convolutional_tensor(sizes[-1], sizes), layers)
    if isinstance(network, DeepLinearNetwork):
        vectors = tuple(w.T.reshape(-1) for w in layers[:-1])
        return LinearTensorNetwork(fully_connected_tensor(tuple(w.shape[0] for w in layers)), (*vectors, layers[-1]))
    raise ValueError(f"network: no data tensor is known for {type(network).__name__}")
