"""Programs that run once, and the cache that outlives them."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxflow as jf
from jaxflow._core import compiled_around, compiled_once, normal, quick_options


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
    # Options belong to the outermost program: JAX refuses them further in, where arguments may be concrete.
    concrete = jax.jit(lambda y: y + _scaled(x, 2.0, 3))(jnp.zeros(7))
    # Two programs for one formula: equal to a few roundings.
    for found in (alone, within, mapped, concrete):
        np.testing.assert_allclose(found, plain, rtol=0, atol=1e-15)
    slopes = jax.vmap(jax.grad(lambda x: _scaled(x, 2.0, 3)))(x)
    np.testing.assert_allclose(slopes, 6.0 * jnp.sin(2.0 * x) ** 2 * jnp.cos(2.0 * x), rtol=0, atol=1e-14)


def _in_two(traced):
    """exp(2x) in two programs and a step between; `traced` counts what Python runs of the two."""

    def first(x, name):
        traced.append("first")
        return {"x": x, "weak": 1.0 * jnp.asarray(x.shape[0]), "name": name}

    def between(state):
        return state | {"x": 2.0 * state["x"]}

    def second(state):
        traced.append("second")
        assert state["name"] == "fixed"
        return jnp.exp(state["x"]) * state["weak"] / state["x"].shape[0]

    return compiled_around(first, between, second)


def test_two_programs_and_one_are_the_same_function():
    traced = []
    function, x = _in_two(traced), jnp.linspace(-1.0, 1.0, 5)
    found = function(x, "fixed")
    assert sorted(traced) == ["first", "second"]  # the call takes the program that was compiled beside the first
    np.testing.assert_array_equal(function(x, "fixed"), found)
    assert len(traced) == 2
    with jax.enable_x64(False):
        assert function(jnp.float32(x), "fixed").dtype == jnp.float32
    assert len(traced) == 4
    function(jnp.linspace(-1.0, 1.0, 6), "fixed")
    assert len(traced) == 6
    for other in (
        jax.jit(lambda x: function(x, "fixed"))(x),
        jax.vmap(lambda x: function(x[None], "fixed")[0])(x),
        jnp.exp(2.0 * x),
    ):
        np.testing.assert_allclose(found, other, rtol=0, atol=1e-14)
    slope = jax.grad(lambda x: function(x, "fixed").sum())(x)
    np.testing.assert_allclose(slope, 2.0 * jnp.exp(2.0 * x), rtol=0, atol=1e-14)


def test_an_error_of_the_second_program_reaches_the_caller():
    with pytest.raises(AssertionError):
        _in_two([])(jnp.ones(3), "another")


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
def test_the_folder_of_the_cache_is_given_or_set_or_that_of_the_platform(tmp_path: Path, monkeypatch):
    assert jf.compilation_cache() == Path(jax.config.values["jax_compilation_cache_dir"])  # what is set stands
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    wanted = tmp_path / "deep" / "cache"
    assert jf.compilation_cache(wanted) == wanted
    assert wanted.is_dir() and jax.config.values["jax_compilation_cache_dir"] == str(wanted)
    for base in (tmp_path / "xdg", tmp_path / "home" / ".cache"):
        jax.config.update("jax_compilation_cache_dir", None)
        assert jf.compilation_cache() == base / "jaxflow" / "xla"
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
