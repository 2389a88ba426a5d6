"""Tokens that come twice: exactly, nearly, or as another token of the same score."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxflow as jf
from jaxflow.limits import Staged
from jaxflow.limits.method import accurate_solver
from jaxflow.margin import attention_svm, solve

# Seed of an instance, distance of the second tokens from the first, and size of the first sequence.
COPIES = ((2, 0.0, 1.0), (3, 0.0, 1.0), (4, 0.0, 1.0))
# The gradient is as small beside its multipliers as the tokens are apart, wherever the flow is. The last are far apart.
NEAR = ((3, 1e-14, 1.0), (3, 1e-12, 1.0), (3, 1e-6, 1.0), (3, 0.1, 1e17), (3, 1e-2, 1.0))
CASES = (*COPIES, *NEAR)


def instance(seed, offset, size):
    """W on two sequences of three tokens, each with a second one beside it."""
    data, head = jf.data.random_tokens(jax.random.key(seed), 2, 3, 3)
    near = data.tokens + offset * jax.random.normal(jax.random.key(8), data.tokens.shape)
    tokens = jnp.concatenate([data.tokens, near], axis=1).at[0].multiply(size)
    data = jf.data.TokenData(tokens, data.queries, data.labels)
    return jf.EmpiricalRisk(data, "logistic"), jf.models.CombinedAttention.init(jax.random.key(1), data, head)


@pytest.fixture(scope="module")
def limits():
    """All of them in one program, which knows nothing of their numbers when it is compiled."""
    batch = jax.tree.map(lambda *x: jnp.stack(x), *(instance(*case) for case in CASES))
    return jax.jit(jax.vmap(lambda risk, model: jf.find_limit(risk, model, throw=False)))(*batch)


@pytest.mark.slow
def test_copies_are_found_within_a_program_as_outside_of_it(limits):
    """Two copies have the same attention at all times, and no multiplier distinguishes them."""
    for i, case in enumerate(COPIES):
        alone = jf.find_limit(*instance(*case), throw=False)
        assert alone.outcome == limits.outcome[i]
        np.testing.assert_array_equal(alone.selection, limits.selection[i])
        # Both are certified, which took all steps there are where copies counted as two tokens.
        assert alone.excess <= 1e-8 and limits.excess[i] <= 1e-8
        assert jnp.all(jnp.sum(alone.selection, axis=1) == 2)


@pytest.mark.slow
def test_pushes_that_cancel_between_nearly_equal_tokens_are_no_minimum(limits):
    """A small gradient beside its multipliers was taken for a finite stationary point of all four. None is there."""
    for i in range(len(COPIES), len(CASES)):
        assert limits.outcome[i] != "finite_stationary_point" and limits.kind[i] != jf.limits.LimitKind.point
    # What is further apart is decided.
    assert limits.outcome[-1] == "globally_optimal"


TIED = np.array([[1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [-1.0, 0.0, 0.5], [0.0, 0.0, -1.0]])


def tied(tokens, mask=None):
    return jf.data.TokenData(tokens[None], jnp.array([[0.0, 1.0, 1.0]]), jnp.ones(1), mask)


def limit_of(data, method=None):
    model = jf.models.CombinedAttention(jnp.zeros((3, 3)), jnp.array([1.0, 0.0, 0.0]))
    return jf.find_limit(jf.EmpiricalRisk(data, "logistic"), model, method=method, throw=False)


@pytest.mark.slow
def test_a_token_that_comes_twice_is_selected_twice_and_solves_gen_svm():
    data = tied(TIED[[0, 0, 2, 3]])
    limit = limit_of(data)
    assert str(limit.outcome) == "ambiguous"
    np.testing.assert_array_equal(limit.selection[0], [True, True, False, False])
    assert jnp.all(limit.trajectory.final.model.attention(data)[0, :2] == 0.5)
    assert limit.certificate.duality_gap <= 1e-8 and limit.flow_certificate.duality_gap <= 1e-8
    direction = solve(attention_svm(data, limit.selection)).primal
    once = attention_svm(tied(TIED[[0, 2, 3]]), jnp.zeros(1, int))
    np.testing.assert_allclose(direction, solve(once).primal, atol=1e-12)
    np.testing.assert_allclose(limit.flow_direction, direction, atol=1e-6)
    assert jnp.all(limit.finite_component().primal == 0)


@pytest.mark.slow
def test_different_tokens_of_one_score_are_not_both_kept():
    """Nothing tells them apart in the loss, but the one whose margin grows faster takes all: an ambiguous case."""
    # The method that a token that comes twice is given, and so its program.
    limit = limit_of(tied(TIED), Staged(solver=accurate_solver()))
    assert str(limit.outcome) == "ambiguous"
    np.testing.assert_array_equal(limit.selection[0], [False, True, False, False])
    # Against the masked tokens of a lower score alone the flow's direction is of largest margin.
    without = tied(TIED, jnp.array([[False, True, True, True]]))
    direction = solve(attention_svm(without, limit.selection)).primal
    W = limit.trajectory.final.model.combined_weights()
    assert 1 - jnp.sum(W * direction) / jnp.linalg.norm(W) / jnp.linalg.norm(direction) <= 1e-3
