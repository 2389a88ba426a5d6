"""Where blocks are computed: in this thread, on all local devices, in any executor, or on a Dask cluster."""

import abc
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib import import_module
from queue import SimpleQueue
from typing import Any

import jax

from jaxflow._core import unknown_name
from jaxflow.study.blocks import Computer, Job, compute_elsewhere, device_kind, pack
from jaxflow.study.experiment import AbstractExperiment
from jaxflow.study.results import BlockResult

# Jobs handed to an executor whose size nobody knows: enough for a large cluster, a few kilobytes each.
IN_FLIGHT = 256
# Seconds that processes of this machine may take to start; three on two idle cores.
START = 120

KEPT = "Complete blocks are kept; run the same command again"


class AbstractEngine(abc.ABC):
    """Takes jobs, returns futures. A context manager: leaving it ends what it started."""

    # How many jobs it can use at once, and what else is written to the log.
    capacity: int = 1
    description: str = ""
    # What computes in this process, where something does.
    computer: Computer | None = None

    @abc.abstractmethod
    def submit(self, job: Job) -> "Future[BlockResult]":
        """Starts a job."""

    @abc.abstractmethod
    def device_kind(self) -> str:
        """The kind of device that computes."""

    def lost_worker(self, error: BaseException) -> bool:
        """Whether `error` says that the process died that was computing, so that the job may be tried again.

        **Raises:** `RuntimeError` where the whole executor has ended, with what to do.
        """
        return False

    def close(self) -> None:
        """Ends what the engine started itself; an executor that was given is the caller's to end."""
        return None


class SerialEngine(AbstractEngine):
    """One block at a time, in this thread, on the first device."""

    def __init__(self, experiment: AbstractExperiment):
        self._compute = self.computer = Computer(experiment)
        self.description = "serial"

    def submit(self, job: Job) -> "Future[BlockResult]":
        future: Future[BlockResult] = Future()
        try:
            future.set_result(self._compute(job))
        except Exception as error:  # handed on by the future, as any executor does
            future.set_exception(error)
        return future

    def device_kind(self) -> str:
        return device_kind()


class DevicesEngine(AbstractEngine):
    """A thread for each local device; a block runs whole on one of them, whichever is free."""

    def __init__(self, experiment: AbstractExperiment):
        devices = jax.local_devices()
        self._compute = self.computer = Computer(experiment)
        self._free: SimpleQueue[Any] = SimpleQueue()
        for device in devices:
            self._free.put(device)
        self.capacity = len(devices)
        self.description = f"devices: {', '.join(map(str, devices))}"
        self._threads = ThreadPoolExecutor(len(devices), thread_name_prefix="study")

    def submit(self, job: Job) -> "Future[BlockResult]":
        return self._threads.submit(self._on_a_free_device, job)

    def _on_a_free_device(self, job: Job) -> BlockResult:
        device = self._free.get()
        try:
            return self._compute(job, device)
        finally:
            self._free.put(device)

    def device_kind(self) -> str:
        return device_kind()

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)


class ExecutorEngine(AbstractEngine):
    """Any executor of `concurrent.futures`, or one that behaves like it."""

    def __init__(
        self,
        experiment: AbstractExperiment,
        executor: Any,
        *,
        capacity: int = IN_FLIGHT,
        lost: Callable[[BaseException], bool] | None = None,
        ended: tuple[type[Exception], ...] = (),
        gone: str = f"executor: it was ended before the study was. {KEPT} with another one",
        close: Callable[[], None] | None = None,
    ):
        # Threads share what they compute; anything else gets it by name.
        threads = isinstance(executor, ThreadPoolExecutor)
        self.computer = Computer(experiment) if threads else None
        self._task = self.computer if threads else partial(compute_elsewhere, pack(experiment))
        self._executor = executor
        self._lost = lost
        # What it raises when asked for more: `concurrent.futures` a RuntimeError, of which BrokenExecutor is one.
        self._takes_no_more = (RuntimeError, CancelledError, *ended)
        self._gone = gone
        self._close = close
        self.capacity = capacity
        self.description = type(executor).__name__

    def submit(self, job: Job) -> "Future[BlockResult]":
        return self._submit(self._task, job)

    def device_kind(self) -> str:
        try:
            return self._submit(device_kind).result()
        except (BrokenExecutor, CancelledError) as error:
            raise self._ended(error) from error

    def lost_worker(self, error: BaseException) -> bool:
        if isinstance(error, BrokenExecutor | CancelledError):
            raise self._ended(error) from error
        return self._lost is not None and self._lost(error)

    def _submit(self, *task: Any) -> "Future[Any]":
        try:
            return self._executor.submit(*task)
        except self._takes_no_more as error:
            raise self._ended(error) from error

    def _ended(self, error: BaseException) -> RuntimeError:
        if isinstance(error, BrokenExecutor):
            # Which block broke it cannot be known.
            return RuntimeError(
                "executor: one of its processes died, which ends an executor of concurrent.futures. "
                f"{KEPT}, or use executor='dask', which survives it"
            )
        return RuntimeError(self._gone)

    def close(self) -> None:
        if self._close is not None:
            self._close()


