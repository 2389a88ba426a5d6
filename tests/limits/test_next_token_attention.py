"""Attention over a vocabulary: directions beside CVXPY's Graph-SVM, points beside the minimum within components, and
the components beside SciPy's (Li et al. 2024). Sequences and other solutions are those of the benchmark."""

import importlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxflow as jf
from jaxflow.models import NextTokenAttention

pytest.importorskip("cvxpy", reason="CVXPY is not installed")
next_tokens = importlib.import_module("next_tokens")
WORDS, EACH = next_tokens.WORDS, 5


def parts_of(words: Any, following: Any, embeddings: Any, W: Any) -> tuple[jf.EmpiricalRisk, NextTokenAttention]:
    return jf.EmpiricalRisk((words, following), "cross_entropy"), NextTokenAttention(W, embeddings)


@jax.jit
@jax.vmap
def limits_of(*parts: jax.Array) -> Any:
    return jf.find_limit(*parts_of(*parts), throw=False)


def instances(seed: int, kinds: tuple[str, ...]) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    made = [next_tokens.attention_instance(rng, kind) for kind in kinds for _ in range(EACH)]
    return tuple(np.stack(part) for part in zip(*made, strict=True))


@pytest.fixture(scope="module")
def batches() -> dict[str, tuple[Any, Any]]:
    """In two dimensions six words have fewer orders than graphs ask for."""
    independent = instances(0, ("acyclic", "cyclic"))
    # A sequence of one word has no loss, and changes nothing.
    independent[0][::EACH, 0] = independent[1][::EACH, :1] = 4
    words, following, embeddings, W = instances(2, ("acyclic", "cyclic"))
    dependent = words, following, embeddings[..., :2] @ embeddings[:, :2], W
    made = {"independent": independent, "dependent": dependent}
    return {name: (parts, limits_of(*map(jnp.asarray, parts))) for name, parts in made.items()}


@pytest.mark.slow
@pytest.mark.parametrize("at", range(2 * EACH))
@pytest.mark.parametrize("name", ["independent", "dependent"])
def test_both_parts_are_those_of_other_solvers(batches: dict[str, tuple[Any, Any]], name: str, at: int) -> None:
    """Dependent embeddings can join components, and the recession cone decides: then the graph has no solution."""
    (words, following, embeddings, W), limit = jax.tree.map(lambda x: x[at], batches[name])
    grow, stay, features, counts, lost = next_tokens.attention_rows(words, following, embeddings)
    growing, risk_and_model = np.asarray(limit.linear.growing), parts_of(words, following, embeddings, W)
    alone = jf.margin.solve(jf.theory.graph_svm(*risk_and_model))
    apart = np.array_equal(growing, lost)
    assert np.all(lost | ~growing) and (alone.result == "optimal") == apart
    assert apart or name == "dependent"
    if limit.kind == "direction":
        assert limit.outcome == "globally_optimal" and limit.excess <= 1e-8
        rows, direction = np.concatenate([grow, stay]), np.ravel(limit.flow_direction.W)
        moved = np.arange(len(rows)) < len(grow) if apart else rows @ direction > 1e-6
        assert np.linalg.norm(direction - next_tokens.svm(rows[moved], rows[~moved])) <= 1e-7
    if name == "dependent":
        return
    assert limit.kind == "direction"
    assert limit.linear.separability == ("quasi_separable" if len(stay) else "separable")
    if len(stay):
        component = np.ravel(limit.linear.component.W)
        best = next_tokens.minimum(features, np.eye(WORDS)[following], counts, stay)
        assert np.linalg.norm(component - best) <= 1e-7 * max(np.linalg.norm(best), 1.0)
    # The graph alone: its components, and its program.
    together = next_tokens.components(words, following)
    seen = np.take_along_axis(together, np.maximum(words, 0), axis=1) & (words >= 0)
    np.testing.assert_array_equal(jf.theory.priority_graphs(*risk_and_model).retrieved, seen)
    assert np.linalg.norm(limit.flow_direction.W - alone.primal / jnp.linalg.norm(alone.primal)) <= 1e-7


