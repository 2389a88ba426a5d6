"""Many classes under cross-entropy: linear models of every kind of data, homogeneous networks, descent."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

import jaxflow as jf

N, D, C = 12, 6, 3


def linear(W: jax.Array) -> eqx.nn.Linear:
    layer = eqx.nn.Linear(W.shape[1], W.shape[0], use_bias=False, key=jax.random.key(0))
    return eqx.tree_at(lambda m: m.weight, layer, W)


@jax.jit
@jax.vmap
def limits_of(inputs: jax.Array, labels: jax.Array, start: jax.Array) -> Any:
    risk = jf.EmpiricalRisk(jf.data.LinearData(inputs, labels), "cross_entropy")
    return jf.find_limit(risk, linear(start), throw=False)


def separable(rng: Any) -> tuple[np.ndarray, np.ndarray]:
    W = rng.normal(size=(C, D))
    inputs = rng.normal(size=(N, D))
    return inputs, np.argmax(inputs @ W.T, axis=1)


def overlapping(rng: Any) -> tuple[np.ndarray, np.ndarray]:
    """Of every class two inputs, with both signs: what they span has no other limit than a point."""
    inputs = rng.normal(size=(N // 2, 2)) @ rng.normal(size=(2, D))
    return np.concatenate([inputs, -rng.uniform(0.5, 2.0, (N // 2, 1)) * inputs]), np.tile(np.arange(N // 2) % C, 2)


def quasi_separable(rng: Any, n: int = N, d: int = D, classes: int = C) -> tuple[np.ndarray, np.ndarray]:
    """A quarter of the inputs three times, of two classes: their margin over a third grows, the other is held."""
    inputs = rng.normal(size=(n // 4, d))
    first = rng.integers(0, classes, n // 4)
    labels = [first, first, (first + 1) % classes, rng.integers(0, classes, n // 4)]
    return np.concatenate([inputs, inputs, inputs, rng.normal(size=(n // 4, d))]), np.concatenate(labels)


KINDS = {make.__name__: make for make in (separable, overlapping, quasi_separable)}


@pytest.fixture(scope="module")
def batch() -> tuple[Any, ...]:
    """Two instances of each kind, in one program."""
    rng = np.random.default_rng(0)
    made = [KINDS[name](rng) for name in KINDS for _ in range(2)]
    inputs, labels = (np.stack(part) for part in zip(*made, strict=True))
    starts = rng.normal(size=(len(made), C, D))
    return inputs, labels, starts, limits_of(jnp.asarray(inputs), jnp.asarray(labels), jnp.asarray(starts))


def rows_of(inputs: np.ndarray, labels: np.ndarray, classes: int = C) -> np.ndarray:
    pairs, eye = zip(inputs, labels, strict=True), np.eye(classes)
    return np.array([[np.kron(eye[y] - eye[j], x) for j in range(classes) if j != y] for x, y in pairs])


def svm(rows: np.ndarray, still: np.ndarray) -> np.ndarray:
    """The direction of CVXPY's multiclass SVM, `still` zero; active constraints solved again by least squares."""
    cvxpy = pytest.importorskip("cvxpy")
    w = cvxpy.Variable(rows.shape[1])
    held = [still @ w == 0] if len(still) else []
    cvxpy.Problem(cvxpy.Minimize(cvxpy.sum_squares(w)), [rows @ w >= 1, *held]).solve(
        solver="CLARABEL", tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10
    )
    active = rows[rows @ w.value <= 1.0 + 1e-6]
    right = np.concatenate([np.ones(len(active)), np.zeros(len(still))])
    sharp = np.linalg.lstsq(np.concatenate([active, still]), right, rcond=None)[0]
    assert np.min(rows @ sharp) > 1.0 - 1e-9
    assert np.linalg.norm(sharp - w.value) <= 1e-5 * np.linalg.norm(sharp)
    return sharp / np.linalg.norm(sharp)


