"""How much a kind of device computes at a time."""

from typing import NamedTuple

import jax


class Shapes(NamedTuple):
    """How much a kind of device computes at a time: `lanes` of a queue, `parts` of a block side by side, `programs` of
    a batch that takes as long as its slowest member, trials of a `block`."""

    lanes: int
    parts: int
    programs: int
    block: int


# A core of a CPU works at one lane after the other, whatever their number: eight fill its vector units and stay in its
# caches. An accelerator steps many small lanes in the time of one, and is slow where it waits for few of them. Its
# numbers are chosen by how often it would step (benchmarks/scaling.py); how long that takes has not been measured.
CPU = Shapes(lanes=8, parts=2, programs=64, block=256)
ACCELERATOR = Shapes(lanes=1024, parts=1, programs=1024, block=4096)


def device_shapes() -> Shapes:
    """Those of the devices on which this process computes."""
    return CPU if jax.default_backend() == "cpu" else ACCELERATOR
