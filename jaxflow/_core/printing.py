"""What `print` and a notebook show of a result: its numbers in a few lines."""

import dataclasses
import html
import textwrap
from typing import Any

import equinox as eqx
import jax
import numpy as np

from jaxflow._core.checks import is_concrete
from jaxflow._core.codes import Code


def in_numbers(module: Any) -> str:
    """`Certificate(primal value 1.2, dual value 1.2, duality gap 2e-16, ...)`: scalar numbers and codes as they are, of
    arrays their shape, of a batch the range. What is neither is left out."""
    name, arrays = type(module).__name__, [x for x in jax.tree.leaves(module) if eqx.is_array_like(x)]
    if not is_concrete(*arrays):
        return f"a traced {name}"
    parts = [(field.name, getattr(module, field.name)) for field in dataclasses.fields(module)]
    shown = [f"{word.replace('_', ' ')} {_shown(value)}" for word, value in parts if _is_shown(value)]
    return textwrap.fill(f"{name}({', '.join(shown)})", 100, subsequent_indent="  ")


def as_html(text: str) -> str:
    """Text as a notebook shows it."""
    return f"<pre style='white-space: pre-wrap'>{html.escape(text)}</pre>"


def _is_shown(value: Any) -> bool:
    return isinstance(value, Code) or eqx.is_array(value) or isinstance(value, np.ndarray | float | int)


def _shown(value: Any) -> str:
    if isinstance(value, Code):
        if value.value.ndim == 0:
            return str(value)
        names, counts = np.unique(np.asarray(value.name, dtype=str), return_counts=True)
        return " / ".join(f"{count} {name}" for name, count in zip(names, counts, strict=True))
    numbers = np.asarray(value)
    if numbers.ndim == 0:
        return f"{numbers.item():.6g}" if np.issubdtype(numbers.dtype, np.floating) else str(numbers.item())
    if numbers.ndim == 1 and numbers.size and np.issubdtype(numbers.dtype, np.floating):
        return f"{numbers.shape} from {np.min(numbers):.6g} to {np.max(numbers):.6g}"
    return str(numbers.shape)
