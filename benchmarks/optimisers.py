"""Which margin an optimiser maximises on linear data: excess of its direction over the optima of four norms.

python benchmarks/optimisers.py [--count 200] [--steps 5000] [--only "gradient descent" ...]

Ten matrices 4 x 5 with normal entries and random labels (separable: 20 unknowns), exponential loss, start at zero,
steps 0.3/sqrt(k). Adam has epsilon zero: below an epsilon its steps are those of gradient descent with memory. Muon is
that of Optax, with the cubic Newton-Schulz iteration to the end: five quintic steps end at singular values around one.
Each is followed on all data, and on batches of five in a new order in each epoch of two steps.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from _common import Record, clocked, settings, spread
from jaxtyping import Array

import jaxflow as jf

SHAPE, DATA = (4, 5), 10
BATCHES = {"": None, ", batches of 5": 5}
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


def follow(optimizer: Any, grid: list[int], batch: int | None) -> Callable[[Array, Array], Array]:
    key = None if batch is None else jax.random.key(0)

    def one(inputs: Array, labels: Array) -> Array:
        risk = jf.EmpiricalRisk((inputs, labels), "exponential")
        start, saved = Predictor(jnp.zeros(SHAPE)), jnp.array(grid)
        path = jf.descend(risk, start, steps=grid[-1], optimizer=optimizer, save_at=saved, batch=batch, key=key)
        return jf.limits.compare(path, risk, NORMS).excess

    return jax.jit(jax.vmap(one))


def main() -> None:
    names = tuple(f"{name}{more}" for more in BATCHES for name in OPTIMISERS)
    asked = settings(__doc__, "optimisers", count=200, steps=5000, only=names)
    rng = np.random.default_rng(0)
    inputs = jnp.asarray(rng.normal(size=(asked.count, DATA, *SHAPE)))
    labels = jnp.asarray(rng.choice([-1.0, 1.0], (asked.count, DATA)))
    grid = [asked.steps // 50, asked.steps // 5, asked.steps]
    record = Record(asked.out, same=("optimiser",), count=asked.count)
    for name in asked.only:
        which, _, more = name.partition(",")
        (optimizer, own), batch = OPTIMISERS[which], BATCHES[f",{more}" if more else ""]
        found, seconds = clocked(follow(optimizer, grid, batch), inputs, labels)
        excess, at = np.asarray(found), NORMS.index(own)
        record.add(
            {
                "optimiser": name,
                "norm": own,
                "instances": asked.count,
                "steps": grid,
                "excess": {norm: [spread(excess[:, k, step]) for step in range(3)] for k, norm in enumerate(NORMS)},
                "nearest_to_its_own": int(np.sum(np.argmin(excess[:, :, -1], axis=1) == at)),
                "own_fell_tenfold": int(np.sum(excess[:, at, -1] < 0.1 * excess[:, at, 0])),
                "seconds_with_compilation": seconds.wall,
            }
        )


if __name__ == "__main__":
    main()
