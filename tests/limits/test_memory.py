"""Calls of shapes that are known compile nothing and keep nothing, however many they are (`benchmarks/memory.py`)."""

import gc
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import jaxflow as jf

# JAX's own name for a program that was compiled, or read back from the cache on disk.
COMPILED = "/jax/core/compile/backend_compile_duration"


@pytest.fixture
def compiled() -> Iterator[list[str]]:
    """The programs compiled so far."""
    programs: list[str] = []

    def heard(event: str, duration_secs: float, **kwargs: Any) -> None:
        if event == COMPILED:
            programs.append(event)

    jax.monitoring.register_event_duration_secs_listener(heard)
    yield programs
    jax.monitoring.unregister_event_duration_listener(heard)


def attention(kind: Any) -> Callable[[int], Any]:
    def call(seed: int) -> Any:
        data, head = jf.data.random_tokens(jax.random.key(seed), 3, 4, 4)
        model = kind.init(jax.random.key(seed + 1), data, head)
        return jf.find_limit(jf.EmpiricalRisk(data, jf.losses.Logistic()), model, gap=1e-8 * (1 + seed), throw=False)

    return call


def network(seed: int) -> Any:
    inputs = jax.random.normal(jax.random.key(seed), (3, 4))
    data = jf.data.LinearData(inputs, jnp.sign(inputs[:, 0]))
    model = jf.models.DiagonalLinearNetwork.init(jax.random.key(seed + 1), data, scheme="random")
    return jf.find_limit(jf.EmpiricalRisk(data, "exponential"), model, throw=False)


@pytest.mark.parametrize(
    "call",
    [
        attention(jf.models.CombinedAttention),
        pytest.param(attention(jf.models.FactoredAttention), marks=pytest.mark.slow),
        pytest.param(network, marks=pytest.mark.slow),
    ],
    ids=["W", "K, Q", "network"],
)
def test_the_second_round_compiles_nothing_and_keeps_nothing(call: Callable[[int], Any], compiled: list[str]) -> None:
    # A gear is compiled when the first path needs it, and constants that calls share come with it.
    def round_of_calls() -> tuple[int, int]:
        for seed in range(6):
            str(call(seed).outcome)
        gc.collect()  # what other tests of this process have left may go at any time
        return len(compiled), len(jax.live_arrays())

    first, kept = round_of_calls()
    again, left = round_of_calls()
    assert again == first
    jax.jit(lambda x: 3.0 * x)(jnp.ones(2))
    assert len(compiled) > first  # what is compiled is counted
    # What a call made is gone with its answer.
    assert left <= kept
