"""A Dask cluster whose workers die or stand still, whose scheduler goes away: every instance once, the same bits."""

import json
import os
import signal
import subprocess
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from jaxflow.study import status
from tests.study.cheap import SPEC, HostExperiment, child, payload, read_log, said, small_study

pytest.importorskip("distributed", reason="Dask is not installed (extra `cluster`)")

# Shown by the one who runs it: nothing but what the command says.
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

    def __init__(self, folder: Path, **limit: str):
        file = folder / "scheduler.json"
        self.scheduler = self._start("dask_scheduler", "--port", "0", "--scheduler-file", str(file), **limit)
        self._workers: list[subprocess.Popen] = []
        wait_for(lambda: file.exists() and file.read_text().endswith("}"))
        self.address = json.loads(file.read_text())["address"]

    def workers(self, count: int) -> list[int]:
        """The processes of so many workers: as many as are missing are started, those beyond are killed."""
        alive = [worker for worker in self._workers if worker.poll() is None]
        for worker in alive[count:]:
            worker.kill()
        while len(alive) < count:
            # What it imports it imports before it is heard of: on a busy machine that takes more than five seconds.
            command = ["dask_worker", self.address, "--nthreads", "1", "--no-nanny", "--preload", "tests.study.cheap"]
            alive.append(self._start(*command))
            self._workers.append(alive[-1])
        return [worker.pid for worker in alive[:count]]

    def _start(self, what: str, *arguments: str, **environment: str) -> subprocess.Popen:
        command = ["-m", f"distributed.cli.{what}", *arguments, "--host", "127.0.0.1", "--no-dashboard"]
        return child(*command, to=subprocess.DEVNULL, **environment)

    def close(self) -> None:
        for process in [*self._workers, self.scheduler]:
            process.kill()
            process.wait()


def wait_for(something, seconds: float = 240) -> None:
    end = time.monotonic() + seconds
    while not something():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    # A worker that is not heard of for five seconds (Dask waits no less) is given up.
    limit = {"DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": "5 s"}
    with closing(Cluster(tmp_path_factory.mktemp("cluster"), **limit)) as made:
        yield made


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


def reference_of(experiment, folder) -> dict[str, bytes]:
    """The store of this very experiment (its settings are in the manifest), computed here."""
    small_study(experiment).run(folder / "serial.zarr", progress=False).close()
    return payload(folder / "serial.zarr")


@pytest.mark.slow
def test_a_worker_that_dies_in_the_middle_of_a_block(tmp_path, cluster, held):
    """The only one: the study waits until another comes, which computes its block."""
    experiment, process, _ = held
    path, study = tmp_path / "r.zarr", small_study(experiment)
    workers = cluster.workers(1)
    thread, ended = run_beside(study, path, cluster.address)
    victim = process()
    assert [victim] == workers
    os.kill(victim, signal.SIGKILL)
    time.sleep(1)
    assert thread.is_alive() and not ended
    cluster.workers(1)
    thread.join(240)
    assert ended == ["done"] and study.status(path).complete
    assert payload(path) == reference_of(experiment, tmp_path)


@pytest.mark.slow
def test_a_worker_that_stands_still(tmp_path, cluster, held):
    """The others go on; it is given up, another computes its block, and what it brings late changes nothing."""
    experiment, process, go = held
    path, study = tmp_path / "r.zarr", small_study(experiment)
    workers = cluster.workers(2)
    thread, ended = run_beside(study, path, cluster.address)
    victim = process()
    os.kill(victim, signal.SIGSTOP)
    try:
        thread.join(240)
        assert ended == ["done"] and study.status(path).complete
        before = payload(path)
    finally:
        go()
        os.kill(victim, signal.SIGCONT)
    time.sleep(1)
    assert payload(path) == before == reference_of(experiment, tmp_path)
    pids = [entry["pid"] for entry in read_log(path) if entry["event"] == "block"]
    assert len(pids) == study.plan.block_count
    assert set(workers) >= set(pids)


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
    assert run.returncode == 1 and output == ""
    assert errors == (
        f"Error: executor: the connection to the Dask scheduler at {cluster.address} was lost. Complete blocks are "
        "kept; run the same command again when it is back, or with another executor\n"
    )
    state = status(path, verify=True)
    assert 0 < state.blocks < 12 and state.damaged == 0
    go()
    small_study(experiment).run(path, progress=False).close()
    assert payload(path) == reference_of(experiment, tmp_path)


@pytest.mark.slow
def test_an_address_where_no_scheduler_answers(tmp_path):
    from dask import config

    with config.set({"distributed.comm.timeouts.connect": "1 s"}):
        with pytest.raises(OSError, match="executor: no Dask scheduler answers at tcp://127.0.0.1:1; start one there"):
            small_study(HostExperiment()).run(tmp_path / "r.zarr", "tcp://127.0.0.1:1", progress=False)
    assert not (tmp_path / "r.zarr").exists()


BESIDE = """
from tests.study.cheap import SPEC, HostExperiment

class Mine(HostExperiment):
    pass
"""

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
    (tmp_path / "beside.py").write_text(BESIDE)
    (tmp_path / "script.py").write_text(SCRIPT)
    said(str(tmp_path / "script.py"), str(tmp_path / "r.zarr"))
