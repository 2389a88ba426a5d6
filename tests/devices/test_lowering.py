"""Without an accelerator at hand: what is compiled for a CPU lowers for CUDA and for TPU too, and calls no host."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import jaxflow as jf
from jaxflow.limits.attention import Gear
from jaxflow.limits.many import begun_paths, looked_at_all
from jaxflow.study import TokenSelection
from jaxflow.study.queues import Block

PLATFORMS = ("cuda", "tpu")
LANES = 3


def attention(kind: Any) -> Callable[[Any], Any]:
    """The limit of the flow of random tokens."""

    def one(key: Any) -> Any:
        data, head = jf.data.random_tokens(key, n=3, T=4, d=5)
        risk = jf.EmpiricalRisk(data, jf.losses.Logistic())
        return arrays(jf.find_limit(risk, kind.init(key, data, head), throw=False))

    return one


def linear(depth: int) -> Callable[[Any], Any]:
    """The limit of a linear network by its implicit bias."""

    def one(key: Any) -> Any:
        data = jf.data.LinearData(jax.random.normal(key, (4, 6)), jnp.asarray([1.0, -1.0, 1.0, -1.0]))
        network = jf.models.DiagonalLinearNetwork.init(key, data, depth=depth)
        return arrays(jf.find_limit(jf.EmpiricalRisk(data, "exponential"), network, throw=False))

    return one


def quadratic(key: Any) -> tuple[jf.EmpiricalRisk, jf.models.HadamardNetwork]:
    """A regression and the start of a network."""
    data = jf.data.LinearData(jax.random.normal(key, (8, 5)), jax.random.normal(key, (8,)))
    return jf.EmpiricalRisk(data, "squared"), jf.models.HadamardNetwork.init(key, jf.models.DiagonalLinear(), p=5)


def stages(key: Any) -> Any:
    """Algorithm 1 of Boix-Adserà et al. (2023)."""
    return arrays(jf.theory.incremental_learning(*quadratic(key)))


def arrays(tree: Any) -> Any:
    return eqx.filter(tree, eqx.is_array)


def lowers(batch: Callable[[Any], Any], platforms: tuple[str, ...] = PLATFORMS) -> None:
    """Traced once; each platform's rules are asked for whatever the program holds."""
    traced = jax.jit(batch).trace(jax.random.split(jax.random.key(0), LANES))
    for platform in platforms:
        text = traced.lower(lowering_platforms=(platform,)).as_text()
        assert "callback" not in text, platform
        assert "lapack" not in text, platform


# The limits hold the programs of their norms: nuclear, l1; Frobenius' is in the block of a study. The gears of diagonal
# weights are those of factors.
@pytest.mark.parametrize(
    "one",
    [
        pytest.param(attention(jf.models.FactoredAttention), marks=pytest.mark.slow),
        pytest.param(linear(depth=2), marks=pytest.mark.slow),
        stages,
    ],
    ids=["KQ", "linear", "Algorithm 1"],
)
def test_batches_lower_for_accelerators(one: Callable[[Any], Any]) -> None:
    lowers(jax.vmap(one))


@pytest.mark.slow
def test_a_block_of_a_study_lowers_for_accelerators() -> None:
    """The host reads which gear goes on, between programs; here all of them are one program."""
    experiment = TokenSelection(width=LANES, programs=LANES)
    factors = {"n": 3, "T": 4, "d": 5, "parametrization": "W"}
    block = Block(experiment.queues(factors), LANES)

    def one_program(keys: Any) -> Any:
        instances = block._draw(keys)
        ways = begun_paths(block.queues.gears, instances.risk, instances.model)
        for gear in Gear:
            ways = block._turned(gear, False, instances.risk, instances.model, ways)
        ways = looked_at_all(instances.risk, ways)
        return block._closed(instances, ways), ways.gear

    lowers(one_program)
