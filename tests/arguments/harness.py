"""A table of calls, and what becomes of each with one argument wrong."""

import traceback
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from tests.arguments.kinds import Kind


class Call(NamedTuple):
    """A public callable with valid arguments, and what each may be (None: anything goes, or it is no argument)."""

    name: str
    function: Callable[..., Any]
    arguments: dict[str, tuple[Any, Kind | None]]
    whole: bool = True

    def valid(self) -> dict[str, Any]:
        return {name: value for name, (value, _) in self.arguments.items()}


# Arguments with parts of their own, which an error may name: the argument is wrong by its part.
PARTS = {
    "data": ("tokens", "inputs", "labels", "targets"),
    "model": ("W", "inputs", "trainable"),
    "starts": ("model", "W"),
    "risk": ("data",),
    "heads": ("head",),
}
# What is wrong by its shape alone may not fit the next argument, which the error then names.
NEXT = {"tokens": ("queries",), "inputs": ("targets",), "weights": ("data_tensor",), "tensor": ("vectors",)}


def call(name: str, function: Callable[..., Any], /, **arguments: tuple[Any, Kind | None]) -> Call:
    return Call(name, function, arguments)


def part(name: str, function: Callable[..., Any], /, **arguments: tuple[Any, Kind | None]) -> Call:
    """As `call`, with arguments that are looked at and no valid ones for the rest: only ever refused."""
    return Call(name, function, arguments, whole=False)


class Case(NamedTuple):
    name: str
    argument: str
    value: Any
    run: Callable[[], Any]


def refusals(calls: list[Call]) -> Iterator[Case]:
    """Each argument in turn replaced by each of its wrong values."""
    for one in calls:
        valid = one.valid()
        for argument, (value, kind) in one.arguments.items():
            for wrong in kind.refused(value) if kind is not None else ():
                given = valid | {argument: wrong}
                yield Case(one.name, argument, wrong, lambda one=one, given=given: one.function(**given))


def alternatives(calls: list[Call]) -> Iterator[Case]:
    """Each call as it is, and with each argument in turn in another form that must be taken."""
    for one in calls:
        if not one.whole:
            continue
        valid = one.valid()
        yield Case(one.name, "", None, lambda one=one, valid=valid: one.function(**valid))
        for argument, (value, kind) in one.arguments.items():
            for other in kind.taken(value) if kind is not None else ():
                given = valid | {argument: other}
                yield Case(one.name, argument, other, lambda one=one, given=given: one.function(**given))


def complaint(case: Case) -> str | None:
    """What is wrong with how a wrong value was received: None for one sentence that begins with the name."""
    told = f"{case.name}({case.argument}={_short(case.value)})"
    try:
        found = case.run()
    except (ValueError, TypeError) as error:
        text = str(error)
        names = (case.argument, *PARTS.get(case.argument, ()), *NEXT.get(case.argument, ()))
        named = text.startswith(tuple(f"{name}{end}" for name in names for end in ":["))
        if named and "\n" not in text and len(text) <= 400 and own(error):
            return None
        return f"{told}: {type(error).__name__}: {text[:160]!r} from {_where(error)}"
    except Exception as error:
        return f"{told}: {type(error).__name__}: {str(error)[:160]!r} from {_where(error)}"
    return f"{told}: taken, gave {_short(found)}"


def own(error: Exception) -> bool:
    """Whether the library raised it, and no library below it."""
    return "/jaxflow/" in traceback.extract_tb(error.__traceback__)[-1].filename


def _where(error: Exception) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{'/'.join(last.filename.split('/')[-3:])}:{last.lineno}"


def _short(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:60]}..."
