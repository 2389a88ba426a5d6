"""Generated data satisfy what they are made for, and break what they are told to break."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxflow.models import LinearHead, token_scores
from jaxflow.papers.sheen2024.instances import equal_score_tokens, paired_tokens

# Scores and inner products of order ten: some hundred roundings.
ROUNDING = 1e-12


def test_scores_are_the_ones_asked_for() -> None:
    data, head = equal_score_tokens(jax.random.key(0), 5, 4, 6, 7.0)
    scores = np.sort(np.asarray(token_scores(data, LinearHead(head))), axis=1)
    assert np.allclose(scores[:, -1], 3.5, atol=ROUNDING)
    assert np.allclose(scores[:, :-1], -3.5, atol=ROUNDING)


def test_a_spread_moves_the_other_scores_only() -> None:
    data, head = equal_score_tokens(jax.random.key(0), 5, 4, 6, 7.0, 0.1)
    scores = np.sort(np.asarray(token_scores(data, LinearHead(head))), axis=1)
    assert np.allclose(scores[:, -1], 3.5, atol=ROUNDING)
    assert np.all(np.abs(scores[:, :-1] + 3.5) <= 0.7 + ROUNDING) and np.ptp(scores[:, :-1]) > 0.1


def test_a_planted_diagonal_separates_and_changes_no_score() -> None:
    key = jax.random.key(3)
    plain, head = equal_score_tokens(key, 3, 4, 4, 5.0)
    planted, same = equal_score_tokens(key, 3, 4, 4, 5.0, 0.0, 0.2)
    assert jnp.array_equal(head, same)
    before, after = (np.asarray(token_scores(data, LinearHead(head))) for data in (plain, planted))
    assert np.allclose(before, after, atol=ROUNDING)
    # Only optimal tokens are moved.
    moved = np.any(np.asarray(plain.tokens != planted.tokens), axis=-1)
    assert moved.any() and np.all(after[moved] > 0)


@pytest.mark.parametrize("cosines", [(0.2, 0.6), (-0.9, -0.2)])
@pytest.mark.parametrize("outside", [False, True])
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
    ordered = np.sort(scores, axis=1)
    assert np.allclose(ordered[:, :-1], ordered[:, :1], atol=1e-11)
    assert np.all(ordered[:, -1] - ordered[:, 0] >= 4.0 - 1e-11)
    if outside:
        others = np.delete(np.asarray(data.tokens), np.asarray(index)[0], axis=1)[0]
        # Differences of the first sequence's pairs are orthogonal to the other optimal tokens.
        assert np.allclose((others - others.mean(axis=0)) @ best[1:].T, 0.0, atol=ROUNDING)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((2, 4, 4, 1.0), "T: pairs"),
        ((4, 3, 3, 1.0), "d: expected at least 4"),
    ],
)
def test_sizes_that_cannot_be(arguments: tuple[int, int, int, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        paired_tokens(jax.random.key(0), *arguments)
    with pytest.raises(ValueError, match="cosines"):
        paired_tokens(jax.random.key(0), 2, 3, 4, 1.0, cosines=(-0.5, 0.5))
