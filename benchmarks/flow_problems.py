"""Gradient flows that the solvers of flow_peers.py are compared on, by the library and as one writes them without it.

The plain form of a problem is that of plain_flows.py. Errors are measured in what the outputs depend on: W, or the
products β of the weights of a network.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import plain_flows as plain

import jaxflow as jf

# Parameters up to which an implicit method is asked: it factorises a matrix of that size at every step.
MOST_IMPLICIT = 500
ATTENTION = {"W": jf.models.CombinedAttention, "KQ": jf.models.FactoredAttention}


class Problem(NamedTuple):
    """Instances of one kind and size.

    `draw`: risk and model of a key; `plain`: the plain form of a batch of them; `measured`: of flat ends `(k, p)`, what
    errors are measured in; `end`: that of a trajectory of the library, or its flat parameters; `ours`: what
    `integrate` is called with to come to log t; `near`: log t where every method answers; `far`: log t where physical
    time does not arrive, or None; `batch`: instances at full scale; `size_of_start`: by which absolute tolerances of
    the plain methods are multiplied, for a start that is small must be known to its own digits.
    """

    name: str
    size: tuple[int, ...]
    draw: Callable[[Any], tuple[Any, Any]]
    plain: Callable[[Any, Any], Any]
    measured: Callable[[np.ndarray], np.ndarray]
    end: Callable[[Any], Any]
    ours: Callable[[Any], dict[str, Any]]
    near: float = 10.0
    far: float | None = 100.0
    batch: int = 64
    size_of_start: float = 1.0


def attention(name: str, size: tuple[int, int, int], batch: int = 64, coordinates: str = "weights") -> Problem:
    """W or K and Q of random tokens, as published."""

    def draw(key: Any) -> tuple[Any, Any]:
        data_key, start_key = jax.random.split(key)
        data, head = jf.data.random_tokens(data_key, *size)
        return jf.EmpiricalRisk(data, "logistic"), ATTENTION[name].init(start_key, data, head)

    def end(path: Any) -> Any:
        weights = path.model.W if name == "W" else jnp.stack([path.model.K, path.model.Q])
        return weights.ravel()

    return Problem(
        name,
        size,
        draw,
        plain.of_attention,
        lambda flat: plain.combined(flat, size[-1]),
        end,
        lambda log_time: {"clock": "log_time", "until": log_time, "coordinates": coordinates},
        far=100.0 if size[-1] <= 10 else None,
        batch=batch,
    )


def diagonal_network(n: int, d: int) -> Problem:
    """A diagonal linear network of two layers on separable data; the logistic loss."""

    def draw(key: Any) -> tuple[Any, Any]:
        inputs, labels, start = jax.random.split(key, 3)
        signs = jnp.where(jax.random.bernoulli(labels, shape=(n,)), 1.0, -1.0)
        data = jf.data.LinearData(jax.random.normal(inputs, (n, d)), signs)
        return jf.EmpiricalRisk(data, "logistic"), jf.models.DiagonalLinearNetwork.init(start, data, alpha=0.5)

    return Problem(
        "diagonal network",
        (n, d),
        draw,
        plain.of_network,
        plain.products,
        lambda path: jnp.concatenate(path.model.weights),
        lambda log_time: {"clock": "log_time", "until": log_time, "coordinates": "weights"},
    )


def incremental(log_alpha: float, label: str, n: int = 20, p: int = 6) -> Problem:
    """Regression by a diagonal network from a start of size α, to five times log(1/α): between stages."""

    def draw(key: Any) -> tuple[Any, Any]:
        inputs, targets, start = jax.random.split(key, 3)
        data = jf.data.LinearData(jax.random.normal(inputs, (n, p)), jax.random.normal(targets, (n,)))
        kind = jf.models.DiagonalLinear()
        return jf.EmpiricalRisk(data, "squared"), jf.models.HadamardNetwork.init(start, kind, p=p, log_scale=log_alpha)

    return Problem(
        f"from {label}",
        (n, p),
        draw,
        plain.of_regression,
        plain.products,
        # Products are all that these coordinates know, and all that is compared.
        lambda path: jnp.concatenate([path.model.log_weights.products, jnp.ones(p)]),
        lambda log_time: {
            "clock": jf.RescaledTime(log_alpha),
            "until": jnp.exp(log_time) / -log_alpha,
            "coordinates": "log_hadamard",
        },
        near=float(np.log(-5.0 * log_alpha)),
        far=None,
        # Below the smallest number there is no start to know.
        size_of_start=float(np.exp(log_alpha)) or 1.0,
    )


PROBLEMS = [
    *(attention(name, size) for name in ("W", "KQ") for size in ((5, 5, 4), (6, 8, 10), (5, 5, 20))),
    *(attention(name, (20, 5, 50), 8) for name in ("W", "KQ")),
    attention("W", (5, 5, 1000), 2, "scores"),
    diagonal_network(5, 20),
    incremental(float(np.log(1e-8)), "α = 1e-8"),
    incremental(-1e4, "α = e^-10000"),
]
