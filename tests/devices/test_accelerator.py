"""On an accelerator, where there is one: everything small runs there, and ends where a CPU ends."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest

import jaxflow as jf
from jaxflow._core import Outcome
from jaxflow.study import Study, TokenSelection
from tests.devices.test_lowering import attention, linear, quadratic, stages

LANES = 6


def on(device: Any, batch: Callable[[Any], Any]) -> Any:
    """What a compiled batch returns when its keys and all that it makes lie on `device`."""
    with jax.default_device(device):
        keys = jax.device_put(jax.random.split(jax.random.key(0), LANES), device)
        found = jax.block_until_ready(eqx.filter_jit(batch)(keys))
    leaves = [leaf for leaf in jax.tree.leaves(found) if isinstance(leaf, jax.Array)]
    assert leaves and all(leaf.devices() == {device} for leaf in leaves)
    return found


def both(batch: Callable[[Any], Any]) -> tuple[Any, Any]:
    """On the accelerator and on the host."""
    return on(jax.devices("gpu")[0], batch), on(jax.devices("cpu")[0], batch)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "kind", [jf.models.CombinedAttention, jf.models.FactoredAttention, jf.models.DiagonalAttention]
)
def test_limits_of_attention(kind: Any) -> None:
    there, here = both(jax.vmap(attention(kind)))
    np.testing.assert_array_equal(there.outcome.value, here.outcome.value)
    np.testing.assert_array_equal(there.selection, here.selection)
    decided = np.isin(here.outcome.value, [Outcome.globally_optimal, Outcome.locally_optimal])
    assert decided.any() and np.all(np.asarray(there.flow_certificate.duality_gap)[decided] <= 1e-8)


@pytest.mark.gpu
@pytest.mark.parametrize("depth", [2, 3])
def test_limits_of_diagonal_networks(depth: int) -> None:
    there, here = both(jax.vmap(linear(depth)))
    np.testing.assert_array_equal(there.outcome.value, here.outcome.value)
    # Certified to a gap of 1e-8 in a norm: a direction to its root.
    np.testing.assert_allclose(there.direction, here.direction, atol=1e-4)


@pytest.mark.gpu
def test_a_flow_and_algorithm_1() -> None:
    def one(key: Any) -> Any:
        risk, start = quadratic(key)
        path = jf.integrate(risk, start, clock="log_time", until=1.0, throw=False)
        return stages(key).times, path.final.log_norm

    there, here = both(jax.vmap(one))
    for a, b in zip(there, here, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("scout", ["double", "single"])
@pytest.mark.parametrize("parametrization", ["W", "KQ"])
def test_a_block_of_a_study(parametrization: str, scout: str) -> None:
    factors = {"n": 3, "T": 4, "d": 5, "parametrization": parametrization}
    keys = jax.random.split(jax.random.key(1), 32)
    tables = []
    for device, precision in ((jax.devices("gpu")[0], scout), (jax.devices("cpu")[0], "double")):
        run = TokenSelection(scout=precision, width=16, programs=16, parts=1).block_function(factors, len(keys))
        with jax.default_device(device):
            tables.append(run(jax.device_put(keys, device)))
    for name in ("outcome", "token"):
        there, here = (np.asarray(getattr(table[name], "value", table[name])) for table in tables)
        np.testing.assert_array_equal(there, here, err_msg=name)


@pytest.mark.gpu
def test_a_study_on_all_devices(tmp_path: Any) -> None:
    study = Study(TokenSelection(), {"n": [3], "T": [3], "d": [3]}, {"parametrization": ["W"]}, trials=64, block=16)
    alone, shared = (
        study.run(tmp_path / f"{executor}.zarr", executor=executor, progress=False).load()
        for executor in ("serial", "devices")
    )
    assert shared.equals(alone)
    assert not np.any(alone["outcome"] == Outcome.not_run)
