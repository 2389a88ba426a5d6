"""Linear models of next words, 10 contexts and 6 words, beside CVXPY: python benchmarks/next_tokens.py --count 100.

Each context has one to four continuations with random frequencies. `one_hot`: a context is its own embedding (a table
of bigrams); `normal`: embeddings are random, of 10 dimensions. The direction is that of the program of largest margins
over words that never follow, orthogonal to differences of continuations; the point is the minimum among continuations,
which has their log-odds. See results/next_tokens.json.
"""

from typing import Any

import cvxpy
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from _common import Record, clocked, outcomes, settings, spread
from classes import svm

import jaxflow as jf

CONTEXTS, WORDS = 10, 6


def frequencies(rng: np.random.Generator) -> np.ndarray:
    """Of one to four words after each context."""
    often = np.zeros((CONTEXTS, WORDS))
    for row in often:
        words = rng.choice(WORDS, rng.integers(1, 5), replace=False)
        row[words] = rng.dirichlet(np.ones(len(words)))
    return often


def instance(rng: np.random.Generator, kind: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Embeddings, frequencies and starting weights."""
    often = frequencies(rng)
    inputs = np.eye(CONTEXTS) if kind == "one_hot" else rng.normal(size=(CONTEXTS, CONTEXTS))
    return inputs, often, rng.normal(size=(WORDS, CONTEXTS))


def rows_of(inputs: np.ndarray, often: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of every continuation over every other word, and of the first continuation over the others."""
    grow, stay, eye = [], [], np.eye(WORDS)
    for h, y in zip(inputs, often, strict=True):
        some = np.flatnonzero(y)
        grow += [np.kron(eye[z] - eye[v], h) for z in some for v in np.flatnonzero(y == 0)]
        stay += [np.kron(eye[some[0]] - eye[z], h) for z in some[1:]]
    return np.array(grow), np.array(stay).reshape(-1, WORDS * inputs.shape[1])


def minimum(inputs: np.ndarray, often: np.ndarray, stay: np.ndarray) -> np.ndarray:
    """CVXPY's minimum of the loss among continuations over the span of `stay`, and three steps of Newton's method.
    Where CVXPY ends, the objective is flat to roundings and the point is known to 1e-6."""
    _, values, basis = np.linalg.svd(stay, full_matrices=False)
    basis = basis[values > 1e-10 * values[0]]
    z, loss = cvxpy.Variable(len(basis)), 0
    W = cvxpy.reshape(basis.T @ z, (WORDS, inputs.shape[1]), order="C")
    for h, y in zip(inputs, often, strict=True):
        f = (W @ h)[np.flatnonzero(y)]
        loss += cvxpy.log_sum_exp(f) - y[y > 0] @ f
    digits = dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), 1e-10)
    cvxpy.Problem(cvxpy.Minimize(loss)).solve(solver="CLARABEL", **digits)
    found = np.asarray(z.value)
    for _ in range(3):
        f = np.where(often > 0, inputs @ (basis.T @ found).reshape(WORDS, -1).T, -np.inf)
        p = np.exp(f - f.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        slope = basis @ np.ravel((p - often).T @ inputs)
        bend = sum(np.kron(np.diag(q) - np.outer(q, q), np.outer(h, h)) for q, h in zip(p, inputs, strict=True))
        found = found - np.linalg.solve(basis @ bend @ basis.T, slope)
    assert np.linalg.norm(found - z.value) <= 1e-4 * np.linalg.norm(found)
    return basis.T @ found


@eqx.filter_jit
def find(inputs: jax.Array, often: jax.Array, W: jax.Array) -> jf.Limit:
    model = eqx.nn.Linear(W.shape[1], W.shape[0], use_bias=False, key=jax.random.key(0))
    risk = jf.EmpiricalRisk((inputs, often), "cross_entropy")
    return jf.find_limit(risk, eqx.tree_at(lambda m: m.weight, model, W))


def case(kind: str, count: int) -> dict[str, Any]:
    rng = np.random.default_rng(("one_hot", "normal").index(kind))
    made = [tuple(map(jnp.asarray, instance(rng, kind))) for _ in range(count)]
    limits, spent = clocked(lambda: [find(*one) for one in made])
    far, off, odds = [], [], []
    for (inputs, often, _), limit in zip(made, limits, strict=True):
        inputs, often = np.asarray(inputs), np.asarray(often)
        grow, stay = rows_of(inputs, often)
        far.append(np.linalg.norm(np.ravel(limit.flow_direction.module.weight) - svm(grow, stay)))
        point = np.asarray(limit.linear.component.module.weight)
        right = minimum(inputs, often, stay)
        off.append(np.linalg.norm(np.ravel(point) - right) / max(np.linalg.norm(right), 1.0))
        found = zip(inputs @ point.T, often, strict=True)
        odds += [np.max(np.abs(np.diff(f[y > 0] - np.log(y[y > 0]))), initial=0.0) for f, y in found]
    row = {"kind": kind, "instances": count, "seconds": spent.wall / count}
    row |= {"outcomes": outcomes([limit.outcome for limit in limits])}
    return row | {"direction": spread(far), "point": spread(off), "odds": spread(odds)}


def main() -> None:
    asked = settings(__doc__, "next_tokens", count=100)
    record = Record(asked.out)
    for kind in ("one_hot", "normal"):
        record.add(case(kind, asked.count))


if __name__ == "__main__":
    main()
