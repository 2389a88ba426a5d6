"""How long numbers took: the seconds of every attempt, kept beside them, also of those that were killed."""

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jaxflow.study.files import write_file

# Seconds between two writings: a killed attempt is short by less than that.
BEAT = 5.0
# Seconds by the clock, and of the processor in this process.
CLOCKS = {"seconds": time.monotonic, "cpu_seconds": time.process_time}
Took = dict[str, float]


@contextmanager
def timed(folder: Path) -> Iterator[None]:
    """Keeps how long this attempt takes in a file of its own in the folder, again and again until it is over."""
    started, over = {name: clock() for name, clock in CLOCKS.items()}, threading.Event()
    file = folder / f"{time.time_ns()}-{os.getpid()}.json"

    def keep() -> None:
        took = {name: clock() - started[name] for name, clock in CLOCKS.items()}
        write_file(file, json.dumps(took).encode(), folder)

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
    return added(*(_read(file) for file in sorted(folder.glob("*.json"))))


def added(*parts: Took) -> Took:
    """The sum of each clock over the parts; zero where there are none."""
    return {name: sum((part[name] for part in parts), 0.0) for name in CLOCKS}


def _read(file: Path) -> Took:
    try:
        found = json.loads(file.read_bytes())
        return {name: float(found[name]) for name in CLOCKS}
    except (ValueError, KeyError, TypeError):
        # Cut short by a power cut; no number depends on it.
        return added()
