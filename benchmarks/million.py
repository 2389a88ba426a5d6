"""A million certified limits: python benchmarks/million.py [--instances 1000000] [--factors 100000].

Random instances with n = T = 5, d = 10 in the default blocks of the device: selected, certified, and their programs
solved, W first and (K, Q) after. A row for each device and parametrisation.
"""

import jax
from _common import begun, factors_of
from blocks import many

from jaxflow.study.shapes import device_shapes

if __name__ == "__main__":
    asked, record = begun(__doc__, "million", same=("device", "parametrization"), instances=1_000_000, factors=100_000)
    for name, instances in (("W", asked.instances), ("KQ", asked.factors)):
        cell = f"{name}:5,5,10"
        found = many(cell, instances, min(instances, device_shapes().block), seed=11)
        record.add({"device": jax.devices()[0].device_kind, **factors_of(cell), **found})
