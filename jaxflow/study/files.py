"""Files of a store: each appears whole or not at all; one process writes; the rest is a log beside it."""

import errno
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# How a caller names a store.
StorePath = str | os.PathLike[str]


def side_folder(store: Path) -> Path:
    """What is no result (log, lock, half-written files, a copy of the metadata), beside the store: `R.zarr.side`.

    It may be deleted when nothing runs. Inside the store plain Zarr would warn of a folder it does not know. Links are
    followed: two names of one store have one lock.
    """
    real = store.resolve()
    if not real.name:
        raise ValueError(f"store_path: {store} is no folder that a store can be")
    return real.with_name(real.name + ".side")


def write_file(target: Path, data: bytes, scratch: Path) -> None:
    """Writes `target` under another name in `scratch` (on the same file system), then renames it into place.

    A process killed at any moment leaves the old file or the new one. After a power cut a file may be short or
    empty all the same; checksums find it, and its block is computed again.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch.mkdir(parents=True, exist_ok=True)
    half = scratch / f"{os.getpid()}.part"
    try:
        with open(half, "wb") as file:
            file.write(data)
        os.replace(half, target)
    except OSError:
        half.unlink(missing_ok=True)
        raise


def read_file(path: Path) -> bytes | None:
    """The bytes, or None where there is no such file (but a folder of its name, perhaps)."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        return None


@contextmanager
def only_writer(store: Path) -> Iterator[None]:
    """Holds the store for this process; the operating system lets go when the process ends, however it ends.

    **Raises:** `RuntimeError` where another process holds it; `OSError` where nothing can be written; `ValueError`
    where what lies beside the store leads to another place.
    """
    side = side_folder(store)
    for name in (".", "lock", "log.jsonl", "scratch", "zarr.json"):
        # One who packed the folders could have this process write anywhere.
        if (side / name).is_symlink():
            raise ValueError(f"store: {side / name} is a link, behind which nothing is written; remove it")
    with explained(store):
        side.mkdir(parents=True, exist_ok=True)
        held = open(side / "lock", "a")
    with held as lock:
        try:
            import fcntl
        except ImportError:  # Windows has no such lock; there, starting twice is the user's to avoid
            yield
            return
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                with explained(store):
                    raise
            raise RuntimeError(f"store: another process is writing {store}; wait for it, or end it") from error
        # What a killed writer left half-written.
        shutil.rmtree(side / "scratch", ignore_errors=True)
        yield


def write_log(store: Path, entry: dict[str, Any]) -> None:
    """Appends a line to the log beside the store: wall times, hosts, devices, workers lost."""
    line = json.dumps({"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **entry})
    with open(side_folder(store) / "log.jsonl", "a+b") as log:
        # A line that a killed writer left unfinished must not swallow this one.
        if log.tell() > 0:
            log.seek(-1, os.SEEK_END)
            line = line if log.read(1) == b"\n" else f"\n{line}"
        log.write(line.encode() + b"\n")


# What the user can do about it differs.
REASONS = {
    errno.ENOSPC: ("the disk is full", "Make room"),
    errno.EDQUOT: ("the quota of this disk is used up: the disk is full for this user", "Make room"),
    errno.EFBIG: ("no file may become as large as this one has to be (`ulimit -f`)", "Raise the limit"),
    errno.EROFS: ("this file system can only be read", "Give a folder that can be written"),
    **dict.fromkeys((errno.EACCES, errno.EPERM), ("this folder may not be written", "Give one that may")),
    errno.EIO: ("the disk reports an error", "Give a folder on another disk"),
    errno.EMFILE: ("too many files are open (`ulimit -n`)", "Raise the limit"),
    errno.ENAMETOOLONG: ("a name is too long for this file system", "Give a shorter one"),
    **dict.fromkeys((errno.ENOTDIR, errno.EEXIST), ("there is a file where a folder has to be", "Move it away")),
}


@contextmanager
def explained(store: Path, kept: str = "") -> Iterator[None]:
    """Says of an error while a store is written what is wrong, what is kept, and what to do.

    **Raises:** `OSError` with the number of the first one.
    """
    try:
        yield
    except OSError as error:
        reason, remedy = REASONS.get(error.errno or 0, (error.strerror or str(error), "Mend that"))
        kept = kept or f"complete blocks in {store} stay valid"
        raise OSError(error.errno, f"{reason}; {kept}. {remedy} and run the same command again") from error
