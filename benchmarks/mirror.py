"""Mirror flows of linear models: python benchmarks/mirror.py [--count 200] [--powers 1.2 1.5 3 10].

Logistic loss on 20 separable data of 10 and of 30 normal inputs, potentials |θ|_p^p/p, from zero. The limits are held
against the ℓp max-margin program as CVXPY states it (power cones, solved by Clarabel). *Excess*: the ℓp norm of the
flow's direction at margin one over CVXPY's optimum, less one.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from _common import Record, clocked, outcomes, settings, spread

import jaxflow as jf

DATA, INPUTS, POWERS = 20, (10, 30), (1.2, 1.5, 3.0, 10.0)


class Linear(eqx.Module):
    w: jax.Array

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.w @ x


def instances(count: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs, and labels by a random hyperplane."""
    rng = np.random.default_rng([DATA, d])
    inputs = rng.normal(size=(count, DATA, d))
    return inputs, np.sign(np.einsum("kij,kj->ki", inputs, rng.normal(size=(count, d))))


def case(count: int, d: int, p: float) -> dict[str, Any]:
    inputs, labels = instances(count, d)

    @jax.jit
    @jax.vmap
    def limits(x: Any, y: Any) -> Any:
        risk, method = jf.EmpiricalRisk((x, y), "logistic"), jf.ModelStaged(potential=p)
        limit = jf.find_limit(risk, Linear(jnp.zeros(d)), method=method, throw=False)
        return limit.outcome.value, limit.flow_direction.module.w, limit.trajectory.stats["num_steps"]

    (codes, directions, steps), seconds = clocked(lambda: limits(inputs, labels))
    certified = np.flatnonzero(np.asarray(codes) == int(jf.Outcome.globally_optimal))
    excess, apart = [], []
    for at in certified:
        w, optimum = (
            np.asarray(directions[at]),
            jf.margin.solve_cvxpy(jf.margin.max_margin(inputs[at], labels[at], jf.margin.Lp(p))),
        )
        theirs = np.asarray(optimum.primal)
        size = np.linalg.norm(w, p) / np.min(labels[at] * (inputs[at] @ w))
        excess.append(size / float(optimum.certificate.primal_value) - 1.0)
        apart.append(np.linalg.norm(w - theirs / np.linalg.norm(theirs)))
    return {
        "p": p,
        "d": d,
        "instances": count,
        "outcomes": outcomes(codes),
        "excess": spread(np.array(excess)),
        "apart": spread(np.array(apart)),
        "steps": spread(steps),
        "seconds": seconds.wall / count,
    }


def main() -> None:
    asked = settings(__doc__, "mirror", count=200, powers=POWERS)
    record = Record(asked.out)
    for p in asked.powers:
        for d in INPUTS:
            record.add(case(asked.count, d, p))


if __name__ == "__main__":
    main()
