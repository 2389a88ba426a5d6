"""How long numbers took: the seconds of every attempt, kept beside them, also of those that were killed."""

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from jaxflow.study.files import write_file

# Seconds between two writings: a killed attempt is short by less than that.
BEAT = 5.0


class Took(NamedTuple):
    """Seconds by the clock, and of the processor in this process."""

    seconds: float
    cpu_seconds: float


@contextmanager
def timed(folder: Path) -> Iterator[None]:
    """Keeps how long this attempt takes in a file of its own in the folder, again and again until it is over."""
    started, file, over = _now(), folder / f"{time.time_ns()}-{os.getpid()}.json", threading.Event()

    def keep() -> None:
        took = Took(*(now - then for now, then in zip(_now(), started, strict=True)))
        write_file(file, json.dumps(took._asdict()).encode(), folder)

    def beat() -> None:
        while not over.wait(BEAT):
            keep()

    keep()
    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        keep()


def total(folder: Path) -> Took:
    """Of all attempts so far."""
    kept = [_read(file) for file in sorted(folder.glob("*.json"))]
    return Took(*(sum(values) for values in zip(Took(0.0, 0.0), *kept, strict=True)))


def _read(file: Path) -> Took:
    try:
        found = json.loads(file.read_bytes())
        return Took(float(found["seconds"]), float(found["cpu_seconds"]))
    except (ValueError, KeyError, TypeError):
        # Cut short by a power cut; no number depends on it.
        return Took(0.0, 0.0)


def _now() -> Took:
    return Took(time.monotonic(), time.process_time())
