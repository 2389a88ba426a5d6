"""Many classes under cross-entropy, by their numbers or by frequencies: where linear models end, and descent.

With frequencies of next words after contexts h the direction is min ||W|| s.t. (e_z - e_v)' W h >= 1 for continuations
z and other words v, zero for two continuations; the point is the minimum over the span of the latter, where outputs
differ by log-odds (Thrampoulidis 2024).
"""

import importlib
from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest

import jaxflow as jf

# Instances, and solutions by CVXPY and SciPy: those of the benchmarks.
pytest.importorskip("cvxpy", reason="CVXPY is not installed")
classes, next_tokens = importlib.import_module("classes"), importlib.import_module("next_tokens")
D, C = 20, 3
CONTEXTS, WORDS, EACH = next_tokens.CONTEXTS, next_tokens.WORDS, 6
KINDS = ("separable", "overlapping", "quasi_separable")

limits_of = jax.jit(jax.vmap(classes.find))


def instances(d: int, count: int, *kinds: str, c: int = C) -> tuple[np.ndarray, ...]:
    """Inputs, classes and starts, `count` of each kind."""
    made = [classes.instance(jax.random.key(k), d, c, kind) for kind in kinds for k in range(count)]
    return tuple(np.stack(part) for part in zip(*made, strict=True))


@pytest.fixture(scope="module")
def batch() -> tuple[Any, ...]:
    """Two instances of each kind, in one program."""
    parts = instances(D, 2, *KINDS)
    return *parts, limits_of(*parts)


def others_of(labels: np.ndarray, c: int = C) -> np.ndarray:
    """The classes beside those of the data, in the order of the margins."""
    return np.array([[j for j in range(c) if j != y] for y in labels])


def rows_of(inputs: np.ndarray, labels: np.ndarray, c: int = C) -> np.ndarray:
    eye, others = np.eye(c), others_of(labels, c)
    return np.array(
        [[np.kron(eye[y] - eye[j], x) for j in row] for x, y, row in zip(inputs, labels, others, strict=True)]
    )


def is_the_svm(limit: Any, rows: np.ndarray, still: np.ndarray, atol: float) -> None:
    """Certified, and the direction of CVXPY."""
    assert limit.outcome == "globally_optimal" and limit.excess <= 1e-8
    direction = np.ravel(limit.flow_direction.module.weight)
    assert np.linalg.norm(direction - next_tokens.svm(rows, still)) <= atol
    np.testing.assert_allclose(limit.details.margin, np.min(rows @ direction), rtol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "at"), [(kind, 2 * k + i) for k, kind in enumerate(KINDS) for i in range(2)])
def test_a_linear_model_ends_where_cvxpy_says(batch: tuple[Any, ...], kind: str, at: int) -> None:
    inputs, labels, start, limit = (jax.tree.map(lambda x: x[at], part) for part in batch)
    assert limit.linear.separability == kind
    rows, growing = rows_of(inputs, labels), limit.linear.growing
    # Of the first eighteen, six inputs three times, the one margin that has the other label on the other side.
    doubled = np.concatenate([labels[12:18], labels[12:18], labels[:6], -np.ones(2)])[:, None]
    grows = {"separable": np.ones((20, 2), bool), "overlapping": np.zeros((20, 2), bool)}
    np.testing.assert_array_equal(growing, grows.get(kind, others_of(labels) != doubled))
    if kind != "overlapping":
        is_the_svm(limit, rows[growing], rows[~growing], 1e-8)
    if kind == "quasi_separable":
        component = np.ravel(limit.linear.component.module.weight)
        assert np.linalg.norm(component - classes.minimum(rows, ~growing, np.zeros(C * D))) <= 1e-8
        text = str(limit)
        assert "the margins of 22 of 40 pairs of a datum and another class diverge" in text
        assert "The other pairs" in text and "Theorem 7" in text
    if kind == "overlapping":
        assert limit.outcome == "finite_stationary_point" and limit.stationary.error <= 1e-8
        # Inputs of three dimensions, and outputs of which the sum of all has no weight.
        assert limit.stationary.rank == 3 * (C - 1)
        # What no margin sees stays where it was.
        point = classes.minimum(rows, ~growing, np.ravel(start))
        assert np.linalg.norm(np.ravel(limit.end.module.weight) - point) <= 1e-8 * np.linalg.norm(point)


@pytest.mark.slow
def test_more_parameters_than_margins_are_projected_in_coordinates_of_all() -> None:
    """The flow is in coordinates of the span of its rows, in which zeros of the rows that stay are roundings."""
    parts = instances(21, 2, "quasi_separable", c=6)
    limits = limits_of(*parts)
    for at, (inputs, labels, _) in enumerate(zip(*parts, strict=True)):
        rows, limit = rows_of(inputs, labels, 6), jax.tree.map(lambda x, at=at: x[at], limits)
        is_the_svm(limit, rows[limit.linear.growing], rows[~limit.linear.growing], 1e-8)


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
    others = others_of(np.argmax(often, axis=1), WORDS)
    np.testing.assert_array_equal(limit.linear.growing, np.take_along_axis(often, others, axis=1) == 0)
    grow, stay = next_tokens.rows_of(inputs, often)
    is_the_svm(limit, grow, stay, 1e-7)
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
    limit = classes.find(inputs, often, np.zeros((4, 3)))
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
