"""Many classes under cross-entropy, by their numbers or by frequencies: where linear models end, and descent.

With frequencies of next words after contexts h the direction is min ||W|| s.t. (e_z - e_v)' W h >= 1 for continuations
z and other words v, zero for two continuations; the point is the minimum over the span of the latter, where outputs
differ by log-odds (Thrampoulidis 2024).
"""

import importlib
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxflow as jf

# Solutions by CVXPY, and tables of next words: those of the benchmark.
pytest.importorskip("cvxpy", reason="CVXPY is not installed")
next_tokens = importlib.import_module("next_tokens")
N, D, C = 12, 6, 3
CONTEXTS, WORDS, EACH = next_tokens.CONTEXTS, next_tokens.WORDS, 6


def linear(W: Any) -> eqx.nn.Linear:
    layer = eqx.nn.Linear(W.shape[1], W.shape[0], use_bias=False, key=jax.random.key(0))
    return eqx.tree_at(lambda m: m.weight, layer, jnp.asarray(W))


@jax.jit
@jax.vmap
def limits_of(inputs: jax.Array, labels: jax.Array, start: jax.Array) -> Any:
    return jf.find_limit(jf.EmpiricalRisk((inputs, labels), "cross_entropy"), linear(start), throw=False)


def separable(rng: Any) -> tuple[np.ndarray, np.ndarray]:
    inputs = rng.normal(size=(N, D))
    return inputs, np.argmax(inputs @ rng.normal(size=(D, C)), axis=1)


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
    return inputs, labels, starts, limits_of(inputs, labels, starts)


def others_of(labels: np.ndarray, classes: int) -> np.ndarray:
    """The classes beside those of the data, in the order of the margins."""
    return np.array([[j for j in range(classes) if j != y] for y in labels])


def rows_of(inputs: np.ndarray, labels: np.ndarray, classes: int = C) -> np.ndarray:
    eye = np.eye(classes)
    others = others_of(labels, classes)
    return np.array(
        [[np.kron(eye[y] - eye[j], x) for j in row] for x, y, row in zip(inputs, labels, others, strict=True)]
    )


def minimum(inputs: np.ndarray, labels: np.ndarray, still: np.ndarray) -> np.ndarray:
    """Of the margins that are `still`, over their span, by CVXPY."""
    features = np.array([[np.kron(row, x) for row in np.eye(C)] for x in inputs])
    counts = np.eye(C)[labels]
    np.put_along_axis(counts, others_of(labels, C), still.astype(float), axis=1)
    return next_tokens.minimum(features, np.eye(C)[labels], counts, rows_of(inputs, labels)[still])


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "at"), [(name, 2 * k + i) for k, name in enumerate(KINDS) for i in range(2)])
def test_a_linear_model_ends_where_cvxpy_says(batch: tuple[Any, ...], kind: str, at: int) -> None:
    inputs, labels, start, limit = (jax.tree.map(lambda x: x[at], part) for part in batch)
    assert limit.linear.separability == kind
    assert limit.outcome == ("finite_stationary_point" if kind == "overlapping" else "globally_optimal")
    rows, growing = rows_of(inputs, labels), limit.linear.growing
    if kind == "quasi_separable":
        # Of the first nine the one margin that has the other label of their input on the other side.
        doubled = np.concatenate([labels[6:9], labels[6:9], labels[:3], -np.ones(3)])
        np.testing.assert_array_equal(growing, others_of(labels, C) != doubled[:, None])
        component = limit.linear.component.module.weight.reshape(-1)
        assert np.linalg.norm(component - minimum(inputs, labels, ~growing)) <= 1e-8
    if kind == "overlapping":
        assert not growing.any() and limit.stationary.error <= 1e-8
        start, seen = start.reshape(-1), rows.reshape(-1, C * D)
        # What no margin sees stays where it was.
        point = start - np.linalg.pinv(seen, rcond=1e-10) @ (seen @ start) + minimum(inputs, labels, ~growing)
        apart = limit.end.module.weight.reshape(-1) - point
        assert np.linalg.norm(apart) <= 1e-8 * np.linalg.norm(point)
        return
    assert limit.excess <= 1e-8 and (kind == "quasi_separable" or growing.all())
    direction = limit.flow_direction.module.weight.reshape(-1)
    assert np.linalg.norm(direction - next_tokens.svm(rows[growing], rows[~growing])) <= 1e-8
    np.testing.assert_allclose(limit.details.margin, np.min(rows[growing] @ direction), rtol=1e-8)


