"""What a command switches on for itself. Importing jaxflow configures nothing."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console

# XLA's CPU backend runs a program on a pool of threads. What hands parts of its work to the same pool and waits for
# them can wait for good: FFT and products of matrices are told not to, LAPACK is called for one matrix at a time.
ONE_THREAD_A_CALL = "--xla_cpu_multi_thread_eigen=false"


def configure() -> None:
    """Double precision, a cache of compiled programs that outlives the command, and no waiting within XLA's pool.

    Call it before JAX computes anything: XLA reads its environment once.
    """
    import jax

    from jaxflow._core import compilation_cache

    flags = os.environ.get("XLA_FLAGS", "")
    if "xla_cpu_multi_thread_eigen" not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {ONE_THREAD_A_CALL}".strip()
    jax.config.update("jax_enable_x64", True)
    compilation_cache()


# What a shell reports of a command that Ctrl-C ended.
INTERRUPTED = 130


@contextmanager
def bad_input_is_exit_2() -> Iterator[None]:
    """Errors that name an argument end the command in one line. For what looks at arguments and computes nothing."""
    try:
        yield
    except (ValueError, FileExistsError, NotADirectoryError) as error:
        raise _in_one_line(error, 2) from error


@contextmanager
def going_on() -> Iterator[None]:
    """Numbers of an earlier run that do not fit end the command in one line, and so does Ctrl-C."""
    from jaxflow.papers import OtherNumbers
    from jaxflow.study import Interrupted

    try:
        yield
    except OtherNumbers as error:
        raise _in_one_line(error, 2) from error
    except Interrupted as stop:
        raise _in_one_line(stop, INTERRUPTED) from stop


def _in_one_line(error: BaseException, code: int) -> typer.Exit:
    text = str(error) if isinstance(error, KeyboardInterrupt) else f"Error: {error}"
    Console(stderr=True, soft_wrap=True).print(text, style="red", markup=False, highlight=False)
    return typer.Exit(code)
