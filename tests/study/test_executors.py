"""Where blocks are computed changes nothing but the time; who kills workers is found and given up."""

import multiprocessing
import os
import subprocess
import sys
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from jaxflow.study import executors, status
from tests.study.cheap import HostExperiment, cheap, payload, read_log, small_study

ROOT = Path(__file__).resolve().parents[2]

TWO_DEVICES = """
import sys
import jax
jax.config.update("jax_enable_x64", True)
from tests.study.cheap import cheap, payload, read_log, small_study
from pathlib import Path
assert len(jax.local_devices()) == 2
folder = Path(sys.argv[1])
for executor in (None, "devices"):
    small_study(cheap, trials=40).run(folder / f"{executor}.zarr", executor, progress=False)
assert payload(folder / "None.zarr") == payload(folder / "devices.zarr")
assert {entry["device"] for entry in read_log(folder / "devices.zarr")[1:]} == {"TFRT_CPU_0", "TFRT_CPU_1"} or {
    entry["device"] for entry in read_log(folder / "devices.zarr")[1:]
} == {"cpu:0", "cpu:1"}
"""


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    # As in this process: XLA takes three seconds for a normal number otherwise, for each cell and device.
    return {**os.environ, "PYTHONPATH": path, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}


@pytest.mark.slow
def test_two_devices_give_the_same_bytes(tmp_path):
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", TWO_DEVICES, str(tmp_path)],
        env={**environment(), "XLA_FLAGS": f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=2"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    path = tmp_path_factory.mktemp("reference") / "r.zarr"
    small_study(cheap).run(path, progress=False)
    return payload(path)


def test_threads(tmp_path, reference):
    with ThreadPoolExecutor(3) as threads:
        small_study(cheap).run(tmp_path / "r.zarr", threads, progress=False)
        assert threads.submit(int, "3").result() == 3  # it is the caller's to end
    assert payload(tmp_path / "r.zarr") == reference


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


@pytest.mark.parametrize("after", [-1, 0, 3])
def test_an_executor_that_is_ended_meanwhile(after, tmp_path, reference):
    """What waited was dropped, which is no result and no worker's death; the next run goes on."""
    path, study = tmp_path / "r.zarr", small_study(cheap)
    with pytest.raises(RuntimeError, match="executor: it was ended before the study was.*run the same command again"):
        study.run(path, Ended(after), progress=False)
    if after < 0:
        assert not path.exists()
    else:
        state = status(path, verify=True)
        assert state.blocks <= after and state.damaged == 0
    study.run(path, progress=False)
    assert payload(path) == reference


@pytest.mark.slow
def test_processes(tmp_path, reference):
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as processes:
        small_study(cheap).run(tmp_path / "r.zarr", processes, progress=False)
    assert payload(tmp_path / "r.zarr") == reference
    assert os.getpid() not in {entry.get("pid") for entry in read_log(tmp_path / "r.zarr")}


@pytest.mark.slow
def test_processes_that_die_leave_what_was_committed(tmp_path):
    study = small_study(HostExperiment(misbehave="die", flag=str(tmp_path / "once")))
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as processes:
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


def test_dask_too_is_sent_only_what_can_be_imported(tmp_path):
    pytest.importorskip("distributed", reason="Dask is not installed (extra `cluster`)")
    with pytest.raises(ValueError, match="at the top of a module, not in a"):
        small_study(lambda key, d=2: {"value": d}, method_factors={}).run(tmp_path / "r.zarr", "dask", progress=False)


def test_a_cluster_of_cores_is_no_use_to_an_accelerator(tmp_path, monkeypatch):
    monkeypatch.setattr(executors.jax, "default_backend", lambda: "gpu")
    with pytest.raises(ValueError, match="would share one accelerator. Use 'devices'"):
        small_study(cheap).run(tmp_path / "r.zarr", "dask", progress=False)


def test_a_worker_of_another_version_is_refused(monkeypatch):
    from jaxflow.study import blocks

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


@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_block_that_kills_three_times_is_given_up(times, tmp_path, monkeypatch, reference):
    path, study = tmp_path / "r.zarr", small_study(cheap)
    monkeypatch.setattr("jaxflow.study.study.make_engine", mortal([(1, 0, 2)], times))
    results = study.run(path, progress=False)
    failed = results.outcome.values == 9
    if times < 3:
        assert payload(path) == reference
        return
    expected = np.zeros((2, 2, 10), bool)
    expected[1, 0, 8:] = True
    np.testing.assert_array_equal(failed, expected)
    assert np.isnan(results["gap"].values[failed]).all()
    assert study.status(path).complete
    assert [entry["block"] for entry in read_log(path) if entry["event"] == "given up"] == [[1, 0, 2]]
    # A resume neither repeats it nor compares with it, though it is the nearest before what is missing.
    before = payload(path)
    (path / "block_checksum/c/1/1/0/0").unlink()
    study.run(path, progress=False)
    assert payload(path) == before


def test_when_all_workers_die_nothing_is_claimed(tmp_path, monkeypatch):
    study = small_study(cheap)
    deadly = list(study.plan.blocks())
    monkeypatch.setattr("jaxflow.study.study.make_engine", mortal(deadly, 9))
    with pytest.raises(RuntimeError, match="workers died in every block that was tried"):
        study.run(tmp_path / "r.zarr", progress=False)
    assert study.status(tmp_path / "r.zarr").blocks == 0


def test_dask_is_named_where_it_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ImportError, match="the extra `cluster`"):
        small_study(cheap).run(tmp_path / "r.zarr", "dask", progress=False)