@pytest.mark.slow
def test_more_parameters_than_margins_are_projected_in_coordinates_of_all() -> None:
    """The flow is in coordinates of the span of its rows, in which zeros of the rows that stay are roundings."""
    n, d, classes, rng = 8, 9, 6, np.random.default_rng(0)
    inputs, labels = map(np.stack, zip(*(quasi_separable(rng, n, d, classes) for _ in range(4)), strict=True))
    limits = limits_of(inputs, labels, np.zeros((4, classes, d)))
    np.testing.assert_array_equal(limits.outcome.value, jf.Outcome.globally_optimal)
    grows, directions = (np.asarray(x) for x in (limits.linear.growing, limits.flow_direction.module.weight))
    for x, y, growing, direction in zip(inputs, labels, grows, directions, strict=True):
        rows = rows_of(x, y, classes)
        assert np.linalg.norm(direction.reshape(-1) - next_tokens.svm(rows[growing], rows[~growing])) <= 1e-8


def test_what_is_printed_counts_pairs() -> None:
    inputs, labels = quasi_separable(np.random.default_rng(0))
    limit = jf.find_limit(jf.EmpiricalRisk((inputs, labels), "cross_entropy"), linear(jnp.zeros((C, D))))
    assert "the margins of 15 of 24 pairs of a datum and another class diverge" in str(limit)
    assert "The other pairs" in str(limit) and "Theorem 7" in str(limit)


@pytest.fixture(scope="module")
def tables() -> tuple[Any, ...]:
    """Tables with one-hot embeddings of their contexts, and with random ones, from random starts."""
    rng = np.random.default_rng(0)
    often = np.stack([next_tokens.frequencies(rng) for _ in range(2 * EACH)])
    inputs = np.concatenate([np.tile(np.eye(CONTEXTS), (EACH, 1, 1)), rng.normal(size=(EACH, CONTEXTS, CONTEXTS))])
    return inputs, often, limits_of(inputs, often, rng.normal(size=(2 * EACH, WORDS, CONTEXTS)))


@pytest.mark.slow
@pytest.mark.parametrize("at", range(2 * EACH))
def test_both_parts_of_a_table_are_those_of_cvxpy(tables: tuple[Any, ...], at: int) -> None:
    inputs, often, limit = (jax.tree.map(lambda x: x[at], part) for part in tables)
    assert limit.outcome == "globally_optimal" and limit.excess <= 1e-8
    others = others_of(np.argmax(often, axis=1), WORDS)
    np.testing.assert_array_equal(limit.linear.growing, np.take_along_axis(often, others, axis=1) == 0)
    grow, stay = next_tokens.rows_of(inputs, often)
    direction = np.ravel(limit.flow_direction.module.weight)
    assert np.linalg.norm(direction - next_tokens.svm(grow, stay)) <= 1e-7
    component = np.asarray(limit.linear.component.module.weight)
    best = next_tokens.table_minimum(inputs, often, stay)
    assert np.linalg.norm(np.ravel(component) - best) <= 1e-7 * max(np.linalg.norm(best), 1.0)
    for f, y in zip(inputs @ component.T, often, strict=True):
        some = y > 0
        np.testing.assert_allclose(np.diff(f[some]), np.diff(np.log(y[some])), atol=1e-9)


@pytest.mark.slow
def test_more_contexts_than_dimensions_can_have_one_minimum() -> None:
    """Every word follows every context: no output diverges, and the entropy is not reached."""
    rng = np.random.default_rng(3)
    inputs, often = rng.normal(size=(8, 3)), rng.dirichlet(np.ones(4), size=8)
    risk = jf.EmpiricalRisk((inputs, often), "cross_entropy")
    limit = jf.find_limit(risk, linear(np.zeros((4, 3))))
    assert limit.outcome == "finite_stationary_point" and limit.error <= 1e-8
    shares = jax.nn.softmax(inputs @ limit.point.weight.T, axis=-1)
    np.testing.assert_allclose((shares - often).T @ inputs, 0.0, atol=1e-12)
    assert risk(limit.point) > np.mean(-np.sum(often * np.log(often), axis=1)) + 1e-3


def test_of_a_network_on_frequencies_nothing_is_claimed() -> None:
    rng = np.random.default_rng(5)
    risk = jf.EmpiricalRisk((rng.normal(size=(4, 3)), np.full((4, 2), 0.5)), "cross_entropy")
    network = eqx.nn.MLP(3, 2, 4, 1, use_bias=False, use_final_bias=False, key=jax.random.key(0))
    with pytest.raises(ValueError, match="^loss: with frequencies of classes no theorem on the limit is known but of"):
        jf.find_limit(risk, network)
    path: Any = jf.descend(risk, network, steps=20, learning_rate=0.1)
    assert risk(path.final.model) < risk(network)
