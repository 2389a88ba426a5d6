"""Limits of a user's own models: python benchmarks/own_model.py [--count 50] [--seeds 19 2026].

Two-layer ReLU networks (16 units, 20 data on two sides of a plane, logistic loss), instance by instance to their KKT
points. The method was settled on the networks of seed 19; those of another seed are the ones that it had never met.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from _common import TwoLayers, begun, counts, spread
from jax.flatten_util import ravel_pytree

import jaxflow as jf


def instance(key: jax.Array, d: int) -> tuple[jf.EmpiricalRisk, TwoLayers]:
    """Normal inputs, labels by a random plane, weights of the usual sizes."""
    keys = jax.random.split(key, 4)
    inputs = jax.random.normal(keys[0], (20, d))
    labels = jnp.sign(inputs @ jax.random.normal(keys[1], (d,)))
    W = jax.random.normal(keys[2], (16, d)) / np.sqrt(d)
    model = TwoLayers(W, 0.25 * jax.random.normal(keys[3], (16,)))
    return jf.EmpiricalRisk(jf.data.LinearData(inputs, labels), "logistic"), model


def row(d: int, count: int, seed: int) -> dict[str, Any]:
    """`count` instances to their limits, one after another in one program, and again at a tenth of the tolerance."""
    find = eqx.filter_jit(lambda key, how: jf.find_limit(*instance(key, d), method=how))
    keys = [jax.random.fold_in(jax.random.key(seed), i) for i in range(count)]
    methods = [jf.ModelStaged(tolerance=jnp.asarray(tolerance)) for tolerance in (1e-4, 1e-5)]
    found, finer = ([find(key, how) for key in keys] for how in methods)
    ends = [np.array([ravel_pytree(limit.flow_direction)[0] for limit in limits]) for limits in (found, finer)]
    residuals = np.array([float(limit.kkt_residual) for limit in found])
    return {
        "d": d,
        "seed": seed,
        "outcomes": counts([str(limit.outcome) for limit in found]),
        "residual <= 1e-6": int(np.sum(residuals <= 1e-6)),
        "largest residual": float(residuals.max()),
        "sliding kinks": spread([int(limit.kkt.sliding.sum()) for limit in found]),
        "turned": spread([float(limit.turned) for limit in found]),
        "path error": spread([float(limit.path_error) for limit in found]),
        "apart from 1e-5": float(np.linalg.norm(ends[0] - ends[1], axis=1).max()),
        "exact steps": spread([int(limit.trajectory.stats["num_steps"]) for limit in found]),
    }


if __name__ == "__main__":
    asked, record = begun(__doc__, "own_model", count=50, seeds=(19, 2026))
    for seed in asked.seeds:
        for d in (2, 5):
            record.add(row(d, asked.count, seed))
