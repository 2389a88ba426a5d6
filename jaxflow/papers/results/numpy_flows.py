"""Flows and programs computed a second time by NumPy and SciPy, without any solver or gradient of this library.

A parametrisation is named as in `jaxflow.plots.COLORS`, or `convolutional`; its parameters are one array of its parts.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np
from scipy.integrate import solve_ivp
from scipy.special import log_softmax

from jaxflow.papers.independent import RTOL, Tokens, tokens_of

LogSlope = Callable[[np.ndarray], np.ndarray]


def log_exponential_slope(margins: np.ndarray) -> np.ndarray:
    """log(−ℓ′) of e^−m."""
    return -margins


def log_logistic_slope(margins: np.ndarray) -> np.ndarray:
    """log(−ℓ′) of log(1 + e^−m)."""
    return -np.logaddexp(0.0, margins)


def product(name: str, parts: np.ndarray) -> np.ndarray:
    """The weights that the parameters make."""
    if name == "combined":
        return parts[0]
    if name == "convolutional":
        return np.real(np.fft.ifft(np.fft.fft(parts[0]) * np.fft.fft(parts[1])))
    return np.diag(parts[0] * parts[1]) if name == "diagonal" else parts[0] @ parts[1].T


def pulled(name: str, parts: np.ndarray, down: np.ndarray) -> np.ndarray:
    """The motion of the parameters where the weights are pulled `down`."""
    if name == "combined":
        return down[None]
    if name == "convolutional":
        return np.real(np.fft.ifft(np.fft.fft(down) * np.conj(np.fft.fft(parts[::-1]))))
    if name == "diagonal":
        return np.diagonal(down) * parts[::-1]
    return np.stack([down @ parts[1], down.T @ parts[0]])


def down(given: Any, s: float, weights: np.ndarray, log_slope: LogSlope) -> np.ndarray:
    """−e^s∇L of tokens, or of points (X, y): e^s multiplies logarithms, and nothing underflows."""
    if not isinstance(given, Tokens):
        X, y = given
        return X.T @ (y * np.exp(s + log_slope(y * (X @ weights)))) / len(y)
    logs = log_softmax(np.einsum("ntd,de,ne->nt", given.tokens, weights, given.queries), axis=1)
    attention, scores = np.exp(logs), given.scores
    first = np.argmax(logs, axis=1)[:, None]
    above = np.einsum("nts,ns->nt", scores[:, :, None] - scores[:, None, :], attention)
    margins = np.sum(attention * scores, axis=1, keepdims=True)
    # The token that leads is moved by none of its own.
    logs = np.where(np.arange(logs.shape[1]) == first, -np.inf, logs)
    pull = np.exp(s + logs + log_slope(margins)) * above / len(logs)
    own = np.take_along_axis(given.tokens, first[:, :, None], axis=1)
    return np.einsum("nt,ntd,ne->de", pull, given.tokens - own, given.queries)


def arrays_of(data: Any, model: Any) -> tuple[Any, np.ndarray]:
    """Tokens, or points (X, y); and the parts of the start."""
    leaves = [np.asarray(x, float) for x in jax.tree.leaves(eqx.filter(model, model.trainable()))]
    points = not hasattr(data, "tokens")
    given = (np.asarray(data.inputs), np.asarray(data.targets)) if points else tokens_of(data, model.head.v)
    return given, np.stack(leaves)


def flow(name: str, given: Any, start: np.ndarray, log_times: np.ndarray, log_slope: LogSlope) -> np.ndarray | None:
    """The parts of the parameters at these log(1 + t), by LSODA of SciPy; None where it fails."""

    def field(s: float, x: np.ndarray) -> np.ndarray:
        parts = x.reshape(start.shape)
        return pulled(name, parts, down(given, s, product(name, parts), log_slope)).ravel()

    how: Any = {"method": "LSODA", "rtol": RTOL, "atol": 1e-2 * RTOL}
    found = solve_ivp(field, (0.0, log_times[-1]), start.ravel(), t_eval=log_times, **how)
    return found.y.T.reshape(-1, *start.shape) if found.success else None
