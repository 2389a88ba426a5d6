r"""Circular convolutional networks that are linear in their input, filters of any length."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from jaxflow._core import checked, compiled_once, require
from jaxflow.data import LinearData
from jaxflow.models.linear_networks import AbstractLinearNetwork, as_layers, start_layers

# By count of operations: shifted copies take 2kd, three real transforms about 7.5 d log2(d), which is less from k = 30
# (d = 256) or 40 (d = 2048) on; a gather is simpler than a transform, hence a little later.
FFT_FROM = 48


@checked()
def cross_correlation(a: Float[Array, " d"], b: Float[Array, " k"]) -> Float[Array, " d"]:
    r"""The paper's $a\star b$, a cross-correlation: $[a\star b]_i=\sum_j[a]_{(i+j-1)\bmod d}[b]_j$ (equation 4)."""
    return _circular(a, b, -1)


@checked()
def convolution(a: Float[Array, " d"], b: Float[Array, " k"]) -> Float[Array, " d"]:
    r"""The true circular convolution $[a*b]_i=\sum_j[a]_{(i-j+1)\bmod d}[b]_j$, the adjoint of $\star\,b$."""
    return _circular(a, b, 1)


def _circular(a: Float[Array, " d"], b: Float[Array, " k"], sign: int) -> Float[Array, " d"]:
    d, k = a.shape[0], b.shape[0]
    require(k <= d, "b", f"longer ({k}) than what it is applied to ({d})")
    if k < FFT_FROM:
        index = (jnp.arange(d)[:, None] - sign * jnp.arange(k)[None, :]) % d
        return a[index] @ b
    spectrum = jnp.fft.rfft(b, n=d)
    spectrum = spectrum if sign > 0 else jnp.conj(spectrum)
    return jnp.fft.irfft(jnp.fft.rfft(a) * spectrum, n=d)


class LinearConvolutionalNetwork(AbstractLinearNetwork):
    r"""$f(x)=(\cdots(x\star w_1)\cdots\star w_{L-1})^\top w_L$, equation (12), so $\beta=w_1*\cdots*w_L$.

    ⋆ is a cross-correlation and β a true convolution, that of the filters padded with zeros. Short filters are applied
    as shifted copies, long ones by FFT.

    **Arguments:** `weights`: $(w_1,\dots,w_L)$, $w_l$ of length $k_l\le d$ and $k_L=d$. **Raises:** `ValueError`.
    """

    weights: tuple[Float[Array, " _"], ...] = eqx.field(converter=as_layers)

    def __check_init__(self) -> None:
        shapes = [w.shape for w in self.weights]
        fits = all(len(s) == 1 for s in shapes) and all(1 <= s[0] <= shapes[-1][0] for s in shapes)
        require(fits, "weights", f"expected filters (k_l,) no longer than the last layer (d,), got {shapes}")

    @classmethod
    @checked(least={"depth": 2, "sizes": 1})
    def init(
        cls,
        key: Key[Array, ""],
        data: LinearData,
        head: None = None,
        *,
        depth: int = 2,
        alpha: float | Float[Array, ""] = 1.0,
        scheme: str = "zero_last",
        sizes: tuple[int, ...] | None = None,
    ) -> "LinearConvolutionalNetwork":
        r"""$w_l=\alpha\bar w_l$; `sizes`: $k_1,\dots,k_{L-1}$, None: full length (`head` is not used).

        `scheme`: `"random"` and `"zero_last"` draw standard normal entries; `"equal"`, for full length, one **even**
        $\bar w$ with $|[F\bar w]_j|\ge\tfrac12$ for all layers but the last, which is zero (Corollary 6);
        `"identity"`: $\bar w_l=e_1$, the filter that changes nothing.
        """
        d = data.inputs.shape[-1]
        filters = (d,) * (depth - 1) if sizes is None else tuple(sizes)
        require(len(filters) >= 1, "sizes", "expected at least one filter before the last layer")
        if scheme == "equal":
            require(all(k == d for k in filters), "scheme", f"'equal' needs full-length filters, got {filters}")
            even = alpha * even_start(key, d)
            return cls((*([even] * len(filters)), jnp.zeros(d)))
        shapes = [(k,) for k in (*filters, d)]
        return cls(start_layers(key, shapes, scheme, alpha, lambda shape: jnp.eye(1, shape[0])[0]))

    @property
    def full_length(self) -> bool:
        """Whether every filter has d entries."""
        return all(w.shape == self.weights[-1].shape for w in self.weights)

    def linear_coefficients(self) -> Float[Array, " d"]:
        return functools.reduce(convolution, self.weights[-2::-1], self.weights[-1])

    def conserved(self) -> Float[Array, "layers _"]:
        r"""$|Fw_l|^2-|Fw_L|^2$ for full-length filters, (21); $\|w_l\|^2-\|w_L\|^2$ otherwise."""
        if self.full_length:
            sizes = [jnp.abs(jnp.fft.fft(w, norm="ortho")) ** 2 for w in self.weights]
        else:
            sizes = [jnp.sum(w**2, keepdims=True) for w in self.weights]
        return jnp.stack([size - sizes[-1] for size in sizes[:-1]])


@compiled_once
def even_start(key: Key[Array, ""], d: int) -> Float[Array, " d"]:
    r"""A real, even vector whose (real, even) spectrum has entries of size ½ to 3/2 and random signs."""
    size_key, sign_key = jax.random.split(key)
    spectrum = jax.random.uniform(size_key, (d,), minval=0.5, maxval=1.5) * jax.random.rademacher(sign_key, (d,))
    # Entry j and entry −j of the spectrum of a real, even vector are one number.
    mirror = (-jnp.arange(d)) % d
    even = jnp.where(jnp.arange(d) <= mirror, spectrum, spectrum[mirror])
    return jnp.real(jnp.fft.ifft(even, norm="ortho"))


@checked()
def even_part(x: Float[Array, "*b d"]) -> Float[Array, "*b d"]:
    r"""$\tfrac12([x]_j+[x]_{-j})$, indices modulo d: the even vectors of Corollary 6."""
    mirror = (-jnp.arange(x.shape[-1])) % x.shape[-1]
    return 0.5 * (x + x[..., mirror])
