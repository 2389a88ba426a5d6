"""Where blocks are computed: in this thread, on all local devices, in any executor, or on a Dask cluster."""

import logging
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from queue import SimpleQueue
from typing import Any

import jax

from jaxflow._core import unknown_name
from jaxflow.study.blocks import Computer, Job, device_kind, pack
from jaxflow.study.experiment import AbstractExperiment
from jaxflow.study.results import BlockResult

KEPT = "Complete blocks are kept; run the same command again"


class Here(Executor):
    """An executor that does at once, in this thread, what it is given."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # handed on by the future, as any executor does
            future.set_exception(error)
        return future


@dataclass
class Engine:
    """Hands jobs to an executor of `concurrent.futures`, or to one that behaves like it.

    `capacity`: how many jobs it can use at once; `description`: for the log; `compute`: what is done with a job in this
    process, None where another one gets the experiment by name. `died`: errors by which a job tells that its process
    died; `ended`: those of an executor that takes no more, and `gone` what to do then; `close`: ends what was started
    for this engine. (An executor that was given is the caller's to end.)
    """

    computer: Computer
    executor: Any
    # For an executor of unknown size: enough jobs for a large cluster, a few kilobytes each.
    capacity: int = 256
    description: str = ""
    compute: Callable[[Job], BlockResult] | None = None
    died: tuple[type[Exception], ...] = ()
    ended: tuple[type[Exception], ...] = ()
    gone: str = f"executor: it was ended before the study was. {KEPT} with another one"
    close: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self.description = self.description or type(self.executor).__name__
        self.compute = self.compute or pack(self.computer.experiment)

    def submit(self, job: Job) -> "Future[BlockResult]":
        """Starts a job."""
        return self._submit(self.compute, job)

    def device_kind(self) -> str:
        """The kind of device that computes."""
        try:
            return self._submit(device_kind).result()
        except (BrokenExecutor, CancelledError) as error:
            raise self._ended(error) from error

    def lost_worker(self, error: BaseException) -> bool:
        """Whether `error` means that the computing process died, so that the job may be tried again.

        **Raises:** `RuntimeError` where the whole executor has ended, with what to do.
        """
        if isinstance(error, BrokenExecutor | CancelledError):
            raise self._ended(error) from error
        return isinstance(error, self.died)

    def _submit(self, *task: Any) -> "Future[Any]":
        try:
            return self.executor.submit(*task)
        # `concurrent.futures` raises a RuntimeError, of which BrokenExecutor is one.
        except (RuntimeError, CancelledError, *self.ended) as error:
            raise self._ended(error) from error

    def _ended(self, error: BaseException) -> RuntimeError:
        if isinstance(error, BrokenExecutor):
            # Which block broke it cannot be known.
            return RuntimeError(
                "executor: one of its processes died, which ends an executor of concurrent.futures. "
                f"{KEPT}, or use executor='dask', which survives it"
            )
        return RuntimeError(self.gone)


def devices_engine(computer: Computer) -> Engine:
    """A thread for each local device; a block runs whole on one of them, whichever is free."""
    devices, free = jax.local_devices(), SimpleQueue()
    for device in devices:
        free.put(device)

    def on_a_free_device(job: Job) -> BlockResult:
        device = free.get()
        try:
            return computer(job, device)
        finally:
            free.put(device)

    threads = ThreadPoolExecutor(len(devices), thread_name_prefix="study")
    return Engine(
        computer,
        threads,
        capacity=len(devices),
        description=f"devices: {', '.join(map(str, devices))}",
        compute=on_a_free_device,
        close=partial(threads.shutdown, cancel_futures=True),
    )


def dask_engine(computer: Computer, address: str | None) -> Engine:
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
    pack(computer.experiment)  # before anything is started
    cluster = None
    if address is None:
        # Every death is reported, and counted where the block is known; by default three go unmentioned.
        with dask.config.set({"distributed.scheduler.allowed-failures": 0}):
            cluster = _local_cluster(distributed)
    try:
        client = distributed.Client(address if cluster is None else cluster, set_as_default=False)
        if cluster is not None:
            # Processes of this machine take three seconds to start on two idle cores.
            client.wait_for_workers(len(cluster.worker_spec), timeout=120)
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
    return Engine(
        computer,
        client.get_executor(pure=False),
        # Not more than can run: a death is then blamed on blocks that were running. A cluster may grow.
        capacity=threads if cluster is not None else max(2 * threads, 16),
        description=f"dask: {where}, {threads} threads",
        died=(distributed.KilledWorker,),
        ended=(distributed.client.ClosedClientError,),
        gone=f"executor: the connection to the Dask scheduler at {where} was lost. {KEPT} when it is back, or with "
        "another executor",
        close=close,
    )


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
    with _importable():
        return distributed.SpecCluster(
            workers=dict.fromkeys(range(import_module("dask.system").CPU_COUNT), worker),
            scheduler={"cls": distributed.Scheduler, "options": {"host": "127.0.0.1", "port": 0, "dashboard": False}},
            worker=worker,
            silence_logs=quiet,
        )


@contextmanager
def _importable() -> Iterator[None]:
    """Processes that start inside find the modules of this one: one beside the caller's script, too."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(os.path.abspath(folder) for folder in sys.path)
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def make_engine(experiment: AbstractExperiment, executor: Any) -> Engine:
    """The engine that `executor` asks for.

    **Raises:** `ValueError` for an unknown name or kind, or an experiment that other processes cannot import.
    """
    computer = Computer(experiment)
    if executor is None or executor == "serial":
        return Engine(computer, Here(), capacity=1, description="serial", compute=computer)
    if executor == "devices":
        return devices_engine(computer)
    if isinstance(executor, str) and (executor == "dask" or "://" in executor):
        return dask_engine(computer, None if executor == "dask" else executor)
    if isinstance(executor, str):
        raise unknown_name("executor", executor, ["serial", "devices", "dask", "tcp://ADDRESS:PORT"])
    if callable(getattr(executor, "submit", None)):
        # Threads share what they compute.
        return Engine(computer, executor, compute=computer if isinstance(executor, ThreadPoolExecutor) else None)
    raise ValueError(f"executor: expected None, a name or a concurrent.futures executor, got {executor!r}")
