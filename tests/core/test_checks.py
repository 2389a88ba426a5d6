"""What the checks of arguments are made of."""

import jax
import jax.numpy as jnp
import pytest

from jaxflow._core import is_concrete, unknown_name


@pytest.mark.parametrize(
    "given, near",
    [
        ("kvaerno5", "'Kvaerno5'"),
        ("Kvaerno4", "'Kvaerno5'"),
        ("TSIT5", "'Tsit5'"),
        ("zzz", None),
        ("", None),
        (3, None),
    ],
)
def test_unknown_name_suggests_the_nearest_and_does_not_guess(given, near):
    error = unknown_name("solver", given, iter(["Tsit5", "Kvaerno5"]))
    assert isinstance(error, ValueError)
    message = str(error)
    assert message.startswith(f"solver: unknown name {given!r}") and message.endswith("Known: Kvaerno5, Tsit5.")
    assert (f"did you mean {near}?" in message) if near else ("did you mean" not in message)


def test_is_concrete():
    seen = []
    outside = jnp.ones(2)

    def look(x):
        seen.append((is_concrete(x), is_concrete({"a": 1.0, "b": x}), is_concrete(outside)))
        return x

    assert is_concrete() and is_concrete(1.0, "a", None, jnp.ones(2), {"a": [jnp.ones(1)]})
    jax.jit(look)(1.0)
    jax.vmap(look)(jnp.ones(3))
    jax.grad(look)(1.0)
    assert seen == [(False, False, True)] * 3
