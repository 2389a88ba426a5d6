import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxflow.data import causal_mask, draw_tokens, random_sequences, random_tokens, score_gap_acceptance

KEY = jax.random.key(7)
SIZES = {"n": 6, "T": 5, "d": 4}

# A normalised vector has norm one up to the rounding of its d squares, their sum and a division.
NORM_ATOL = 8 * np.finfo(np.float64).eps


def score_gaps(data, head) -> np.ndarray:
    """Distance from the best to the second score of every sequence, in NumPy."""
    scores = np.asarray(data.labels)[:, None] * (np.asarray(data.tokens) @ np.asarray(head))
    ordered = np.sort(scores, axis=-1)
    return ordered[:, -1] - ordered[:, -2]


def test_unit_sphere_and_signs_reproducibly_from_the_key():
    data, head = first = random_tokens(KEY, **SIZES)
    data.check()
    assert data.tokens.shape == (6, 5, 4) and data.queries.shape == (6, 4) and head.shape == (4,)
    for vectors in (data.tokens, data.queries, head):
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=-1), 1, rtol=0, atol=NORM_ATOL)
    assert set(np.asarray(data.labels)) <= {-1.0, 1.0}
    # Every part depends on the key.
    again = random_tokens(KEY, **SIZES)
    other = random_tokens(jax.random.key(8), **SIZES)
    for a, b, c in zip(jax.tree.leaves(first), jax.tree.leaves(again), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(a, b)
        assert not np.array_equal(a, c)
    # Seeds may be mapped over.
    heads = jax.vmap(lambda seed: random_tokens(seed, **SIZES)[1])(jnp.arange(7, 9))
    np.testing.assert_array_equal(heads[0], head)


def test_parts_are_independent():
    data, head = random_tokens(KEY, n=400, T=3, d=2)
    tokens, queries = np.asarray(data.tokens), np.asarray(data.queries)
    # Means of 400 (1200) independent terms with variance 1/2 (coordinates on the circle), 1 (labels) and at
    # most 1/2 (inner products with something independent): five standard errors.
    assert np.abs(tokens.mean((0, 1))).max() < 5 * np.sqrt(0.5 / 1200)
    assert np.abs(queries.mean(0)).max() < 5 * np.sqrt(0.5 / 400)
    assert abs(np.mean(data.labels)) < 5 / np.sqrt(400)
    assert abs(np.mean((tokens[:, 0] * queries).sum(-1))) < 5 * np.sqrt(0.5 / 400)
    assert abs(np.mean((tokens[:, 0] * tokens[:, 1]).sum(-1))) < 5 * np.sqrt(0.5 / 400)
    assert abs(np.mean(tokens[:, 0] @ np.asarray(head))) < 5 * np.sqrt(0.5 / 400)


def test_self_attention_asks_with_the_first_token():
    data, head = random_tokens(KEY, **SIZES, self_attention=True)
    np.testing.assert_array_equal(data.queries, data.tokens[:, 0])
    cross, same_head = random_tokens(KEY, **SIZES)
    np.testing.assert_array_equal(data.tokens, cross.tokens)
    np.testing.assert_array_equal(head, same_head)


@pytest.mark.parametrize("score_gap", [0.0, 0.1, 0.5])
def test_score_gap_is_respected(score_gap):
    data, head, draws = draw_tokens(KEY, **SIZES, score_gap=score_gap)
    # The gap is formed by another order of sums here, so it may differ by a rounding error or two.
    assert score_gaps(data, head).min() >= score_gap - 1e-15
    assert (np.asarray(draws) >= 1).all()
    assert (score_gap > 0) or (np.asarray(draws) == 1).all()


def test_vmap_is_loop():
    keys = jax.random.split(KEY, 2)

    @jax.jit
    def draw(key):
        return draw_tokens(key, **SIZES, score_gap=0.3)

    batch = jax.jit(jax.vmap(draw))(keys)
    for i, key in enumerate(keys):
        solo = draw(key)
        np.testing.assert_array_equal(batch[2][i], solo[2])  # a lane that is done stays as it is
        for lane, alone in zip(jax.tree.leaves(batch[:2]), jax.tree.leaves(solo[:2]), strict=True):
            # Vectorised code may sum in another order: a few rounding errors of numbers below one.
            np.testing.assert_allclose(lane[i], alone, rtol=0, atol=1e-15)


def test_acceptance_rate_agrees_with_the_draws_needed():
    T, d, score_gap, count = 5, 4, 0.2, 4000
    rate = float(score_gap_acceptance(jax.random.key(1), T, d, score_gap, draws=count))
    assert 0.05 < rate < 0.95
    _, _, draws = draw_tokens(jax.random.key(2), count, T, d, score_gap)
    mean = float(jnp.mean(draws))
    # Draws are geometric with mean 1/p and standard deviation sqrt(1 - p)/p; p has the error of a share.
    error = np.hypot(np.sqrt(1 - rate) / rate, np.sqrt(rate * (1 - rate)) / rate**2) / np.sqrt(count)
    assert abs(mean - 1 / rate) < 5 * error
    # In one dimension scores are ±1: with two tokens the gap is 2 or 0, each with chance one half.
    assert abs(float(score_gap_acceptance(KEY, 2, 1, 1.0, draws=1000)) - 0.5) < 5 * 0.5 / np.sqrt(1000)
    assert score_gap_acceptance(KEY, 5, 4, 0.0) == 1


def test_unreachable_gap_is_an_error_and_under_a_trace_it_is_nan():
    # Scores are ±1 here and a gap needs exactly one +1 among 60: a chance of 60/2^60, tried 10,000 times.
    unreachable = {"n": 1, "T": 60, "d": 1, "score_gap": 1.0}
    with pytest.raises(ValueError, match="^score_gap: a sequence was rejected 10000 times; lower the gap"):
        random_tokens(KEY, **unreachable)
    data, _ = jax.jit(lambda key: random_tokens(key, **unreachable))(KEY)
    assert bool(jnp.isnan(data.tokens).all())


# Sequences with several outputs


def test_sequences_have_an_output_for_every_token():
    data, head = random_sequences(KEY, **SIZES)
    data.check()
    assert data.output_shape == (6, 5) and head.shape == (4,) and data.mask is None
    np.testing.assert_array_equal(data.queries, data.tokens)
    assert set(np.unique(np.asarray(data.labels))) == {-1.0, 1.0}
    np.testing.assert_allclose(np.linalg.norm(data.tokens, axis=-1), 1, rtol=0, atol=NORM_ATOL)


def test_outputs_may_have_queries_and_heads_of_their_own():
    data, heads = random_sequences(KEY, **SIZES, k=2, self_attention=False, position_heads=True)
    data.check()
    assert data.queries.shape == (6, 2, 4) and data.labels.shape == (6, 2) and heads.shape == (2, 4)
    for vectors in (data.queries, heads):
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=-1), 1, rtol=0, atol=NORM_ATOL)


def test_causal_outputs_are_those_of_the_tokens_and_see_the_past():
    np.testing.assert_array_equal(causal_mask(2, 3)[1], [[1, 0, 0], [1, 1, 0], [1, 1, 1]])
    data, _ = random_sequences(KEY, **SIZES, causal=True)
    data.check()
    np.testing.assert_array_equal(data.visible, causal_mask(6, 5))
    # The mask takes no random numbers: the same tokens, queries and labels without it.
    dense, _ = random_sequences(KEY, **SIZES)
    np.testing.assert_array_equal(data.tokens, dense.tokens)
    np.testing.assert_array_equal(data.labels, dense.labels)
    with pytest.raises(ValueError, match=r"^k: causal has"):
        random_sequences(KEY, **SIZES, k=2, self_attention=False, causal=True)
