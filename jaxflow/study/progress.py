"""How far a study has come: what is being compiled, rate, time left and outcomes so far."""

import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax.monitoring
import numpy as np

from jaxflow.study.plan import Plan

LOG = logging.getLogger("jaxflow.study")

# What JAX calls the time that XLA takes to compile a program. (Traces of programs within programs are counted twice.)
COMPILING = "/jax/core/compile/backend_compile_duration"


class Tally:
    """What is counted while a study runs."""

    def __init__(self, plan: Plan, counts: np.ndarray, names: Mapping[int, str], clock: Callable[[], float]):
        self.name, self.total, self.names = plan.experiment["name"], plan.instance_count, names
        self.counts = np.array(counts)
        self._before, self._clock, self._started = int(counts.sum()), clock, clock()

    @property
    def done(self) -> int:
        """Instances so far."""
        return int(self.counts.sum())

    def add(self, counts: np.ndarray, names: Mapping[int, str]) -> None:
        """A block was committed."""
        self.counts, self.names = self.counts + counts, names

    def rate_and_left(self) -> tuple[str, str]:
        """`12.3/s` and `2:03 left`; empty while nothing is known of it."""
        rate = (self.done - self._before) / max(self._clock() - self._started, 1e-9)
        return (f"{rate:.3g}/s", f"{duration((self.total - self.done) / rate)} left") if rate > 0 else ("", "")

    def __str__(self) -> str:
        parts = (
            f"{self.done}/{self.total} instances",
            *self.rate_and_left(),
            outcomes_in_words(self.counts, self.names),
        )
        return f"{self.name}: {', '.join(part for part in parts if part)}"


