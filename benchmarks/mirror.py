"""Mirror flows of linear models: python benchmarks/mirror.py [--count 200] [--powers 1.2 1.5 3 10] [--schatten 1.5 3].

Logistic loss on 20 separable data of 10 and of 30 normal inputs, potentials |θ|_p^p/p, from zero. The limits are held
against the ℓp max-margin program as CVXPY states it (power cones, solved by Clarabel). *Excess*: the ℓp norm of the
flow's direction at margin one over CVXPY's optimum, less one.

Rows of `schatten`: inputs are normal matrices 4 x 5, and potentials those of singular values. The optimum is SciPy's
(SLSQP), which knows only the potential, its gradient and the margins.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _common import Linear, begun, outcomes, spread
from scipy.optimize import minimize

import jaxflow as jf

DATA, INPUTS, POWERS = 20, (10, 30), (1.2, 1.5, 3.0, 10.0)
SHAPE, SCHATTEN = (4, 5), (1.5, 3.0)


def instances(count: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs, and labels by a random hyperplane."""
    rng = np.random.default_rng([DATA, d])
    inputs = rng.normal(size=(count, DATA, d))
    return inputs, np.sign(np.einsum("kij,kj->ki", inputs, rng.normal(size=(count, d))))


def case(count: int, d: int, p: float) -> dict[str, Any]:
    inputs, labels = instances(count, d)

    def optimum(at: int) -> tuple[float, np.ndarray]:
        found = jf.margin.solve_cvxpy(jf.margin.max_margin(inputs[at], labels[at], jf.margin.Lp(p)))
        return float(found.certificate.primal_value), np.asarray(found.primal)

    return held({"p": p, "d": d}, Linear(jnp.zeros(d)), p, inputs, labels, lambda w: np.linalg.norm(w, p), optimum)


def matrices(count: int, p: float) -> dict[str, Any]:
    d = math.prod(SHAPE)
    inputs, labels = instances(count, d)

    def size(w: np.ndarray) -> float:
        return float(np.linalg.norm(np.linalg.svd(w.reshape(SHAPE), compute_uv=False), p))

    def potential(w: np.ndarray) -> tuple[float, np.ndarray]:
        u, s, vt = np.linalg.svd(w.reshape(SHAPE), full_matrices=False)
        return np.sum(s**p) / p, ((u * s ** (p - 1)) @ vt).reshape(-1)

    def optimum(at: int) -> tuple[float, np.ndarray]:
        rows = labels[at][:, None] * inputs[at]
        begun = np.linalg.pinv(rows) @ np.ones(DATA)
        margins: Any = {"type": "ineq", "fun": lambda w: rows @ w - 1.0, "jac": lambda w: rows}
        options = {"ftol": 1e-15, "maxiter": 1000}
        w = minimize(potential, begun, method="SLSQP", jac=True, constraints=margins, options=options).x
        # Of margins that are met: an upper bound.
        return size(w) / np.min(rows @ w), w

    known = {"p": p, "d": "{} x {}".format(*SHAPE), "norm": "schatten"}
    model, own = Linear(jnp.zeros(SHAPE)), jf.margin.Schatten(p)
    return held(known, model, own, inputs.reshape(count, DATA, *SHAPE), labels, size, optimum)


def held(known: Any, model: Any, potential: Any, inputs: Any, labels: Any, size: Any, optimum: Any) -> dict[str, Any]:
    """The limits beside independent optima: `optimum(at)`, a value and a point; `size` is the norm."""

    @jax.jit
    @jax.vmap
    def limits(x: Any, y: Any) -> Any:
        risk, method = jf.EmpiricalRisk((x, y), "logistic"), jf.ModelStaged(potential=potential)
        limit = jf.find_limit(risk, model, method=method, throw=False)
        direction = jax.tree.leaves(limit.flow_direction)[0].reshape(-1)
        return limit.outcome.value, direction, limit.trajectory.stats["num_steps"]

    codes, directions, steps = limits(inputs, labels)
    count, excess, apart = len(labels), [], []
    for at in np.flatnonzero(np.asarray(codes) == int(jf.Outcome.globally_optimal)):
        w, (value, theirs) = np.asarray(directions[at]), optimum(at)
        excess.append(size(w) / np.min(labels[at] * (inputs[at].reshape(DATA, -1) @ w)) / value - 1.0)
        apart.append(np.linalg.norm(w - theirs / np.linalg.norm(theirs)))
    return {
        **known,
        "instances": count,
        "outcomes": outcomes(codes),
        "excess": spread(np.array(excess)),
        "apart": spread(np.array(apart)),
        "steps": spread(steps),
    }


if __name__ == "__main__":
    asked, record = begun(__doc__, "mirror", same=("p", "d"), count=200, powers=POWERS, schatten=SCHATTEN)
    for p in asked.powers:
        for d in INPUTS:
            record.add(case(asked.count, d, p))
    for p in asked.schatten:
        record.add(matrices(asked.count, p))
