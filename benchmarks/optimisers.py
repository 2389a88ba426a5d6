"""Which margin an optimiser maximises on linear data: excess of its direction over the optima of four norms.

python benchmarks/optimisers.py [--count 200] [--steps 5000] [--out results/optimisers.json]

Ten matrices 4 x 5 with normal entries and random labels (separable: 20 unknowns), exponential loss, start at zero,
steps 0.3/sqrt(k). Adam has epsilon zero: below an epsilon its steps are those of gradient descent with memory. Muon is
that of Optax, with the cubic Newton-Schulz iteration to the end: five quintic steps end at singular values around one.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from _common import RESULTS, configure, environment, spread, write
from jaxtyping import Array

import jaxflow as jf

SHAPE, DATA = (4, 5), 10
NORMS = ("l2", "linf", "spectral", "nuclear")


class Predictor(eqx.Module):
    V: Array

    def __call__(self, x: Array) -> Array:
        return jnp.sum(self.V * x)


def schedule(k: Any) -> Any:
    return 0.3 / jnp.sqrt(k + 1.0)


# By name: the transformation and the norm whose margin it is said to maximise.
OPTIMISERS: dict[str, tuple[Any, str]] = {
    "gradient descent": (optax.sgd(schedule), "l2"),
    "sign descent": (optax.sign_sgd(schedule), "linf"),
    "Adam": (optax.adam(schedule, eps=0.0), "linf"),
    "Muon": (optax.contrib.muon(schedule, ns_coeffs=(1.5, -0.5, 0.0), ns_steps=20), "spectral"),
}


def follow(optimizer: Any, grid: list[int]) -> Callable[[Array, Array], Array]:
    def one(inputs: Array, labels: Array) -> Array:
        risk = jf.EmpiricalRisk((inputs, labels), "exponential")
        start = Predictor(jnp.zeros(SHAPE))
        path = jf.descend(risk, start, steps=grid[-1], optimizer=optimizer, save_at=jnp.array(grid))
        return jf.limits.compare(path, risk, NORMS).excess

    return jax.jit(jax.vmap(one))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--out", type=Path, default=RESULTS / "optimisers.json")
    arguments = parser.parse_args()
    configure()
    rng = np.random.default_rng(0)
    inputs = jnp.asarray(rng.normal(size=(arguments.count, DATA, *SHAPE)))
    labels = jnp.asarray(rng.choice([-1.0, 1.0], (arguments.count, DATA)))
    grid = [arguments.steps // 50, arguments.steps // 5, arguments.steps]
    content: dict[str, Any] = {"environment": environment(), "count": arguments.count, "rows": []}
    for name, (optimizer, own) in OPTIMISERS.items():
        start = time.perf_counter()
        excess = np.asarray(follow(optimizer, grid)(inputs, labels))
        row = {
            "optimiser": name,
            "norm": own,
            "steps": grid,
            "excess": {norm: [spread(excess[:, at, k]) for k in range(3)] for at, norm in enumerate(NORMS)},
            "nearest_to_its_own": int(np.sum(np.argmin(excess[:, :, -1], axis=1) == NORMS.index(own))),
            "own_fell_tenfold": int(np.sum(excess[:, NORMS.index(own), -1] < 0.1 * excess[:, NORMS.index(own), 0])),
            "seconds_with_compilation": time.perf_counter() - start,
        }
        content["rows"].append(row)
        print(name, {norm: [one["median"] for one in row["excess"][norm]] for norm in NORMS}, row, flush=True)
        write(arguments.out, content)


if __name__ == "__main__":
    main()
