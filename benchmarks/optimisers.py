"""Which margin an optimiser maximises: excess of its direction over the optima of four norms.

python benchmarks/optimisers.py [--count 200] [--steps 5000] [--only classes attention ...]

Random problems, all of which can be separated, with steps 0.3/sqrt(k) on whole gradients:

- `linear`: ten matrices 4 x 5 with labels (20 unknowns), exponential loss, from zero; `linear, batches`: in batches of
  five, in a new order in each epoch of two steps.
- `classes`: eight data of 8 dimensions in four classes, cross-entropy, from zero.
- `two layers`: the predictor is a product of two matrices 4 x 4, of which each is trained; eight matrices with labels,
  exponential loss, normal starts of size 0.1.
- `attention`: trained through W, four sequences of four tokens of 5 dimensions, logistic loss, from zero. The programs
  are those of the tokens that have most attention at the end.

Adam has epsilon zero: below an epsilon its steps are those of gradient descent with memory. Muon is that of Optax, with
the cubic Newton-Schulz iteration to the end: five quintic steps end at singular values around one.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from _common import Linear, begun, spread
from jaxtyping import Array

import jaxflow as jf
from jaxflow.study import wilson

NORMS = ("l2", "linf", "spectral", "nuclear")


def schedule(k: Any) -> Any:
    return 0.3 / jnp.sqrt(k + 1.0)


OPTIMISERS: dict[str, Any] = {
    "gradient descent": optax.sgd(schedule),
    "sign descent": optax.sign_sgd(schedule),
    "Adam": optax.adam(schedule, eps=0.0),
    "Muon": optax.contrib.muon(schedule, ns_coeffs=(1.5, -0.5, 0.0), ns_steps=20),
}
# The norm whose margin each is said to maximise. Signs of two factors have a norm of the product that is none of these.
STEEPEST = {"gradient descent": "l2", "sign descent": "linf", "Adam": "linf", "Muon": "spectral"}
OWN = {"two layers": {"gradient descent": "nuclear", "Muon": "spectral"}}
# An excess that no rounding and no gap of a program explains.
LEAST = 1e-6


def linear(key: Array, shape: tuple[int, ...] = (10, 4, 5)) -> tuple[jf.EmpiricalRisk, Any]:
    first, second = jax.random.split(key)
    inputs, labels = jax.random.normal(first, shape), jax.random.rademacher(second, shape[:1], float)
    return jf.EmpiricalRisk((inputs, labels), "exponential"), Linear(jnp.zeros(shape[1:]))


def classes(key: Array) -> tuple[jf.EmpiricalRisk, Any]:
    first, second = jax.random.split(key)
    data = jax.random.normal(first, (8, 8)), jax.random.randint(second, (8,), 0, 4)
    return jf.EmpiricalRisk(data, "cross_entropy"), Linear(jnp.zeros((4, 8)))


def two_layers(key: Array) -> tuple[jf.EmpiricalRisk, Any]:
    first, second = jax.random.split(key)
    risk, _ = linear(first, (8, 16))
    data: Any = risk.data
    return risk, jf.models.DeepMatrixSensing.init(second, data, alpha=0.1, scheme="random")


def attention(key: Array) -> tuple[jf.EmpiricalRisk, Any]:
    data, head = jf.data.random_tokens(key, 4, 4, 5)
    return jf.EmpiricalRisk(data, "logistic"), jf.models.CombinedAttention(jnp.zeros((5, 5)), head)


# Problems, and the number of data in a batch.
PROBLEMS: dict[str, tuple[Callable[[Array], tuple[jf.EmpiricalRisk, Any]], int | None]] = {
    "linear": (linear, None),
    "classes": (classes, None),
    "two layers": (two_layers, None),
    "attention": (attention, None),
    "linear, batches": (linear, 5),
}


def follow(problem: str, optimizer: Any, grid: list[int]) -> Callable[[Array], Array]:
    made, batch = PROBLEMS[problem]
    order, saved = None if batch is None else jax.random.key(0), jnp.array(grid)

    def one(key: Array) -> Array:
        risk, start = made(key)
        path = jf.descend(risk, start, steps=grid[-1], optimizer=optimizer, save_at=saved, batch=batch, key=order)
        return jf.limits.compare(path, risk, NORMS).excess

    return jax.jit(jax.vmap(one))


@partial(jax.jit, static_argnums=(0, 1))
@partial(jax.vmap, in_axes=(None, None, 0))
def kept(problem: str, norm: str, key: Array) -> Array:
    """The excess that the optimum of one norm has in the nearest of the others, of a linear predictor: a direction that
    tends to this optimum keeps it."""
    risk, start = PROBLEMS[problem][0](key)
    rows: Any = jax.jacrev(lambda model: risk.margins(model).reshape(-1))(start)
    best = jf.margin.solve(jf.margin.max_margin(rows.w, jnp.ones(len(rows.w)), norm=norm)).primal
    others = [name for name in NORMS if name != norm]
    return jnp.min(jf.limits.compare(Linear(best), risk, others).excess)


if __name__ == "__main__":
    same = ("problem", "optimiser")
    asked, record = begun(__doc__, "optimisers", same, count=200, steps=5000, only=tuple(PROBLEMS))
    grid = [asked.steps // 50, asked.steps // 5, asked.steps]
    for problem in asked.only:
        keys = jax.random.split(jax.random.key(0), asked.count)

        def share(many: int) -> list[float]:
            return [many, *(float(x) for x in wilson(many, asked.count))]

        for name, optimizer in OPTIMISERS.items():
            excess, own = np.asarray(follow(problem, optimizer, grid)(keys)), OWN.get(problem, STEEPEST).get(name)
            nearest = np.argmin(excess[:, :, -1], axis=1)
            # Excesses fall like the root of the number of steps: from the second reading on by 0.45.
            fell = excess[:, :, -1] < excess[:, :, -2] * 2 / 3
            falls = {norm: int(np.sum(fell[:, k])) for k, norm in enumerate(NORMS)}
            row = {"problem": problem, "optimiser": name, "norm": own}
            row["excess"] = {norm: [spread(excess[:, k, step]) for step in range(3)] for k, norm in enumerate(NORMS)}
            if own is not None:
                row["nearest_to_its_own"] = share(int(np.sum(nearest == NORMS.index(own))))
                row["own_falls"] = share(falls[own])
            # In the norm where most do.
            row["others_fall"] = share(max(many for norm, many in falls.items() if norm != own))
            if problem in ("linear", "classes"):
                left = np.asarray(kept(problem, own, keys))
                row |= {"kept": spread(left), "kept_by": share(int(np.sum(left > LEAST)))}
            record.add(row)
