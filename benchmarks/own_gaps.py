"""The flow's own duality gap, instance by instance: python benchmarks/own_gaps.py [--count 100] [--only "(K, Q)" ...].

Attention with factored and with diagonal weights and linear networks of two layers, each followed by `find_limit`
until the flow's own multipliers and direction certify it. Beside that the gap at which the program's own solver ends.
"""

from typing import Any

import equinox as eqx
import jax
import numpy as np
from _common import Record, clocked, outcomes, settings, spread

import jaxflow as jf
from jaxflow.models import DeepLinearNetwork, DiagonalLinearNetwork, LinearConvolutionalNetwork

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
ATTENTION = {"diagonal attention": jf.models.DiagonalAttention, "(K, Q)": jf.models.FactoredAttention}
NETWORKS: dict[str, Any] = {
    "diagonal": DiagonalLinearNetwork,
    "fully connected": DeepLinearNetwork,
    "convolutional": LinearConvolutionalNetwork,
}
# ρ at which exponents stop to grow. Margins of diagonal attention are a hundredth of ρ^2 here, and exponents of 1e12
# are what the floor of the certificate, a few over the exponents, is asked to be below.
METHODS = {"diagonal attention": jf.Staged(cap=1e7), "(K, Q)": jf.Staged()}
ALPHA = 0.5


def instance(key: jax.Array, name: str, size: tuple[int, ...]) -> tuple[Any, Any]:
    """Data and a start: attention as published; normal inputs with random labels, and layers of size α."""
    data_key, start_key = jax.random.split(key)
    if name in ATTENTION:
        data, head = jf.data.random_tokens(data_key, *size)
        return jf.EmpiricalRisk(data, "logistic"), ATTENTION[name].init(start_key, data, head)
    input_key, label_key = jax.random.split(data_key)
    labels = jax.random.rademacher(label_key, size[:1]).astype(float)
    data = jf.data.LinearData(jax.random.normal(input_key, size), labels)
    model = NETWORKS[name].init(start_key, data, alpha=ALPHA)
    return jf.EmpiricalRisk(data, "exponential", reduction="sum"), model


def row(name: str, size: tuple[int, ...], gap: float, count: int) -> dict[str, Any]:
    """How the instances of one model and size ended."""
    make = jax.jit(lambda key: instance(key, name, size))
    method = METHODS.get(name) or jf.LinearStaged()
    found: dict[str, list[Any]] = {}

    def find(key: jax.Array) -> tuple[Any, float]:
        risk, model = make(key)
        limit, spent = clocked(
            lambda: eqx.filter(jf.find_limit(risk, model, method=method, gap=gap, throw=False), eqx.is_array)
        )
        return limit, spent.wall

    keys = jax.random.split(jax.random.key(0), count)
    _, compiled = find(keys[0])
    for key in keys:
        limit, seconds = find(key)
        path = limit.trajectory
        for column, value in {
            "own_gap": float(limit.flow_certificate.duality_gap),
            "program_gap": float(limit.program_solution.certificate.duality_gap),
            "steps": int(path.stats["num_steps"]),
            "failed_solves": int(path.stats["num_failed_solves"]),
            "log_log_time": float(path.final.log_log_time),
            "seconds": seconds,
            "outcome": int(limit.outcome.value),
        }.items():
            found.setdefault(column, []).append(value)
    own = np.asarray(found["own_gap"])
    names = found.pop("outcome")
    return {
        "model": name,
        "size": list(size),
        "instances": count,
        "gap": gap,
        "reached": int(np.sum(own <= gap)),
        **{column: spread(values) for column, values in found.items()},
        "first_run_s": compiled,
        "outcomes": outcomes(names),
        "missed": [
            {"instance": int(i), "outcome": jf.Outcome(names[i]).name, **{c: values[i] for c, values in found.items()}}
            for i in np.flatnonzero(~(own <= gap))
        ],
    }


def main() -> None:
    asked = settings(__doc__, "own_gaps", count=100, only=(*NETWORKS, *ATTENTION))
    record = Record(asked.out)
    for name, size, gap in CASES:
        if name in asked.only:
            record.add(row(name, size, gap, asked.count))


if __name__ == "__main__":
    main()
