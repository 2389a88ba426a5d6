"""Linear models of many classes, against CVXPY and SciPy: python benchmarks/classes.py --count 9.

Twenty data, cross-entropy, normal starts: `separable` (normal inputs, random labels; some of 3 classes in 10 dimensions
are not, which the record counts), `overlapping` (every input also with the other sign and the same label) and
`quasi_separable` (six inputs three times, once with another label, and two more). Directions against CVXPY's multiclass
SVM, its active constraints solved again by least squares; points against SciPy's minimum. See results/classes.json.
"""

import argparse
from typing import Any

import cvxpy
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from _common import RESULTS, configure, counts, environment, print_table, spread, timed, write
from scipy.optimize import minimize

import jaxflow as jf

N, CASES = (
    20,
    [(d, C, kind) for d in (10, 30) for C in (3, 10) for kind in ("separable", "overlapping", "quasi_separable")],
)


def instance(key: jax.Array, d: int, C: int, kind: str) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Inputs, class numbers and starting weights."""
    a, b, c, e = jax.random.split(key, 4)
    W, inputs = jax.random.normal(e, (C, d)), jax.random.normal(a, (N, d))
    labels = jax.random.randint(b, (N,), 0, C)
    if kind == "separable":
        return inputs, labels, W
    if kind == "quasi_separable":
        first, other = labels[:6], (labels[:6] + jax.random.randint(c, (6,), 1, C)) % C
        return (
            inputs[jnp.arange(N) % 6].at[-2:].set(inputs[-2:]),
            jnp.concatenate([first, first, other, labels[-2:]]),
            W,
        )
    # Inputs that span as many dimensions as every class has pairs.
    half = jax.random.normal(b, (N // 2, N // 2 // C)) @ inputs[: N // 2 // C]
    return jnp.concatenate([half, -jax.random.uniform(c, (N // 2, 1)) * half]), jnp.arange(N) % (N // 2) % C, W


def svm(rows: np.ndarray, still: np.ndarray) -> np.ndarray:
    """The direction of the least weights with margins of one on `rows`, zero on `still`."""
    w = cvxpy.Variable(rows.shape[1])
    rules = [rows @ w >= 1, *([still @ w == 0] if len(still) else [])]
    digits = dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), 1e-10)
    cvxpy.Problem(cvxpy.Minimize(cvxpy.sum_squares(w)), rules).solve(solver="CLARABEL", **digits)
    active = rows[rows @ w.value <= 1 + 1e-6]
    right = np.concatenate([np.ones(len(active)), np.zeros(len(still))])
    sharp = np.linalg.lstsq(np.concatenate([active, still]), right, rcond=None)[0]
    assert np.min(rows @ sharp) > 1 - 1e-9 and np.linalg.norm(sharp - w.value) <= 1e-5 * np.linalg.norm(sharp)
    return sharp / np.linalg.norm(sharp)


def minimum(rows: np.ndarray, still: np.ndarray, start: np.ndarray) -> np.ndarray:
    """SciPy's minimum of the loss of the margins `still`, from `start` in their span, and a step of Newton's method."""
    _, values, basis = np.linalg.svd(rows[still], full_matrices=False)
    basis = basis[values > 1e-10 * values[0]]

    def loss(z: jax.Array) -> jax.Array:
        q = jnp.where(still, rows @ (start + basis.T @ z), 1e3)
        return jnp.sum(jnp.log1p(jnp.sum(jnp.exp(-q), axis=1)))

    slope, hessian = jax.jit(jax.grad(loss)), jax.jit(jax.hessian(loss))
    z = minimize(jax.jit(loss), np.zeros(len(basis)), jac=slope, hess=hessian, method="trust-exact", tol=1e-10).x
    return start + basis.T @ (z - np.linalg.solve(hessian(z), slope(z)))


@eqx.filter_jit
def find(inputs: jax.Array, labels: jax.Array, W: jax.Array) -> jf.Limit:
    """The limit, in one program for each shape."""
    layer = eqx.nn.Linear(W.shape[1], W.shape[0], use_bias=False, key=jax.random.key(0))
    model = eqx.tree_at(lambda m: m.weight, layer, W)
    return jf.find_limit(jf.EmpiricalRisk((inputs, labels), "cross_entropy"), model)


def case(d: int, C: int, kind: str, count: int) -> dict[str, Any]:
    """One row: `count` instances of one kind."""
    made = [instance(jax.random.fold_in(jax.random.key(39), i), d, C, kind) for i in range(count)]
    limits, first, later = timed(lambda: [find(*one) for one in made], 1)
    far, off, eye = [], [], np.eye(C)
    for (inputs, labels, W), limit in zip(made, limits, strict=True):
        pairs = zip(np.asarray(inputs), np.asarray(labels), strict=True)
        rows = np.array([[np.kron(eye[y] - eye[j], x) for j in range(C) if j != y] for x, y in pairs])
        growing = np.asarray(limit.linear.growing)
        grows = growing.any()
        if grows:
            far.append(
                np.linalg.norm(np.ravel(limit.flow_direction.module.weight) - svm(rows[growing], rows[~growing]))
            )
        if not growing.all():
            point = np.ravel((limit.linear.component if grows else limit.end).module.weight)
            right = minimum(rows, ~growing, np.zeros(C * d) if grows else np.ravel(W))
            off.append(np.linalg.norm(point - right) / max(np.linalg.norm(right), 1.0))
    row = {"d": d, "classes": C, "kind": kind, "instances": count}
    row["outcomes"] = counts([str(limit.outcome) for limit in limits])
    row["separability"] = counts([str(limit.linear.separability) for limit in limits])
    return row | {"direction": spread(far), "point": spread(off), "first_seconds": first, "seconds": later / count}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=9)
    arguments = parser.parse_args()
    configure()
    record: dict[str, Any] = {"environment": environment(), "rows": []}
    for one in CASES:
        record["rows"].append(case(*one, arguments.count))
        write(RESULTS / "classes.json", record)
    names = ["d", "classes", "kind", "outcomes", "seconds"]
    table = [[str(row[x]) for x in names] + [row["direction"]["max"], row["point"]["max"]] for row in record["rows"]]
    print_table("limits", [*names, "direction off", "point off"], table)


if __name__ == "__main__":
    main()
