import jax
import numpy as np
import pytest

from jaxflow.data import LinearData

N, D = 4, 3
INPUTS = np.random.default_rng(1).normal(size=(N, D))


def test_classification_and_regression():
    assert LinearData.validated(INPUTS, [1, -1, 1, 1]).targets.dtype == np.float64
    np.testing.assert_array_equal(LinearData.validated(INPUTS, [0.5, 2, 0, -3]).targets, [0.5, 2, 0, -3])


@pytest.mark.parametrize("shape", [(0, D), (N, 0)])
def test_empty_axis(shape):
    with pytest.raises(ValueError, match="^inputs: empty axis"):
        LinearData.validated(np.ones(shape), np.ones(shape[0]))


def test_batches_are_mapped_over_not_checked():
    data = LinearData(np.stack([INPUTS] * 2), np.ones((2, N)))
    with pytest.raises(ValueError, match="^inputs: expected one instance .*jax.vmap"):
        data.check()
    np.testing.assert_array_equal(jax.vmap(lambda one: one.inputs[0, 0])(data), [INPUTS[0, 0]] * 2)
