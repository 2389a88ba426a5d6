"""The loop of a study: submit blocks, commit their results, continue after failures."""

import signal
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from contextlib import contextmanager
from typing import Any

import numpy as np

from jaxflow._core import Outcome
from jaxflow.study.blocks import common_layout, filled_up, job_of
from jaxflow.study.executors import Engine
from jaxflow.study.files import write_log
from jaxflow.study.plan import Index
from jaxflow.study.progress import FirstBlocks
from jaxflow.study.results import CODES, BlockResult, failed_block, names_of_codes
from jaxflow.study.store import Store, counted

# A block that was being computed whenever a worker died, this many times, is given up as `failed`.
DEATHS = 3


class Interrupted(KeyboardInterrupt):
    """The study was interrupted; blocks in flight were finished, and the message names the command that resumes it."""


class Run:
    """One run: blocks to compute, blocks in flight, and blocks that may have killed a worker."""

    def __init__(self, store: Store, engine: Engine, progress: Any):
        self.store = store
        # What all results look like; None where nothing tells it before the first block.
        self.layout = store.variables
        self.first_blocks = FirstBlocks(progress)
        self.engine = engine
        self.progress = progress
        self.stop = threading.Event()
        self._waiting: deque[Index] = deque(store.pending())
        self._suspects: deque[Index] = deque()
        self._given_up: list[Index] = []
        self._deaths: dict[Index, int] = {}
        self._flying: dict[Future[BlockResult], Index] = {}
        store.done = store.plan.block_count - len(self._waiting)

    def __call__(self) -> None:
        """Until every block is complete, or the run is stopped.

        **Raises:** `Interrupted`; `OSError` for a full disk; whatever the experiment raised.
        """
        store, total = self.store, self.store.plan.block_count
        missing = set(self._waiting)
        complete = [index for index in store.plan.blocks() if index not in missing]
        self.progress.start(
            store.plan, counted(store.path, store.plan, complete), names_of_codes(store.variables or ())
        )
        try:
            with self._first_interrupt_stops(), self.first_blocks:
                if self.layout is None and self._waiting:
                    self.first_blocks.begin(store.plan.values_at(self._waiting[0]))
                    self.layout = common_layout(self.engine.computer, store.plan)
                if complete and self._waiting:
                    self._audit(complete)
                while self._submit():
                    self._collect()
                for index in self._given_up:
                    self._give_up(index)
        finally:
            for future in self._flying:
                future.cancel()
        if store.done < total:
            raise Interrupted(
                f"stopped; {store.done} of {total} blocks are complete in {store.shown}. "
                "Run the same command again, or `jaxflow study resume`, to finish it"
            )

    def _audit(self, complete: list[Index]) -> None:
        """Computes one complete block again: a resume that would not continue the same results is refused."""
        first = self._waiting[0]
        # The nearest before it, most likely of the same cell, whose function is needed anyway.
        ordered = [index for index in reversed(complete) if index < first] + complete
        index = next((index for index in ordered if not self._was_given_up(index)), None)
        if index is None:
            return
        future = self._sent(index)
        error = _error(future)
        if error is not None and self.engine.lost_worker(error):
            self._log({"event": "worker lost", "block": list(index), "times": 1})
            return
        result = filled_up(future.result(), self.layout)
        self.store.check_layout(result.layout, self.store.plan.values_at(index))
        self.store.check_again(index, result.arrays)

    def _log(self, entry: dict[str, Any]) -> None:
        with self.store.explained():
            write_log(self.store.path, entry)

    def _was_given_up(self, index: Index) -> bool:
        # Or failed in every trial by itself, which is no more worth repeating.
        counts = counted(self.store.path, self.store.plan, [index])
        return int(counts[Outcome.failed]) == len(self.store.plan.trials_of(index))

    def _submit(self) -> bool:
        """Fills the engine. Suspects run alone, when all others are done: the next death is theirs."""
        while not self.stop.is_set() and self._waiting and len(self._flying) < self.engine.capacity:
            self._start(self._waiting.popleft())
        if not self.stop.is_set() and not self._flying and self._suspects:
            self._start(self._suspects.popleft())
        return bool(self._flying)

    def _start(self, index: Index) -> None:
        self._flying[self._sent(index)] = index

    def _sent(self, index: Index) -> "Future[BlockResult]":
        plan = self.store.plan
        job = job_of(plan, self.engine.computer.experiment, plan.values_at(index), plan.trials_of(index).start, index)
        self.first_blocks.begin(job.factors)
        return self.engine.submit(job)

    def _collect(self) -> None:
        # A timeout lets signals in on platforms where a lock does not; and what an executor drops that somebody else
        # has ended is done, which `wait` alone does not see.
        wait(self._flying, timeout=0.5, return_when=FIRST_COMPLETED)
        done = [future for future in self._flying if future.done()]
        if self.stop.is_set():
            for future in [f for f in self._flying if f.cancel()]:
                del self._flying[future]
            done = [future for future in done if future in self._flying]
        for future in done:
            index = self._flying.pop(future)
            error = _error(future)
            if error is None:
                self._commit(index, filled_up(future.result(), self.layout))
            elif self.engine.lost_worker(error):
                self._lost(index)
            else:
                factors = self.store.plan.values_at(index)
                error.add_note(f"in trials {self.store.plan.trials_of(index)} at {factors}; complete blocks are kept")
                raise error

    def _lost(self, index: Index) -> None:
        self._deaths[index] = self._deaths.get(index, 0) + 1
        self._log({"event": "worker lost", "block": list(index), "times": self._deaths[index]})
        if self._deaths[index] >= DEATHS:
            self._given_up.append(index)
        elif self._deaths[index] == DEATHS - 1:
            self._suspects.append(index)
        else:
            self._waiting.append(index)

    def _give_up(self, index: Index) -> None:
        if self.store.variables is None:
            raise RuntimeError("executor: workers died in every block that was tried; nothing could be computed")
        arrays = failed_block(self.store.variables, self.store.plan.block)
        self._log({"event": "given up", "block": list(index)})
        self._commit(index, BlockResult(arrays, self.store.variables, {}))

    def _commit(self, index: Index, result: BlockResult) -> None:
        self.store.commit(index, result.arrays, result.layout)
        self.first_blocks.end(self.store.plan.values_at(index))
        self.store.done += 1
        if result.where:
            self._log({"event": "block", "block": list(index), **result.where})
        count = len(self.store.plan.trials_of(index))
        counts = np.bincount(result.arrays["outcome"][:count], minlength=CODES)
        self.progress.advance(counts, names_of_codes(self.store.variables or ()))

    @contextmanager
    def _first_interrupt_stops(self) -> Iterator[None]:
        """The first Ctrl-C finishes what is in flight; a second one does what it always does."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.getsignal(signal.SIGINT)

        def stop(*_: Any) -> None:
            self.stop.set()
            self.progress.say("Finishing the blocks in flight; Ctrl-C again to leave at once.")
            signal.signal(signal.SIGINT, before)

        signal.signal(signal.SIGINT, stop)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)


def _error(future: "Future[BlockResult]") -> BaseException | None:
    """What it ended with: that the executor dropped it, too."""
    try:
        return future.exception()
    except CancelledError as dropped:
        return dropped
