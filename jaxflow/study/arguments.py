"""Arguments of the public functions, looked at before anything is computed or written: an error names the argument."""

import os
from pathlib import Path
from typing import Any

import numpy as np

from jaxflow._core import require

# What a seed may be: eight bytes, and what JSON readers of other languages still hold.
LARGEST = 2**63 - 1


def as_integer(argument: str, value: Any, least: int = -LARGEST, most: int = LARGEST) -> int:
    """An integer of Python, from one of Python, NumPy or JAX. **Raises:** `ValueError` for anything else: 2.7 or "10"
    would become another number, True is a mistake."""
    plain = as_plain(value)
    whole = isinstance(plain, int) and not isinstance(plain, bool)
    require(whole, argument, f"expected an integer, got {shown(value)}")
    if plain < least:
        bound = "a number from 0" if least == 0 else f"at least {least}"
        raise ValueError(f"{argument}: expected {bound}, got {plain}")
    require(plain <= most, argument, f"expected at most {most:,}, got {shown(value)}")
    return plain


def as_real(argument: str, value: Any, *, positive: bool = True) -> float:
    """A finite number of Python. **Raises:** `ValueError` for strings, Booleans, NaN, infinities, and what is not
    positive where it has to be."""
    plain = as_plain(value)
    real = isinstance(plain, int | float) and not isinstance(plain, bool) and bool(np.isfinite(plain))
    what = "a positive number" if positive else "a number"
    require(real and (not positive or plain > 0), argument, f"expected {what}, got {shown(value)}")
    return plain


def as_boolean(argument: str, value: Any) -> bool:
    """**Raises:** `ValueError` for what is not True or False: the string "no" would count as True."""
    plain = as_plain(value)
    require(isinstance(plain, bool), argument, f"expected True or False, got {shown(value)}")
    return plain


def as_path(argument: str, value: Any) -> Path:
    """A path of this machine. **Raises:** `ValueError` for anything else, an address such as `s3://` among them."""
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    require(isinstance(text, str), argument, f"expected a path, got {shown(value)}")
    name = str(text)
    require(bool(name.strip()) and "\0" not in name, argument, f"expected the path of a folder, got {name!r}")
    require("://" not in name, argument, f"expected a folder of this machine, got {name!r}")
    return Path(name)


def as_plain(value: Any) -> Any:
    """A value without the scalar types of NumPy and JAX, which JSON does not know."""
    scalar = isinstance(value, np.generic) or (hasattr(value, "dtype") and getattr(value, "shape", None) == ())
    # Typed keys of JAX have a dtype, and no number.
    return value.item() if scalar and getattr(value.dtype, "kind", "") in tuple("biufU") else value


def shown(value: Any) -> str:
    """A value in an error: of one line, and short."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:80]}..."
