"""Without an accelerator at hand: what is compiled for a CPU lowers for CUDA and for TPU too.

On none of them does it call the host, which would keep it out of the persistent compilation cache; and on a CPU no call
of LAPACK is for many matrices at once, which would wait for the threads that XLA runs it on. The gate of the
architecture looks at sources; here it is the programs themselves, with what Diffrax and Lineax add.
"""

import json
import math
import os
import re
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxflow as jf
from jaxflow import papers
from jaxflow._core import linalg
from jaxflow.limits.attention import Gear
from jaxflow.limits.many import begun_paths, looked_at_all
from jaxflow.papers import Part, registry
from jaxflow.study import TokenSelection
from jaxflow.study.queues import Block
from tests.processes import said

PLATFORMS = ("cuda", "tpu")
LANES = 3


def attention(kind: Any, d: int = 5) -> Callable[[Any], Any]:
    """The limit of the flow of random tokens."""

    def one(key: Any) -> Any:
        data, head = jf.data.random_tokens(key, n=3, T=4, d=d)
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


def program(key: Any) -> Any:
    """The l1 program of random tokens."""
    data, _ = jf.data.random_tokens(key, n=4, T=5, d=8)
    selection = jnp.zeros((4, 5), bool).at[:, 1].set(True)
    return jf.margin.solve(jf.margin.attention_svm(data, selection, "l1")).result.value


def arrays(tree: Any) -> Any:
    return eqx.filter(tree, eqx.is_array)


def lowers(batch: Callable[[Any], Any], platforms: tuple[str, ...] = PLATFORMS, lanes: int = LANES) -> None:
    """Traced once; each platform's rules are asked for whatever the program holds."""
    traced = jax.jit(batch).trace(jax.random.split(jax.random.key(0), lanes))
    for platform in platforms:
        text = traced.lower(lowering_platforms=(platform,)).as_text()
        assert "callback" not in text, platform
        assert platform == "cpu" or "lapack" not in text, platform
        calls_are_for_few_matrices(text)


# The operations of a call of LAPACK for one matrix of m rows and r right sides.
OPERATIONS = {"potrf": lambda m, r: m**3 / 3, "getrf": lambda m, r: 2 * m**3 / 3, "trsm": lambda m, r: m**2 * r / 2}


def calls_are_for_few_matrices(text: str) -> None:
    """Of as many as XLA gives to one thread."""
    shapes = r"\(tensor<([\dx]*)xf64>.*?\) -> \(?tensor<([\dx]*)xf64>"
    calls = re.findall(rf"custom_call @lapack_d(\w+?)_ffi.*?: {shapes}", text)
    assert len(calls) == text.count("custom_call @lapack")
    for kernel, given, result in calls:
        *batch, m, _ = [int(size) for size in given.split("x")]
        several = math.prod(batch)
        if several > 1:
            assert several * OPERATIONS[kernel](m, int(result.split("x")[-1])) <= linalg.WORK, kernel


# The limits hold the programs of their norms: nuclear, l1; Frobenius' is in the block of a study. The gears of diagonal
# weights are those of factors. 64 lanes are more than one call of LAPACK may take.
@pytest.mark.parametrize(
    "one",
    [
        pytest.param(attention(jf.models.FactoredAttention, d=9), marks=pytest.mark.slow),
        pytest.param(linear(depth=2), marks=pytest.mark.slow),
        pytest.param(program, marks=pytest.mark.slow),
        stages,
    ],
    ids=["KQ", "linear", "l1 program", "Algorithm 1"],
)
def test_batches_lower_for_every_platform(one: Callable[[Any], Any]) -> None:
    lowers(jax.vmap(one), (*PLATFORMS, "cpu"), lanes=64)


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


def parts() -> dict[str, Part]:
    """Of every paper the first part that is computed in batches: the others call the same solvers."""
    found: dict[str, Part] = {}
    for paper in papers.known_papers():
        for entry in registry.entries_of(paper.name):
            for part in entry.dataset.parts.values():
                if isinstance(part, Part) and part.way in ("together", "in turn"):
                    found.setdefault(paper.name, part)
    return found


def part_lowers(part: Part) -> None:
    setting = next(iter(part.settings("quick").values()))
    # Settings are NumPy arrays until a block is computed.
    setting = jax.tree.map(lambda x: jnp.asarray(x) if isinstance(x, np.ndarray) else x, setting)
    # The stricter of the two: it makes no call to the host.
    lowers(jax.vmap(lambda key: arrays(part.one(key, setting))), ("tpu",))


@pytest.mark.slow
def test_instances_of_statements_lower_for_accelerators() -> None:
    """Diffrax checks points to save at, and a first step that is given, by a callback to the host.

    A GPU makes the call. A program that is compiled on another machine cannot hold it, and a TPU has no such calls.
    With EQX_ON_ERROR=nan the check of Equinox returns NaN instead. The variable is read when Equinox is imported, so
    that a new process is needed.
    """
    told = said("-m", "tests.devices.test_lowering", seconds=580, EQX_ON_ERROR="nan")
    assert told.splitlines() == list(parts())


# Host devices are made before JAX starts, in a process of its own.
SHARDED = """
import json
import jax
import jax.numpy as jnp
import numpy as np
jax.config.update("jax_enable_x64", True)
import jaxflow as jf

def one(key):
    data, head = jf.data.random_tokens(key, n=2, T=3, d=3)
    model = jf.models.CombinedAttention.init(key, data, head)
    limit = jf.find_limit(jf.EmpiricalRisk(data, jf.losses.Logistic()), model, throw=False)
    return limit.outcome.value, limit.flow_certificate.duality_gap, limit.direction

keys = jax.random.split(jax.random.key(3), 8)
for number in (1, 2):
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:number]), ("instances",))
    shares = jax.sharding.PartitionSpec("instances")
    batch = jax.jit(jax.shard_map(jax.vmap(one), mesh=mesh, in_specs=shares, out_specs=shares, check_vma=False))
    found = batch(keys)
    assert len(found[0].sharding.device_set) == number
    print(json.dumps([np.asarray(x).tolist() for x in found]))
"""


@pytest.mark.slow
def test_a_sharded_batch_gives_the_answers_of_one_device() -> None:
    """Each device follows its share of the instances."""
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=2"
    told = said("-c", SHARDED, XLA_FLAGS=flags, JAX_PLATFORMS="cpu")
    alone, shared = ([np.asarray(x) for x in json.loads(line)] for line in told.splitlines())
    np.testing.assert_array_equal(shared[0], alone[0])
    assert np.all(np.isin(alone[0], [1, 2])) and np.all(shared[1] <= 1e-8)
    # Batches of four and of eight round differently, and both stop where their own gap is certified: 1e-8 in the norm.
    np.testing.assert_allclose(shared[2], alone[2], atol=1e-4)


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    for name, part in parts().items():
        part_lowers(part)
        print(name, flush=True)
