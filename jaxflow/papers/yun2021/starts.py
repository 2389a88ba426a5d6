r"""Starts with prescribed linear coefficients: $\beta(\Theta(0))=\alpha^2\bar z$ for all three networks (§6).

The paper says that its initial directions do this, and no more. Our choice makes the first layer the larger one in
every singular component, as Theorem 5 (and 3) require:

- diagonal: $\bar w_1=\sqrt{1+|\bar z|}$, $\bar w_2=\bar z/\bar w_1$;
- convolutional: the same in the Fourier domain, $F\bar w_1=\sqrt{1+|F\bar z|}$, $F\bar w_2=d^{-1/2}F\bar z/F\bar w_1$;
- fully connected: $\bar W_1=cR$, $\bar w_2=R^\top\bar z/c$, $c^2=\sqrt d(1+\|\bar z\|)$, R orthogonal with
  $R^\top x/\|x\|=(1,\dots,1)/\sqrt d$.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxflow._core import positive_or_one, unknown_name
from jaxflow.models import DeepLinearNetwork, DiagonalLinearNetwork, LinearConvolutionalNetwork

# In the order of the paper's legend.
NETWORKS = ("fully connected", "diagonal", "convolutional")
DIRECTIONS = 4


def directions() -> np.ndarray:
    r"""The four $\bar z_j$ (the paper's are random and not given): one in each quadrant, of different length."""
    key = jax.random.key(2021)
    angle_key, size_key = jax.random.split(key)
    angles = 0.5 * np.pi * (np.arange(DIRECTIONS) + np.asarray(jax.random.uniform(angle_key, (DIRECTIONS,))))
    sizes = np.asarray(jax.random.uniform(size_key, (DIRECTIONS,), minval=0.4, maxval=1.0))
    return sizes[:, None] * np.stack([np.cos(angles), np.sin(angles)], axis=1)


def start_at(network: str, x: Float[Array, " d"], z: Float[Array, " d"], alpha: Any) -> Any:
    r"""The two-layer network of this kind with $\beta=\alpha^2\bar z$; x is the datum of Theorem 5."""
    alpha = jnp.asarray(alpha)
    d = z.shape[0]
    if network == "diagonal":
        first = jnp.sqrt(1.0 + jnp.abs(z))
        return DiagonalLinearNetwork((alpha * first, alpha * z / first))
    if network == "convolutional":
        spectrum = jnp.fft.fft(z, norm="ortho")
        first = jnp.sqrt(1.0 + jnp.abs(spectrum))
        # The first spectrum is real and even, so both filters are real.
        filters = (first.astype(spectrum.dtype), spectrum / first / d**0.5)
        return LinearConvolutionalNetwork(tuple(alpha * jnp.real(jnp.fft.ifft(w, norm="ortho")) for w in filters))
    if network == "fully connected":
        c = jnp.sqrt(d**0.5 * (1.0 + jnp.linalg.norm(z)))
        rotation = _reflection(x / jnp.linalg.norm(x), jnp.full(d, d**-0.5))
        return DeepLinearNetwork((alpha * c * rotation, alpha * rotation.T @ z / c))
    raise unknown_name("network", network, NETWORKS)


def _reflection(a: Float[Array, " d"], b: Float[Array, " d"]) -> Float[Array, "d d"]:
    """The symmetric orthogonal matrix that exchanges two unit vectors (the identity where they are equal)."""
    normal = a - b
    square = normal @ normal
    scale = jnp.where(square > 0, 2.0 / positive_or_one(square), 0.0)
    return jnp.eye(a.shape[0]) - scale * jnp.outer(normal, normal)
