"""Where blocks are computed changes nothing but the time; who kills workers is found and given up."""

import multiprocessing
import os
import sys
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import jax
import numpy as np
import pytest

from jaxflow.study import blocks, executors, status
from tests.study.cheap import HostExperiment, cheap, payload, read_log, said, small_study, tiny_study

TWO_DEVICES = """
import sys
import jax
jax.config.update("jax_enable_x64", True)
from tests.study.cheap import cheap, payload, read_log, small_study
from pathlib import Path
assert len(jax.local_devices()) == 2
folder = Path(sys.argv[1])
for executor in (None, "devices"):
    small_study(cheap, trials=40, method_factors={}).run(folder / f"{executor}.zarr", executor, progress=False)
assert payload(folder / "None.zarr") == payload(folder / "devices.zarr")
assert len({entry["device"] for entry in read_log(folder / "devices.zarr")[1:]}) == 2
"""


@pytest.mark.slow
def test_two_devices_give_the_same_bytes(tmp_path):
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=2"
    said("-W", "error", "-c", TWO_DEVICES, str(tmp_path), XLA_FLAGS=flags)


def test_threads(tmp_path, small):
    with ThreadPoolExecutor(3) as threads:
        small_study(cheap).run(tmp_path / "r.zarr", threads, progress=False)
        assert threads.submit(int, "3").result() == 3  # it is the caller's to end
    assert payload(tmp_path / "r.zarr") == payload(small[0])


class Ended(ThreadPoolExecutor):
    """Ended by somebody else, who drops what waits: after so many blocks, and the question for the device."""

    def __init__(self, after):
        super().__init__(1)
        self.left, self.hold = after + 1, threading.Event()

    def submit(self, function, /, *arguments, **named):
        if self.left == 0:
            super().submit(self.hold.wait, 60)
            waits = super().submit(function, *arguments, **named)
            self.left -= 1
            self.shutdown(wait=False, cancel_futures=True)
            self.hold.set()
            return waits
        self.left -= 1
        return super().submit(function, *arguments, **named)


@pytest.mark.parametrize("after", [-1, 0, 11])
def test_an_executor_that_is_ended_meanwhile(after, tmp_path, host):
    """What waited was dropped, which is no result and no worker's death; the next run goes on."""
    path, study = tmp_path / "r.zarr", small_study(HostExperiment())
    with pytest.raises(RuntimeError, match="executor: it was ended before the study was.*run the same command again"):
        study.run(path, Ended(after), progress=False)
    if after < 0:
        assert not path.exists()
    else:
        state = status(path, verify=True)
        assert state.blocks <= after and state.damaged == 0
    study.run(path, progress=False)
    assert payload(path) == host


@pytest.mark.slow
def test_processes_that_die_leave_what_was_committed(tmp_path, small):
    study = small_study(HostExperiment(misbehave="die", flag=str(tmp_path / "once")))
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as processes:
        # As long as they live, the bytes are those of this process.
        small_study(cheap).run(tmp_path / "cheap.zarr", processes, progress=False)
        assert payload(tmp_path / "cheap.zarr") == payload(small[0])
        assert os.getpid() not in {entry.get("pid") for entry in read_log(tmp_path / "cheap.zarr")}
        with pytest.raises(RuntimeError, match="executor: one of its processes died.*run the same command again"):
            study.run(tmp_path / "r.zarr", processes, progress=False)
    results = study.run(tmp_path / "r.zarr", progress=False)
    assert (results.outcome.values > 0).all() and study.status(tmp_path / "r.zarr").complete


def test_only_what_can_be_imported_is_sent_elsewhere(tmp_path):
    def inner(key, d=2):
        return {"value": d}

    in_script = lambda key, d=2: {"value": d}  # noqa: E731
    in_script.__module__, in_script.__qualname__ = "__main__", "in_script"
    for function in (inner, lambda key, d=2: {"value": d}, in_script):
        study = small_study(function, method_factors={})
        with ProcessPoolExecutor(1) as processes, pytest.raises(ValueError, match="at the top of a module, not in a"):
            study.run(tmp_path / "r.zarr", processes, progress=False)
        assert not (tmp_path / "r.zarr").exists()
    with ThreadPoolExecutor(1) as threads:
        small_study(inner, method_factors={}).run(tmp_path / "r.zarr", threads, progress=False)


