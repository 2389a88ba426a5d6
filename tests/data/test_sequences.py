import jax
import numpy as np
import pytest

from jaxflow.data import causal_mask, random_sequences

KEY = jax.random.key(3)
N, T, D = 4, 5, 3


def test_self_attention_has_an_output_for_every_token():
    data, head = random_sequences(KEY, N, T, D)
    data.check()
    assert data.output_shape == (N, T) and head.shape == (D,) and data.mask is None
    np.testing.assert_array_equal(data.queries, data.tokens)
    assert set(np.unique(np.asarray(data.labels))) == {-1.0, 1.0}
    np.testing.assert_allclose(np.linalg.norm(data.tokens, axis=-1), 1, rtol=1e-14)


def test_outputs_of_their_own():
    data, heads = random_sequences(KEY, N, T, D, k=2, self_attention=False, position_heads=True)
    data.check()
    assert data.queries.shape == (N, 2, D) and data.labels.shape == (N, 2) and heads.shape == (2, D)
    np.testing.assert_allclose(np.linalg.norm(data.queries, axis=-1), 1, rtol=1e-14)
    np.testing.assert_allclose(np.linalg.norm(heads, axis=-1), 1, rtol=1e-14)


def test_causal_outputs_see_the_past():
    data, _ = random_sequences(KEY, N, T, D, causal=True)
    data.check()
    for k in range(T):
        np.testing.assert_array_equal(data.visible[:, k], np.broadcast_to(np.arange(T) <= k, (N, T)))
    np.testing.assert_array_equal(causal_mask(2, 3)[1], [[1, 0, 0], [1, 1, 0], [1, 1, 1]])
    # The mask takes no random numbers: the same tokens, queries and labels without it.
    dense, _ = random_sequences(KEY, N, T, D)
    np.testing.assert_array_equal(data.tokens, dense.tokens)
    np.testing.assert_array_equal(data.labels, dense.labels)


def test_causal_outputs_are_those_of_the_tokens():
    with pytest.raises(ValueError, match=r"^k: causal has"):
        random_sequences(KEY, N, T, D, k=2, self_attention=False, causal=True)
