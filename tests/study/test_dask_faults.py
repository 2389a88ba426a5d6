"""A Dask cluster whose workers die or stand still, whose scheduler goes away: every instance once, the same bits."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from jaxflow.study import status
from tests.study.cheap import HostExperiment, payload, read_log, small_study

pytest.importorskip("distributed", reason="Dask is not installed (extra `cluster`)")

ROOT = Path(__file__).resolve().parents[2]

# Shown by the one who runs it: nothing but what the command says.
SPEC = """
experiment = "tests.study.cheap:HostExperiment"
trials = 10
block = 4
[data_factors]
d = [2, 3]
[method_factors]
parametrization = ["W", "KQ"]
[settings]
misbehave = "hold"
flag = "{flag}"
"""

RUN = """
import sys
import jax
jax.config.update("jax_enable_x64", True)
from jaxflow.cli.app import main
sys.argv = ["jaxflow", "study", *sys.argv[1:]]
main()
"""


class Cluster:
    """A scheduler and workers, each a process of its own that nobody starts again."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.processes: list[subprocess.Popen] = []
        self.log = open(folder / "cluster.txt", "ab")
        file = folder / "scheduler.json"
        # A worker that is not heard of for five seconds (Dask waits no less) is given up.
        self.scheduler = self._start("dask_scheduler", "--port", "0", "--scheduler-file", str(file), worker_ttl="5 s")
        wait_for(lambda: file.exists() and file.read_text().endswith("}"))
        self.address = json.loads(file.read_text())["address"]

    def worker(self) -> subprocess.Popen:
        return self._start("dask_worker", self.address, "--nthreads", "1", "--no-nanny")

    def _start(self, what: str, *arguments: str, worker_ttl: str = "") -> subprocess.Popen:
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONPATH": path}
        if worker_ttl:
            environment["DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL"] = worker_ttl
        process = subprocess.Popen(
            [sys.executable, "-m", f"distributed.cli.{what}", *arguments, "--host", "127.0.0.1", "--no-dashboard"],
            env=environment,
            stdout=self.log,
            stderr=self.log,
        )
        self.processes.append(process)
        return process

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        self.log.close()


def wait_for(something, seconds: float = 240) -> None:
    end = time.monotonic() + seconds
    while not something():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


@pytest.fixture
def cluster(tmp_path):
    made = Cluster(tmp_path)
    yield made
    made.close()


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    path = tmp_path_factory.mktemp("reference") / "r.zarr"
    small_study(HostExperiment()).run(path, progress=False)
    return payload(path)


@pytest.fixture
def held(tmp_path):
    """An experiment one of whose blocks waits, in one of the workers: its process, and the word to go on."""
    experiment = HostExperiment(misbehave="hold", flag=str(tmp_path / "once"))
    pid, go = tmp_path / "once.pid", tmp_path / "once.go"

    def process() -> int:
        wait_for(lambda: pid.exists() and pid.read_text())
        return int(pid.read_text())

    return experiment, process, go.touch


def run_beside(study, path, address):
    """The study in a thread; how it ended."""
    ended = []

    def run():
        try:
            study.run(path, address, progress=False).close()
            ended.append("done")
        except Exception as error:
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, ended


@pytest.mark.slow
@pytest.mark.parametrize("left", ["another worker", "none, until one comes"])
def test_a_worker_that_dies_in_the_middle_of_a_block(left, tmp_path, cluster, held, reference):
    experiment, process, _ = held
    path, study = tmp_path / "r.zarr", small_study(experiment)
    workers = [cluster.worker() for _ in range(2 if left == "another worker" else 1)]
    thread, ended = run_beside(study, path, cluster.address)
    victim = process()
    assert victim in [worker.pid for worker in workers]
    os.kill(victim, signal.SIGKILL)
    if left != "another worker":
        time.sleep(1)
        assert thread.is_alive() and not ended  # it waits
        cluster.worker()
    thread.join(240)
    assert ended == ["done"] and study.status(path).complete
    assert payload(path) == reference_of(experiment, tmp_path)
    arrays_equal(path, reference)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["slow", "given up, and back"])
def test_a_worker_that_stands_still(how, tmp_path, cluster, held, reference):
    """The others go on, and what the slow one brings late is what was there already."""
    experiment, process, go = held
    path, study = tmp_path / "r.zarr", small_study(experiment)
    workers = [cluster.worker(), cluster.worker()]
    thread, ended = run_beside(study, path, cluster.address)
    victim = process()
    others = study.plan.block_count - 1
    if how == "slow":
        wait_for(lambda: path.exists() and status(path).blocks == others)
        assert not ended  # all but its block
        go()
        thread.join(240)
    else:
        os.kill(victim, signal.SIGSTOP)
        try:
            thread.join(240)
            # Its block was computed by the other one: the scheduler gave it up.
            assert ended == ["done"]
            before = payload(path)
        finally:
            go()
            os.kill(victim, signal.SIGCONT)
        time.sleep(1)
        assert payload(path) == before
        pids = [entry["pid"] for entry in read_log(path) if entry["event"] == "block"]
        assert len(pids) == others + 1
        assert {worker.pid for worker in workers} >= set(pids)
    assert ended == ["done"] and study.status(path).complete
    assert payload(path) == reference_of(experiment, tmp_path)
    arrays_equal(path, reference)


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_scheduler_that_goes_away(how, tmp_path, cluster, held):
    experiment, process, go = held
    path = tmp_path / "r.zarr"
    (tmp_path / "spec.toml").write_text(SPEC.format(flag=experiment.flag))
    cluster.worker()
    run = subprocess.Popen(
        [sys.executable, "-c", RUN, "run", "spec.toml", "--out", "r.zarr", "--executor", cluster.address, "--quiet"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    process()
    cluster.scheduler.send_signal(how)
    output, errors = run.communicate(timeout=240)
    assert run.returncode == 1 and output == ""
    assert errors == (
        f"Error: executor: the connection to the Dask scheduler at {cluster.address} was lost. Complete blocks are "
        "kept; run the same command again when it is back, or with another executor\n"
    )
    state = status(path, verify=True)
    assert 0 < state.blocks < 12 and state.damaged == 0
    go()
    study = small_study(experiment)
    study.run(path, progress=False).close()
    assert payload(path) == reference_of(experiment, tmp_path)


@pytest.mark.slow
def test_an_address_where_no_scheduler_answers(tmp_path):
    from dask import config

    with config.set({"distributed.comm.timeouts.connect": "1 s"}):
        with pytest.raises(OSError, match="executor: no Dask scheduler answers at tcp://127.0.0.1:1; start one there"):
            small_study(HostExperiment()).run(tmp_path / "r.zarr", "tcp://127.0.0.1:1", progress=False)
    assert not (tmp_path / "r.zarr").exists()


def reference_of(experiment, folder) -> dict[str, bytes]:
    """The store of this very experiment (its settings are in the manifest), computed here."""
    small_study(experiment).run(folder / "serial.zarr", progress=False).close()
    return payload(folder / "serial.zarr")


def arrays_equal(path, reference) -> None:
    """And the numbers of one that never misbehaves."""
    found = payload(path)
    chunks = [name for name in reference if "/c/" in name]
    assert chunks and all(found[name] == reference[name] for name in chunks)
