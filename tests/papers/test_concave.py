"""The concave loss: the exact target, Lemma 6, and the program of several tokens."""

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import brentq

from jaxflow.data import TokenData
from jaxflow.margin import attention_svm, solve
from jaxflow.papers.tarzanagh2023 import concave


def projection(x: np.ndarray) -> np.ndarray:
    """Proj onto the simplex by its definition: max(x − θ, 0) with the θ that makes the sum one."""
    theta = brentq(lambda shift: np.maximum(x - shift, 0.0).sum() - 1.0, x.max() - 1.0, x.max(), xtol=1e-15)
    return np.maximum(x - theta, 0.0)


def test_the_target_is_the_projection_onto_the_simplex() -> None:
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(50, 6)) / np.sqrt(6)
    lam = rng.uniform(0.01, 3.0, 50)
    found = np.asarray(jax.vmap(concave.target)(jnp.asarray(scores), jnp.asarray(lam)))
    expected = np.stack([projection(row / (2 * x)) for row, x in zip(scores, lam, strict=True)])
    # Differences of numbers up to 100 lose two digits.
    np.testing.assert_allclose(found, expected, atol=1e-12)
    sizes, _ = concave.support_sizes(scores, lam)
    np.testing.assert_array_equal(sizes, np.sum(expected > 1e-12, axis=1))
    assert len(np.unique(sizes)) >= 4


def test_without_a_penalty_the_top_token_is_the_target() -> None:
    found = concave.target(jnp.asarray([0.1, 0.7, -0.2]), jnp.asarray(0.0))
    np.testing.assert_array_equal(found, [0.0, 1.0, 0.0])


def test_near_ties_are_decided_in_rational_arithmetic() -> None:
    # D_2 = 1/2 = 2λ: no weight for the second token; a λ larger by one rounding error gives it some.
    scores = np.array([[0.75, 0.25, -1.0]] * 3)
    lam = np.array([0.25, np.nextafter(0.25, 1.0), 0.3])
    sizes, near = concave.support_sizes(scores, lam)
    np.testing.assert_array_equal(sizes, [1, 2, 2])
    np.testing.assert_array_equal(near, [True, True, False])


def test_drawn_heads_satisfy_the_condition() -> None:
    scores, lam, draws = concave.draw_conditions(3, 5, 7, jax.random.split(jax.random.key(1), 300))
    ordered = -np.sort(-np.asarray(scores)[:, :5], axis=1)
    assert np.all(np.asarray(lam) > ordered[:, 0] - ordered[:, 1])
    assert np.all(np.asarray(lam) < 1.5 * (ordered[:, 2] - ordered[:, 3]))
    assert np.all(np.asarray(draws) >= 1) and np.any(np.asarray(draws) > 1)
    np.testing.assert_allclose(np.linalg.norm(scores, axis=1), 1.0, rtol=1e-12)
    # Tokens are orthonormal and keep their scores.
    instance = concave.draw(5, 7, jax.random.key(2), lam[0], scores[0])
    np.testing.assert_allclose(instance.tokens @ instance.tokens.T, np.eye(5), atol=1e-14)
    np.testing.assert_allclose(concave.scores_of(instance), scores[0, :5], atol=1e-14)


def test_gen_svm_of_orthonormal_tokens_in_closed_form() -> None:
    r"""W = u zᵀ with u = (1 − k/T) Σ selected x − (k/T) Σ masked x, z of norm one."""
    instance = concave.draw(5, 7, jax.random.key(3), 0.5)
    selection = np.array([True, False, True, False, False])
    data = TokenData(instance.tokens[None], instance.query[None], jnp.ones(1))
    found = solve(attention_svm(data, jnp.asarray(selection)[None])).primal
    u = np.where(selection, 3 / 5, -2 / 5) @ np.asarray(instance.tokens)
    np.testing.assert_allclose(found, np.outer(u, instance.query), atol=1e-10)
