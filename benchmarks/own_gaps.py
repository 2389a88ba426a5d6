"""The flow's own duality gap, instance by instance: python benchmarks/own_gaps.py [--count 100] [--only "(K, Q)" ...].

Attention with factored and with diagonal weights and linear networks of two layers, each followed by `find_limit`
until the flow's own multipliers and direction certify it.
"""

from typing import Any

import jax
import numpy as np
from _common import begun, outcomes, spread

import jaxflow as jf

# Model, size, and the gap that the flow is asked for. (Some flows of attention end at finite stationary points and
# have no direction: `outcomes` counts them.)
CASES: list[tuple[str, tuple[int, ...], float]] = [
    ("diagonal attention", (6, 8, 10), 1e-10),
    ("diagonal attention", (5, 5, 4), 1e-10),
    ("diagonal", (5, 20), 1e-10),
    ("fully connected", (5, 8), 1e-10),
    ("convolutional", (5, 8), 1e-8),
    ("(K, Q)", (6, 8, 10), 1e-8),
]
KINDS: dict[str, Any] = {
    "diagonal attention": jf.models.DiagonalAttention,
    "diagonal": jf.models.DiagonalLinearNetwork,
    "fully connected": jf.models.DeepLinearNetwork,
    "convolutional": jf.models.LinearConvolutionalNetwork,
    "(K, Q)": jf.models.FactoredAttention,
}
# Of attention. ρ at which exponents stop to grow: margins of diagonal attention are a hundredth of ρ^2 here, and
# exponents of 1e12 are what the floor of the certificate, a few over the exponents, is asked to be below.
METHODS = {"diagonal attention": jf.Staged(cap=1e7), "(K, Q)": jf.Staged()}
ALPHA = 0.5


def instance(key: jax.Array, name: str, size: tuple[int, ...]) -> tuple[Any, Any]:
    """Data and a start: attention as published; normal inputs with random labels, and layers of size α."""
    data_key, start_key = jax.random.split(key)
    if name in METHODS:
        data, head = jf.data.random_tokens(data_key, *size)
        return jf.EmpiricalRisk(data, "logistic"), KINDS[name].init(start_key, data, head)
    input_key, label_key = jax.random.split(data_key)
    labels = jax.random.rademacher(label_key, size[:1]).astype(float)
    data = jf.data.LinearData(jax.random.normal(input_key, size), labels)
    model = KINDS[name].init(start_key, data, alpha=ALPHA)
    return jf.EmpiricalRisk(data, "exponential", reduction="sum"), model


def row(name: str, size: tuple[int, ...], gap: float, count: int) -> dict[str, Any]:
    """How the instances of one model and size ended."""
    make = jax.jit(lambda key: instance(key, name, size))
    method = METHODS.get(name) or jf.LinearStaged()
    limits = [
        jf.find_limit(*make(key), method=method, gap=gap, throw=False)
        for key in jax.random.split(jax.random.key(0), count)
    ]
    own = np.array([float(limit.flow_certificate.duality_gap) for limit in limits])
    return {
        "model": name,
        "size": list(size),
        "instances": count,
        "gap": gap,
        "reached": int(np.sum(own <= gap)),
        "own_gap": spread(own),
        "outcomes": outcomes([limit.outcome.value for limit in limits]),
    }


if __name__ == "__main__":
    asked, record = begun(__doc__, "own_gaps", count=100, only=tuple(KINDS))
    for name, size, gap in CASES:
        if name in asked.only:
            record.add(row(name, size, gap, asked.count))
