"""Without an accelerator at hand: what is compiled for a CPU lowers for CUDA and for TPU too, and calls no host."""

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxflow as jf
from jaxflow import papers
from jaxflow.limits.attention import EXPLICIT, IMPLICIT, MULTIPLIERS
from jaxflow.limits.many import begun_paths, looked_at_all
from jaxflow.papers import Part, registry
from jaxflow.study import TokenSelection
from jaxflow.study.queues import Block

PLATFORMS = ("cuda", "tpu")
LANES = 3


def attention(kind: Any, n: int = 3, T: int = 4, d: int = 5) -> Callable[[Any], Any]:
    """The limit of the flow of random tokens."""

    def one(key: Any) -> Any:
        data, head = jf.data.random_tokens(key, n=n, T=T, d=d)
        risk = jf.EmpiricalRisk(data, jf.losses.Logistic())
        return arrays(jf.find_limit(risk, kind.init(key, data, head), throw=False))

    return one


def linear(key: Any) -> Any:
    """The limit of a linear network by its implicit bias."""
    data = jf.data.LinearData(jax.random.normal(key, (4, 6)), jnp.asarray([1.0, -1.0, 1.0, -1.0]))
    network = jf.models.DiagonalLinearNetwork.init(key, data)
    return arrays(jf.find_limit(jf.EmpiricalRisk(data, "exponential"), network, throw=False))


def stages(key: Any) -> Any:
    """Algorithm 1 of Boix-Adserà et al. (2023)."""
    data = jf.data.LinearData(jax.random.normal(key, (8, 5)), jax.random.normal(key, (8,)))
    start = jf.models.HadamardNetwork.init(key, jf.models.DiagonalLinear(), p=5)
    return arrays(jf.theory.incremental_learning(jf.EmpiricalRisk(data, "squared"), start))


def arrays(tree: Any) -> Any:
    return eqx.filter(tree, eqx.is_array)


def lowers(batch: Callable[[Any], Any], platforms: tuple[str, ...] = PLATFORMS) -> None:
    """Traced once; each platform's rules are asked for whatever the program holds."""
    traced = jax.jit(batch).trace(jax.random.split(jax.random.key(0), LANES))
    for platform in platforms:
        text = traced.lower(lowering_platforms=(platform,)).as_text()
        assert "callback" not in text, platform
        assert "lapack" not in text, platform


# The limits hold the programs of their norms.
@pytest.mark.parametrize(
    "one",
    [
        pytest.param(attention(jf.models.FactoredAttention), marks=pytest.mark.slow),
        pytest.param(attention(jf.models.DiagonalAttention), marks=pytest.mark.slow),
        pytest.param(linear, marks=pytest.mark.slow),
        stages,
    ],
    ids=["KQ", "diagonal", "linear", "Algorithm 1"],
)
def test_batches_lower_for_accelerators(one: Callable[[Any], Any]) -> None:
    lowers(jax.vmap(one))


def test_a_program_with_a_callback_is_noticed() -> None:
    def batch(keys: Any) -> Any:
        values = jax.vmap(jax.random.normal)(keys)
        return jax.pure_callback(lambda x: x, jax.ShapeDtypeStruct(values.shape, values.dtype), values)

    with pytest.raises(ValueError, match="lowering platform cuda"):
        lowers(batch)


@pytest.mark.slow
def test_a_block_of_a_study_lowers_for_accelerators() -> None:
    """The host reads which gear goes on, between programs; here all of them are one program."""
    experiment = TokenSelection(width=LANES, programs=LANES)
    factors = {"n": 3, "T": 4, "d": 5, "parametrization": "W"}
    block = Block(experiment.queues(factors), LANES)

    def one_program(keys: Any) -> Any:
        instances = block._draw(keys)
        ways = begun_paths(block.queues.gears, instances.risk, instances.model)
        for gear in (EXPLICIT, IMPLICIT, MULTIPLIERS):
            ways = block._turned(gear, False, instances.risk, instances.model, ways)
        ways = looked_at_all(instances.risk, ways)
        return block._closed(instances, ways), ways.gear

    lowers(one_program)


# Of every paper the first part that is computed in batches: the others call the same solvers.
PARTS: dict[str, Part] = {}
for paper in papers.known_papers():
    parts = [part for entry in registry.entries_of(paper.name) for part in entry.dataset.parts.values()]
    batched = [part for part in parts if isinstance(part, Part) and part.way in ("together", "in turn")]
    if batched:
        PARTS[paper.name] = batched[0]


def part_lowers(part: Part) -> None:
    setting = next(iter(part.settings("quick").values()))
    # Settings are NumPy arrays until a block is computed.
    setting = jax.tree.map(lambda x: jnp.asarray(x) if isinstance(x, np.ndarray) else x, setting)
    # The stricter of the two: it makes no call to the host.
    lowers(jax.vmap(lambda key: arrays(part.one(key, setting))), ("tpu",))


@pytest.mark.slow
def test_instances_of_statements_lower_for_accelerators() -> None:
    """Diffrax checks points to save at, and a first step that is given, by a callback to the host.

    A GPU makes the call; what is compiled on one machine for another cannot hold it, and a TPU does not make it.
    Equinox, whose check it is, returns NaN in its place where EQX_ON_ERROR says so when it is imported: in a process
    of its own.
    """
    program = [sys.executable, "-m", "tests.devices.test_lowering"]
    environment = {**os.environ, "EQX_ON_ERROR": "nan"}
    done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=580)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines() == list(PARTS)


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    for name, part in PARTS.items():
        part_lowers(part)
        print(name, flush=True)
