"""Contexts with several continuations: where linear models of next words end, beside CVXPY's solution of both programs.

The direction is min ||W|| s.t. (e_z - e_v)' W h >= 1 for continuations z and other words v of a context h, zero for two
continuations; the point is the minimum over the span of the latter, where outputs differ by log-odds (Thrampoulidis
2024).
"""

import importlib
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxflow as jf

# The tables and their solutions by other means: those of the benchmark.
pytest.importorskip("cvxpy", reason="CVXPY is not installed")
next_tokens = importlib.import_module("next_tokens")
CONTEXTS, WORDS, EACH = next_tokens.CONTEXTS, next_tokens.WORDS, 6


def linear(W: Any) -> eqx.nn.Linear:
    layer = eqx.nn.Linear(W.shape[1], W.shape[0], use_bias=False, key=jax.random.key(0))
    return eqx.tree_at(lambda m: m.weight, layer, jnp.asarray(W))


@jax.jit
@jax.vmap
def limits_of(inputs: jax.Array, often: jax.Array, start: jax.Array) -> Any:
    return jf.find_limit(jf.EmpiricalRisk((inputs, often), "cross_entropy"), linear(start), throw=False)


@pytest.fixture(scope="module")
def batch() -> tuple[Any, ...]:
    """Tables with one-hot embeddings of their contexts, and with random ones, from random starts."""
    rng = np.random.default_rng(0)
    often = np.stack([next_tokens.frequencies(rng) for _ in range(2 * EACH)])
    inputs = np.concatenate([np.tile(np.eye(CONTEXTS), (EACH, 1, 1)), rng.normal(size=(EACH, CONTEXTS, CONTEXTS))])
    starts = rng.normal(size=(2 * EACH, WORDS, CONTEXTS))
    return inputs, often, limits_of(jnp.asarray(inputs), jnp.asarray(often), jnp.asarray(starts))


@pytest.mark.slow
@pytest.mark.parametrize("at", range(2 * EACH))
def test_both_parts_are_those_of_cvxpy(batch: tuple[Any, ...], at: int) -> None:
    inputs, often, limits = (jax.tree.map(lambda x: x[at], part) for part in batch)
    assert limits.outcome == "globally_optimal" and limits.excess <= 1e-8
    most = np.argmax(often, axis=1)
    others = np.array([[j for j in range(WORDS) if j != y] for y in most])
    np.testing.assert_array_equal(limits.linear.growing, np.take_along_axis(often, others, axis=1) == 0)
    grow, stay = next_tokens.rows_of(inputs, often)
    direction = np.ravel(limits.flow_direction.module.weight)
    assert np.linalg.norm(direction - next_tokens.svm(grow, stay)) <= 1e-7
    component = np.asarray(limits.linear.component.module.weight)
    best = next_tokens.table_minimum(inputs, often, stay)
    assert np.linalg.norm(np.ravel(component) - best) <= 1e-7 * max(np.linalg.norm(best), 1.0)
    outputs = inputs @ component.T
    for f, y in zip(outputs, often, strict=True):
        some = y > 0
        np.testing.assert_allclose(np.diff(f[some]), np.diff(np.log(y[some])), atol=1e-9)
    assert np.linalg.norm(component) <= (1.0 + 1e-9) * np.linalg.norm(best)


@pytest.mark.slow
def test_more_contexts_than_dimensions_can_have_one_minimum() -> None:
    """Every word follows every context: no output diverges, and the entropy is not reached."""
    rng = np.random.default_rng(3)
    inputs, often = rng.normal(size=(8, 3)), rng.dirichlet(np.ones(4), size=8)
    risk = jf.EmpiricalRisk((inputs, often), "cross_entropy")
    limit = jf.find_limit(risk, linear(np.zeros((4, 3))))
    assert limit.outcome == "finite_stationary_point" and limit.error <= 1e-8
    W = limit.point.weight
    shares = jax.nn.softmax(inputs @ W.T, axis=-1)
    np.testing.assert_allclose((shares - often).T @ inputs, 0.0, atol=1e-12)
    assert risk(limit.point) > np.mean(-np.sum(often * np.log(often), axis=1)) + 1e-3


@pytest.mark.slow
def test_one_continuation_is_a_class() -> None:
    rng = np.random.default_rng(4)
    inputs, labels = rng.normal(size=(4, 5)), np.array([0, 2, 1, 0])
    start = linear(rng.normal(size=(3, 5)))
    number = jf.find_limit(jf.EmpiricalRisk((inputs, labels), "cross_entropy"), start)
    often = jf.find_limit(jf.EmpiricalRisk((inputs, np.eye(3)[labels]), "cross_entropy"), start)
    assert number.outcome == often.outcome == "globally_optimal"
    assert number.linear.separability == often.linear.separability == "separable"
    np.testing.assert_array_equal(number.linear.growing, often.linear.growing)
    np.testing.assert_allclose(often.direction.weight, number.direction.weight, atol=2e-9)
    assert "Thrampoulidis" in str(often) and "margins of all pairs of a datum and another class" in str(often)


class Network(eqx.Module):
    W: jax.Array
    A: jax.Array

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.A @ jax.nn.relu(self.W @ x)


def test_of_a_network_nothing_is_claimed() -> None:
    rng = np.random.default_rng(5)
    risk = jf.EmpiricalRisk((rng.normal(size=(4, 3)), np.full((4, 2), 0.5)), "cross_entropy")
    network = Network(jnp.ones((4, 3)), jnp.asarray(rng.normal(size=(2, 4))))
    with pytest.raises(ValueError, match="^loss: with frequencies of classes no theorem on the limit is known but of"):
        jf.find_limit(risk, network)
    path: Any = jf.descend(risk, network, steps=20, learning_rate=0.1, save_at=[1, 20])
    first, last = (Network(path.saved.model.W[i], path.saved.model.A[i]) for i in (0, 1))
    assert risk(last) < risk(first)