class Silent:
    """No progress: whatever `Lines` and `Bar` are told, nothing is done."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


class Lines:
    """Lines of the logger `jaxflow.study`, one about every `interval` seconds (fewer than ten thousand a day), for
    where there is no terminal. They go to standard error unless logging is configured."""

    def __init__(self, interval: float = 10.0, clock: Callable[[], float] = time.monotonic):
        self._interval, self._clock = interval, clock
        self._tally: Tally | None = None
        self._busy, self._heard = "", False
        self._last = self._since = clock()
        self._ended = threading.Event()
        self._before, self._handler = (LOG.level, LOG.propagate), None
        if not (LOG.isEnabledFor(logging.INFO) and LOG.hasHandlers()):
            self._handler = logging.StreamHandler(sys.stderr)
            LOG.addHandler(self._handler)
            LOG.setLevel(logging.INFO)
            LOG.propagate = False
        # A block may take longer than a line may be late.
        self._thread = threading.Thread(target=self._tick, name="progress", daemon=True)

    def start(self, plan: Plan, counts: np.ndarray, names: Mapping[int, str]) -> None:
        """A run begins, where instances have these outcomes already; `names` are those of the codes."""
        self._tally = Tally(plan, counts, names, self._clock)
        LOG.info(str(self._tally))
        self._thread.start()

    def compiling(self, cell: str) -> None:
        """The first block of a cell begins."""
        if not self._busy and not self._heard:
            LOG.info("compiling %s", cell)
        self._busy, self._since = cell, self._clock()

    def compiled(self, cell: str, seconds: float, compiling: float) -> None:
        """It is there after `seconds`, in which the threads of this process compiled for `compiling` seconds."""
        # Of a study with many cells that compile at once, the lines of the interval tell enough.
        if not self._heard or seconds >= self._interval:
            told = "first block of %s after %.1f s; all threads together compiled for %.1f s"
            LOG.info(told, cell, seconds, compiling)
        self._heard, self._busy = True, ""

    def advance(self, counts: np.ndarray, names: Mapping[int, str]) -> None:
        """A block was committed."""
        if self._tally is not None:
            self._tally.add(counts, names)
        self.line()

    def line(self) -> None:
        """The next line, if it is due."""
        now = self._clock()
        if self._tally is not None and now - self._last >= self._interval:
            self._last = now
            busy = f"; compiling {self._busy} for {duration(now - self._since)}" if self._busy else ""
            LOG.info(f"{self._tally}{busy}")

    def _tick(self) -> None:
        while not self._ended.wait(self._interval / 10):
            self.line()

    def say(self, line: str) -> None:
        LOG.info("%s", line)

    def close(self) -> None:
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()
            LOG.info(str(self._tally))
        if self._handler is not None:
            LOG.removeHandler(self._handler)
            LOG.setLevel(self._before[0])
            LOG.propagate = self._before[1]


class Bar:
    """A bar on the terminal, by Rich."""

    def __init__(self, console: Any = None):
        from rich.console import Console, Group
        from rich.live import Live
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
        from rich.text import Text

        columns = (
            # The name of an experiment may hold brackets, which are no markup.
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
        )
        console = Console(stderr=True) if console is None else console
        self._bar = Progress(*columns, console=console)
        self._outcomes = Text()
        self._live = Live(Group(self._bar, self._outcomes), console=console, refresh_per_second=4)
        self._tally: Any = None
        self._task: Any = None

    def start(self, plan: Plan, counts: np.ndarray, names: Mapping[int, str]) -> None:
        self._tally = Tally(plan, counts, names, time.monotonic)
        self._task = self._bar.add_task(
            self._tally.name, total=self._tally.total, completed=self._tally.done, rate="", left=""
        )
        self._outcomes.plain = outcomes_in_words(counts, names)
        self._live.start()

    def compiling(self, cell: str) -> None:
        if self._task is not None:
            self._bar.update(self._task, description=f"compiling {cell}")

    def compiled(self, cell: str, seconds: float, compiling: float) -> None:
        if self._task is not None:
            self._bar.update(self._task, description=self._tally.name)

    def advance(self, counts: np.ndarray, names: Mapping[int, str]) -> None:
        self._tally.add(counts, names)
        rate, left = self._tally.rate_and_left()
        self._bar.update(self._task, completed=self._tally.done, rate=rate, left=left)
        self._outcomes.plain = outcomes_in_words(self._tally.counts, names)

    def say(self, line: str) -> None:
        self._live.console.print(line, markup=False, soft_wrap=True)

    def close(self) -> None:
        self._live.stop()


def progress_of(wanted: bool) -> Silent | Bar | Lines:
    """The progress that a caller sees: none, a bar on a terminal, else lines of the log."""
    return Silent() if not wanted else Bar() if sys.stderr.isatty() else Lines()


class FirstBlocks:
    """Tells a progress of the first block of each cell, and how much of its time went into compiling."""

    def __init__(self, progress: Any, clock: Callable[[], float] = time.monotonic):
        self._progress, self._clock, self._seconds = progress, clock, 0.0
        # Clock and seconds when the first block of a cell began; None once it is there.
        self._begun: dict[str, tuple[float, float] | None] = {}

    def begin(self, factors: Mapping[str, Any]) -> None:
        """A block of a cell begins."""
        cell = in_words(factors)
        if cell not in self._begun:
            self._begun[cell] = self._clock(), self._seconds
            self._progress.compiling(cell)

    def end(self, factors: Mapping[str, Any]) -> None:
        """A block of a cell is there."""
        cell = in_words(factors)
        if begun := self._begun.get(cell):
            started, before = begun
            self._begun[cell] = None
            self._progress.compiled(cell, self._clock() - started, self._seconds - before)

    def __enter__(self) -> "FirstBlocks":
        jax.monitoring.register_event_duration_secs_listener(self._heard)
        return self

    def __exit__(self, *_: Any) -> None:
        jax.monitoring.unregister_event_duration_listener(self._heard)

    def _heard(self, event: str, duration_secs: float, **_: Any) -> None:
        if event == COMPILING:
            self._seconds += duration_secs


def in_words(factors: Mapping[str, Any]) -> str:
    """`n=2, d=5`; of a study without factors its only cell."""
    return ", ".join(f"{name}={value}" for name, value in factors.items()) or "its one cell"


def outcomes_in_words(counts: np.ndarray, names: Mapping[int, str]) -> str:
    """`12 globally_optimal, 3 failed`: what occurred, in the order of the codes."""
    return ", ".join(f"{int(counts[code])} {name}" for code, name in names.items() if counts[code])


def duration(seconds: float) -> str:
    """`1:02:03`, or `2:03`."""
    hours, rest = divmod(round(seconds), 3600)
    minutes, left = divmod(rest, 60)
    return f"{hours}:{minutes:02d}:{left:02d}" if hours else f"{minutes}:{left:02d}"
