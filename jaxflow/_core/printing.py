"""What `print`, a prompt and a notebook show of a result: its numbers, in at most six lines."""

import abc
import dataclasses
import html
import textwrap
from typing import Any

import equinox as eqx
import jax
import numpy as np

from jaxflow._core.checks import is_concrete
from jaxflow._core.codes import Code

LINES, WIDTH = 6, 100
# Vectors up to this size are shown entry by entry.
FEW = 4


class AbstractPrinted(eqx.Module, abc.ABC):
    """A module that shows its numbers in place of the shapes of its arrays; a class with a sentence has a `__str__`."""

    def __str__(self) -> str:
        return in_numbers(self)

    def __repr__(self) -> str:
        return str(self) if _concrete(self) else in_numbers(self)

    def _repr_html_(self) -> str:
        return as_html(str(self))


def in_numbers(module: Any) -> str:
    """`Certificate(primal value 1.2, dual value 1.2, duality gap 2e-16, ...)`: numbers and codes as they are, of
    arrays the shape and the range."""
    if not _concrete(module):
        return f"a traced {type(module).__name__}"
    return shortened(_shown(module))


def shortened(text: str) -> str:
    """Text in lines of 100 characters. Where six of them are not enough, the end is left out."""
    lines = textwrap.wrap(text, WIDTH, subsequent_indent="  ")
    return "\n".join(lines if len(lines) <= LINES else [*lines[: LINES - 1], "  ..."])


def as_html(text: str) -> str:
    """Text as a notebook shows it."""
    return f"<pre style='white-space: pre-wrap'>{html.escape(text)}</pre>"


def _concrete(module: Any) -> bool:
    return is_concrete(*(x for x in jax.tree.leaves(module) if eqx.is_array_like(x)))


def _shown(value: Any) -> str:
    """A value in words; empty for what has no numbers to show."""
    if isinstance(value, str | bool):
        return str(value)
    if isinstance(value, Code):
        return _code(value)
    if isinstance(value, eqx.Module) and dataclasses.is_dataclass(value):
        parts = [(field.name, _shown(getattr(value, field.name, None))) for field in dataclasses.fields(value)]
        words = ", ".join(f"{name.replace('_', ' ')} {text}" for name, text in parts if text)
        return f"{type(value).__name__}({words})"
    if isinstance(value, tuple | list):
        return ", ".join(text for text in map(_shown, value) if text)
    if eqx.is_array(value) or isinstance(value, np.ndarray | np.generic | float | int):
        return _numbers(np.asarray(value))
    return getattr(value, "__name__", "")


def _code(code: Code) -> str:
    values = np.asarray(code.value)
    if values.ndim == 0:
        return str(code)
    names, counts = np.unique(np.asarray(code.name, dtype=str), return_counts=True)
    return " / ".join(f"{count} {name}" for name, count in zip(names, counts, strict=True))


def _numbers(numbers: np.ndarray) -> str:
    if numbers.dtype.kind not in "fiub":
        return str(numbers.shape)
    floating = numbers.dtype.kind == "f"
    if numbers.ndim == 0:
        return f"{numbers.item():.6g}" if floating else str(numbers.item())
    if numbers.dtype.kind == "b":
        return f"{numbers.shape} with {np.count_nonzero(numbers)} true"
    if numbers.ndim == 1 and numbers.size <= FEW:
        return f"[{', '.join(_numbers(np.asarray(entry)) for entry in numbers)}]"
    if floating and numbers.size:
        return f"{numbers.shape} from {np.min(numbers):.6g} to {np.max(numbers):.6g}"
    return str(numbers.shape)