def minimum(rows: np.ndarray, still: np.ndarray, start: np.ndarray) -> np.ndarray:
    """SciPy's minimum over start + span of the margins that are `still`, with one step of Newton's method."""
    values, vectors = np.linalg.svd(rows[still])[1:]
    basis = vectors[: np.sum(values > 1e-10 * values[0])]
    inner, begun = rows @ basis.T, rows @ start

    def shares(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        sizes = np.where(still, np.exp(-(begun + inner @ z)), 0.0)
        total = sizes.sum(1, keepdims=True)
        return sizes / (1.0 + total), np.log1p(total)

    def slope(z: np.ndarray) -> np.ndarray:
        return -np.einsum("ij,ijm->m", shares(z)[0], inner)

    def hessian(z: np.ndarray) -> np.ndarray:
        p = shares(z)[0]
        mean = np.einsum("ij,ijm->im", p, inner)
        return np.einsum("ij,ijm,ijk->mk", p, inner, inner) - mean.T @ mean

    z = minimize(lambda z: shares(z)[1].sum(), np.zeros(len(basis)), jac=slope, hess=hessian, method="trust-exact").x
    for _ in range(3):
        z = z - np.linalg.solve(hessian(z), slope(z))
    return start + basis.T @ z


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "at"), [(name, 2 * k + i) for k, name in enumerate(KINDS) for i in range(2)])
def test_a_linear_model_ends_where_cvxpy_and_scipy_say(batch: tuple[Any, ...], kind: str, at: int) -> None:
    inputs, labels, starts, limits = (jax.tree.map(lambda x: x[at], part) for part in batch)
    assert limits.linear.separability == kind
    assert limits.outcome == ("finite_stationary_point" if kind == "overlapping" else "globally_optimal")
    rows, growing = rows_of(inputs, labels), limits.linear.growing
    if kind == "quasi_separable":
        # Of the first nine the one margin that has the other label of their input on the other side.
        others = np.array([[j for j in range(C) if j != y] for y in labels])
        doubled = np.concatenate([labels[6:9], labels[6:9], labels[:3], -np.ones(3)])
        np.testing.assert_array_equal(growing, others != doubled[:, None])
        apart = limits.linear.component.module.weight.reshape(-1) - minimum(rows, ~growing, np.zeros(C * D))
        assert np.linalg.norm(apart) <= 1e-8
    if kind == "overlapping":
        assert not growing.any() and limits.stationary.error <= 1e-8
        point = minimum(rows, ~growing, starts.reshape(-1))
        apart = limits.end.module.weight.reshape(-1) - point
        assert np.linalg.norm(apart) <= 1e-8 * np.linalg.norm(point)
        return
    assert limits.excess <= 1e-8 and (kind == "quasi_separable" or growing.all())
    direction = limits.flow_direction.module.weight.reshape(-1)
    assert np.linalg.norm(direction - svm(rows[growing], rows[~growing])) <= 1e-8
    np.testing.assert_allclose(limits.details.margin, np.min(rows[growing] @ direction), rtol=1e-8)


@pytest.mark.slow
def test_more_parameters_than_margins_are_projected_in_coordinates_of_all() -> None:
    """The flow is in coordinates of the span of its rows, in which zeros of the rows that stay are roundings."""
    n, d, classes, rng = 8, 9, 6, np.random.default_rng(0)
    made = [quasi_separable(rng, n, d, classes) for _ in range(4)]
    inputs, labels = (np.stack(part) for part in zip(*made, strict=True))
    limits = limits_of(jnp.asarray(inputs), jnp.asarray(labels), jnp.zeros((4, classes, d)))
    np.testing.assert_array_equal(limits.outcome.value, jf.Outcome.globally_optimal)
    grows, directions = (np.asarray(x) for x in (limits.linear.growing, limits.flow_direction.module.weight))
    for x, y, growing, direction in zip(inputs, labels, grows, directions, strict=True):
        rows = rows_of(x, y, classes)
        assert np.linalg.norm(direction.reshape(-1) - svm(rows[growing], rows[~growing])) <= 1e-8


def test_what_is_printed_counts_pairs() -> None:
    inputs, labels = quasi_separable(np.random.default_rng(0))
    limit = jf.find_limit(jf.EmpiricalRisk((inputs, labels), "cross_entropy"), linear(jnp.zeros((C, D))))
    assert "the margins of 15 of 24 pairs of a datum and another class diverge" in str(limit)
    assert "The other pairs" in str(limit) and "Theorem 7" in str(limit)


