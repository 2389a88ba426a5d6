"""Errors that name the argument, raised before anything is traced."""

import difflib
import functools
import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

_NOTHING = object()
# What a seed may be: eight bytes, and what JSON readers of other languages still hold.
LARGEST = 2**63 - 1


def is_concrete(*values: Any) -> bool:
    """Whether every array leaf of `values` holds numbers that Python can look at (no tracers)."""
    return not any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(values))


def require(condition: bool, argument: str, message: str, *, got: Any = _NOTHING) -> None:
    """Raises `ValueError("argument: message")` unless `condition` holds.

    `got=value` adds ", got value" to the message: writing out an array or a module takes longer than looking at it.
    """
    if not condition:
        raise ValueError(f"{argument}: {message}" + ("" if got is _NOTHING else f", got {shown(got)}"))


def unknown_name(argument: str, name: object, options: Iterable[str]) -> ValueError:
    """The error for a name that is not among `options`, with the nearest one that is."""
    known = sorted(options)
    close = difflib.get_close_matches(str(name).lower(), [option.lower() for option in known], n=1)
    near = next((option for option in known if close and option.lower() == close[0]), None)
    hint = f"; did you mean {near!r}?" if near is not None else "."
    return ValueError(f"{argument}: unknown name {shown(name)}{hint} Known: {', '.join(known)}.")


def check_name(argument: str, name: Any, known: Collection[str]) -> str:
    """One of the `known` names. **Raises:** `ValueError` for anything else, with the nearest name."""
    if not isinstance(name, str) or name not in known:
        raise unknown_name(argument, name, known)
    return name


