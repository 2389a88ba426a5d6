import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxflow.data import optimal_tokens, require_untied, tied_sequences

SCORES = jnp.asarray([[0.1, 0.9, 0.3], [0.5, 0.2, 0.5], [-1.0, -2.0, -3.0]])
ALL = jnp.ones(SCORES.shape, bool)


def test_optimal_tokens():
    np.testing.assert_array_equal(optimal_tokens(SCORES, ALL), [[0, 1, 0], [1, 0, 1], [1, 0, 0]])
    np.testing.assert_array_equal(tied_sequences(SCORES, ALL), [False, True, False])


def test_hidden_tokens_are_never_optimal():
    visible = ALL.at[0, 1].set(False).at[1, 0].set(False)
    np.testing.assert_array_equal(optimal_tokens(SCORES, visible), [[0, 0, 1], [0, 0, 1], [1, 0, 0]])
    assert not tied_sequences(SCORES, visible).any()
    assert not optimal_tokens(SCORES, ~ALL).any()


def test_several_queries():
    scores = jnp.stack([SCORES, SCORES[::-1]])
    visible = jnp.ones(scores.shape, bool)
    np.testing.assert_array_equal(tied_sequences(scores, visible), [[False, True, False], [False, True, False]])
    with pytest.raises(ValueError, match=r"sequence \(0, 1\): tokens \[0, 2\]; sequence \(1, 1\)"):
        require_untied(scores, visible)


def test_ties_are_reported_with_their_indices():
    require_untied(SCORES[::2], ALL[::2])
    with pytest.raises(ValueError) as caught:
        require_untied(SCORES, ALL)
    assert str(caught.value) == "data: ambiguous, optimal tokens are tied (sequence (1,): tokens [0, 2])"


def test_traced_ties_are_left_to_the_outcome():
    jax.jit(require_untied)(SCORES, ALL)


def test_nan_is_no_optimum():
    scores = SCORES.at[0, 0].set(jnp.nan)
    assert not optimal_tokens(scores, ALL)[0].any()
    np.testing.assert_array_equal(optimal_tokens(scores, ALL)[1:], optimal_tokens(SCORES, ALL)[1:])