def test_some_sequences_have_cycles_and_some_components_are_joined(batches: dict[str, tuple[Any, Any]]) -> None:
    limits, (parts, others) = batches["independent"][1], batches["dependent"]
    kinds = limits.linear.separability
    assert np.all(kinds[:EACH] == "separable") and np.sum(kinds[EACH:] == "quasi_separable") >= 3
    assert np.all(limits.linear.growing[::EACH, 0])
    lost = [next_tokens.attention_rows(*one)[-1] for one in zip(*parts[:3], strict=True)]
    assert 0 < np.sum(np.any(others.linear.growing != np.stack(lost), axis=(1, 2))) < 2 * EACH
    text = str(jax.tree.map(lambda x: x[0], limits))
    assert "the margins of all pairs of a datum and another class" in text and "Li et al. (2024)" in text


@pytest.mark.slow
def test_outputs_are_the_attention_on_each_word() -> None:
    """Token by token, in NumPy; the gradient is that of the loss so written."""
    words, following, embeddings, W = (part[0] for part in instances(1, ("cyclic",)))
    risk, model = parts_of(words, following, embeddings, W)

    def losses(W: Any, np: Any) -> Any:
        found = []
        for row, y in zip(words, following, strict=True):
            row = row[row >= 0]
            attends = np.exp(embeddings[row] @ W @ embeddings[row[-1]])
            found.append(-np.log(np.sum(np.where(row == y, attends, 0.0)) / np.sum(attends)))
        return np.stack(found)

    shares = np.asarray(jax.nn.softmax(model.outputs(risk.data), axis=-1))
    assert np.all(shares[(words[:, :, None] != np.arange(WORDS)).all(axis=1)] == 0.0)
    np.testing.assert_allclose(risk.losses(model), losses(W, np), rtol=1e-12)
    np.testing.assert_allclose(jnp.exp(risk.log_value(model)), losses(W, np).mean(), rtol=1e-12)
    scaled, right = risk.scaled_gradient(model), jax.grad(lambda W: losses(W, jnp).mean())(jnp.asarray(W))
    np.testing.assert_allclose(jnp.exp(scaled.log_scale) * scaled.gradient.W, right, atol=1e-13)
    path: Any = jf.descend(risk, model, steps=20, learning_rate=0.1)
    assert risk(path.final.model) < risk(model)


@pytest.mark.slow
def test_frequencies_are_sequences_that_repeat() -> None:
    words = np.array([[-1, 0, 1, 3, 2], [-1, -1, 1, 3, 2]])
    often = np.zeros((2, WORDS))
    often[0, :2], often[1, 3] = [0.2, 0.8], 1.0
    embeddings, start = np.eye(WORDS, next_tokens.DIMENSION), np.zeros((next_tokens.DIMENSION,) * 2)
    short = jf.find_limit(*parts_of(words, often, embeddings, start))
    repeated = words[np.repeat([0, 1], 5)], np.array([0, 1, 1, 1, 1, 3, 3, 3, 3, 3]), embeddings, start
    long = jax.tree.map(lambda x: x[0], limits_of(*(jnp.stack([jnp.asarray(x)] * 2 * EACH) for x in repeated)))
    assert short.outcome == long.outcome == "globally_optimal"
    np.testing.assert_allclose(short.flow_direction.W, long.flow_direction.W, atol=1e-7)
    np.testing.assert_allclose(short.linear.component.W, long.linear.component.W, atol=1e-10)
    # The last word is alone below three that pull at each other: 0 and 1, 1 and 3, and 0 at 3.
    np.testing.assert_array_equal(
        short.linear.growing, [[False, True, False, True, True], [True, False, True, True, True]]
    )


WRONG = {
    "data: expected word numbers from 0 to 2": ([[0, 1, 5], [0, 1, 2]], [0, 1]),
    "data: the last word of a sequence is -1": ([[0, 1, -1], [0, 1, 2]], [0, 1]),
    r"labels: the next word of sequence \[1\] does not occur": ([[0, 1, 2], [1, 1, 2]], [0, 0]),
    "data: no sequence has a word beside its next one": ([[0, 0, 0], [1, 1, 1]], [0, 1]),
    "data: expected .sequences, next_words.": (np.zeros((2, 3, 1)), [0, 1]),
}


@pytest.mark.parametrize("message", WRONG)
def test_what_is_wrong_is_named(message: str) -> None:
    words, following = map(np.asarray, WRONG[message])
    with pytest.raises(ValueError, match=f"^{message}"):
        jf.find_limit(*parts_of(words, following, np.eye(3), np.zeros((3, 3))))
    with pytest.raises(ValueError, match=r"W: expected shape \(3, 3\)"):
        jf.find_limit(*parts_of([[0, 1, 2]], [0], np.eye(3), np.zeros((2, 2))))
