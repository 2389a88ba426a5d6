"""Killed at any moment, the same call again gives the same store, byte for byte."""

import os
import random
import signal
import time
from pathlib import Path

import pytest

from jaxflow.study import store
from jaxflow.study.files import side_folder
from tests.study.cheap import HostExperiment, child, payload, read_log, restore, small_study, tiny_study

# How often each study is killed; JAXFLOW_STUDY_KILLS=20 takes a few minutes.
KILLS = int(os.environ.get("JAXFLOW_STUDY_KILLS", "1"))

# Four cells of these in blocks of four: as many blocks, enough to be killed among.
TRIALS = max(60, 12 * KILLS)


class Killed(BaseException):
    """Not an exception that anything handles."""


def test_at_every_single_write(tmp_path, monkeypatch, tiny):
    study, (reference, _) = tiny_study(), tiny
    write, renames = store.write_file, os.replace
    seen, target = 0, -1

    def counted(function):
        # Before each file and before each is put in its place: after it is before the next.
        def call(*arguments):
            nonlocal seen
            seen += 1
            if seen == target:
                raise Killed
            function(*arguments)

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
    assert moments > 2 * (2 * 4)  # four files a block, two blocks; each file is written and renamed


def committed(path: Path) -> int:
    return sum(1 for found in (path / "block_checksum/c").rglob("*") if found.is_file())


@pytest.mark.slow
@pytest.mark.timeout(60 + 30 * KILLS)
@pytest.mark.parametrize("executor", ["devices", "dask"])
def test_by_the_operating_system(executor, tmp_path):
    """While several blocks are under way; one at a time: `test_killed_at_random_moments`."""
    if executor == "dask":
        pytest.importorskip("distributed", reason="Dask is not installed (extra `cluster`)")
    path, luck = tmp_path / "killed.zarr", random.Random(7)
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
    command = ["-m", "tests.study.cheap", str(path), executor, "0.02", str(TRIALS)]
    for _ in range(KILLS):
        before = committed(path)
        with open(tmp_path / "errors.txt", "ab") as errors:
            process = child(*command, to=errors.fileno(), **({"XLA_FLAGS": flags} if executor == "devices" else {}))
        # Some blocks further on than before, and anywhere within a block (which takes 0.02 s).
        wanted = before + luck.randrange(1, TRIALS // KILLS - 5)
        while process.poll() is None and committed(path) < wanted:
            time.sleep(0.002)
        time.sleep(luck.random() * 0.06)
        assert process.poll() is None, (tmp_path / "errors.txt").read_text()
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=60)
    study = small_study(HostExperiment(pause=0.02), trials=TRIALS)
    assert 0 < study.status(path).blocks < study.plan.block_count
    study.run(path, progress=False)
    study.run(tmp_path / "whole.zarr", progress=False)
    assert payload(path) == payload(tmp_path / "whole.zarr")


def test_a_resume_computes_one_block_again_to_compare(tmp_path, host):
    path, study = tmp_path / "r.zarr", small_study(HostExperiment())
    restore(path, host)
    study.run(path, progress=False)
    (path / "block_checksum/c/1/1/2/0").unlink()
    # Of a complete store nothing is computed; of this one the block, and another one, which is no commit.
    study.run(path, progress=False)
    assert [entry.get("block") for entry in read_log(path)] == [None, None, [1, 1, 2]]
    assert payload(path) == host


def test_a_torn_line_of_the_log_swallows_no_other(tmp_path):
    path, study = tmp_path / "r.zarr", tiny_study()
    study.run(path, progress=False)
    with open(side_folder(path) / "log.jsonl", "ab") as log:
        log.write(b'{"event": "blo')
    study.run(path, progress=False)
    assert [entry["event"] for entry in read_log(path)][-1] == "run"
