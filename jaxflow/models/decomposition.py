r"""Orthogonal decompositions of data tensors: Assumption 1 of Yun, Krishnan, Mobahi (2021)."""

import math
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Inexact

from jaxflow._core import AbstractPrinted, checked
from jaxflow.models.linear_convolution import LinearConvolutionalNetwork
from jaxflow.models.linear_networks import AbstractLinearNetwork, DiagonalLinearNetwork


class Decomposition(AbstractPrinted):
    r"""$\mathsf M(x)=\sum_j[Sx]_j\,([U_1]_{\cdot j}\otimes\cdots\otimes[U_L]_{\cdot j})$, $U_l^HU_l=I$, equation (9).

    `transform`: S, `(m, d)` of full column rank; `factors`: $U_l$, `(k_l, m)`; real or complex.
    """

    transform: Inexact[Array, "m d"]
    factors: tuple[Inexact[Array, "_ m"], ...]

    @property
    def is_real(self) -> bool:
        """Whether S and all U_l are real, which Theorem 4 requires."""
        return not any(jnp.iscomplexobj(x) for x in (self.transform, *self.factors))

    def transformed(self, layers: tuple[Array, ...]) -> tuple[Inexact[Array, " m"], ...]:
        r"""$\eta_l=U_l^\top v_l$, by which the network is a diagonal one."""
        return tuple(U.T @ v for U, v in zip(self.factors, layers, strict=True))

    def singular_coefficients(self, layers: tuple[Array, ...]) -> Inexact[Array, " m"]:
        r"""$\rho=\bigodot_lU_l^\top v_l$, with $\beta=S^\top\rho$."""
        rho: Any = math.prod(self.transformed(layers))
        return rho

    def tensor(self) -> Inexact[Array, "..."]:
        r"""The data tensor that it decomposes, `(k_1, ..., k_L, d)`."""
        letters = "abcdefghijkl"[: len(self.factors)]
        rule = ",".join(f"{letter}m" for letter in letters) + f",mx->{letters}x"
        return jnp.einsum(rule, *self.factors, self.transform)


@checked()
def decomposition_of(network: AbstractLinearNetwork) -> Decomposition:
    r"""The decomposition of a network whose structure gives it.

    Diagonal networks: $S=U_l=I$ (D.2). Full-length convolutional ones: $S=d^{(L-1)/2}F$, $U_l=F^*$ (D.3).
    `LinearTensorNetwork`: the one it was given.

    **Raises:** `ValueError` for other networks; where L = 2, `find_decomposition` in
    `jaxflow.papers.yun2021.decomposing` looks for one.
    """
    given = getattr(network, "decomposition", None)
    if given is not None:
        return given
    if isinstance(network, DiagonalLinearNetwork):
        one = jnp.eye(network.layers[0].shape[0])
        return Decomposition(one, (one,) * network.depth)
    if isinstance(network, LinearConvolutionalNetwork) and network.full_length:
        d = network.layers[-1].shape[0]
        fourier = jnp.fft.fft(jnp.eye(d), norm="ortho")
        return Decomposition(d ** (0.5 * (network.depth - 1)) * fourier, (jnp.conj(fourier),) * network.depth)
    raise ValueError(f"network: the structure of {type(network).__name__} gives no orthogonal decomposition")


@checked(least={"depth": 2})
def even_decomposition(d: int, depth: int) -> Decomposition:
    r"""The real decomposition of a full-length convolutional network on **even** vectors (F.4).

    On even vectors F acts as its real part C, symmetric with $C^2$ the projection on them; of the equal entries j and
    −j one is kept, with weight $\sqrt2$. Then $\mathsf M$ restricted to even data and even parameters is
    $\sum_j[Sx]_j\bigotimes_l[U_l]_{\cdot j}$ with $m=\lfloor d/2\rfloor+1$, $U_l=E$ orthonormal and
    $S_j=d^{(L-1)/2}\,\kappa_j^{(1-L)/2}E_j^\top$, κ_j = 1 for entries that are their own mirror and 2 for others.
    """
    index = jnp.arange(d // 2 + 1)
    own = (index == 0) | (2 * index == d)
    multiplicity = jnp.where(own, 1.0, 2.0)
    angles = 2 * jnp.pi * jnp.outer(jnp.arange(d), index) / d
    basis = jnp.cos(angles) * jnp.sqrt(multiplicity / d)[None, :]
    scale = d ** (0.5 * (depth - 1)) * multiplicity ** (0.5 * (1 - depth))
    return Decomposition(scale[:, None] * basis.T, (basis,) * depth)


@checked()
def real_decomposition(network: Any, inputs: Float[Array, "n d"]) -> Decomposition:
    """A real decomposition that holds along the flow: the network's own, or the even one for convolutions.

    The even one holds where data and start are even, which `jaxflow.theory` checks.

    **Raises:** as `decomposition_of`.
    """
    if isinstance(network, LinearConvolutionalNetwork) and network.full_length:
        return even_decomposition(inputs.shape[-1], network.depth)
    return decomposition_of(network)
