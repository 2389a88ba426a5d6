"""A table of calls, and what becomes of each with one argument wrong."""

import inspect
import traceback
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from tests.arguments.usual import USUAL


class Call(NamedTuple):
    """A public callable, and of each argument a valid value, the kind that it is of (None: no kind is tried), and
    further wrong values."""

    name: str
    function: Callable[..., Any]
    arguments: dict[str, tuple[Any, ...]]


def call(function: Callable[..., Any], /, *, row: str = "", **own: tuple[Any, ...]) -> Call:
    """A row, named like its function: arguments of its own, and all others that are `USUAL` by their names."""
    usual = {name: USUAL[name] for name in inspect.signature(function).parameters if name in USUAL}
    return Call(row or function.__qualname__, function, usual | own)


# Arguments with parts of their own, which an error may name: the argument is wrong by its part.
PARTS = {
    "data": ("tokens", "inputs", "labels", "targets"),
    "model": ("W", "inputs", "trainable"),
    "risk": ("data",),
    "direction": ("model", "W"),
}
# What is wrong by its shape alone may not fit the next argument, which the error then names.
NEXT = {"tokens": ("queries",), "inputs": ("targets", "labels"), "weights": ("data_tensor",)}


def refusals(calls: list[Call]) -> Iterator[tuple[str, tuple[str, ...], Callable[[], Any]]]:
    """Each argument in turn replaced by each of its wrong values: what that is, how a sentence may begin, the call."""
    for one in calls:
        for argument, (valid, kind, *more) in one.arguments.items():
            names = (argument, *PARTS.get(argument, ()), *NEXT.get(argument, ()))
            begins = tuple(f"{name}{end}" for name in names for end in ":[")
            for wrong in (*(kind(valid) if kind is not None else ()), *more):
                given = {name: value for name, (value, *_) in one.arguments.items()} | {argument: wrong}
                told = f"{one.name}({argument}={_short(wrong)})"
                yield told, begins, lambda one=one, given=given: one.function(**given)


def complaint(told: str, begins: str | tuple[str, ...], run: Callable[[], Any], *has: str) -> str | None:
    """What is wrong with how a wrong value was received: None for one sentence that begins so and has these words in
    it."""
    try:
        found = run()
    except (ValueError, TypeError) as error:
        text = str(error)
        # The library raised it, and no library below it.
        own = "/jaxflow/" in traceback.extract_tb(error.__traceback__)[-1].filename
        fits = text.startswith(begins) and all(words in text for words in has)
        return None if fits and own and "\n" not in text and len(text) <= 500 else f"{told}: {error!r:.200}"
    except Exception as error:
        return f"{told}: {error!r:.200}"
    return f"{told}: taken, gave {_short(found)}"


def _short(value: Any) -> str:
    return f"{' '.join(repr(value).split()):.60}"
