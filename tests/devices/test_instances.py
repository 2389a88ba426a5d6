"""Instances of the papers' statements lower for accelerators too (see test_lowering.py)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxflow import papers
from jaxflow.papers import Part, registry
from tests.devices.test_lowering import arrays, lowers
from tests.processes import said

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
    told = said("-m", "tests.devices.test_instances", seconds=580, EQX_ON_ERROR="nan")
    assert told.splitlines() == list(PARTS)


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    for name, part in PARTS.items():
        part_lowers(part)
        print(name, flush=True)
