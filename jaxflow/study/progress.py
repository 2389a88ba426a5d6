"""How far a study has come, driven between blocks: rate, time left and outcomes so far."""

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxflow._core import Outcome
from jaxflow.study.plan import Plan

OUTCOMES = {int(code): code.name for code in Outcome}


class Silent:
    """No progress."""

    def start(self, plan: Plan, counts: np.ndarray, blocks: int, names: Mapping[int, str]) -> None:
        """A run begins where `blocks` are complete, with these outcomes; `names` are those of the codes."""

    def advance(self, counts: np.ndarray, names: Mapping[int, str]) -> None:
        """A block was committed."""

    def say(self, line: str) -> None:
        """One line for the user."""

    def close(self) -> None:
        """The run has ended."""


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
        self._task: Any = None

    def start(self, plan: Plan, counts: np.ndarray, blocks: int, names: Mapping[int, str]) -> None:
        self._counts = np.array(counts)
        self._before = int(counts.sum())
        self._total = plan.instance_count
        self._started = time.monotonic()
        self._task = self._bar.add_task(
            plan.experiment["name"],
            total=self._total,
            completed=self._before,
            rate="",
            left="",
        )
        self._outcomes.plain = outcomes_in_words(self._counts, names)
        self._live.start()

    def advance(self, counts: np.ndarray, names: Mapping[int, str]) -> None:
        self._counts = self._counts + counts
        done = int(self._counts.sum())
        rate = (done - self._before) / max(time.monotonic() - self._started, 1e-9)
        self._bar.update(
            self._task,
            completed=done,
            rate=f"{rate:.3g}/s",
            left=f"{duration((self._total - done) / rate)} left" if rate > 0 else "",
        )
        self._outcomes.plain = outcomes_in_words(self._counts, names)

    def say(self, line: str) -> None:
        self._live.console.print(line, markup=False, soft_wrap=True)

    def close(self) -> None:
        self._live.stop()


def outcomes_in_words(counts: np.ndarray, names: Mapping[int, str] = OUTCOMES) -> str:
    """`12 globally_optimal, 3 failed`: what occurred, in the order of the codes."""
    return ", ".join(f"{int(counts[code])} {name}" for code, name in names.items() if counts[code])


def duration(seconds: float) -> str:
    """`1:02:03`, or `2:03`."""
    hours, rest = divmod(round(seconds), 3600)
    minutes, left = divmod(rest, 60)
    return f"{hours}:{minutes:02d}:{left:02d}" if hours else f"{minutes}:{left:02d}"
