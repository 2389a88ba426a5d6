"""Where blocks are computed changes nothing but the time; who kills workers is found and given up.

On a Dask cluster whose workers die or stand still, whose scheduler goes away: every instance once, the same bits."""

import importlib
import json
import os
import signal
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxflow.study import blocks, executors, status
from tests.processes import child, said
from tests.study.cheap import (
    FORKS,
    SPEC,
    HostExperiment,
    cheap,
    payload,
    read_log,
    run_elsewhere,
    small_study,
    tiny_study,
)

NO_DASK = "Dask is not installed (extra `cluster`)"


@pytest.mark.slow
def test_two_devices_give_the_same_bytes(tmp_path):
    study = small_study(cheap, trials=40, method_factors={})
    study.run(tmp_path / "one.zarr", progress=False)
    process = run_elsewhere(study, tmp_path / "two.zarr", "devices")
    process.join()
    assert process.exitcode == 0 and payload(tmp_path / "two.zarr") == payload(tmp_path / "one.zarr")
    assert len({entry["device"] for entry in read_log(tmp_path / "two.zarr")[1:]}) == 2


@pytest.mark.slow
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
        self.left -= 1
        if self.left != -1:
            return super().submit(function, *arguments, **named)
        super().submit(self.hold.wait, 60)
        waits = super().submit(function, *arguments, **named)
        self.shutdown(wait=False, cancel_futures=True)
        self.hold.set()
        return waits


@pytest.mark.parametrize("after", [-1, 0, 11])
def test_an_executor_that_is_ended_meanwhile(after, tmp_path, host):
    """What waited was dropped, which is no result and no worker's death; the next run goes on."""
    path, study = tmp_path / "r.zarr", small_study(HostExperiment())
    with pytest.raises(RuntimeError, match="executor: it was ended before the study was.*run the same command again"):
        study.run(path, Ended(after), progress=False)
    assert path.exists() == (after >= 0)
    if after >= 0:
        state = status(path, verify=True)
        assert state.blocks <= after and state.damaged == 0
    study.run(path, progress=False)
    assert payload(path) == host


@pytest.mark.slow
def test_processes_that_die_leave_what_was_committed(tmp_path, small):
    study = small_study(HostExperiment(misbehave="die", flag=str(tmp_path / "once")))
    with ProcessPoolExecutor(1, mp_context=FORKS) as processes:
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
    for function in (inner, in_script):
        study = small_study(function, method_factors={})
        with ProcessPoolExecutor(1) as processes, pytest.raises(ValueError, match="at the top of a module, not in a"):
            study.run(tmp_path / "r.zarr", processes, progress=False)
        assert not (tmp_path / "r.zarr").exists()
    with ThreadPoolExecutor(1) as threads:
        small_study(inner, method_factors={}).run(tmp_path / "r.zarr", threads, progress=False)
    pytest.importorskip("distributed", reason=NO_DASK)
    with pytest.raises(ValueError, match="at the top of a module, not in a"):
        small_study(inner, method_factors={}).run(tmp_path / "r.zarr", "dask", progress=False)


def test_when_dask_is_no_use(tmp_path, monkeypatch):
    """Where one accelerator would be shared, and where it is not installed."""
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
        self.left = {(0, 0, 1): 1, **dict.fromkeys(deadly, times)}

    def submit(self, task, *job):
        future = super().submit(task, *job)
        index = job[0].index if job else None
        if self.left.get(index, 0) == 0:
            return future
        self.left[index] -= 1
        lost = type(future)()
        lost.set_exception(Death())
        return lost


@pytest.fixture
def mortal(monkeypatch):
    """The engine of an executor whose workers die so many times in these blocks."""

    def patch(deadly, times):
        def make(experiment, _):
            computer = executors.Computer(experiment)
            return executors.Engine(computer, Mortal(deadly, times), capacity=2, compute=computer, died=(Death,))

        monkeypatch.setattr("jaxflow.study.study.make_engine", make)

    return patch


@pytest.mark.parametrize("times", [2, 3])
def test_a_block_that_kills_three_times_is_given_up(times, tmp_path, mortal, host):
    path, study = tmp_path / "r.zarr", small_study(HostExperiment())
    mortal([(1, 0, 2)], times)
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


def test_when_all_workers_die_nothing_is_claimed(tmp_path, mortal):
    study = tiny_study()
    mortal(list(study.plan.blocks()), 9)
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


def wait_for(something, seconds: float = 240) -> None:
    end = time.monotonic() + seconds
    while not something():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def dask_command(name: str, arguments: list[str], settings: dict[str, str]) -> None:
    """What a process of a cluster does; Dask reads its settings when it is imported."""
    os.environ.update(settings)
    importlib.import_module(f"distributed.cli.{name}").main([*arguments, "--host", "127.0.0.1", "--no-dashboard"])


class Cluster:
    """A scheduler and workers, each a process of its own that is not started again."""

    def __init__(self, folder: Path, **settings: str):
        pytest.importorskip("distributed", reason=NO_DASK)
        file = folder / "scheduler.json"
        self.scheduler = self._start("dask_scheduler", "--port", "0", "--scheduler-file", str(file), **settings)
        self._workers: list[Any] = []
        wait_for(lambda: file.exists() and file.read_text().endswith("}"))
        self.address = json.loads(file.read_text())["address"]

    def workers(self, count: int) -> None:
        """So many workers: as many as are missing are started."""
        alive = [worker for worker in self._workers if worker.is_alive()]
        for _ in range(count - len(alive)):
            self._workers.append(self._start("dask_worker", self.address, "--nthreads", "1", "--no-nanny"))

    def _start(self, name: str, *arguments: str, **settings: str) -> Any:
        process = FORKS.Process(target=dask_command, args=(name, list(arguments), settings))
        process.start()
        return process

    def close(self) -> None:
        for process in [*self._workers, self.scheduler]:
            process.kill()
            process.join()


