"""Computing one block: here, in a thread of a device, or in another process."""

import functools
import os
import pickle
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxflow._core import require
from jaxflow.study.experiment import AbstractExperiment
from jaxflow.study.keys import as_keys
from jaxflow.study.manifest import apply_settings, numerical_settings, package_version, xla_flags
from jaxflow.study.plan import Index, Plan
from jaxflow.study.results import BlockResult, check_names, collect

MAPS, LIMIT = Path("/proc/self/maps"), Path("/proc/sys/vm/max_map_count")


def crowded(maps: Path = MAPS, limit: Path = LIMIT) -> bool:
    """Whether this process has half of the memory maps that the kernel allows (65,530 by default); False where the
    kernel does not tell.

    One program takes hundreds of maps, a cell of a study several programs. Beyond the limit LLVM cannot allocate
    memory, and the process dies.
    """
    try:
        with maps.open("rb") as lines:
            return 2 * sum(1 for _ in lines) > int(limit.read_text(encoding="ascii"))
    except OSError:
        # Not Linux: no such files, and no such limit.
        return False


def release_programs() -> None:
    """Forgets all compiled programs; what is still needed comes back from the compilation cache on disk.

    `jit` keeps a program as long as its function lives, and those of modules and classes live as long as the process:
    a study of many sizes would keep the programs of all of them.
    """
    jax.clear_caches()


@dataclass(frozen=True)
class Job:
    """A block to compute: its factors, and the words of its keys, padded to the full width `(B, 2)`."""

    index: Index
    factors: dict[str, Any]
    keys: np.ndarray


def job_of(plan: Plan, experiment: AbstractExperiment, factors: dict[str, Any], first: int, index: Index = ()) -> Job:
    """The job of the block of a cell that begins with trial `first`. Padding holds the trials that would come next, so
    the bytes of a full block and of a padded one agree on the trials they share."""
    trials = range(first, first + plan.block)
    return Job(index, factors, experiment.key_words(plan.seed, plan.data_values(factors), trials))


class Computer:
    """Computes blocks of one experiment in this process; keeps the functions of the latest cells."""

    def __init__(self, experiment: AbstractExperiment):
        self.experiment = experiment
        # By their types too: 2 and 2.0 may be other arrays. An experiment may let several cells share one executable.
        self._kept = functools.lru_cache(maxsize=64, typed=True)(self._made)
        self._lock = threading.Lock()

    def __call__(self, job: Job, device: Any = None) -> BlockResult:
        started = time.perf_counter()
        where = jax.local_devices()[0] if device is None else device
        with jax.default_device(where):
            function = self.function(job.factors, len(job.keys), where)
            results = function(jax.device_put(as_keys(job.keys), where))
            check_names(self.experiment.name(), results)
            results = jax.block_until_ready(results)
            claims = self.experiment.claims_outcome()
            arrays, layout = collect(self.experiment.name(), claims, results, len(job.keys))
        seconds = round(time.perf_counter() - started, 4)
        return BlockResult(
            arrays,
            layout,
            {
                "seconds": seconds,
                "host": socket.gethostname(),
                "pid": os.getpid(),
                "device": str(where),
                "device_kind": where.device_kind,
            },
        )

    def function(self, factors: Mapping[str, Any], width: int, device: Any = None) -> Callable[..., Any]:
        """The block function of a cell, kept from one block to the next."""
        # One for each device: what a block function builds for itself must lie where it runs.
        with self._lock:
            return self._kept(width, jax.local_devices()[0] if device is None else device, **factors)

    def _made(self, width: int, device: Any, /, **factors: Any) -> Callable[..., Any]:
        if crowded():
            release_programs()
        return self.experiment.block_function(factors, width)


def pack(experiment: AbstractExperiment) -> Callable[[Job], BlockResult]:
    """What another process is to do with a job of this experiment, under the settings of this one.

    **Raises:** `ValueError` for an experiment that another process could not import.
    """
    path = experiment.import_path()
    module, _, name = path.partition(":")
    named = module != "__main__" and "<" not in name
    hint = "other processes import it by name: define it at the top of a module, not in a script or inside a function"
    require(named, "experiment", f"{path} cannot be imported elsewhere; {hint}")
    try:
        data = pickle.dumps(experiment)
    except Exception as error:  # pickle raises whatever the object at hand raises
        raise ValueError(f"experiment: {path} cannot be sent to another process ({error}); {hint}") from error
    return functools.partial(compute_elsewhere, data, numerical_settings(), versions())


def versions() -> dict[str, Any]:
    """What a worker must share with the driver for equal bits."""
    return {
        "python": sys.version.split()[0],
        "jaxflow": package_version("jaxflow-bias"),
        "jax": jax.__version__,
        "numpy": np.__version__,
        "flags": xla_flags(),
    }


def device_kind() -> str:
    """The kind of device that blocks of this process run on."""
    return jax.local_devices()[0].device_kind


_computers: dict[bytes, Computer] = {}
_computers_lock = threading.Lock()


def compute_elsewhere(experiment: bytes, settings: dict[str, Any], driver: dict[str, Any], job: Job) -> BlockResult:
    """What a worker runs: a block as NumPy arrays. A worker writes nothing."""
    if driver != versions():
        raise RuntimeError(f"executor: a worker runs {versions()}, the driver {driver}")
    with _computers_lock:
        apply_settings(settings)
        if experiment not in _computers:
            _computers[experiment] = Computer(pickle.loads(experiment))
        computer = _computers[experiment]
    return computer(job)
