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


@pytest.mark.parametrize(
    "how, message",
    [
        ({"k": 2}, r"^k: self_attention has an output for each of the 5 tokens, got k = 2"),
        ({"k": 2, "self_attention": False, "causal": True}, r"^k: causal has"),
        ({"k": 0, "self_attention": False}, r"^k: expected at least 1"),
    ],
)
def test_wrong_sizes_are_named(how, message):
    with pytest.raises(ValueError, match=message):
        random_sequences(KEY, N, T, D, **how)
    with pytest.raises(ValueError, match=r"^T: "):
        causal_mask(2, 0)
