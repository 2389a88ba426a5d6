"""The progress of `find_limit`, on request: the cost of a call before it, and the state of the flow meanwhile."""

import dataclasses
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

import jax

from jaxflow._core import is_concrete, require

R = TypeVar("R")


def to_stderr(line: str) -> None:
    """Lines on standard error for a person at the terminal; standard output stays the program's own."""
    print(line, file=sys.stderr, flush=True)


class Progress:
    """The lines of one call.

    **Arguments:** `progress`: False for none, True for standard error, or a function that receives each line; `name`
    of the function that was called; `risk`, `model`: the instance. **Raises:** `ValueError` under `jit` or `vmap`.
    """

    def __init__(self, progress: Any, name: str, risk: Any, model: Any):
        require(
            isinstance(progress, bool) or callable(progress),
            "progress",
            "expected True, False or a function of a line",
            got=progress,
        )
        self._say = (to_stderr if progress else None) if isinstance(progress, bool) else progress
        self._name = name
        if self._say is None:
            return
        concrete = is_concrete(jax.tree.leaves((risk, model)))
        require(concrete, "progress", "one instance at a time, outside of jit and vmap; studies show their own")
        self._begun = time.monotonic()
        given = {} if risk.data is None else vars(risk.data)
        shapes = ", ".join(f"{k} {x.shape}" for k, x in given.items() if hasattr(x, "shape")) or "margins of its own"
        self._say(
            f"{name}: {type(model).__name__}, {shapes}. The first call for these shapes compiles for some seconds, or "
            "half a minute on a slow machine (see jaxflow.compilation_cache); steps are counted below"
        )

    def method(self, method: Any) -> Any:
        """The method with a `report` of where it is; a method without such a field is returned unchanged."""
        if self._say is None or not any(f.name == "report" for f in dataclasses.fields(method)):
            return method
        return dataclasses.replace(method, report=self._say)

    def done(self, limit: Any) -> None:
        """Says how it ended, once it has."""
        if self._say is not None:
            steps = int(limit.trajectory.stats["num_steps"])
            self._say(f"{self._name}: {limit.outcome}, {steps} steps, {time.monotonic() - self._begun:.1f} s in all")


def told(
    find: Callable[[Any], R],
    method: Any,
    risk: Any,
    model: Any,
    *,
    throw: bool,
    progress: Any,
    name: str = "find_limit",
) -> R:
    """`find(method)`, a limit or several of one path, with its progress. **Raises:** `RuntimeError` if `throw` and a
    concrete one failed."""
    lines = Progress(progress, name, risk, model)
    found = find(lines.method(method))
    limits: Any = found if isinstance(found, tuple) else (found,)
    lines.done(limits[0])
    for h, limit in enumerate(limits):
        if throw and is_concrete(limit.outcome) and limit.outcome.value.ndim == 0 and limit.outcome == "failed":
            which = "" if len(limits) == 1 else f" (layer {h})"
            raise RuntimeError(f"{name}: {limit}{which} Pass throw=False to look at the limit")
    return found