def dask_engine(experiment: AbstractExperiment, address: str | None) -> AbstractEngine:
    """Dask Distributed: the scheduler at `address`, or a cluster on this machine (a process for each core).

    Each worker should have one thread and, where there are GPUs, one of them.

    **Raises:** `ImportError` that names the extra; `ValueError` for a cluster of cores where JAX computes on GPUs;
    `OSError` where no scheduler answers.
    """
    if address is None and jax.default_backend() != "cpu":
        raise ValueError(
            "executor: 'dask' starts a process for each core, which would share one accelerator. Use 'devices' for "
            "all of this machine, or start a worker for each (one thread, its own CUDA_VISIBLE_DEVICES) and give the "
            "scheduler's tcp://HOST:PORT"
        )
    try:
        # By name: it may not be there, and where it is, its annotations say less than its documentation.
        dask: Any = import_module("dask")
        distributed: Any = import_module("distributed")
    except ImportError as error:
        raise ImportError("executor: Dask is not installed; it comes with the extra `cluster` of jaxflow") from error
    pack(experiment)  # before anything is started
    cluster = None
    if address is None:
        # Every death is reported, and counted where the block is known; by default three go unmentioned.
        with dask.config.set({"distributed.scheduler.allowed-failures": 0}):
            cluster = _local_cluster(distributed)
    try:
        client = distributed.Client(address if cluster is None else cluster, set_as_default=False)
        if cluster is not None:
            client.wait_for_workers(len(cluster.worker_spec), timeout=START)
    except Exception as error:
        if cluster is not None:
            cluster.close()
        elif isinstance(error, OSError):
            raise type(error)(
                f"executor: no Dask scheduler answers at {address}; start one there, or name another"
            ) from error
        raise

    quiet = ExitStack()
    # Of a scheduler that goes away Dask tells with a traceback; the engine does so in one sentence.
    quiet.enter_context(_quiet("distributed.batched", logging.WARNING))
    # So does the event loop, for a future whose answer was under way.
    quiet.enter_context(_quiet("tornado.application", logging.CRITICAL))

    def close() -> None:
        # A client whose scheduler is gone is still looking for it, and would tell of that at length, too.
        with quiet, _quiet("distributed.client", 0 if client.status == "running" else logging.CRITICAL + 1):
            client.close()
        if cluster is not None:
            cluster.close()

    threads, where = sum(client.nthreads().values()), client.scheduler_info()["address"]
    engine = ExecutorEngine(
        experiment,
        client.get_executor(pure=False),
        # Not more than can run: a death is then blamed on blocks that were running. A cluster may grow.
        capacity=threads if cluster is not None else max(2 * threads, 16),
        lost=lambda error: isinstance(error, distributed.KilledWorker),
        ended=(distributed.client.ClosedClientError,),
        gone=f"executor: the connection to the Dask scheduler at {where} was lost. {KEPT} when it is back, or with "
        "another executor",
        close=close,
    )
    engine.description = f"dask: {where}, {threads} threads"
    return engine


@contextmanager
def _quiet(logger: str, level: int) -> Iterator[None]:
    """Nothing below this level is logged under this name meanwhile."""
    log = logging.getLogger(logger)
    before = log.level
    log.setLevel(max(level, log.getEffectiveLevel()))
    try:
        yield
    finally:
        log.setLevel(before)


def _local_cluster(distributed: Any) -> Any:
    """A process for each core of this machine, with one thread each, and the scheduler in this one."""
    if sys.platform == "win32":
        # Processes of the other kind do not start there. These import the caller's script again, which then has to
        # keep its study below `if __name__ == "__main__":`.
        return distributed.LocalCluster(threads_per_worker=1, processes=True, dashboard_address=None)
    processes: Any = import_module("distributed.deploy.subprocess")
    quiet = logging.WARNING
    options = {"host": "127.0.0.1", "nthreads": 1, "silence_logs": quiet}
    worker = {
        "cls": processes.SubprocessWorker,
        "options": {"worker_class": "distributed.Nanny", "worker_kwargs": options},
    }
    with _importable(sys.path):
        return distributed.SpecCluster(
            workers=dict.fromkeys(range(import_module("dask.system").CPU_COUNT), worker),
            scheduler={"cls": distributed.Scheduler, "options": {"host": "127.0.0.1", "port": 0, "dashboard": False}},
            worker=worker,
            silence_logs=quiet,
        )


@contextmanager
def _importable(folders: Sequence[str]) -> Iterator[None]:
    """Processes that start inside find modules in these folders: one beside the caller's script, too."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(os.path.abspath(folder) for folder in folders)
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def make_engine(experiment: AbstractExperiment, executor: Any) -> AbstractEngine:
    """The engine that `executor` asks for.

    **Raises:** `ValueError` for an unknown name or kind, or an experiment that other processes cannot import.
    """
    if executor is None or executor == "serial":
        return SerialEngine(experiment)
    if executor == "devices":
        return DevicesEngine(experiment)
    if executor == "dask":
        return dask_engine(experiment, None)
    if isinstance(executor, str) and "://" in executor:
        return dask_engine(experiment, executor)
    if isinstance(executor, str):
        raise unknown_name("executor", executor, ["serial", "devices", "dask", "tcp://ADDRESS:PORT"])
    if isinstance(executor, Executor) or callable(getattr(executor, "submit", None)):
        return ExecutorEngine(experiment, executor)
    raise ValueError(f"executor: expected None, a name or a concurrent.futures executor, got {executor!r}")
