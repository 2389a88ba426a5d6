"""Definition 2, sets of tokens, sequences and masks, and the enumeration of all choices."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxflow.data import TokenData, random_tokens
from jaxflow.margin import attention_svm, enumerate_selections, finite_component, is_locally_optimal, solve
from jaxflow.models import token_scores
from jaxflow.papers.tarzanagh2023.concave import best_correlation
from tests.margin.instances import LANES, SOLVED, attention, batch


def test_local_optimality_by_hand_one_by_one_and_enumerated_in_chunks() -> None:
    seen, statuses = set(), set()
    for seed in (2, 3, 6):
        data, head = random_tokens(jax.random.key(seed), 2, 3, 6)
        scores = np.asarray(token_scores(data, head))
        best = scores.argmax(axis=1)
        small, large = enumerate_selections(data, head, chunk=5), enumerate_selections(data, head)
        np.testing.assert_array_equal(small.selections, list(itertools.product(range(3), repeat=2)))
        np.testing.assert_array_equal(small.status.value, large.status.value)
        one, every = True, True
        for i, choice in enumerate(np.asarray(small.selections)):
            solution = solve(attention_svm(data, choice))
            decision = is_locally_optimal(data, head, choice, solution)
            assert int(solution.result) == int(small.result.value[i])
            assert int(decision.status) == int(small.status.value[i])
            statuses.add(str(decision.status))
            if solution.result == "infeasible":
                assert decision.status == "not_applicable"
                continue
            support = np.asarray(decision.support)
            by_hand = all(scores[k, choice[k]] > scores[k, t] for k in range(2) for t in np.flatnonzero(support[k]))
            assert bool(decision) == by_hand and (decision.status == "global_") == (tuple(choice) == tuple(best))
            if tuple(choice) != tuple(best):
                met = [support[k, best[k]] for k in range(2) if choice[k] != best[k]]
                one, every = one and any(met), every and all(met)
        # That every optimal token is support is stronger than that one of them is.
        assert (small.assumption_D == "holds") == one and (small.all_optimal_support == "holds") == every
        seen.add((one, every))
        choices, solutions = small.solutions(chunk=5)
        assert len(choices) == int(small.locally_optimal.sum()) >= 1
        assert (np.asarray(solutions.result) == 1).all()
        # Assumption D implies that the optimal choice is the only locally-optimal one.
        assert len(choices) == 1 or not one
    assert seen == {(True, True), (True, False), (False, False)} and {"global_", "local", "not_local"} <= statuses


@pytest.mark.slow
def test_assumptions_on_orthogonal_tokens_of_which_one_is_hidden() -> None:
    """Orthonormal tokens and queries: all tokens are support for every choice, so that B.1 and D hold."""
    mask = np.arange(4) < np.array([[3], [4]])
    data = TokenData(np.stack([np.eye(4, 3), np.eye(4, 3)[::-1]]), np.eye(2, 3), [1.0, 1.0], mask)
    enumeration = enumerate_selections(data, np.array([1.0, 0.5, 0.2]), chunk=5)
    np.testing.assert_array_equal(enumeration.selections, list(itertools.product(range(3), range(4))))
    assert enumeration.assumption_B1 == "holds"
    assert enumeration.assumption_D == "holds"
    assert int(enumeration.locally_optimal.sum()) == 1


def test_sets_have_equal_logits_and_margins_against_the_rest() -> None:
    data, _ = random_tokens(jax.random.key(3), 4, 4, 10)
    selection = np.zeros((4, 4), bool)
    selection[0, [1, 3]] = selection[1, 2] = selection[2, [0, 1, 3]] = selection[3] = True
    solution = solve(attention_svm(data, selection))
    assert solution.result == "optimal" and float(solution.certificate.duality_gap) <= 1e-10
    atol = 1e-9
    logits = np.einsum("itd,de,ie->it", data.tokens, solution.primal, data.queries)
    for i in range(4):
        inside, outside = logits[i, selection[i]], logits[i, ~selection[i]]
        np.testing.assert_allclose(inside, inside[0], atol=atol)
        assert (inside[0] - outside).min(initial=np.inf) >= 1 - atol


@pytest.mark.slow
def test_random_sets_in_the_nuclear_norm_are_solved_to_the_last_digits() -> None:
    """With as many equalities as these their weights are not unique, and Newton's matrix of the last steps is singular:
    54 to 55 of 60 ended within 1e-10 by its inverse, the others within 1e-5."""
    for seed in range(4):
        data, _ = batch(seed)
        rng = np.random.default_rng(seed)
        chosen = rng.random((LANES, 4, 4)).argsort(axis=-1) < rng.integers(1, 5, (LANES, 4, 1))
        # Not all of them: that program has no margin.
        chosen[chosen.all((1, 2)), 0, 1:] = False
        solutions = SOLVED(attention("nuclear", data, jnp.asarray(chosen)))
        assert np.all(np.asarray(solutions.result == "optimal"))
        certificates = solutions.certificate
        # Two steps from 1e-5 end at rounding; a program of condition 1e4 keeps twelve digits of it.
        assert np.abs(certificates.duality_gap).max() <= 1e-10 and np.asarray(certificates.feasibility).max() <= 1e-10


def test_sequence_to_sequence_and_causal() -> None:
    """Equation (11) and its causal variant, each against the program with its queries written out."""
    rng = np.random.default_rng(4)
    tokens, queries = rng.normal(size=(2, 4, 10)), rng.normal(size=(2, 2, 10))
    # The first output sees tokens 0 to 2, the second all.
    causal = np.broadcast_to(np.arange(4) <= np.array([[2], [3]]), (2, 2, 4))
    for mask in (np.ones((2, 2, 4), bool), causal):
        data = TokenData(tokens, queries, np.ones((2, 2)), mask)
        choice = np.array([[0, 3], [2, 1]])
        solution = solve(attention_svm(data, choice))
        flat = TokenData(np.repeat(tokens, 2, axis=0), queries.reshape(4, 10), np.ones(4), mask.reshape(4, 4))
        same = solve(attention_svm(flat, choice.reshape(4)))
        assert solution.result == "optimal" and same.result == "optimal"
        np.testing.assert_allclose(solution.primal, same.primal, atol=1e-10)
        assert int(attention_svm(data, choice).active.sum()) == int(mask.sum()) - 4
        decision = is_locally_optimal(data, rng.normal(size=10), choice, solution)
        assert decision.support.shape == (2, 2, 4)


def test_finite_component_and_best_correlation() -> None:
    data, _ = random_tokens(jax.random.key(5), 4, 4, 10)
    selection = np.zeros((4, 4), bool)
    selection[:, :2] = True
    attention = np.random.default_rng(0).uniform(0.1, 1.0, (4, 4))
    finite = solve(finite_component(data, selection, attention))
    direction = solve(attention_svm(data, selection))
    assert finite.result == "optimal" and direction.result == "optimal"
    logits = np.einsum("itd,de,ie->it", data.tokens, finite.primal, data.queries)
    np.testing.assert_allclose(logits[:, 0] - logits[:, 1], np.log(attention[:, 0] / attention[:, 1]), atol=1e-12)
    unit = direction.primal / jnp.linalg.norm(direction.primal)
    noise = 0.1 * np.random.default_rng(1).normal(size=(10, 10))
    weights = finite.primal + 3.0 * unit + noise
    best = float(best_correlation(weights, finite.primal, direction.primal))

    def correlation(gamma: float) -> float:
        candidate = finite.primal + gamma * unit
        return float(jnp.sum(candidate * weights) / jnp.linalg.norm(candidate) / jnp.linalg.norm(weights))

    # Near the best γ the correlation is flat: it loses the square of half a step.
    tried = max(correlation(gamma) for gamma in np.linspace(0.0, 30.0, 3001))
    assert tried - 1e-12 <= best <= tried + 1e-4
