"""Killed at any moment, the same call again gives the same store, byte for byte."""

import functools
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jaxflow.study import Interrupted, manifest, store
from jaxflow.study.files import side_folder
from tests.study.cheap import HostExperiment, payload, read_log, small_study

ROOT = Path(__file__).resolve().parents[2]

# How often each study is killed; JAXFLOW_STUDY_KILLS=20 takes a few minutes.
KILLS = int(os.environ.get("JAXFLOW_STUDY_KILLS", "2"))

# Four cells of these in blocks of four: as many blocks, enough to be killed among.
TRIALS = max(60, 12 * KILLS)


class Killed(BaseException):
    """Not an exception that anything handles."""


def test_at_every_single_write(tmp_path, monkeypatch):
    # Asked once instead of by every one of many short runs, a third of whose time they are.
    for name in ("commit", "package_version"):
        monkeypatch.setattr(manifest, name, functools.cache(getattr(manifest, name)))
    study = small_study(HostExperiment(), data_factors={"d": [2]}, trials=7, block=4, method_factors={})
    study.run(tmp_path / "whole.zarr", progress=False)
    reference = payload(tmp_path / "whole.zarr")
    write, renames = store.write_file, os.replace
    seen, target = 0, -1

    def counted(function):
        def call(*arguments):
            nonlocal seen
            seen += 1
            if seen == target:
                raise Killed
            function(*arguments)
            seen += 1
            if seen == target:
                raise Killed

        return call

    moments = 0
    while seen >= target:
        seen, target = 0, target + 1 if target > 0 else 1
        path = tmp_path / f"{target}.zarr"
        with monkeypatch.context() as patch:
            patch.setattr(store, "write_file", counted(write))
            patch.setattr(store.os, "replace", counted(renames))
            try:
                study.run(path, progress=False)
            except Killed:
                moments += 1
        study.run(path, progress=False)
        assert payload(path) == reference, f"killed at moment {target}"
    assert moments > 4 * (2 * 2 * 4)  # four files a block, two blocks; each file is two renames and a write


def start(path: Path, executor: str) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    if executor == "devices":
        environment["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
    command = [sys.executable, "-m", "tests.study.cheap", str(path), executor, "0.02", str(TRIALS)]
    with open(path.parent / "errors.txt", "ab") as errors:
        return subprocess.Popen(command, cwd=ROOT, env=environment, stderr=errors, start_new_session=True)


def committed(path: Path) -> int:
    return sum(1 for found in (path / "block_checksum/c").rglob("*") if found.is_file())


def finish(path: Path, executor: str) -> None:
    process = start(path, executor)
    assert process.wait(timeout=120) == 0, (path.parent / "errors.txt").read_text()


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> dict[str, bytes]:
    path = tmp_path_factory.mktemp("uninterrupted") / "r.zarr"
    finish(path, "serial")
    return payload(path)


@pytest.mark.slow
@pytest.mark.timeout(60 + 30 * KILLS)
@pytest.mark.parametrize("executor", ["serial", "devices", "dask"])
def test_by_the_operating_system(executor, tmp_path, uninterrupted):
    if executor == "dask":
        pytest.importorskip("distributed", reason="Dask is not installed (extra `cluster`)")
    path, luck = tmp_path / "killed.zarr", random.Random(7)
    killed = 0
    for _ in range(KILLS):
        before, process = committed(path), start(path, executor)
        # Some blocks further on than before, and anywhere within a block (which takes 0.02 s).
        wanted = before + luck.randrange(TRIALS // KILLS - 5)
        while process.poll() is None and committed(path) < wanted:
            time.sleep(0.002)
        time.sleep(luck.random() * 0.06)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            killed += 1
        process.wait(timeout=60)
    assert killed == KILLS, (tmp_path / "errors.txt").read_text()
    finish(path, executor)
    assert payload(path) == uninterrupted


def test_ctrl_c_finishes_the_block_and_says_how_to_go_on(tmp_path):
    path = tmp_path / "r.zarr"
    experiment = HostExperiment(misbehave="interrupt", flag=str(tmp_path / "once"))
    study = small_study(experiment)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(Interrupted, match=r"stopped; 7 of 12 blocks are complete in .*Run the same command again"):
        study.run(path, progress=False)
    assert signal.getsignal(signal.SIGINT) is before
    # The block in which it came, the first with d=3, was finished.
    assert study.status(path).blocks == 7 and not study.status(path).complete
    results = study.run(path, progress=False)
    assert (results.outcome.values > 0).all() and study.status(path).complete


def test_a_resume_computes_one_block_again_to_compare(tmp_path):
    path = tmp_path / "r.zarr"
    study = small_study(HostExperiment())
    study.run(path, progress=False)
    (path / "block_checksum/c/1/1/2/0").unlink()
    before = len(read_log(path))
    study.run(path, progress=False)
    assert [entry.get("block") for entry in read_log(path)[before:]] == [None, [1, 1, 2]]


def test_what_lies_beside_the_store_may_go(tmp_path):
    import shutil

    path = tmp_path / "r.zarr"
    study = small_study(HostExperiment())
    study.run(path, progress=False)
    before = payload(path)
    shutil.rmtree(side_folder(path))
    study.run(path, progress=False)
    assert payload(path) == before


def test_a_torn_line_of_the_log_swallows_no_other(tmp_path):
    path = tmp_path / "r.zarr"
    study = small_study(HostExperiment())
    study.run(path, progress=False)
    with open(side_folder(path) / "log.jsonl", "ab") as log:
        log.write(b'{"event": "blo')
    study.run(path, progress=False)
    assert [entry["event"] for entry in read_log(path)][-1] == "run"
