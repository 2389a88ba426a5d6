"""Kills, disks that fill up or cannot be written, two writers, Ctrl-C: the same bytes afterwards, and one sentence."""

import errno
import os
import random
import re
import shutil
import signal
import time
from pathlib import Path

import pytest

from jaxflow.study import files as files_of_store
from jaxflow.study import open_results, status
from jaxflow.study.files import side_folder
from tests.study.cheap import HostExperiment, payload, read_log, restore, run_elsewhere, small_study, tiny_study

# How often a study is killed at random with each executor; every moment has its turn in
# `test_whatever_happens_at_any_moment`.
KILLS = int(os.environ.get("JAXFLOW_STUDY_RANDOM_KILLS", "10"))


class Killed(BaseException):
    """Not an exception that anything handles."""


class Disk:
    """Counts whatever asks something of the disk. From the `at`-th time on it refuses with an error of this number, or
    the process is killed; Ctrl-C comes at that time alone."""

    def __init__(self, patch, at, what):
        self.calls, self.at, self.what = 0, at, what
        self.write, self.mkdir, self.replace = open, Path.mkdir, os.replace
        patch.setattr(files_of_store, "open", self._open, raising=False)
        patch.setattr(Path, "mkdir", lambda path, *rest, **how: self._mkdir(path, *rest, **how))
        patch.setattr(os, "replace", self._replace)

    def asked(self):
        self.calls += 1
        if self.calls < self.at:
            return
        if self.what is Killed:
            raise Killed
        if isinstance(self.what, signal.Signals):
            if self.calls == self.at:
                signal.raise_signal(self.what)
            return
        raise OSError(self.what, os.strerror(self.what))

    def _open(self, path, mode="r", **how):
        if mode != "rb":
            self.asked()
        return self.write(path, mode, **how)

    def _mkdir(self, path, *arguments, **how):
        # A process that is killed before it makes a folder is killed before it writes into it.
        if self.what is not Killed and not path.exists():
            self.asked()
        return self.mkdir(path, *arguments, **how)

    def _replace(self, *paths):
        self.asked()
        return self.replace(*paths)


# The first moment, how far it is to the next, and what is said.
MOMENTS = {
    Killed: (1, 1, "^$"),
    signal.SIGINT: (1, 7, "^$|Run the same command again"),
    errno.ENOSPC: (1, 9, "the disk is full; .* Make room and run"),
    errno.EIO: (4, 9, "the disk reports an error; .* Give a folder on another disk and run"),
    errno.EFBIG: (7, 9, "no file may become as large as this one has to be .* Raise the limit"),
}
READ_ONLY = {
    errno.EROFS: "this file system can only be read; .* Give a folder that can be written and run",
    errno.EACCES: "this folder may not be written; .* Give one that may and run",
}


@pytest.mark.slow
@pytest.mark.parametrize("what", MOMENTS, ids=["killed", "Ctrl-C", "full", "broken", "limited"])
def test_whatever_happens_at_any_moment(what, tmp_path, tiny, monkeypatch):
    """The next run ends in the same bytes, and until then nothing that counts as complete is damaged."""
    (whole, _), study, struck = tiny, tiny_study(), 0
    first, step, message = MOMENTS[what]
    for at in range(first, 1000, step):
        path, told = tmp_path / f"{at}.zarr", ""
        with monkeypatch.context() as patch:
            disk = Disk(patch, at, what)
            try:
                study.run(path, progress=False)
            except (OSError, KeyboardInterrupt, Killed) as error:
                told = str(error)
                assert getattr(error, "errno", what) == what and re.search(message, told), error
        if disk.calls < at:
            break
        struck += 1
        if (path / "zarr.json").exists():
            state = status(path, verify=True)
            assert state.damaged == 0
            assert "of 2 blocks" not in told or f"{state.blocks} of 2 blocks are complete" in told
        study.run(path, progress=False)
        assert payload(path) == whole, at
    # A killed process: four files a block, two blocks; each file is opened and renamed.
    assert struck > (2 * (2 * 4) if what is Killed else 3)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("number", READ_ONLY)
def test_a_folder_that_can_only_be_read(number, tmp_path, copy, tiny, monkeypatch):
    """Simulated: whoever runs tests as root may write anywhere."""
    path, (whole, expected) = copy, tiny
    Disk(monkeypatch, 1, number)
    for store in (path, tmp_path / "new.zarr"):
        with pytest.raises(OSError, match=READ_ONLY[number]):
            tiny_study().run(store, progress=False)
    # Reading writes nothing, not even beside the store.
    with open_results(path) as results:
        assert results.load().equals(expected)
    assert status(path, verify=True).complete
    assert payload(path) == whole and not side_folder(path).exists()


def test_two_writers_of_one_store(tmp_path, tiny, monkeypatch):
    """By three names of it, while a block is computed. The lock is of the operating system, the same for processes."""
    path, asked, numbers = tmp_path / "r.zarr", [], HostExperiment.block_function
    (tmp_path / "link").symlink_to(path)

    def meanwhile(experiment, factors, width):
        asked.append(factors)
        for other in (path, tmp_path / "link", f"{path}/../r.zarr"):
            with pytest.raises(RuntimeError, match="store: another process is writing"):
                tiny_study().run(other, progress=False)
        return numbers(experiment, factors, width)

    monkeypatch.setattr(HostExperiment, "block_function", meanwhile)
    tiny_study().run(path, progress=False)
    assert asked and payload(path) == tiny[0]


def test_a_resume_computes_one_block_again_to_compare(tmp_path, host):
    path, study = tmp_path / "r.zarr", small_study(HostExperiment())
    restore(path, host)
    study.run(path, progress=False)
    (path / "block_checksum/c/1/1/2/0").unlink()
    # Of a complete store nothing is computed; of this one the block, and another one, which is no commit.
    study.run(path, progress=False)
    assert [entry.get("block") for entry in read_log(path)] == [None, None, [1, 1, 2]]
    assert payload(path) == host


def committed(path: Path) -> int:
    return sum(1 for found in (path / "block_checksum/c").rglob("*") if found.is_file())


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["serial", "devices"])
def test_killed_at_random_moments(executor, tmp_path):
    """One block at a time, or one on each of two devices: the same bytes after the next run."""
    # Fifty blocks of 0.02 s, enough to be killed among.
    path, study = tmp_path / "killed.zarr", small_study(HostExperiment(pause=0.02), trials=50)
    study.run(tmp_path / "whole.zarr", progress=False)
    whole, luck, killed = payload(tmp_path / "whole.zarr"), random.Random(7), 0
    while killed < KILLS:
        before = committed(path)
        process = run_elsewhere(study, path, executor)
        # Somewhere among the next few blocks, or in one of them.
        while process.is_alive() and committed(path) <= before:
            time.sleep(0.002)
        time.sleep(0.2 * luck.random())
        process.kill()
        process.join()
        assert process.exitcode in (0, -signal.SIGKILL)
        killed += process.exitcode < 0
        if committed(path) == study.plan.block_count or killed == KILLS:
            study.run(path, progress=False)
            assert payload(path) == whole
            shutil.rmtree(path)
