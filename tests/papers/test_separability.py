"""Data of Sheen et al. (2024): made as asked for; each of Assumptions 1 to 4 fails alone where it is broken."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxflow.data import TokenData
from jaxflow.losses import Exponential
from jaxflow.models import CombinedAttention, LinearHead, token_scores
from jaxflow.papers.sheen2024 import separability
from jaxflow.papers.sheen2024.instances import equal_score_tokens, paired_tokens
from jaxflow.risk import EmpiricalRisk

# Minutes of flows and paths, of a paper alone.
pytestmark = pytest.mark.slow

# One program draws for all of these tests.
SHAPE = (3, 4, 4)
# Scores and inner products of order ten: some hundred roundings.
ROUNDING = 1e-12


def sorted_scores(data: TokenData, head: jax.Array) -> np.ndarray:
    return np.sort(np.asarray(token_scores(data, LinearHead(head))), axis=1)


def test_scores_are_the_ones_asked_for_and_a_spread_moves_the_others_only() -> None:
    scores = sorted_scores(*equal_score_tokens(jax.random.key(0), *SHAPE, 7.0))
    assert np.allclose(scores, [-3.5, -3.5, -3.5, 3.5], atol=ROUNDING)
    scores = sorted_scores(*equal_score_tokens(jax.random.key(0), *SHAPE, 7.0, 0.1))
    assert np.allclose(scores[:, -1], 3.5, atol=ROUNDING)
    assert np.all(np.abs(scores[:, :-1] + 3.5) <= 0.7 + ROUNDING) and np.ptp(scores[:, :-1]) > 0.1


def test_a_planted_diagonal_separates_and_changes_no_score() -> None:
    key = jax.random.key(3)
    plain, head = equal_score_tokens(key, *SHAPE, 5.0)
    planted, same = equal_score_tokens(key, *SHAPE, 5.0, 0.0, 0.2)
    assert jnp.array_equal(head, same)
    before, after = (np.asarray(token_scores(data, LinearHead(head))) for data in (plain, planted))
    assert np.allclose(before, after, atol=ROUNDING)
    # Only optimal tokens are moved.
    moved = np.any(np.asarray(plain.tokens != planted.tokens), axis=-1)
    assert moved.any() and np.all(after[moved] > 0)


@pytest.mark.parametrize(("cosines", "outside"), [((0.2, 0.6), False), ((-0.9, -0.2), True)])
def test_pairs(cosines: tuple[float, float], outside: bool) -> None:
    data, head, index = paired_tokens(jax.random.key(1), 3, 5, 6, 4.0, cosines=cosines, outside=outside)
    best = np.asarray(data.tokens)[np.arange(3), np.asarray(index)]
    queries = np.asarray(data.queries)
    for rows in (best, queries):
        gram = rows @ rows.T
        assert np.allclose(gram, np.diag(np.diag(gram)), atol=ROUNDING)
    sizes = np.linalg.norm(best, axis=1) * np.linalg.norm(queries, axis=1)
    assert np.allclose(np.abs(np.sum(best * queries, axis=1)), sizes, atol=ROUNDING)
    scores = np.asarray(token_scores(data, LinearHead(head)))
    assert np.array_equal(np.argmax(scores, axis=1), np.asarray(index))
    ordered = sorted_scores(data, head)
    assert np.allclose(ordered[:, :-1], ordered[:, :1], atol=1e-11)
    assert np.all(ordered[:, -1] - ordered[:, 0] >= 4.0 - 1e-11)
    if outside:
        others = np.delete(np.asarray(data.tokens), np.asarray(index)[0], axis=1)[0]
        # Differences of the first sequence's pairs are orthogonal to the other optimal tokens.
        assert np.allclose((others - others.mean(axis=0)) @ best[1:].T, 0.0, atol=ROUNDING)


@pytest.mark.parametrize(
    ("arguments", "message"), [((2, 4, 4, 1.0), "T: pairs"), ((4, 3, 3, 1.0), "d: expected at least 4")]
)
def test_sizes_that_cannot_be(arguments: tuple[int, int, int, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        paired_tokens(jax.random.key(0), *arguments)
    with pytest.raises(ValueError, match="cosines"):
        paired_tokens(jax.random.key(0), 2, 3, 4, 1.0, cosines=(-0.5, 0.5))


def zero(d: int, head: jax.Array) -> CombinedAttention:
    return CombinedAttention(jnp.zeros((d, d)), head)


@pytest.mark.parametrize("broken", [None, "break_i", "break_ii", "break_iii"])
def test_the_parts_of_assumption_4_fail_one_at_a_time(broken: str | None) -> None:
    amount = {} if broken is None else {broken: 0.2}
    data, head, index = paired_tokens(jax.random.key(2), 3, 5, 6, 8.0, **amount)
    parts = separability.assumption_4(data, jax.nn.one_hot(index, 5, dtype=bool))
    assert [bool(part.holds) for part in parts] == [broken != name for name in ("break_i", "break_ii", "break_iii")]
    assert bool(separability.assumption_2(data, head).holds)
    expected = {"break_i": np.sin(0.2), "break_ii": 1.0 - np.cos(0.2), "break_iii": 0.2}
    if broken is not None:
        worst = -min(float(part.slack) for part in parts)
        assert worst == pytest.approx(expected[broken], abs=1e-9)


def test_an_odd_number_of_others_has_no_pairing() -> None:
    data, head = equal_score_tokens(jax.random.key(0), *SHAPE, 1.0)
    selection = jnp.argmax(data.labels[:, None] * (data.tokens @ head), axis=1)[:, None] == jnp.arange(4)[None, :]
    assert float(separability.assumption_4(data, selection)[2].slack) == -np.inf


def test_assumption_2_and_its_relaxed_form() -> None:
    data, head = equal_score_tokens(jax.random.key(1), *SHAPE, 2.0, 0.05)
    assert not bool(separability.assumption_2(data, head).holds)
    relaxed = separability.assumption_2(data, head, 0.15)
    assert bool(relaxed.holds) and float(relaxed.slack) < 0.15


@pytest.mark.parametrize(("n", "T"), [(2, 3), (4, 4), (6, 8)])
def test_assumption_3_turns_at_the_needed_gap(n: int, T: int) -> None:
    needed = separability.score_gap_needed(n, T)
    # About L ln n, and never above.
    assert 0.6 * T * np.log(n) < needed <= T * np.log(n)
    assert separability.score_gap_needed(2, 2) == 0.0
    for multiple in (0.5, 1 - 1e-7, 1 + 1e-7, 3.0):
        data, head = equal_score_tokens(jax.random.key(0), n, T, 3, multiple * needed)
        holds = separability.assumption_3(EmpiricalRisk(data, Exponential()), zero(3, head)).holds
        assert bool(holds) == (multiple > 1)


def test_a_general_weight_may_separate_where_no_diagonal_does() -> None:
    # z = e_1: a diagonal W reads the first coordinate alone, a general one any.
    tokens = jnp.array([[[0.0, 1.0], [0.0, 0.0]]])
    data = TokenData(tokens, jnp.array([[1.0, 0.0]]), jnp.ones(1))
    head = jnp.array([0.0, 1.0])
    general, diagonal = separability.assumption_1(data, head), separability.diagonal_separability(data, head)
    assert bool(general.holds) and float(general.slack) == pytest.approx(1.0)
    assert not bool(diagonal.holds) and float(diagonal.slack) == 0.0


def test_tied_optimal_tokens_are_no_separability() -> None:
    data = TokenData(jnp.array([[[0.0, 1.0], [1.0, 1.0]]]), jnp.array([[1.0, 0.0]]), jnp.ones(1))
    found = separability.assumption_1(data, jnp.array([0.0, 1.0]))
    assert not bool(found.holds) and float(found.slack) == -np.inf
