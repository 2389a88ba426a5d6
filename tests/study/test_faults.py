"""Disks that fill up or cannot be written, two writers, Ctrl-C, kills: the same bytes afterwards, and one sentence."""

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
from tests.study.cheap import HostExperiment, payload, said, tiny_study

# How often a study is killed at random.
KILLS = int(os.environ.get("JAXFLOW_STUDY_RANDOM_KILLS", "50"))


class Disk:
    """Counts whatever asks something of the disk, and refuses from the `at`-th on."""

    def __init__(self, patch, at, number):
        self.calls, self.at, self.number = 0, at, number
        self.write, self.mkdir, self.replace = open, Path.mkdir, os.replace
        patch.setattr(files_of_store, "open", self._open, raising=False)
        patch.setattr(Path, "mkdir", lambda path, *rest, **how: self._mkdir(path, *rest, **how))
        patch.setattr(os, "replace", self._replace)

    def asked(self):
        self.calls += 1
        if self.calls >= self.at:
            raise OSError(self.number, os.strerror(self.number))

    def _open(self, path, mode="r", **how):
        if mode != "rb":
            self.asked()
        return self.write(path, mode, **how)

    def _mkdir(self, path, *arguments, **how):
        if not path.exists():
            self.asked()
        return self.mkdir(path, *arguments, **how)

    def _replace(self, *paths):
        self.asked()
        return self.replace(*paths)


REMEDIES = {
    errno.ENOSPC: "the disk is full; .* Make room and run",
    errno.EROFS: "this file system can only be read; .* Give a folder that can be written and run",
    errno.EACCES: "this folder may not be written; .* Give one that may and run",
    errno.EFBIG: "no file may become as large as this one has to be .* Raise the limit",
    errno.EIO: "the disk reports an error; .* Give a folder on another disk and run",
}


@pytest.mark.parametrize(("number", "first"), [(errno.ENOSPC, 1), (errno.EIO, 4), (errno.EFBIG, 7)])
def test_a_disk_that_refuses_from_any_moment_on(number, first, tmp_path, tiny, monkeypatch):
    whole, _ = tiny
    study, refused = tiny_study(), 0
    for at in range(first, 1000, 9):
        path = tmp_path / f"{at}.zarr"
        with monkeypatch.context() as patch:
            disk = Disk(patch, at, number)
            try:
                study.run(path, progress=False)
            except OSError as error:
                refused += 1
                assert error.errno == number
                assert re.search(REMEDIES[number], str(error)), error
                found = error
            else:
                assert disk.calls < at
                break
        if (path / "zarr.json").exists():
            state = status(path, verify=True)
            assert state.damaged == 0
            if "of 2 blocks" in str(found):
                assert f"{state.blocks} of 2 blocks are complete" in str(found)
        study.run(path, progress=False)
        assert payload(path) == whole, at
    assert refused > 3


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_a_folder_that_can_only_be_read(number, tmp_path, copy, tiny, monkeypatch):
    """Simulated: whoever runs tests as root may write anywhere."""
    path, (whole, expected) = copy, tiny
    Disk(monkeypatch, 1, number)
    for store in (path, tmp_path / "new.zarr"):
        with pytest.raises(OSError, match=REMEDIES[number]):
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


def test_ctrl_c_at_any_write(tmp_path, tiny, monkeypatch):
    """Whether it asks to stop or, outside of the loop, ends the run at once: the next run ends in the same bytes."""
    whole, _ = tiny
    write = files_of_store.write_file
    for at in range(1, 30, 5):
        path, calls = tmp_path / f"{at}.zarr", []

        def interrupted(target, data, scratch, at=at, calls=calls):
            calls.append(target)
            if len(calls) == at:
                signal.raise_signal(signal.SIGINT)
            write(target, data, scratch)

        with monkeypatch.context() as patch:
            patch.setattr("jaxflow.study.store.write_file", interrupted)
            try:
                tiny_study().run(path, progress=False)
            except KeyboardInterrupt as stop:
                assert not str(stop) or "Run the same command again" in str(stop)
        tiny_study().run(path, progress=False)
        assert payload(path) == whole, at
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


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
folder, kills = Path(sys.argv[1]), int(sys.argv[2])
NOT_REAPED = os.WEXITED | os.WNOHANG | os.WNOWAIT

def start(path):
    child = os.fork()
    if child:
        return child
    try:
        small_study(HostExperiment(pause=0.002), trials=40).run(path, progress=False)
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
def test_killed_at_random_moments(tmp_path):
    found = json.loads(said("-c", KILLS_SCRIPT, str(tmp_path), str(KILLS), seconds=590).splitlines()[-1])
    assert found["kills"] == KILLS and found["partly"] >= KILLS // 10, found
    print(found)
