"""Experiments that cost nothing, importable by other processes; and some that kill, cheat or dawdle."""

import json
import multiprocessing
import os
import shutil
import signal
import time
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxflow._core import Code, Outcome, SelectionStatus
from jaxflow.study import AbstractExperiment, Study
from jaxflow.study.files import read_file, side_folder
from jaxflow.study.layout import seal


def cheap(key, d=2, spread=1.0, parametrization="W"):
    """A few numbers that depend on the key and on all factors; NaN now and then; most outcomes."""
    value = spread * jax.random.normal(key, (3,)).sum() / d
    value = value if parametrization == "W" else jnp.sin(value)
    steps = jax.random.randint(key, (), 1, 9)
    return {
        "outcome": Code(steps, Outcome),
        "status": Code(1 + steps % 4, SelectionStatus),
        "gap": jnp.where(steps == 8, jnp.nan, jnp.abs(value)),
        "steps": steps,
        "direction": jnp.stack([value, -value]),
        "reached": steps > 2,
    }


class Blockwise(AbstractExperiment):
    """Of blocks alone."""

    def setup(self, key, d=2, parametrization="W"):
        raise NotImplementedError

    def summarize(self, limit):
        raise NotImplementedError


class HostExperiment(Blockwise):
    """Numbers straight from the words of the keys, by NumPy: nothing to compile, and the host may misbehave.

    `misbehave` is what happens in the block whose first trial has the words that trial `trial` of d=3 has.
    """

    pause: float = 0.0
    misbehave: str = ""
    flag: str = ""
    method: Any = None

    def replay(self, key, **factors):
        return _numbers(jax.random.key_data(key)[None], **factors)

    def block_function(self, factors, trial_width):
        def compute(keys):
            words = np.asarray(jax.random.key_data(keys))
            if factors.get("d") == 3:
                self.misbehaves()
            time.sleep(self.pause)
            return _numbers(words, **factors)

        return compute

    def misbehaves(self):
        """Once (until the flag is there) or always."""
        once = Path(self.flag) if self.flag else None
        if once is not None and once.exists():
            return
        if once is not None:
            once.touch()
        if self.misbehave == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.misbehave == "interrupt":
            signal.raise_signal(signal.SIGINT)
        elif self.misbehave == "hold":
            # Who computes, for others to kill or to stop; until they say so, or for a minute.
            assert once is not None
            once.with_suffix(".pid").write_text(str(os.getpid()))
            for _ in range(1200):
                if once.with_suffix(".go").exists():
                    break
                time.sleep(0.05)
        elif self.misbehave == "raise":
            raise ArithmeticError("this cell cannot be computed")


def _numbers(words, d=2, parametrization="W"):
    mixed = words[:, 0].astype(np.float64) / 2**32
    return {
        "outcome": Code(1 + words[:, 1] % 9, Outcome),
        "value": mixed / d + (parametrization == "KQ"),
        "steps": (words[:, 1] % 1000).astype(np.int32),
    }


def small_study(experiment=cheap, **changes: Any) -> Study:
    """Four cells of ten trials in blocks of four, the last of each padded."""
    arguments: dict[str, Any] = {
        "data_factors": {"d": [2, 3]},
        "method_factors": {"parametrization": ["W", "KQ"]},
        "trials": 10,
        "block": 4,
    }
    return Study(experiment, **{**arguments, **changes})


# The same with `HostExperiment`, as a file.
SPEC = """
experiment = "tests.study.cheap:HostExperiment"
trials = 10
block = 4
[data_factors]
d = [2, 3]
[method_factors]
parametrization = ["W", "KQ"]
"""


# Processes that are forked from one that has imported this file begin in a tenth of the time. (Not Dask, which reads
# its settings when it is imported.)
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["pytest", "tests.study.cheap", "xarray", "zarr"])


def run_elsewhere(study: Study, store: Path, executor: str) -> Any:
    """A process with two devices that runs a study."""
    process = FORKS.Process(target=_run_with_two_devices, args=(study, store, executor))
    process.start()
    return process


def _run_with_two_devices(study: Study, store: Path, executor: str) -> None:
    os.environ["XLA_FLAGS"] = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=2"
    jax.config.update("jax_enable_x64", True)
    warnings.simplefilter("error")
    study.run(store, executor, progress=False)


def read_log(store: Path) -> list[dict[str, Any]]:
    """The lines of the log beside a store that are whole."""
    found = []
    for line in (read_file(side_folder(store) / "log.jsonl") or b"").splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            # Written by a process that was killed meanwhile.
            continue
    return found


def payload(store: Path) -> dict[str, bytes]:
    """Every file of a store."""
    return {str(path.relative_to(store)): path.read_bytes() for path in sorted(store.rglob("*")) if path.is_file()}


def tiny_study(experiment: Any = None, **changes: Any) -> Study:
    """One cell of seven trials in blocks of four: eight chunks, twenty files."""
    arguments: dict[str, Any] = {
        "data_factors": {"d": [1]},
        "method_factors": {"parametrization": ["W"]},
        "trials": 7,
        "block": 4,
    }
    return small_study(HostExperiment() if experiment is None else experiment, **{**arguments, **changes})


def attack(path: Path, data: bytes | None) -> None:
    """A file with other bytes; None: no file."""
    if data is None:
        path.unlink()
    else:
        path.write_bytes(data)


def restore(path: Path, files: dict[str, bytes]) -> None:
    """A store with these files, and no others."""
    shutil.rmtree(path, ignore_errors=True)
    for name, data in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)


def edit(path: Path, *, sealed: bool = False, arrays: Any = None, **attributes: Any) -> None:
    """Metadata as somebody wants them: with the checksum that fits, or without any, as an earlier version wrote them.

    `arrays`: what changes in the description of the arrays; a table for `study`: what changes in that of the study.
    """
    top = json.loads((path / "zarr.json").read_text())
    told = top["attributes"]
    told.pop("metadata_checksum", None)
    if isinstance(attributes.get("study"), dict):
        attributes["study"] = json.dumps(json.loads(told["study"]) | attributes["study"])
    told.update(attributes)
    top["consolidated_metadata"]["metadata"].update(arrays or {})
    if sealed:
        told["metadata_checksum"] = seal(top)
    (path / "zarr.json").write_text(json.dumps(top))
