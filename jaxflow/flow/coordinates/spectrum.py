r"""The Fourier modes of a convolutional network's filters as state, each to all of its own digits."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Complex, Float, PyTree

from jaxflow._core import ScaledGradient, positive_or_one
from jaxflow.data import LinearData
from jaxflow.flow.coordinates.base import AbstractStretched, risk_of_own
from jaxflow.models import DiagonalLinearNetwork, LinearConvolutionalNetwork
from jaxflow.risk import EmpiricalRisk


class Spectrum(AbstractStretched):
    r"""For a `LinearConvolutionalNetwork` of full length: $c_l=Fw_l$ with the unitary F, so that
    $F\beta=d^{(L-1)/2}\prod_lc_l$ (Yun et al. 2021, Corollary 3).

    Modes do not mix but by the multipliers: $\dot c_l=-d^{(L-1)/2}\,F\nabla_\beta L\odot\prod_{m\ne l}\overline{c_m}$.
    In the weights a mode that is as small as the start has the roundings of those that have grown. In each mode the
    flow conserves $|c_l|^2-|c_s|^2=r_l^2\ge0$, s the smallest layer at the start: of another layer the state gives the
    phase, and $|c_l|=\sqrt{|c_s|^2+r_l^2}$. A mode that comes back has them to all digits (see `OneLayer`).

    **Arguments:** `start`: the network at the start of the path, where a path continues from a model; None: the model.
    """

    start: LinearConvolutionalNetwork | None = None

    def encode(self, risk: EmpiricalRisk, model: Any) -> tuple[PyTree, PyTree]:
        fits = isinstance(model, LinearConvolutionalNetwork) and model.full_length
        if not (fits and isinstance(risk.data, LinearData)):
            raise ValueError(
                "coordinates: Spectrum needs a LinearConvolutionalNetwork of full length on LinearData; use Weights"
            )
        own = risk_of_own(risk, model, "Spectrum moves all layers")
        sizes = jnp.abs(_modes_of(model if self.start is None else self.start))
        smallest = jnp.argmin(sizes, axis=0)
        least = jnp.min(sizes, axis=0, keepdims=True)
        # No difference of squares, which underflow.
        apart = jnp.sqrt(sizes - least) * jnp.sqrt(sizes + least)
        chosen = jnp.arange(len(sizes))[:, None] == smallest[None]
        return _real(_modes_of(model), model.weights[0].size), (risk, own, model, chosen, apart)

    def decode(self, context: PyTree, state: PyTree) -> Any:
        filters = jnp.fft.irfft(self._layers(context, state)[0], n=state.shape[1], norm="ortho", axis=1)
        return eqx.tree_at(lambda m: m.weights, context[2], tuple(filters))

    def field(self, context: PyTree, state: PyTree) -> ScaledGradient:
        modes, stretch = self._layers(context, state)
        layers, d = state.shape
        size = d ** (0.5 * (layers - 1))
        beta = jnp.fft.irfft(size * jnp.prod(modes, axis=0), n=d, norm="ortho")
        # The gradient in β alone: those of the layers follow from it, mode by mode.
        scaled = context[1].scaled_gradient(DiagonalLinearNetwork((beta, jnp.ones(d))))
        pull = size * jnp.fft.rfft(scaled.gradient.weights[0], norm="ortho")
        others = jnp.stack([jnp.prod(jnp.delete(modes, k, axis=0), axis=0) for k in range(layers)])
        gradient = _real(stretch * pull[None] * jnp.conj(others), d)
        return ScaledGradient(scaled.log_scale, gradient, scaled.multipliers)

    def _layers(
        self, context: PyTree, state: Float[Array, "layers d"]
    ) -> tuple[Complex[Array, "layers h"], Float[Array, "layers h"]]:
        """The layers' modes, and how much longer than these those of the state are."""
        *_, chosen, apart = context
        modes = _modes(state)
        # Whatever is not asked for has derivatives, too.
        lengths = _length(modes)
        least = jnp.sum(jnp.where(chosen, lengths, 0.0), axis=0, keepdims=True)
        follows = apart > 0
        true = jnp.where(follows, jnp.hypot(least, jnp.where(follows, apart, 1.0)), least)
        stretch = jnp.where(chosen | (true == 0), 1.0, lengths / positive_or_one(true))
        return modes / positive_or_one(stretch), stretch


def _modes_of(model: LinearConvolutionalNetwork) -> Complex[Array, "layers h"]:
    return jnp.fft.rfft(jnp.stack(model.weights), norm="ortho", axis=1)


def _length(modes: Complex[Array, "layers h"]) -> Float[Array, "layers h"]:
    """Moduli, with the derivative zero at zero, and of no square that underflows."""
    some = modes != 0
    return jnp.where(some, jnp.abs(jnp.where(some, modes, 1.0)), 0.0)


def _real(modes: Complex[Array, "layers h"], d: int) -> Float[Array, "layers d"]:
    """Real and imaginary parts of half a spectrum, as long as the whole."""
    both = np.sqrt(2.0) * modes[:, 1 : (d + 1) // 2]
    middle = modes[:, (d + 1) // 2 :] if d > 1 else modes[:, :0]
    return jnp.concatenate([modes[:, :1].real, both.real, middle.real, both.imag], axis=1)


def _modes(state: Float[Array, "layers d"]) -> Complex[Array, "layers h"]:
    """Half a spectrum from its real and imaginary parts."""
    half = state.shape[1] // 2 + 1
    pairs = state.shape[1] - half
    both = jax.lax.complex(state[:, 1 : pairs + 1], state[:, half:]) / np.sqrt(2.0)
    ends = state[:, :half] + 0j
    return jnp.concatenate([ends[:, :1], both, ends[:, pairs + 1 :]], axis=1)
