"""Compiled programs are forgotten before the kernel's limit on memory maps ends the process."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxflow.study import blocks
from tests.study.cheap import cheap, small_study


def test_crowded_is_a_share_of_the_limit(tmp_path):
    maps, limit = tmp_path / "maps", tmp_path / "limit"
    maps.write_text("one\n" * 60)
    limit.write_text("100\n")
    assert blocks.crowded(maps, limit)
    limit.write_text("1000\n")
    assert not blocks.crowded(maps, limit)
    # Where the kernel says nothing there is no such limit.
    assert not blocks.crowded(maps, tmp_path / "none") and not blocks.crowded(tmp_path / "none", limit)


@pytest.mark.slow
def test_programs_are_released():
    traced = []

    @jax.jit
    def function(x):
        traced.append(1)
        return jnp.sin(x) + 1.0

    function(1.0), function(2.0)
    assert len(traced) == 1
    blocks.release_programs()
    function(3.0)
    assert len(traced) == 2


@pytest.mark.slow
def test_a_crowded_study_gives_the_same_numbers(tmp_path, monkeypatch):
    released = []

    def release():
        released.append(1)
        jax.clear_caches()

    monkeypatch.setattr(blocks, "release_programs", release)
    monkeypatch.setattr(blocks, "crowded", lambda: False)
    with small_study(cheap).run(tmp_path / "a.zarr", progress=False) as free:
        expected = {name: free[name].values for name in free.data_vars}
    assert not released
    monkeypatch.setattr(blocks, "crowded", lambda: True)
    with small_study(cheap).run(tmp_path / "b.zarr", progress=False) as found:
        assert set(found.data_vars) == set(expected)
        for name, values in expected.items():
            np.testing.assert_array_equal(found[name].values, values)
    # Once for each cell, before it is compiled.
    assert len(released) == 4
