"""Many classes under cross-entropy: linear models of every kind of data, homogeneous networks, descent."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxflow as jf
from tests.limits.others import TwoLayers, linear, minimum, next_tokens, relu_residual

N, D, C = 12, 6, 3


@jax.jit
@jax.vmap
def limits_of(inputs: jax.Array, labels: jax.Array, start: jax.Array) -> Any:
    """Of class numbers, or of frequencies of classes."""
    risk = jf.EmpiricalRisk((inputs, labels), "cross_entropy")
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


@pytest.mark.parametrize(("kind", "at"), [(name, 2 * k + i) for k, name in enumerate(KINDS) for i in range(2)])
def test_a_linear_model_ends_where_cvxpy_and_scipy_say(batch: tuple[Any, ...], kind: str, at: int) -> None:
    inputs, labels, starts, limits = (jax.tree.map(lambda x: x[at], part) for part in batch)
    assert limits.linear.separability == kind
    assert limits.outcome == ("finite_stationary_point" if kind == "overlapping" else "globally_optimal")
    rows, growing = rows_of(inputs, labels), np.asarray(limits.linear.growing)
    # Logits of the classes, and which of them have a margin that stays, or are the label's.
    features = np.array([[np.kron(word, x) for word in np.eye(C)] for x in inputs])
    stays = np.ones((N, C), bool)
    stays[np.arange(C) != labels[:, None]] = ~growing.ravel()
    if not growing.all():
        point = next_tokens.minimum(features, np.eye(C)[labels], stays, rows[~growing])
    if kind == "quasi_separable":
        # Of the first nine the one margin that has the other label of their input on the other side.
        others = np.array([[j for j in range(C) if j != y] for y in labels])
        doubled = np.concatenate([labels[6:9], labels[6:9], labels[:3], -np.ones(3)])
        np.testing.assert_array_equal(growing, others != doubled[:, None])
        assert np.linalg.norm(limits.linear.component.module.weight.reshape(-1) - point) <= 1e-8
    if kind == "overlapping":
        assert not growing.any() and limits.stationary.error <= 1e-8
        # What no margin sees is where it was.
        start = starts.reshape(-1)
        point = point + start - np.linalg.pinv(rows[~growing]) @ (rows[~growing] @ start)
        apart = limits.end.module.weight.reshape(-1) - point
        assert np.linalg.norm(apart) <= 1e-8 * np.linalg.norm(point)
        return
    assert limits.excess <= 1e-8 and (kind == "quasi_separable" or growing.all())
    direction = limits.flow_direction.module.weight.reshape(-1)
    assert np.linalg.norm(direction - next_tokens.svm(rows[growing], rows[~growing])) <= 1e-8
    np.testing.assert_allclose(limits.details.margin, np.min(rows[growing] @ direction), rtol=1e-8)


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
        assert np.linalg.norm(direction.reshape(-1) - next_tokens.svm(rows[growing], rows[~growing])) <= 1e-8


def test_what_is_printed_counts_pairs(batch: tuple[Any, ...]) -> None:
    text = str(jax.tree.map(lambda x: x[4], batch[3]))
    assert "the margins of 15 of 24 pairs of a datum and another class diverge" in text
    assert "The other pairs" in text and "Theorem 7" in text


def test_a_frequency_of_one_is_a_class(batch: tuple[Any, ...]) -> None:
    inputs, labels, starts, numbers = batch
    often = limits_of(jnp.asarray(inputs), jnp.asarray(np.eye(C)[labels]), jnp.asarray(starts))
    np.testing.assert_array_equal(often.outcome.value, numbers.outcome.value)
    np.testing.assert_array_equal(often.linear.separability.value, numbers.linear.separability.value)
    np.testing.assert_array_equal(often.linear.growing, numbers.linear.growing)
    np.testing.assert_allclose(often.flow_direction.module.weight, numbers.flow_direction.module.weight, atol=1e-8)
    text = str(jax.tree.map(lambda x: x[0], often))
    assert "Thrampoulidis" in text and "margins of all pairs of a datum and another class" in text


def test_two_classes_go_where_the_logistic_loss_goes() -> None:
    inputs, labels = np.random.default_rng(1).normal(size=(8, 3)), np.arange(8) % 2
    many = jf.find_limit(jf.EmpiricalRisk((inputs, labels), "cross_entropy"), linear(jnp.zeros((2, 3))))
    assert many.outcome == "finite_stationary_point" and many.linear.separability == "overlapping"
    W = many.point.weight
    np.testing.assert_allclose(W[1], -W[0], atol=1e-8)
    np.testing.assert_allclose(W[1] - W[0], minimum(inputs, 2.0 * labels - 1.0).astype(float), atol=1e-8)


def test_a_relu_network_ends_at_a_kkt_point_of_all_margins() -> None:
    """The conditions of Lyu and Li (2020), appendix G, put together in NumPy from the answer's numbers alone."""
    keys = jax.random.split(jax.random.key(2), 4)
    inputs = jax.random.normal(keys[0], (6, 2))
    labels = np.asarray(jnp.argmax(inputs @ jax.random.normal(keys[1], (2, C)), axis=1))
    model = TwoLayers(jax.random.normal(keys[2], (6, 2)), 0.5 * jax.random.normal(keys[3], (C, 6)))
    limit = jf.find_limit(jf.EmpiricalRisk((inputs, labels), "cross_entropy"), model)
    assert limit.outcome == "kkt_point" and limit.kkt_residual <= 1e-8
    np.testing.assert_allclose(limit.degree, 2.0)
    x, W, A = np.asarray(inputs), np.asarray(limit.direction.W), np.asarray(limit.direction.a)
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
    assert relu_residual(x, W, A, push, limit.kkt.gates) <= 1e-7


def test_normalised_descent_approaches_the_multiclass_svm() -> None:
    inputs, labels = separable(np.random.default_rng(4))
    risk = jf.EmpiricalRisk((inputs, labels), "cross_entropy")
    path: Any = jf.descend(risk, linear(jnp.zeros((C, D))), steps=4000, learning_rate=0.1, save_at=[100, 1000, 4000])
    best = next_tokens.svm(rows_of(inputs, labels).reshape(-1, C * D), np.zeros((0, C * D)))
    W = np.asarray(path.saved.model.weight).reshape(3, -1)
    apart = np.linalg.norm(W / np.linalg.norm(W, axis=1, keepdims=True) - best, axis=1)
    assert apart[0] > 2.0 * apart[1] > 4.0 * apart[2] > 0.0