@pytest.mark.slow
def test_two_classes_go_where_the_logistic_loss_goes() -> None:
    inputs, labels = np.random.default_rng(1).normal(size=(8, 3)), np.arange(8) % 2
    many = jf.find_limit(jf.EmpiricalRisk((inputs, labels), "cross_entropy"), linear(jnp.zeros((2, 3))))
    two = jf.find_limit(
        jf.EmpiricalRisk((inputs, labels), "logistic"),
        eqx.nn.Linear(3, "scalar", use_bias=False, key=jax.random.key(0)),
    )
    assert many.outcome == two.outcome and many.linear.separability == two.linear.separability
    W = many.end.module.weight if many.point is not None else many.flow_direction.module.weight
    np.testing.assert_allclose(W[1], -W[0], atol=1e-8)


class TwoLayers(eqx.Module):
    """A ReLU network with an output for each class."""

    W: jax.Array
    A: jax.Array

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.A @ jax.nn.relu(self.W @ x)


def test_a_relu_network_ends_at_a_kkt_point_of_all_margins() -> None:
    """The conditions of Lyu and Li (2020), appendix G, put together in NumPy from the answer's numbers alone."""
    keys = jax.random.split(jax.random.key(2), 4)
    inputs = jax.random.normal(keys[0], (6, 2))
    labels = np.asarray(jnp.argmax(inputs @ jax.random.normal(keys[1], (2, C)), axis=1))
    model = TwoLayers(jax.random.normal(keys[2], (6, 2)), 0.5 * jax.random.normal(keys[3], (C, 6)))
    limit = jf.find_limit(jf.EmpiricalRisk((inputs, labels), "cross_entropy"), model)
    assert limit.outcome == "kkt_point" and limit.kkt_residual <= 1e-8
    np.testing.assert_allclose(limit.degree, 2.0)
    x, W, A = np.asarray(inputs), np.asarray(limit.direction.W), np.asarray(limit.direction.A)
    scores = np.maximum(x @ W.T, 0.0) @ A.T
    lead = np.array([[scores[i, y] - scores[i, j] for j in range(C) if j != y] for i, y in enumerate(labels)])
    np.testing.assert_allclose(lead.min(), limit.margin, rtol=1e-10)
    scale = lead.min() ** -0.5
    W, A, lead = scale * W, scale * A, lead / lead.min()
    lam = np.asarray(limit.kkt.multipliers).reshape(lead.shape)
    assert np.all(lam >= 0) and np.max(lam * (lead - 1.0)) <= 1e-7 * lam.sum() and np.sum(lam > 0) > len(labels) // 2
    # What every output is pushed by: up by all of its datum's multipliers, down by its own.
    push = np.zeros_like(scores)
    for i, y in enumerate(labels):
        others = [j for j in range(C) if j != y]
        push[i, y], push[i, others] = lam[i].sum(), -lam[i]
    gates = np.asarray(limit.kkt.gates).reshape(6, 6).T
    left_A = A - push.T @ np.maximum(x @ W.T, 0.0)
    left_W = W - np.einsum("ic,cu,iu,id->ud", push, A, gates, x)
    size = np.sqrt(np.sum(W**2) + np.sum(A**2))
    assert np.sqrt(np.sum(left_A**2) + np.sum(left_W**2)) <= 1e-7 * size


def test_normalised_descent_approaches_the_multiclass_svm() -> None:
    inputs, labels = separable(np.random.default_rng(4))
    risk = jf.EmpiricalRisk((inputs, labels), "cross_entropy")
    path: Any = jf.descend(risk, linear(jnp.zeros((C, D))), steps=4000, learning_rate=0.1, save_at=[100, 1000, 4000])
    best = svm(rows_of(inputs, labels).reshape(-1, C * D), np.zeros((0, C * D)))
    W = np.asarray(path.saved.model.weight).reshape(3, -1)
    apart = np.linalg.norm(W / np.linalg.norm(W, axis=1, keepdims=True) - best, axis=1)
    assert apart[0] > 2.0 * apart[1] > 4.0 * apart[2] > 0.0
