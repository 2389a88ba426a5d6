"""What compilation costs, and how little of it is needed: options for programs that run once, and the cache on disk."""

import functools
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, Generic, ParamSpec, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from jaxflow._core.checks import as_path, is_concrete

P = ParamSpec("P")
R = TypeVar("R")


# Passes of XLA over loops. Programs here are loops within loops, of hundreds of arrays each: looking for what does not
# change in them takes a third of a compilation (33 s of processor time for (K, Q) of `find_limit`, without them 22 s),
# and what it finds saves nothing that could be measured.
LOOP_PASSES = "while-loop-invariant-code-motion,simplify-while-loops"


def quick_options(level: int = 0) -> dict[str, Any]:
    """Options of a compilation that is done sooner, for a program that runs a few times.

    On CPU: optimisation by LLVM at `level`, LLVM's kernel emitter in place of MLIR's for fusions,
    and no `LOOP_PASSES`. None elsewhere. Results agree to rounding.

    At level 0 `find_limit` compiles in less than a third of the processor time, and runs in 0.18 s rather than 0.08 s.
    At level 1 the first block of a study (500 of W at (5, 5, 4), nothing compiled) takes 30 s rather than 52 s, and
    47 s of processor time rather than 88 s; the next ones take 0.7 s, as before. At level 0 they take twice as long.
    """
    fewer = bool(jax.config.values["jax_disable_most_optimizations"])
    return _known_options(jax.default_backend(), 0 if fewer else level)


@functools.cache
def _known_options(backend: str, level: int) -> dict[str, Any]:
    quick = {
        "xla_backend_optimization_level": level,
        "xla_cpu_use_fusion_emitters": False,
        "xla_disable_hlo_passes": LOOP_PASSES,
    }
    wanted = quick if backend == "cpu" else {}

    def known(options: dict[str, Any]) -> bool:
        try:
            jax.jit(lambda: 0, compiler_options=options).lower().compile()
        except jax.errors.JaxRuntimeError:
            # XLA promises no option to the next version; without one the same program is compiled more slowly.
            return False
        return True

    return wanted if known(wanted) else {name: value for name, value in wanted.items() if known({name: value})}


class Compiled(Generic[P, R]):
    """`equinox.filter_jit` of a function, with `quick_options` where what is given is concrete and outside of any
    transformation.

    Within `jit`, `vmap`, `grad` and so on the function is part of a larger program, whose options are its caller's.
    """

    def __init__(self, function: Callable[P, R], level: int, long: Callable[..., bool] | None = None):
        self._function, self._level, self._long = function, level, long
        self._within: Callable[P, R] = eqx.filter_jit(function)
        functools.update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        # Operations on constants are staged too where everything is: inside `jit`, even with concrete arguments.
        outermost = is_concrete(args, kwargs, jnp.zeros(()))
        quick = outermost and not (self._long is not None and self._long(*args, **kwargs))
        return (self._alone if quick else self._within)(*args, **kwargs)

    def lower(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """The program of one call by itself, to be compiled."""
        return self._alone.lower(*args, **kwargs)

    @functools.cached_property
    def _alone(self) -> Any:
        # The backend is known at the first call, not at import.
        jit: Any = eqx.filter_jit  # hands other keywords on to `jax.jit`, which its overloads do not say
        return jit(self._function, compiler_options=quick_options(self._level))


def compiled_once(function: Callable[P, R], long: Callable[..., bool] | None = None) -> Compiled[P, R]:
    """A function that runs a few times for each shape: compiling it dominates, but for arguments that are `long`."""
    return Compiled(function, 0, long)


def compiled_often(function: Callable[P, R]) -> Compiled[P, R]:
    """A function that runs on block after block."""
    return Compiled(function, 1)


def compiled_around(
    first: Callable[P, Any],
    between: Callable[[Any], Any],
    last: Callable[[Any], R],
    long: Callable[..., bool] | None = None,
) -> Callable[P, R]:
    """`last(between(first(...)))`: of one concrete instance `first` and `last` are two programs, as `compiled_once`
    makes them, the second compiled while the first is and while `between` goes on, which compiles what it likes.

    `first` returns arrays of numbers and what is fixed, in any structure; `between` keeps it, shapes and types too. For
    arguments that are `long` both are compiled in full.
    """

    @eqx.filter_jit
    def within(*args: P.args, **kwargs: P.kwargs) -> R:
        return last(between(first(*args, **kwargs)))

    # Of each thread that calls: the compilation of `last` that its last call began, if any.
    begun = threading.local()

    @functools.cache
    def alone(in_full: bool) -> tuple[Any, Any]:
        jit: Any = eqx.filter_jit
        options = {} if in_full else quick_options()
        end = jit(last, compiler_options=options)

        def begin(*args: P.args, **kwargs: P.kwargs) -> Any:
            state = strongly_typed(first(*args, **kwargs))
            # This function runs when it is traced, before it is compiled, and not again for the same shapes.
            like = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype) if eqx.is_array(x) else x, state)
            begun.compilation = compile_beside(end, like)
            return state

        return jit(begin, compiler_options=options), end

    @functools.wraps(first)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if not is_concrete(args, kwargs, jnp.zeros(())):
            return within(*args, **kwargs)
        begin, end = alone(long is not None and long(*args, **kwargs))
        begun.compilation = None
        state = begin(*args, **kwargs)
        # `between` may come back here for another instance.
        compilation = begun.compilation
        state = between(state)
        if compilation is not None:
            # Whether it failed is seen by the call, under the settings that hold there and not in the thread.
            wait([compilation])
        return end(state)

    return call


