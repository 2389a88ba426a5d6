"""Errors that name the argument, raised before anything is traced."""

import difflib
from collections.abc import Iterable
from typing import Any

import jax
from jax.core import Tracer


def is_concrete(*values: Any) -> bool:
    """Whether every array leaf of `values` holds numbers that Python can look at (no tracers)."""
    return not any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(values))


def require(condition: bool, argument: str, message: str) -> None:
    """Raises `ValueError("argument: message")` unless `condition` holds."""
    if not condition:
        raise ValueError(f"{argument}: {message}")


def unknown_name(argument: str, name: object, options: Iterable[str]) -> ValueError:
    """The error for a name that is not among `options`, with the nearest one that is."""
    known = sorted(options)
    close = difflib.get_close_matches(str(name).lower(), [option.lower() for option in known], n=1)
    near = next((option for option in known if close and option.lower() == close[0]), None)
    hint = f"; did you mean {near!r}?" if near is not None else ""
    return ValueError(f"{argument}: unknown name {name!r}{hint} Known: {', '.join(known)}.")
