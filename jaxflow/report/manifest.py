"""How a result came to be."""

import platform
import sys
import time
from typing import Any

import jax

from jaxflow._core import checked
from jaxflow.study.manifest import commit, package_version

PACKAGES = ("jax", "jaxlib", "numpy", "equinox", "diffrax", "optimistix", "lineax", "optax", "matplotlib")


@checked(nonnegative=["seconds", "cpu_seconds"])
def manifest(
    *, arguments: dict[str, Any], seed: int, seconds: float, cpu_seconds: float | None = None
) -> dict[str, Any]:
    """Version, commit (where there is one), seed, package versions, device and arguments, for `json`.

    **Arguments:** `cpu_seconds`: of the processor, those of the whole process so far by default.

    **Example:**

    ```python
    made = jf.report.manifest(arguments={"trials": 20}, seed=0, seconds=1.5)
    assert made["double_precision"] and made["arguments"] == {"trials": 20}
    ```
    """
    return {
        "jaxflow": package_version("jaxflow-bias"),
        "commit": commit(),
        "seed": seed,
        "arguments": arguments,
        "seconds": round(seconds, 1),
        # What `seconds` would be without other work on the machine, or more.
        "cpu_seconds": round(time.process_time() if cpu_seconds is None else cpu_seconds, 1),
        "packages": {name: package_version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "platform": f"{sys.platform}-{platform.machine()}",
        "device_kind": jax.devices()[0].device_kind,
        "device_count": jax.device_count(),
        "double_precision": jax.numpy.result_type(float) == jax.numpy.float64,
    }
