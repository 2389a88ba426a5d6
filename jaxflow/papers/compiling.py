"""Functions of one instance as compiled programs for batches, and several programs compiled at a time."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial, wraps
from typing import Any

import jax

from jaxflow._core import quick_options


def mapped(static: int = 0, axes: Any = 0, out_axes: int = 0) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A function of one instance, mapped over a batch and compiled.

    **Arguments:** how many of the function's first arguments are `static`, fixed in the compiled program; `axes` of the
    others, and `out_axes`: as `in_axes` and `out_axes` of `jax.vmap`.
    """

    def decorate(one: Callable[..., Any]) -> Callable[..., Any]:
        @partial(jax.jit, static_argnums=tuple(range(static)))
        @wraps(one)
        def batch(*arguments: Any) -> Any:
            fixed, rest = arguments[:static], arguments[static:]
            return jax.vmap(partial(one, *fixed), in_axes=axes, out_axes=out_axes)(*rest)

        return batch

    return decorate


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