# A plain script: workers that ran it again, for want of a guard around it, would start workers of their own.
DASK = """
import sys
import jax
jax.config.update("jax_enable_x64", True)
from pathlib import Path
from tests.study.cheap import HostExperiment, payload, read_log, small_study

folder, kind = Path(sys.argv[1]), sys.argv[2]
flag = str(folder / "once") if kind == "once" else ""
study = small_study(HostExperiment(misbehave="die", flag=flag), trials=4)
results = study.run(folder / "r.zarr", "dask", progress=False)
outcome = results.outcome.values
lost = [entry for entry in read_log(folder / "r.zarr") if entry["event"] == "worker lost"]
assert study.status(folder / "r.zarr").complete
if kind == "once":
    assert lost and (outcome[:, :, :] > 0).all()
    study = small_study(HostExperiment(misbehave="die", flag=flag), trials=4)
    study.run(folder / "serial.zarr", progress=False)
    assert payload(folder / "r.zarr") == payload(folder / "serial.zarr")
else:
    assert len(lost) >= 6
    assert (outcome[1] == 9).all() and (outcome[0] > 0).all()
    assert str(results["value"].values[1, 0, 0]) == "nan"
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["once", "always"])
def test_dask_goes_on_when_workers_die(kind, tmp_path):
    pytest.importorskip("distributed", reason="Dask is not installed (extra `cluster`)")
    script = tmp_path / "script.py"
    script.write_text(DASK)
    run = subprocess.run(
        [sys.executable, str(script), str(tmp_path), kind],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert run.returncode == 0, run.stderr[-3000:]


BESIDE = """
def doubled(key, d=2):
    return {"value": 2.0 * d}
"""

PLAIN = """
import sys
import jaxflow as jf
from beside import doubled
results = jf.study.Study(doubled, {"d": [2, 3]}, trials=3).run(sys.argv[1], "dask", progress=False)
print(results["value"].values.ravel().tolist())
"""


@pytest.mark.slow
def test_dask_finds_a_module_beside_a_plain_script(tmp_path):
    pytest.importorskip("distributed", reason="Dask is not installed (extra `cluster`)")
    (tmp_path / "beside.py").write_text(BESIDE)
    (tmp_path / "script.py").write_text(PLAIN)
    run = subprocess.run(
        [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "r.zarr")],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    assert run.stdout.strip() == str([4.0] * 3 + [6.0] * 3)
