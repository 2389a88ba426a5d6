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
    """`find(method)`, a limit or several of one path, with its progress.

    **Arguments:** `progress`: False for none, True for standard error, or a function that receives each line; the
    method then has a `report` of where it is, if it has such a field. `name` of the function that was called.
    **Raises:** `ValueError` for progress under `jit` or `vmap`; `RuntimeError` if `throw` and a concrete limit failed.
    """
    known = isinstance(progress, bool) or callable(progress)
    require(known, "progress", "expected True, False or a function of a line", got=progress)
    say = (to_stderr if progress else None) if isinstance(progress, bool) else progress
    begun = time.monotonic()
    if say is not None:
        say(_announcement(name, risk, model))
        if any(field.name == "report" for field in dataclasses.fields(method)):
            method = dataclasses.replace(method, report=say)
    found = find(method)
    limits: Any = found if isinstance(found, tuple) else (found,)
    if say is not None:
        steps = int(limits[0].trajectory.stats["num_steps"])
        say(f"{name}: {limits[0].outcome}, {steps} steps, {time.monotonic() - begun:.1f} s in all")
    for h, limit in enumerate(limits):
        if throw and is_concrete(limit.outcome) and limit.outcome.value.ndim == 0 and limit.outcome == "failed":
            which = "" if len(limits) == 1 else f" (layer {h})"
            raise RuntimeError(f"{name}: {limit}{which} Pass throw=False to look at the limit")
    return found


def _announcement(name: str, risk: Any, model: Any) -> str:
    concrete = is_concrete(jax.tree.leaves((risk, model)))
    require(concrete, "progress", "one instance at a time, outside of jit and vmap; studies show their own")
    given = {} if risk.data is None else vars(risk.data)
    shapes = ", ".join(f"{k} {x.shape}" for k, x in given.items() if hasattr(x, "shape")) or "margins of its own"
    return (
        f"{name}: {type(model).__name__}, {shapes}. The first call for these shapes compiles for some seconds, or "
        "half a minute on a slow machine (see jaxflow.compilation_cache); steps are counted below"
    )
