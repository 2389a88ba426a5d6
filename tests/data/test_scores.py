import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxflow.data import optimal_tokens, require_untied, tied_sequences

SCORES = jnp.asarray([[0.1, 0.9, 0.3], [0.5, 0.2, 0.5], [-1.0, -2.0, -3.0]])
ALL = jnp.ones(SCORES.shape, bool)
BEST = [[0, 1, 0], [1, 0, 1], [1, 0, 0]]


@pytest.mark.parametrize(
    ("scores", "visible", "best", "tied"),
    [
        (SCORES, ALL, BEST, [False, True, False]),
        # Hidden tokens are never optimal, nor is NaN.
        (SCORES, ALL.at[0, 1].set(False).at[1, 0].set(False), [[0, 0, 1], [0, 0, 1], [1, 0, 0]], [False] * 3),
        (SCORES, ~ALL, np.zeros((3, 3)), [False] * 3),
        (SCORES.at[0, 0].set(jnp.nan), ALL, [[0, 0, 0], *BEST[1:]], [False, True, False]),
        # Several queries.
        (jnp.stack([SCORES, SCORES[::-1]]), jnp.stack([ALL, ALL]), [BEST, BEST[::-1]], [[False, True, False]] * 2),
    ],
)
def test_optimal_tokens_and_ties(scores, visible, best, tied):
    np.testing.assert_array_equal(optimal_tokens(scores, visible), best)
    np.testing.assert_array_equal(tied_sequences(scores, visible), tied)


def test_ties_are_reported_with_their_indices():
    require_untied(SCORES[::2], ALL[::2])
    with pytest.raises(ValueError) as caught:
        require_untied(SCORES, ALL)
    assert str(caught.value) == "data: ambiguous, optimal tokens are tied (sequence (1,): tokens [0, 2])"
    with pytest.raises(ValueError, match=r"sequence \(0, 1\): tokens \[0, 2\]; sequence \(1, 1\)"):
        require_untied(jnp.stack([SCORES, SCORES[::-1]]), jnp.stack([ALL, ALL]))
    # Under a trace they are left to the outcome.
    jax.jit(require_untied)(SCORES, ALL)