def shown(value: Any) -> str:
    """A value in an error: of one line, and short."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:80]}..."


def as_plain(value: Any) -> Any:
    """A value without the scalar types of NumPy and JAX, which JSON does not know."""
    # By type: np.float64 is a float.
    if type(value) in (int, float, bool, str) or isinstance(value, Tracer):
        return value
    scalar = isinstance(value, np.generic) or (hasattr(value, "dtype") and getattr(value, "shape", None) == ())
    # Typed keys of JAX have a dtype, and no number.
    return value.item() if scalar and getattr(value.dtype, "kind", "") in tuple("biufU") else value


def as_integer(argument: str, value: Any, least: int = -LARGEST, most: int = LARGEST) -> int:
    """An integer of Python, from one of Python, NumPy or JAX. **Raises:** `ValueError` for anything else: 2.7 or "10"
    would become another number, True is a mistake."""
    plain = as_plain(value)
    whole = isinstance(plain, int) and not isinstance(plain, bool)
    require(whole, argument, "expected an integer", got=value)
    if plain < least:
        bound = "a number from 0" if least == 0 else f"at least {least}"
        raise ValueError(f"{argument}: expected {bound}, got {plain}")
    require(plain <= most, argument, f"expected at most {most:,}", got=value)
    return plain


def as_boolean(argument: str, value: Any) -> bool:
    """**Raises:** `ValueError` for what is not True or False: the string "no" would count as True."""
    plain = as_plain(value)
    require(isinstance(plain, bool), argument, "expected True or False", got=value)
    return plain


def as_path(argument: str, value: Any) -> Path:
    """A path of this machine. **Raises:** `ValueError` for anything else, an address such as `s3://` among them."""
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    require(isinstance(text, str), argument, "expected a path", got=value)
    name = str(text)
    require(bool(name.strip()) and "\0" not in name, argument, f"expected the path of a folder, got {name!r}")
    require("://" not in name, argument, f"expected a folder of this machine, got {name!r}")
    return Path(name)


def check_real(
    argument: str,
    value: Any,
    *,
    positive: bool = False,
    least: float = -np.inf,
    most: float = np.inf,
    inf: bool = False,
) -> Any:
    """A real number, or a scalar array of one, within bounds where it is concrete. **Raises:** `ValueError`.

    The value itself stays what it is: an array is an argument of a compiled program, a number a part of it.

    **Arguments:** `positive`: more than zero, too; `inf`: whether it may be infinite.
    """
    what = "a positive number" if positive else "a number"
    if _is_traced(argument, value, what, jnp.floating, jnp.integer):
        return value
    plain = as_plain(value)
    real = isinstance(plain, int | float) and not isinstance(plain, bool) and plain == plain
    real = real and (abs(plain) <= sys.float_info.max or (inf and isinstance(plain, float)))
    require(real and (not positive or plain > 0), argument, f"expected {what}", got=value)
    require(plain >= least, argument, f"expected at least {least:g}", got=value)
    require(plain <= most, argument, f"expected at most {most:g}", got=value)
    return value


def check_integer(argument: str, value: Any, least: int) -> Any:
    """An integer, or a scalar array of one, from `least` where it is concrete. **Raises:** `ValueError`."""
    if not _is_traced(argument, value, "an integer", jnp.integer):
        as_integer(argument, value, least)
    return value


def check_boolean(argument: str, value: Any) -> Any:
    """True or False, or a scalar array of one. **Raises:** `ValueError`."""
    if not _is_traced(argument, value, "True or False", jnp.bool_):
        as_boolean(argument, value)
    return value


def _is_traced(argument: str, value: Any, what: str, *kinds: Any) -> bool:
    """Whether there is no number to look at yet. **Raises:** `ValueError` where it will be no scalar of these kinds."""
    if not isinstance(value, Tracer):
        return False
    scalar = value.shape == () and any(jnp.issubdtype(value.dtype, kind) for kind in kinds)
    require(scalar, argument, f"expected {what}, got {value.dtype} of shape {value.shape}")
    return True


def is_real(dtype: Any) -> bool:
    """Whether a dtype is one of floating-point numbers or integers."""
    return jnp.issubdtype(dtype, jnp.floating) or jnp.issubdtype(dtype, jnp.integer)


def check_kind(argument: str, value: Any, kinds: type | tuple[type, ...], what: str) -> Any:
    """**Raises:** `ValueError` for what is no instance of `kinds`, which `what` describes."""
    require(isinstance(value, kinds), argument, f"expected {what}, got {type(value).__name__}")
    return value


def as_named(argument: str, value: Any, kind: type, known: Mapping[str, Callable[[], Any]]) -> Any:
    """A value of a kind, or the one `known` by its name. **Raises:** `ValueError` with the nearest name."""
    if isinstance(value, kind):
        return value
    return known[check_name(argument, value, known)]()


def as_key(argument: str, value: Any) -> jax.Array:
    """One typed key of JAX, from one, from a seed, or from an old key such as `jax.random.PRNGKey(0)`.

    **Raises:** `ValueError` for anything else, and for several keys.
    """
    plain, key = as_plain(value), value
    if isinstance(plain, int) and not isinstance(plain, bool):
        return jax.random.key(as_integer(argument, plain))
    known = isinstance(value, jax.Array | np.ndarray)
    if known and value.shape == () and jnp.issubdtype(value.dtype, jnp.integer):  # a traced seed
        return jax.random.key(value)
    if known and value.dtype == np.uint32 and value.shape == jax.eval_shape(jax.random.PRNGKey, 0).shape:
        return jax.random.wrap_key_data(jnp.asarray(value))
    typed = known and jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
    require(typed, argument, "expected a key such as jax.random.key(0), or a seed", got=value)
    require(value.shape == (), argument, f"expected one key, got keys of shape {value.shape}: map with jax.vmap")
    return key


def as_array(argument: str, value: Any, *, integers: bool = False, mixed: bool = False) -> jax.Array:
    """Real numbers as floating-point numbers in an array of JAX, from arrays, lists and numbers.

    **Arguments:** `integers`: integers stay integers; `mixed`: complex numbers stay complex.
    **Raises:** `ValueError` for what holds no numbers: strings, Booleans, keys, lists of rows of unequal length.
    """
    return as_numbers(argument, value, ("float", *["int"] * integers, *["complex"] * mixed))


def as_numbers(argument: str, value: Any, kinds: tuple[str, ...], bad: str = "") -> jax.Array:
    """An array of one of the kinds `"float"`, `"complex"`, `"int"` and `"bool"`; integers become floating-point numbers
    where only those are wanted.

    **Arguments:** `bad`: what must not be seen in it, `"NaN"` or `"NaN or infinite"`.
    **Raises:** `ValueError` for other kinds, and for bad entries.
    """
    array = raw_array(argument, value)
    kind = kind_of(array.dtype)
    if kind == "int" and "float" in kinds and "int" not in kinds:
        array, kind = jnp.asarray(array, dtype=float), "float"
    what = {"bool": "True and False", "int": "integers", "float": "real numbers"}[kinds[0]]
    what = "numbers" if "complex" in kinds else what
    require(kind in kinds, argument, f"expected an array of {what}, got {named_dtype(array.dtype)}")
    if bad and kind in ("float", "complex") and not isinstance(array, Tracer):
        seen = np.asarray(array)
        fits = ~np.isnan(seen) if bad == "NaN" else np.isfinite(seen)
        require(bool(fits.all()), argument, f"{bad} entry")
    return jnp.asarray(array)


@functools.cache
def kind_of(dtype: Any) -> str:
    """The kind of a dtype: `"bool"`, `"float"`, `"int"`, `"complex"` or `"other"`."""
    kinds = (("bool", jnp.bool_), ("float", jnp.floating), ("int", jnp.integer), ("complex", jnp.complexfloating))
    return next((name for name, kind in kinds if jnp.issubdtype(dtype, kind)), "other")


def as_vector(argument: str, value: Any) -> jax.Array:
    """Real numbers of shape `(d,)`, or with batch axes before it. **Raises:** `ValueError`."""
    array = as_array(argument, value)
    require(array.ndim >= 1, argument, f"expected shape (d,), got {array.shape}")
    return array


def as_matrix(argument: str, value: Any) -> jax.Array:
    """Real numbers of shape `(p, q)`, or with batch axes before it. **Raises:** `ValueError`."""
    array = as_array(argument, value)
    require(array.ndim >= 2, argument, f"expected a matrix, got shape {array.shape}")
    return array


def as_arrays(**given: Any) -> list[jax.Array]:
    """Real numbers in arrays of one floating-point dtype: the widest of theirs, which integers follow.

    **Raises:** `ValueError` naming the argument, as `as_array`.
    """
    arrays = [as_array(argument, value, integers=True) for argument, value in given.items()]
    kinds = [array.dtype for array in arrays if jnp.issubdtype(array.dtype, jnp.floating)]
    dtype = jnp.result_type(*kinds) if kinds else float
    return [array.astype(dtype) for array in arrays]


def as_mask(argument: str, value: Any) -> jax.Array:
    """Booleans in an array, from Booleans or from integers 0 and 1. **Raises:** `ValueError` for other numbers: a mask
    of zeros and minus infinities means another thing than one of ones and zeros."""
    array = raw_array(argument, value)
    kind = array.dtype
    require(
        kind == np.bool_ or jnp.issubdtype(kind, jnp.integer),
        argument,
        f"expected an array of True and False, got {named_dtype(kind)}; in place of an additive mask, of 0 and -inf, "
        "pass mask == 0",
    )
    if kind != np.bool_ and is_concrete(array):
        binary = np.isin(np.asarray(array), (0, 1)).all()
        require(bool(binary), argument, "expected True and False, or integers 0 and 1", got=value)
    return jnp.asarray(array).astype(bool)


# How two classes may be written, in an error.
CLASSES = "-1 and 1, 0 and 1, False and True or two strings, of which the later one is +1"


def as_signs(argument: str, labels: Any, *, numbers: bool = True) -> Any:
    """Labels of two classes as -1 and 1: of False and True, of 0 and 1, and of two strings the later one is +1.

    What else is written in numbers stays as it is, and so do traced labels; see `require_signs`.

    **Arguments:** `numbers`: whether 0 and 1 are classes; they are not where they may be real values.
    **Raises:** `ValueError` for strings or Booleans of more or fewer classes.
    """
    if isinstance(labels, Tracer):
        return labels
    # A column of pandas: of strings it is an array of objects.
    labels = labels.to_numpy() if hasattr(labels, "to_numpy") else labels
    array = raw_array(argument, labels)
    kind = getattr(array.dtype, "kind", "")  # typed keys of JAX have none
    if kind == "O" and all(isinstance(entry, str) for entry in np.asarray(array).flat):
        array, kind = array.astype(str), "U"
    named = kind in tuple("bUS")
    if not is_concrete(array) or not (named or (numbers and is_real(array.dtype))):
        return labels
    classes, places = np.unique(np.asarray(array), return_inverse=True)
    if len(classes) == 2 and (named or classes.tolist() == [0, 1]):
        return 2 * places.reshape(array.shape) - 1
    require(not named, argument, _not_two(classes))
    return labels


def require_signs(argument: str, labels: Any) -> None:
    """**Raises:** `ValueError` where concrete numbers are not all -1 or 1."""
    if is_concrete(labels):
        classes = np.unique(np.asarray(labels))
        require(bool(np.isin(classes, (-1, 1)).all()), argument, _not_two(classes))


def as_classes(argument: str, labels: Any) -> jax.Array:
    """Class numbers 0, 1, 2, ... as integers, from integers or whole floating-point numbers; or rows of frequencies,
    `(..., C)` floating-point numbers with two axes or more that sum to one, divided by their sum.

    Traced floating-point numbers with two axes or more are rows of frequencies. Traced numbers that are no class become
    -1, which is none, and rows that are no frequencies NaN.

    **Raises:** `ValueError` for anything else: strings and Booleans, negative numbers, rows with another sum.
    """
    what = "expected class numbers 0, 1, 2, ..., whole and not negative, or rows of frequencies that sum to one"
    most = jnp.iinfo(jnp.int32).max
    labels = labels.to_numpy() if hasattr(labels, "to_numpy") else labels
    array = raw_array(argument, labels) if not isinstance(labels, str) else np.asarray(labels)
    require(is_real(array.dtype), argument, f"{what}, got {named_dtype(array.dtype)}")
    if array.ndim > 1 and jnp.issubdtype(array.dtype, jnp.floating):
        total = array.sum(axis=-1, keepdims=True)
        # Each of C numbers and the sum of them is rounded.
        near = abs(total - 1.0) <= 2 * array.shape[-1] * jnp.finfo(array.dtype).eps
        rows = (array >= 0).all(axis=-1, keepdims=True) & near
        if not is_concrete(array):
            return jnp.where(rows, array / total, jnp.nan)
        if rows.all():
            return jnp.asarray(array / total)
    if is_concrete(array):
        seen = np.asarray(array)
        fits = (seen >= 0) & (seen == np.round(seen)) & (seen <= most)
        require(bool(fits.all()), argument, what, got=None if fits.all() else seen[~fits].flat[0].item())
        return jnp.asarray(seen.astype(int))
    fits = (array >= 0) & (array == jnp.round(array)) & (array <= most)
    return jnp.where(fits, array, -1).astype(int)


def _not_two(classes: np.ndarray) -> str:
    return f"expected two classes ({CLASSES}), got {shown(classes.tolist())}"


def raw_array(argument: str, value: Any) -> Any:
    """An array of NumPy or JAX of what may be one. **Raises:** `ValueError` for what cannot be."""
    if isinstance(value, jax.Array | np.ndarray):
        return value
    known = value is not None and not isinstance(value, str | bytes | dict | set)
    try:
        array = (np.asarray(value) if is_concrete(value) else jnp.asarray(value)) if known else None
    except (TypeError, ValueError):
        # Rows of unequal length, and what JAX cannot turn into an array.
        array = None
    if array is None or array.dtype == object:
        raise ValueError(f"{argument}: expected an array of numbers, got {shown(value)}")
    return array


def require_finite(argument: str, array: Any) -> None:
    """**Raises:** `ValueError` where a concrete array holds NaN or infinity; does nothing to traced values."""
    if isinstance(array, Tracer):
        return
    finite = np.isfinite(np.asarray(array))
    if not finite.all():
        at = tuple(int(i) for i in np.argwhere(~finite)[0])
        raise ValueError(f"{argument}: NaN or infinite entry" + (f" at index {at}" if at else ""))


def named_dtype(dtype: Any) -> str:
    """A dtype in an error."""
    strings = getattr(dtype, "kind", "") in ("U", "S")
    return "strings" if strings else "Booleans" if jnp.issubdtype(dtype, jnp.bool_) else f"{dtype}"
