"""What a study takes for a list of values, and what becomes of settings in a store; refusals: tests/arguments."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest

from tests.study.cheap import HostExperiment, cheap, small_study, tiny_study


@pytest.mark.parametrize(
    "values",
    [
        (2, 3),
        np.array([2, 3]),
        jnp.asarray([2, 3]),
        range(2, 4),
        (v for v in (2, 3)),
        [np.int32(2), np.uint8(3)],
        [2.0, 3],
    ],
)
def test_what_counts_as_a_list_of_values(values):
    found = small_study(data_factors={"d": values}, trials=np.int64(10), seed=np.uint8(0), block=jnp.asarray(4))
    assert found.plan.same(small_study().plan)
    assert all(type(value) in (int, float) for value in found.plan.factors["d"])
    assert [type(number) for number in (found.plan.trials, found.plan.seed, found.plan.block)] == [int] * 3


def test_settings_are_what_a_store_gives_back(tmp_path):
    """A number of NumPy is a number; a tuple is a list in a file, and the study the same."""
    path = tmp_path / "r.zarr"
    study = tiny_study(HostExperiment(pause=np.float64(0.0), method=(1, np.int64(2))))
    assert study.experiment.settings()["method"] == [1, 2]
    study.run(path, progress=False)
    assert study.status(path).complete
    partial = [tiny_study(functools.partial(cheap, spread=spread)) for spread in (1.0, 2.0)]
    assert not partial[0].plan.same(partial[1].plan)