def test_when_dask_is_no_use(tmp_path, monkeypatch):
    """For what cannot be imported, where one accelerator would be shared, and where it is not installed."""
    unnamed = small_study(lambda key, d=2: {"value": d}, method_factors={})
    with pytest.raises(ValueError, match="at the top of a module, not in a"):
        pytest.importorskip("distributed", reason="Dask is not installed (extra `cluster`)")
        unnamed.run(tmp_path / "r.zarr", "dask", progress=False)
    with monkeypatch.context() as patch, pytest.raises(ValueError, match="would share one accelerator. Use 'devices'"):
        patch.setattr(executors.jax, "default_backend", lambda: "gpu")
        small_study(cheap).run(tmp_path / "r.zarr", "dask", progress=False)
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ImportError, match="the extra `cluster`"):
        small_study(cheap).run(tmp_path / "r.zarr", "dask", progress=False)


def test_a_worker_of_another_version_is_refused(monkeypatch):
    study = small_study(cheap)
    elsewhere = blocks.pack(study.experiment)
    monkeypatch.setattr(blocks.jax, "__version__", "0.0.1")
    with pytest.raises(RuntimeError, match="executor: a worker runs .*0.0.1.*, the driver"):
        elsewhere(blocks.job_of(study.plan, study.experiment, study.plan.values_at((0, 0)), 0))


class Death(Exception):
    pass


class Mortal(executors.Here):
    """Computes here, but some blocks take their worker along, and with it a neighbour the first time."""

    def __init__(self, deadly, times):
        self.deadly, self.left = deadly, dict.fromkeys(deadly, times)
        self.neighbours = 1

    def submit(self, task, *job):
        future = super().submit(task, *job)
        index = job[0].index if job else None
        if self.left.get(index, 0) > 0:
            self.left[index] -= 1
        elif self.neighbours and index == (0, 0, 1):
            self.neighbours -= 1
        else:
            return future
        lost = type(future)()
        lost.set_exception(Death())
        return lost


def mortal(deadly, times):
    """The engine of an executor whose workers die."""

    def make(experiment, _):
        computer = executors.Computer(experiment)
        return executors.Engine(computer, Mortal(deadly, times), capacity=2, compute=computer, died=(Death,))

    return make


@pytest.mark.parametrize("times", [2, 3])
def test_a_block_that_kills_three_times_is_given_up(times, tmp_path, monkeypatch, host):
    path, study = tmp_path / "r.zarr", small_study(HostExperiment())
    monkeypatch.setattr("jaxflow.study.study.make_engine", mortal([(1, 0, 2)], times))
    results = study.run(path, progress=False)
    if times < 3:
        assert payload(path) == host
        return
    expected = np.zeros((2, 2, 10), bool)
    expected[1, 0, 8:] = True
    np.testing.assert_array_equal(np.isnan(results["value"].values), expected)
    assert (results.outcome.values[expected] == 9).all() and study.status(path).complete
    assert [entry["block"] for entry in read_log(path) if entry["event"] == "given up"] == [[1, 0, 2]]
    # A resume neither repeats it nor compares with it, though it is the nearest before what is missing.
    before = payload(path)
    (path / "block_checksum/c/1/1/0/0").unlink()
    study.run(path, progress=False)
    assert payload(path) == before


def test_when_all_workers_die_nothing_is_claimed(tmp_path, monkeypatch):
    study = tiny_study()
    monkeypatch.setattr("jaxflow.study.study.make_engine", mortal(list(study.plan.blocks()), 9))
    with pytest.raises(RuntimeError, match="workers died in every block that was tried"):
        study.run(tmp_path / "r.zarr", progress=False)
    assert study.status(tmp_path / "r.zarr").blocks == 0


def test_crowded_is_a_share_of_the_limit(tmp_path):
    """Compiled programs are forgotten before the kernel's limit on memory maps ends the process."""
    maps, limit = tmp_path / "maps", tmp_path / "limit"
    maps.write_text("one\n" * 60)
    limit.write_text("100\n")
    assert blocks.crowded(maps, limit)
    limit.write_text("1000\n")
    assert not blocks.crowded(maps, limit)
    # Where the kernel says nothing there is no such limit.
    assert not blocks.crowded(maps, tmp_path / "none") and not blocks.crowded(tmp_path / "none", limit)


@pytest.mark.slow
def test_a_crowded_study_gives_the_same_numbers(tmp_path, monkeypatch, small):
    traced, release = [], blocks.release_programs

    @jax.jit
    def function(x):
        traced.append(1)
        return x + 1.0

    def released():
        function(1.0)
        release()

    monkeypatch.setattr(blocks, "release_programs", released)
    monkeypatch.setattr(blocks, "crowded", lambda: True)
    small_study(cheap).run(tmp_path / "r.zarr", progress=False)
    assert payload(tmp_path / "r.zarr") == payload(small[0])
    function(1.0)
    # Once for each cell, before it is compiled.
    assert len(traced) == 5
