"""One program over several local devices: each follows its share of the instances, and nobody's answer changes."""

import json
import os

import numpy as np
import pytest

from tests.processes import said

# Host devices are made before JAX starts, in a process of its own.
PROGRAM = """
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
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=2"
    told = said("-c", PROGRAM, XLA_FLAGS=flags, JAX_PLATFORMS="cpu")
    alone, shared = ([np.asarray(x) for x in json.loads(line)] for line in told.splitlines())
    np.testing.assert_array_equal(shared[0], alone[0])
    assert np.all(np.isin(alone[0], [1, 2])) and np.all(shared[1] <= 1e-8)
    # Batches of four and of eight round differently, and both stop where their own gap is certified: 1e-8 in the norm.
    np.testing.assert_allclose(shared[2], alone[2], atol=1e-4)
