"""Programs that run once, and the cache that outlives them."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxflow as jf
from jaxflow._core import compiled_once, normal, quick_options


@compiled_once
def _scaled(x, factor, power: int):
    assert isinstance(power, int)  # numbers of Python are fixed in the program
    return jnp.sin(factor * x) ** power


def test_alone_and_within_transformations_alike():
    x = jnp.linspace(0.0, 1.0, 7)
    plain = jnp.sin(2.0 * x) ** 3
    alone = _scaled(x, 2.0, 3)
    within = jax.jit(lambda x: _scaled(x, 2.0, 3))(x)
    mapped = jax.vmap(lambda x: _scaled(x, 2.0, 3))(x)
    # Two programs for one formula: equal to a few roundings.
    for found in (alone, within, mapped):
        np.testing.assert_allclose(found, plain, rtol=0, atol=1e-15)
    slopes = jax.vmap(jax.grad(lambda x: _scaled(x, 2.0, 3)))(x)
    np.testing.assert_allclose(slopes, 6.0 * jnp.sin(2.0 * x) ** 2 * jnp.cos(2.0 * x), rtol=0, atol=1e-14)


def test_concrete_arguments_within_a_larger_program():
    # Options belong to the outermost program: JAX refuses them further in.
    x = jnp.ones(3)
    found = jax.jit(lambda y: y + _scaled(x, 2.0, 1))(x)
    np.testing.assert_allclose(found, 1.0 + np.sin(2.0), rtol=0, atol=1e-15)
    found = jax.vmap(lambda y: y + _scaled(x, 2.0, 1).sum())(x)
    np.testing.assert_allclose(found, 1.0 + 3.0 * np.sin(2.0), rtol=0, atol=1e-14)


def test_options_are_those_of_the_backend():
    assert bool(quick_options()) == (jax.default_backend() == "cpu")


def test_normal_draws_are_those_of_jax():
    key = jax.random.key(3)
    np.testing.assert_allclose(normal(key, (4, 5)), jax.random.normal(key, (4, 5)), rtol=1e-14)


@pytest.fixture
def settings():
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: jax.config.values[name] for name in names}
    yield
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.mark.usefixtures("settings")
def test_a_cache_in_a_folder_of_ones_own(tmp_path: Path):
    assert jf.compilation_cache() == Path(jax.config.values["jax_compilation_cache_dir"])  # what is set stands
    wanted = tmp_path / "deep" / "cache"
    assert jf.compilation_cache(wanted) == wanted
    assert wanted.is_dir() and jax.config.values["jax_compilation_cache_dir"] == str(wanted)


@pytest.mark.usefixtures("settings")
def test_a_cache_where_none_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    jax.config.update("jax_compilation_cache_dir", None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert jf.compilation_cache() == tmp_path / "jaxflow" / "xla"
