"""Padding under a mask: the coordinates of W and the norm of a step's error are those of the data without it."""

import jax
import jax.numpy as jnp
import numpy as np

import jaxflow as jf
from jaxflow.flow.solvers import state_norm

N, T, D, EXTRA = 2, 3, 4, 2
# Of the first sequence the first token is hidden, of the second one in between and the last.
SHOWN = np.array([[False, True, False, True, True], [True, False, True, True, False]])


def test_padding_changes_neither_coordinates_nor_the_size_of_an_error():
    data, head = jf.data.random_tokens(jax.random.key(0), N, T, D)
    model = jf.models.CombinedAttention.init(jax.random.key(1), data, head)
    long = np.full((N, T + EXTRA, D), np.nan)
    long[SHOWN] = np.asarray(data.tokens).reshape(-1, D)
    padded = jf.data.TokenData(long, data.queries, data.labels, SHOWN)

    size = N * (T - 1)
    state = jax.random.normal(jax.random.key(2), (size,))
    longer = jnp.pad(state, (0, N * EXTRA))
    fields = []
    for given, at in ((data, state), (padded, longer)):
        scores = jf.Scores()
        _, context = scores.encode(jf.EmpiricalRisk(given, "logistic"), model)
        fields.append(scores.field(context, at).gradient)
    np.testing.assert_allclose(np.abs(fields[1][:size]), np.abs(fields[0]), rtol=1e-12)
    np.testing.assert_array_equal(fields[1][size:], 0.0)
    # Of what never moves the error is zero, which does not count.
    assert state_norm((longer,)) == state_norm((state,))
