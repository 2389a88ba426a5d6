"""What the benchmarks against peers share: which peers are there, wall clock and processor time, a time limit."""

import argparse
import importlib
import site
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import jax

# Distributions whose versions stand beside the numbers.
PEERS = ("scipy", "osqp", "daqp", "qpax", "highspy", "torch", "torchode", "torchdiffeq")


class Seconds(NamedTuple):
    """Wall clock, and processor time of all threads together: the second hardly feels other work on the machine."""

    wall: float
    processor: float


class OverTime(RuntimeError):
    """Raised from inside of a right-hand side once its time is up: the solvers have no limit of their own."""


class Deadline:
    """A limit in seconds of wall clock; the function that it watches calls `check`."""

    def __init__(self, seconds: float):
        self.seconds = seconds
        self.end = time.perf_counter() + seconds

    def check(self) -> None:
        if time.perf_counter() > self.end:
            raise OverTime(f"time limit of {self.seconds:g} s")


def arguments(description: str | None, out: Path) -> argparse.Namespace:
    """The command line of a benchmark against peers."""
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument("--scale", type=float, default=1.0, help="share of the instances and of the time to spend")
    parser.add_argument("--peers", type=Path, help="a folder of packages, looked in after the environment's own")
    parser.add_argument("--out", type=Path, default=out)
    parser.add_argument("--only", help="cases whose name holds this")
    found = parser.parse_args()
    if found.peers is not None:
        # Last on the path: what this environment has is used, and only what it lacks comes from there.
        site.addsitedir(str(found.peers))
    return found


def missing(*modules: str) -> str | None:
    """Why a peer cannot be run, or None. A library that is there but does not load is missing too."""
    for module in modules:
        try:
            importlib.import_module(module)
        except (ImportError, OSError) as error:
            return f"{module}: {type(error).__name__}: {str(error).splitlines()[0]}"
    return None


def versions() -> dict[str, str | None]:
    """Versions of the peers; None where one is not installed."""
    found: dict[str, str | None] = {}
    for name in PEERS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def clocked(run: Callable[[], Any]) -> tuple[Any, Seconds]:
    """The answer of one run and its times."""
    wall, processor = time.perf_counter(), time.process_time()
    answer = jax.block_until_ready(run())
    return answer, Seconds(time.perf_counter() - wall, time.process_time() - processor)


def best(run: Callable[[], Any], repeats: int, enough: float = 1.0) -> tuple[Any, Seconds]:
    """The answer and the shortest times of up to `repeats` runs, fewer once they took `enough` seconds together."""
    answer, shortest = clocked(run)
    spent = shortest.wall
    for _ in range(repeats - 1):
        if spent > enough:
            break
        _, again = clocked(run)
        spent += again.wall
        shortest = Seconds(min(shortest.wall, again.wall), min(shortest.processor, again.processor))
    return answer, shortest


def one_thread() -> None:
    """PyTorch on one thread: the arrays are far too small for more, and it is faster so."""
    import torch

    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