@pytest.fixture
def held(tmp_path):
    """An experiment one of whose blocks waits, in one of the workers: its process, and the word to go on."""
    experiment = HostExperiment(misbehave="hold", flag=str(tmp_path / "once"))
    pid, go = tmp_path / "once.pid", tmp_path / "once.go"

    def process() -> int:
        wait_for(lambda: pid.exists() and pid.read_text())
        return int(pid.read_text())

    return experiment, process, go.touch


def reference_of(experiment, folder) -> dict[str, bytes]:
    """The store of this very experiment (its settings are in the manifest), computed here."""
    small_study(experiment).run(folder / "serial.zarr", progress=False).close()
    return payload(folder / "serial.zarr")


@pytest.mark.slow
@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP])
def test_a_worker_that_dies_or_stands_still_in_the_middle_of_a_block(blow, tmp_path, held):
    """The only one dies: the study waits until another comes. One of two stands still: it is given up, the other
    computes its block, and what it brings late changes nothing."""
    experiment, process, go = held
    path, study, dies = tmp_path / "r.zarr", small_study(experiment), blow == signal.SIGKILL
    # A worker that is not heard of for five seconds (Dask waits no less) is given up.
    with closing(Cluster(tmp_path, DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL="5 s")) as cluster:
        cluster.workers(1 if dies else 2)
        with ThreadPoolExecutor(1) as thread:
            ended = thread.submit(lambda: study.run(path, cluster.address, progress=False).close())
            victim = process()
            os.kill(victim, blow)
            if dies:
                time.sleep(1)
                assert not ended.done()
                cluster.workers(1)
            ended.result(240)
        before = payload(path)
        go()
        if not dies:
            os.kill(victim, signal.SIGCONT)
            time.sleep(1)
    assert payload(path) == before == reference_of(experiment, tmp_path)
    assert study.status(path).complete
    done = [entry for entry in read_log(path) if entry["event"] == "block"]
    assert len(done) == study.plan.block_count


# Shown by the one who runs it: nothing but what the command says.
RUN = """
import sys
import jax
jax.config.update("jax_enable_x64", True)
from jaxflow.cli.app import main
sys.argv = ["jaxflow", "study", *sys.argv[1:]]
main()
"""


@pytest.mark.slow
def test_a_scheduler_that_goes_away(tmp_path, held):
    experiment, process, go = held
    path = tmp_path / "r.zarr"
    (tmp_path / "spec.toml").write_text(f'{SPEC}[settings]\nmisbehave = "hold"\nflag = "{experiment.flag}"\n')
    # Its only worker may be silent for long on a busy machine, and is not given up.
    with closing(Cluster(tmp_path)) as cluster:
        cluster.workers(1)
        command = ["-c", RUN, "run", "spec.toml", "--out", "r.zarr", "--executor", cluster.address, "--quiet"]
        run = child(*command, cwd=tmp_path)
        process()
        cluster.scheduler.kill()
        output, errors = run.communicate(timeout=240)
    assert run.returncode == 1 and output == "" and len(errors.splitlines()) == 1
    assert errors.startswith("Error: executor: the connection to the Dask scheduler at ") and "run the same" in errors
    state = status(path, verify=True)
    assert 0 < state.blocks < 12 and state.damaged == 0
    go()
    small_study(experiment).run(path, progress=False).close()
    assert payload(path) == reference_of(experiment, tmp_path)


@pytest.mark.slow
def test_an_address_where_no_scheduler_answers(tmp_path):
    pytest.importorskip("distributed", reason=NO_DASK)
    from dask import config

    with config.set({"distributed.comm.timeouts.connect": "1 s"}):
        with pytest.raises(OSError, match="executor: no Dask scheduler answers at tcp://127.0.0.1:1; start one there"):
            small_study(HostExperiment()).run(tmp_path / "r.zarr", "tcp://127.0.0.1:1", progress=False)
    assert not (tmp_path / "r.zarr").exists()


# A plain script: workers that ran it again, for want of a guard around it, would start workers of their own.
SCRIPT = """
import sys
from pathlib import Path
import jax
jax.config.update("jax_enable_x64", True)
from beside import Mine
from tests.study.cheap import read_log, small_study

path = Path(sys.argv[1])
study = small_study(Mine(misbehave="die"), method_factors={"parametrization": ["W"]}, trials=4)
results = study.run(path, "dask", progress=False)
outcome = results.outcome.values
lost = [entry for entry in read_log(path) if entry["event"] == "worker lost"]
assert study.status(path).complete and len(lost) >= 3
assert (outcome[1] == 9).all() and (outcome[0] > 0).all()
assert str(results["value"].values[1, 0, 0]) == "nan"
"""


@pytest.mark.slow
def test_workers_of_this_machine_die_in_a_block_again_and_again(tmp_path):
    """It is given up, and the others are computed. The experiment is in a module beside a plain script."""
    pytest.importorskip("distributed", reason=NO_DASK)
    beside = "from tests.study.cheap import HostExperiment\n\n\nclass Mine(HostExperiment):\n    pass\n"
    (tmp_path / "beside.py").write_text(beside)
    (tmp_path / "script.py").write_text(SCRIPT)
    said(str(tmp_path / "script.py"), str(tmp_path / "r.zarr"))
