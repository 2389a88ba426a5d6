"""Computing one block: here, in a thread of a device, or in another process; and what the results of all cells look
like, by their shapes, before anything is computed."""

import functools
import os
import pickle
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxflow._core import require
from jaxflow.study.experiment import AbstractExperiment
from jaxflow.study.keys import as_keys
from jaxflow.study.manifest import apply_settings, numerical_settings, package_version, xla_flags
from jaxflow.study.plan import Index, Plan
from jaxflow.study.results import BlockResult, Variable, check_names, collect, difference, fill_value, layout_of

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


def looked_at(plan: Plan) -> dict[Index, str]:
    """The first cell, those in which one factor has another value (by its name), and that of the largest numbers."""
    first = tuple(0 for _ in plan.cells)
    found = {first: ""}
    for axis, (name, values) in enumerate(plan.factors.items()):
        for at in range(1, len(values)):
            found[(*first[:axis], at, *first[axis + 1 :])] = name
    numeric = [values if not isinstance(values[0], str) else values[:1] for values in plan.factors.values()]
    largest = tuple(max(range(len(values)), key=lambda at, values=values: values[at]) for values in numeric)
    return found | ({largest: " and ".join(plan.factors)} if largest not in found else {})


def common_layout(computer: Computer, plan: Plan) -> tuple[Variable, ...] | None:
    """What the results of every cell look like. None where a block function does not tell before it has run.

    Results that the experiment names in `padding` are as large as the largest cell has them.

    **Raises:** `ValueError` naming the factor and the results that it changes; whatever the experiment raises.
    """
    fills, cells = computer.experiment.padding(), looked_at(plan)
    layouts: dict[Index, tuple[Variable, ...]] = {}
    keys = as_keys(np.zeros((plan.block, 2), np.uint32))
    for index in cells:
        factors = plan.values_at(index)
        try:
            function: Any = computer.function(factors, plan.block)
            if not hasattr(function, "eval_shape"):
                return None
            layouts[index] = layout_of(computer.experiment.name(), function.eval_shape(keys))
        except Exception as error:
            error.add_note(f"at {factors}, before anything was computed")
            raise
    whole: dict[str, tuple[int, ...]] = {}
    for name in fills:
        shapes = {v.shape for layout in layouts.values() for v in layout if v.name == name}
        # Of one shape in all cells, it is stored as it is.
        if len(shapes) > 1 and len({len(shape) for shape in shapes}) == 1:
            whole[name] = tuple(map(max, zip(*shapes, strict=True)))
    filled = {
        index: tuple(replace(v, shape=whole[v.name], padding=fills[v.name]) if v.name in whole else v for v in layout)
        for index, layout in layouts.items()
    }
    first = next(iter(filled.values()))
    for index, layout in filled.items():
        how = difference(first, layout)
        require(
            not how,
            "results",
            f"every cell must give the same names, dtypes and shapes, but they depend on {cells[index]}, at "
            f"{plan.values_at(index)}: {how}. Return arrays of one size, or name in `padding` what fills them up",
        )
    return first


def filled_up(result: BlockResult, layout: tuple[Variable, ...] | None) -> BlockResult:
    """Results as large as the study stores them. One that is larger stays what it is, and the store refuses it."""
    arrays, fills = dict(result.arrays), {v.name: v for v in layout or () if v.padding is not None}
    for name, variable in fills.items():
        array: Any = arrays.get(name, np.zeros(0))
        more = [(0, size - own) for size, own in zip(variable.shape, array.shape[1:], strict=False)]
        if array.ndim == 1 + len(variable.shape) and all(after >= 0 for _, after in more):
            arrays[name] = np.pad(array, [(0, 0), *more], constant_values=fill_value(variable))
    found = (
        replace(v, shape=arrays[v.name].shape[1:], padding=fills[v.name].padding) if v.name in fills else v
        for v in result.layout
    )
    return replace(result, arrays=arrays, layout=tuple(found))


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
