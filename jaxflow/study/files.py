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


def side_folder(store: Path) -> Path:
    """What is no result (log, lock, half-written files), beside the store: `R.zarr.side`.

    It may be deleted when nothing runs. Inside the store plain Zarr would warn of a folder it does not know.
    """
    return store.with_name(store.name + ".side")


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
    """The bytes, or None where there is no such file."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


@contextmanager
def only_writer(store: Path) -> Iterator[None]:
    """Holds the store for this process; the operating system lets go when the process ends, however it ends.

    **Raises:** `RuntimeError` where another process holds it.
    """
    side = side_folder(store)
    side.mkdir(parents=True, exist_ok=True)
    with open(side / "lock", "a") as lock:
        try:
            import fcntl
        except ImportError:  # Windows has no such lock; there, starting twice is the user's to avoid
            yield
            return
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            raise RuntimeError(f"store: another process is writing {store}") from error
        # What a killed writer left half-written.
        shutil.rmtree(side / "scratch", ignore_errors=True)
        yield


def write_log(store: Path, entry: dict[str, Any]) -> None:
    """Appends a line to the log beside the store: wall times, hosts, devices, workers lost."""
    line = json.dumps({"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **entry})
    with open(side_folder(store) / "log.jsonl", "ab") as log:
        # A line that a killed writer left unfinished must not swallow this one.
        if log.tell() > 0 and not _ends_with_newline(Path(log.name)):
            log.write(b"\n")
        log.write(line.encode() + b"\n")


def read_log(store: Path) -> list[dict[str, Any]]:
    """The lines of the log that are whole."""
    found = []
    for line in (read_file(side_folder(store) / "log.jsonl") or b"").splitlines():
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            # Written by a process that was killed meanwhile; nothing depends on it.
            continue
    return found


def _ends_with_newline(path: Path) -> bool:
    with open(path, "rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def disk_full(error: OSError, store: Path, done: int, total: int) -> OSError:
    """The error for a full disk (or quota), with what is kept and what to do; other errors as they are."""
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return error
    return OSError(
        error.errno,
        f"the disk is full; {done} of {total} blocks are complete in {store} and stay valid. "
        "Make room and run the same command again",
    )
