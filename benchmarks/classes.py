"""Linear models of many classes, 20 data, beside CVXPY and SciPy: python benchmarks/classes.py [--only digits].

`separable`: normal inputs, random labels (of 3 classes in 10 dimensions not all are). `overlapping`: inputs with
both signs. `quasi_separable`: six inputs three times, once with another label, and two more. The last rows are data of
scikit-learn: petals of irises with an intercept, and all digits, certified by the dual of the multiclass support vector
machine alone. See results/classes.json.
"""

import itertools
from typing import Any

import cvxpy
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from _common import begun, clocked, outcomes, spread
from scipy.optimize import minimize
from sklearn.datasets import load_digits, load_iris

import jaxflow as jf

N = 20


def instance(key: jax.Array, d: int, C: int, kind: str) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Inputs, class numbers and starting weights."""
    a, b, c, e = jax.random.split(key, 4)
    W, inputs, labels = jax.random.normal(e, (C, d)), jax.random.normal(a, (N, d)), jax.random.randint(b, (N,), 0, C)
    if kind == "quasi_separable":
        other = (labels[:6] + jax.random.randint(c, (6,), 1, C)) % C
        labels = jnp.concatenate([labels[:6], labels[:6], other, labels[-2:]])
        inputs = inputs[jnp.arange(N) % 6].at[-2:].set(inputs[-2:])
    elif kind == "overlapping":
        half, labels = jax.random.normal(b, (N // 2, N // 2 // C)) @ inputs[: N // 2 // C], jnp.arange(N) % (N // 2) % C
        inputs = jnp.concatenate([half, -jax.random.uniform(c, (N // 2, 1)) * half])
    return inputs, labels, W


def svm(rows: np.ndarray, still: np.ndarray) -> np.ndarray:
    """The direction of the least weights with margins of one on `rows`, zero on `still`."""
    w, digits = cvxpy.Variable(rows.shape[1]), dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), 1e-10)
    rules = [rows @ w >= 1, *([still @ w == 0] if len(still) else [])]
    cvxpy.Problem(cvxpy.Minimize(cvxpy.sum_squares(w)), rules).solve(solver="CLARABEL", **digits)
    found, pushes = np.asarray(w.value), np.asarray(rules[0].dual_value)
    # By their multipliers: a margin whose multiplier is small comes to one last.
    active = rows[pushes > 1e-6 * np.max(pushes)]
    right = np.concatenate([np.ones(len(active)), np.zeros(len(still))])
    sharp = np.linalg.lstsq(np.concatenate([active, still]), right, rcond=None)[0]
    assert np.min(rows @ sharp) > 1 - 1e-9 and np.linalg.norm(sharp - found) <= 1e-5 * np.linalg.norm(sharp)
    return sharp / np.linalg.norm(sharp)


def minimum(rows: np.ndarray, still: np.ndarray, start: np.ndarray) -> np.ndarray:
    """SciPy's minimum of the loss of the margins `still`, from `start` in their span, and a step of Newton's method."""
    _, values, basis = np.linalg.svd(rows[still], full_matrices=False)
    basis = basis[values > 1e-10 * values[0]]

    def loss(z: jax.Array) -> jax.Array:
        return jnp.sum(jnp.log1p(jnp.sum(jnp.where(still, jnp.exp(-rows @ (start + basis.T @ z)), 0.0), axis=1)))

    slope, hessian = jax.jit(jax.grad(loss)), jax.jit(jax.hessian(loss))
    z = minimize(jax.jit(loss), np.zeros(len(basis)), jac=slope, hess=hessian, method="trust-exact", tol=1e-10).x
    return start + basis.T @ (z - np.linalg.solve(hessian(z), slope(z)))


@eqx.filter_jit
def find(inputs: jax.Array, labels: jax.Array, W: jax.Array) -> jf.Limit:
    """The limit of a linear model; `labels` are numbers of classes, or their frequencies."""
    model = eqx.nn.Linear(W.shape[1], W.shape[0], use_bias=False, key=jax.random.key(0))
    risk = jf.EmpiricalRisk((inputs, labels), "cross_entropy")
    return jf.find_limit(risk, eqx.tree_at(lambda m: m.weight, model, W))


def case(kind: str, made: list[tuple[jax.Array, jax.Array, jax.Array]]) -> dict[str, Any]:
    limits, first = clocked(lambda: [find(*one) for one in made])
    C, d = made[0][2].shape
    far, off, eye = [], [], np.eye(C)
    for (inputs, labels, W), limit in zip(made, limits, strict=True):
        pairs = zip(np.asarray(inputs), np.asarray(labels), strict=True)
        rows = np.array([[np.kron(eye[y] - eye[j], x) for j in range(C) if j != y] for x, y in pairs])
        growing = np.asarray(limit.linear.growing)
        if grows := growing.any():
            direction = np.ravel(limit.flow_direction.module.weight)
            far.append(np.linalg.norm(direction - svm(rows[growing], rows[~growing])))
        if not growing.all():
            right = minimum(rows, ~growing, np.zeros(C * d) if grows else np.ravel(W))
            point = np.ravel((limit.linear.component if grows else limit.end).module.weight)
            off.append(np.linalg.norm(point - right) / max(np.linalg.norm(right), 1.0))
    known = {"d": d, "classes": C, "kind": kind, "instances": len(made), "first_seconds": first.wall}
    ended = outcomes([limit.outcome for limit in limits])
    return known | {"outcomes": ended, "direction": spread(far), "point": spread(off)}


def iris() -> tuple[jax.Array, jax.Array, jax.Array]:
    """Length and width of the petals of 150 irises of three kinds, two of which overlap."""
    found: Any = load_iris()
    return jnp.insert(jnp.asarray(found.data[:, 2:]), 2, 1.0, axis=1), jnp.asarray(found.target), jnp.zeros((3, 3))


def digits() -> dict[str, Any]:
    """1,797 images of 64 pixels, from a random start, with compilation."""
    found: Any = load_digits()
    risk = jf.EmpiricalRisk((jnp.asarray(found.data / 16.0), jnp.asarray(found.target)), "cross_entropy")
    model = eqx.nn.Linear(64, 10, use_bias=False, key=jax.random.key(0))
    limit, first = clocked(lambda: jf.find_limit(risk, model))
    known = {"d": 64, "classes": 10, "kind": "digits", "instances": 1, "first_seconds": first.wall}
    return known | {"outcomes": outcomes([limit.outcome]), "excess": float(limit.excess)}


if __name__ == "__main__":
    asked, record = begun(__doc__, "classes", same=("d", "classes", "kind"), count=9, only=("random", "iris", "digits"))
    if "random" in asked.only:
        for d, C, kind in itertools.product((10, 30), (3, 10), ("separable", "overlapping", "quasi_separable")):
            keys = [jax.random.fold_in(jax.random.key(39), i) for i in range(asked.count)]
            record.add(case(kind, [instance(key, d, C, kind) for key in keys]))
    if "iris" in asked.only:
        record.add(case("iris", [iris()]))
    if "digits" in asked.only:
        record.add(digits())
