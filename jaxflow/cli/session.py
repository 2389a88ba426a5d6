"""What a command switches on for itself, and how it answers. Importing jaxflow configures nothing."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console

EXIT_CODES = """Exit codes: 0 done; 1 something failed while computing; 2 wrong arguments, files in the way, or numbers
of another run; 3 a study is not complete (`study status`); 130 stopped by Ctrl-C (the same command goes on)."""

AsJson = Annotated[bool, typer.Option("--json", help="Print the table as JSON; progress goes to standard error.")]


def examples(*lines: str) -> str:
    """The end of a command's help."""
    # Click leaves the lines of such a paragraph as they are.
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def consoles(as_json: bool) -> Console:
    """Where progress and tables go: standard output, which JSON has for itself."""
    return Console(file=sys.stderr if as_json else sys.stdout)


def print_json(value: Any) -> None:
    """One JSON document on standard output; infinities and NaN, which JSON does not know, as strings."""
    typer.echo(json.dumps(_known(value), indent=2, allow_nan=False))


def _known(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _known(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_known(entry) for entry in value]
    if isinstance(value, float) and (value != value or abs(value) == float("inf")):
        return str(value)
    return value if isinstance(value, int | float | bool | str) or value is None else str(value)


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


BAD_INPUT = (ValueError, FileExistsError, NotADirectoryError)


@contextmanager
def in_one_line(*kinds: type[BaseException]) -> Iterator[None]:
    """Errors of these kinds end the command in one line: with exit code 2 where they name an argument, else 1. So does
    a study that Ctrl-C has stopped."""
    try:
        yield
    except kinds as error:
        notes = "".join(f"\n{note}" for note in getattr(error, "__notes__", ()))
        print_plainly(f"Error: {error}{notes}", error=True, style="red")
        named = isinstance(error, (*BAD_INPUT, FileNotFoundError))
        raise typer.Exit(2 if named else 1) from error
    except KeyboardInterrupt as stop:
        from jaxflow.study import Interrupted

        if not isinstance(stop, Interrupted):
            raise
        print_plainly(str(stop), error=True)
        # As a shell reports of a command that Ctrl-C ended.
        raise typer.Exit(130) from stop


def print_plainly(text: str, *, error: bool = False, style: str | None = None) -> None:
    """Text as it is, whatever its brackets and its width, on standard output or on standard error."""
    console = Console(file=sys.stderr if error else sys.stdout, soft_wrap=True)
    console.print(text, style=style, markup=False, highlight=False)
