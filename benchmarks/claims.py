"""Claims of `find_limit` beside references: python benchmarks/claims.py [--count 1000] [--heads 100]

- linear model: whether the loss has a minimum, decided by a linear program (HiGHS) on integer data, of which a third is
  quasi-separable; a claim of a point where there is none, or of a direction where there is a minimum, is wrong.
- support vector machine: 1,000 separable data, 20 inputs; the direction against CVXPY's (Clarabel), to be within 1e-8.
- several heads: two heads in parallel, each direction certified to the default gap or not.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _common import Linear, begun, outcomes
from classes import svm
from scipy.optimize import linprog

import jaxflow as jf
from jaxflow.limits import find_limits
from jaxflow.margin import Separability
from jaxflow.models import MultiHeadAttention


def kind_of(rows: np.ndarray) -> str:
    """Of data with signed inputs `rows`: how many margins some direction makes positive and none negative."""
    n, d = rows.shape
    # max Σs with Aw >= s and 0 <= s <= 1: of integer data s is 0 or 1 at the optimum.
    found = linprog(
        np.r_[np.zeros(d), -np.ones(n)],
        A_ub=np.c_[-rows, np.eye(n)],
        b_ub=np.zeros(n),
        bounds=[(None, None)] * d + [(0, 1)] * n,
        method="highs",
    )
    grows = round(-found.fun)
    return "overlapping" if grows == 0 else "separable" if grows == n else "quasi_separable"


def minima(count: int) -> dict[str, Any]:
    """Integer data in few values: ties, copies and planes through several data are frequent."""
    rng, found, wrong = np.random.default_rng(0), [], 0
    for _ in range(count):
        inputs, labels = rng.integers(-2, 3, (8, 3)).astype(float), rng.choice([-1.0, 1.0], 8)
        kind = kind_of(labels[:, None] * inputs)
        risk = jf.EmpiricalRisk((jnp.asarray(inputs), jnp.asarray(labels)), "logistic")
        limit: Any = jf.find_limit(risk, Linear(jnp.zeros(3)), throw=False)
        found.append(int(limit.outcome.value))
        said = Separability(int(limit.details.linear.separability.value)).name
        other = "direction" if kind == "overlapping" else "point"
        wrong += said not in (kind, "unknown") or bool(limit.kind == other)
    return {
        "case": "linear model",
        "reference": "linear program",
        "instances": count,
        "outcomes": outcomes(found),
        "undecided": sum(jf.Outcome(code) == jf.Outcome.undecided for code in found),
        "wrong": wrong,
    }


def machine() -> dict[str, Any]:
    """One large instance, from a start at zero."""
    rng = np.random.default_rng(1)
    inputs = rng.normal(size=(1000, 20))
    labels = np.sign(inputs @ rng.normal(size=20))
    risk = jf.EmpiricalRisk((jnp.asarray(inputs), jnp.asarray(labels)), "logistic")
    limit = jf.find_limit(risk, Linear(jnp.zeros(20)), throw=False)
    known = svm(labels[:, None] * inputs, np.zeros((0, 20)))
    apart = float(np.linalg.norm(np.asarray(jax.tree.leaves(limit.flow_direction)[0]) - known))
    return {
        "case": "support vector machine",
        "reference": "CVXPY",
        "instances": 1,
        "outcomes": outcomes([limit.outcome.value]),
        "undecided": int(limit.outcome.value == jf.Outcome.undecided),
        "wrong": int(apart > 1e-8),
        "difference": apart,
    }


def heads(count: int) -> dict[str, Any]:
    """Two heads; an instance counts as certified where both are."""
    found, open_ones = [], 0

    @jax.jit
    def setup(key: jax.Array) -> tuple[Any, Any]:
        tokens, second, start = jax.random.split(key, 3)
        data, head = jf.data.random_tokens(tokens, 4, 4, 5)
        model = MultiHeadAttention.init(start, data, [head, jax.random.normal(second, (5,))])
        return jf.EmpiricalRisk(data, "logistic"), model

    for i in range(count):
        risk, model = setup(jax.random.key(i))
        codes = [int(limit.outcome.value) for limit in find_limits(risk, model, throw=False)]
        found += codes
        open_ones += any(jf.Outcome(code) == jf.Outcome.undecided for code in codes)
    return {
        "case": "several heads",
        "reference": "own dual",
        "instances": count,
        "outcomes": outcomes(found),
        "undecided": open_ones,
        "wrong": None,
    }


if __name__ == "__main__":
    asked, record = begun(__doc__, "claims", count=1000, heads=100)
    record.add(minima(asked.count))
    record.add(machine())
    record.add(heads(asked.heads))