def strongly_typed(tree: Any) -> Any:
    """The same arrays: numbers of weak type would be other arguments to a program than arrays of the same dtype."""
    return jax.tree.map(lambda x: jax.lax.convert_element_type(x, x.dtype) if eqx.is_array(x) else x, tree)


def compile_beside(program: Any, *like: Any) -> Future[Any]:
    """Lowers a program of `eqx.filter_jit` for arguments like these, and compiles it in a thread of its own.

    A call that follows the end of it finds the program compiled. A failure to compile is seen by the call. Tracing
    and lowering hold Python's lock, so that two of them at a time take longer than one after the other; compiling does
    not.
    """
    lowered = program.lower(*like)
    threads = ThreadPoolExecutor(1, thread_name_prefix="compilation")
    found = threads.submit(lowered.compile)
    threads.shutdown(wait=False)
    return found


@compiled_once
def normal(key: Key[Array, ""], shape: tuple[int, ...]) -> Float[Array, "..."]:
    """Standard Gaussian numbers: `jax.random.normal`, which takes XLA three seconds to compile and to run a moment."""
    return jax.random.normal(key, shape)


def compilation_cache(folder: str | os.PathLike[str] | None = None) -> Path:
    """Keeps compiled programs on disk from one process to the next. Call it once, before anything is computed.

    A setting of JAX for the whole process, which nothing else in the library touches. The commands call it themselves.
    Small programs are kept too, which JAX by itself does not do. A program compiled by another version of JAX,
    or for another processor, is not found again; the folder may be deleted at any time.

    **Arguments:** `folder`: where; by default what `JAX_COMPILATION_CACHE_DIR` says, or this platform's folder for what
    can be made again (`XDG_CACHE_HOME`, `LOCALAPPDATA` or `~/.cache`) with `jaxflow/xla` below it.

    **Returns:** the folder in use.

    **Example:**

    ```python
    jf.compilation_cache()  # compiled programs stay on disk for the next process
    ```
    """
    if folder is not None:
        as_path("folder", folder)
    known: str | None = jax.config.values["jax_compilation_cache_dir"]
    if folder is not None or known is None:
        path = cache_folder() if folder is None else Path(folder).expanduser()
        path.mkdir(parents=True, exist_ok=True)
        known = str(path)
        jax.config.update("jax_compilation_cache_dir", known)
    # Small programs are many, and reading one back takes a few milliseconds where compiling takes twenty.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    return Path(known)


def cache_folder() -> Path:
    """Where this platform keeps what can be made again."""
    base = os.environ.get("XDG_CACHE_HOME") or (os.environ.get("LOCALAPPDATA") if os.name == "nt" else None)
    return (Path(base) if base else Path.home() / ".cache") / "jaxflow" / "xla"
