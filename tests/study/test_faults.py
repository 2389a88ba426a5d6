"""Kills, disks that fill up or cannot be written, two writers, Ctrl-C: the same bytes afterwards, and one sentence."""

import errno
import json
import os
import re
import signal
from pathlib import Path

import pytest

from jaxflow.study import files as files_of_store
from jaxflow.study import open_results, status
from jaxflow.study.files import side_folder
from tests.study.cheap import HostExperiment, payload, read_log, restore, said, small_study, tiny_study

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


# The parent computes nothing: a process that has started XLA's threads cannot be forked.
KILLS_SCRIPT = """
import functools, json, os, random, shutil, signal, sys, time, warnings
from pathlib import Path
import jax
jax.config.update("jax_enable_x64", True)
from jaxflow.study import manifest
from tests.study.cheap import HostExperiment, payload, small_study

for name in ("commit", "package_version"):
    setattr(manifest, name, functools.cache(getattr(manifest, name)))
manifest.manifest(small_study(HostExperiment()).plan, "cpu")  # asked once, for all children
warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
folder, kills, executor = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
NOT_REAPED = os.WEXITED | os.WNOHANG | os.WNOWAIT

def start(path):
    child = os.fork()
    if child:
        return child
    try:
        small_study(HostExperiment(pause=0.002), trials=40).run(path, executor, progress=False)
    except BaseException as error:
        print(repr(error), file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)

def committed(path):
    return sum(1 for file in (path / "block_checksum/c").rglob("*") if file.is_file())

def whole(path):
    began = time.monotonic()
    assert os.waitpid(start(path), 0)[1] == 0
    return payload(path), time.monotonic() - began

reference, takes = whole(folder / "whole.zarr")
total, luck, done, stores, partly = committed(folder / "whole.zarr"), random.Random(20261124), 0, 0, 0
while done < kills:
    path = folder / f"{stores}.zarr"
    stores += 1
    for _ in range(8):
        if done == kills:
            break
        child = start(path)
        # At any time of a run: before there is a store, between two files, after the last block. Half of them in the
        # part that writes blocks, which is the lesser part of so short a run.
        before, wait = committed(path), luck.random() * takes
        if done % 2:
            wait *= 0.3
            while committed(path) <= before and os.waitid(os.P_PID, child, NOT_REAPED) is None:
                time.sleep(0.005)
        time.sleep(wait)
        os.kill(child, signal.SIGKILL)
        _, code = os.waitpid(child, 0)
        if code == signal.SIGKILL:
            done += 1
            partly += 0 < committed(path) < total
        else:
            assert code == 0, code
            break
    assert whole(path)[0] == reference, path
    shutil.rmtree(path)
print(json.dumps({"kills": done, "partly": partly, "stores": stores, "files": len(reference)}))
"""


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["serial", "devices"])
def test_killed_at_random_moments(executor, tmp_path):
    """One block at a time, or one on each of two devices."""
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=2"
    told = said("-c", KILLS_SCRIPT, str(tmp_path), str(KILLS), executor, seconds=590, XLA_FLAGS=flags)
    found = json.loads(told.splitlines()[-1])
    assert found["kills"] == KILLS and found["partly"] >= KILLS // 10, found
