"""Several programs compiled at a time: compilation is most of what a small run waits for."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

import jax

from jaxflow._core import quick_options


def compile_together(
    jobs: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]],
    *,
    fast: bool = False,
) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Compiles `function(*arguments)` for every job, in threads: XLA works outside of Python's lock.

    Only compilation is concurrent.

    **Arguments:** `jobs`: functions of arrays with example arguments, by name; `fast`: compile for runs that take
    less time than compiling (see `quick_options`).

    **Yields:** name and function, to be called with arguments of the same shapes, as they get ready.
    """
    options: dict[str, Any] = {**quick_options()} if fast else {}

    def compiled(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Callable[..., Any]:
        return jax.jit(function).lower(*arguments).compile(compiler_options=options)

    with ThreadPoolExecutor(max_workers=max(1, len(jobs))) as pool:
        futures = {pool.submit(compiled, *job): name for name, job in jobs.items()}
        for future in as_completed(futures):
            yield futures[future], future.result()
