"""What one block gave, checked: arrays with one row a trial, and what their codes mean."""

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxflow._core import Code, Outcome, require
from jaxflow.study.plan import LONGEST_NAME, RESERVED


@dataclass(frozen=True)
class Variable:
    """Name, dtype and shape for each trial of one result; `meanings` where it is a code; `padding`: the number that
    fills it up in cells where it is smaller."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    meanings: dict[str, int] = field(default_factory=dict)
    padding: int | None = None

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}{list(self.shape)}"


@dataclass(frozen=True)
class BlockResult:
    """Arrays `(B, ...)` by name, `outcome` among them; what they look like, in the order of their names; where it was
    computed and how long."""

    arrays: dict[str, np.ndarray]
    layout: tuple[Variable, ...]
    where: dict[str, Any]


def check_names(experiment: str, results: Any) -> None:
    """**Raises:** `ValueError` for what is no dictionary of named results; JAX would say it of a tree."""
    who = f"results of {experiment}"
    require(isinstance(results, Mapping) and len(results) > 0, who, f"expected a dictionary, got {type(results)}")
    for name in results:
        require(isinstance(name, str) and name.isidentifier(), who, f"{name!r} is no name for a result")


def of_one_instance(experiment: str, results: Any) -> dict[str, Any]:
    """What a function returned for one key, as arrays: a list of numbers is one, and no list of results."""
    check_names(experiment, results)
    who, found = f"results of {experiment}", {}
    for name, value in results.items():
        if isinstance(value, str | bytes):
            raise ValueError(f"{who}: {name} is no array of numbers, but {value!r}")
        found[name] = value if isinstance(value, Code) else _as_array(who, name, value, jnp.asarray)
    return found


def collect(
    experiment: str, own_outcome: bool, results: Any, width: int
) -> tuple[dict[str, np.ndarray], tuple[Variable, ...]]:
    """Results of a block function as NumPy arrays, and what they look like.

    **Arguments:** `own_outcome`: whether `outcome` must be among them (a function may leave it to the engine).

    **Raises:** `ValueError` naming the result: not a dictionary, a reserved name, other than one row a key, a
    dtype no store can hold, a missing outcome or a code that is none.
    """
    who = f"results of {experiment}"
    check_names(experiment, results)
    arrays: dict[str, np.ndarray] = {}
    for name, value in results.items():
        require(len(name.encode()) <= LONGEST_NAME, who, f"{name[:40]!r}... is too long for a name")
        require(name == "outcome" or name not in RESERVED, who, f"the store itself uses the name {name!r}")
        array = _as_array(who, name, value, lambda value: np.asarray(jax.device_get(value)))
        known = array.dtype.kind in "biuf" and _named(array.dtype) in DTYPES
        require(known, who, f"{name} has dtype {array.dtype}; numbers and Booleans of up to 64 bits can be stored")
        rows = array.shape[0] if array.ndim else 0
        require(rows == width, who, f"{name} has {rows} rows for {width} keys; each key has exactly one result")
        require(array.size > 0, who, f"{name} has the shape {list(array.shape[1:])} for each key, which holds nothing")
        arrays[name] = array.astype(array.dtype.newbyteorder("="))
    if "outcome" not in arrays:
        require(not own_outcome, who, "`outcome` is missing; return one code of an outcome for each instance")
        arrays["outcome"] = _unclaimed(arrays, width)
    codes = {name: value for name, value in results.items() if isinstance(value, Code)}
    layout = layout_of(experiment, arrays | codes)
    outcome, known = arrays["outcome"], next(v.meanings for v in layout if v.name == "outcome")
    valid = [code for code in known.values() if code != Outcome.not_run]
    good = outcome.ndim == 1 and outcome.dtype.kind in "iu" and bool(np.isin(outcome, valid).all())
    kind = "`Outcome`" if known == OUTCOMES else f"its own ({', '.join(known)})"
    require(good, who, f"outcome must be one code of {kind} for each key, and not `not_run`")
    arrays["outcome"] = outcome.astype(np.uint8)
    for name, array in arrays.items():
        taken = [f"{name}_{axis}" for axis in range(array.ndim - 1) if f"{name}_{axis}" in arrays]
        require(not taken, who, f"{', '.join(taken)} is what the store calls an axis of {name}; choose another name")
    return arrays, layout


def layout_of(experiment: str, shapes: Any) -> tuple[Variable, ...]:
    """The layout of results of which only shapes and dtypes are known. Whether a store can hold them shows later."""
    check_names(experiment, shapes)
    found = {"outcome": Variable("outcome", "u1", (), OUTCOMES)}
    for name, value in shapes.items():
        like, meanings = value, OUTCOMES if name == "outcome" else {}
        if isinstance(value, Code):
            like, meanings = value.value, _meanings(name, value)
        dtype = "u1" if name == "outcome" else _named(getattr(like, "dtype", type(like)))
        found[name] = Variable(name, dtype, tuple(getattr(like, "shape", ()))[1:], meanings)
    return tuple(found[name] for name in sorted(found))


def _named(dtype: Any) -> str:
    return dtype.str.lstrip("<>|=") if isinstance(dtype, np.dtype) else str(dtype)


def _meanings(name: str, code: Code) -> dict[str, int]:
    return outcome_meanings(code.names) if name == "outcome" else with_not_run(code.names)


def _as_array(who: str, name: str, value: Any, convert: Callable[[Any], Any]) -> Any:
    """A converted result. **Raises:** `ValueError` for what is no array, ragged lists and typed keys too."""
    try:
        return convert(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{who}: {name} is no array of numbers ({error})") from error


def with_not_run(names: type[enum.IntEnum]) -> dict[str, int]:
    """Names and values of an enumeration, `not_run` at 0 among them.

    **Raises:** `ValueError` where 0 means something else: an instance that was not run could not be told apart.
    """
    found = {member.name: int(member) for member in names}
    holder = next((name for name, value in found.items() if value == 0), "not_run")
    require(holder == Outcome.not_run.name, names.__name__, f"the value 0 is kept for not_run, not for {holder!r}")
    return {Outcome.not_run.name: 0, **found}


OUTCOMES = with_not_run(Outcome)


def outcome_meanings(names: type[enum.IntEnum]) -> dict[str, int]:
    """Names and codes of the outcomes of an experiment: those of `Outcome`, or of an enumeration of its own.

    Blocks that no worker survived are `failed`, with the code that `Outcome` has for it, in every study.

    **Raises:** `ValueError` where 0, or that code, means something else.
    """
    failed = Outcome.failed
    found = with_not_run(names)
    taken = [name for name, code in found.items() if (name == failed.name) != (code == failed.value)]
    require(not taken, names.__name__, f"{failed.name} has the code {failed.value} in every study; change {taken}")
    return {**found, failed.name: failed.value}


def _unclaimed(arrays: dict[str, np.ndarray], width: int) -> np.ndarray:
    """NaN is a failure; a finite number is no success, so the question stays open."""
    broken = np.zeros(width, bool)
    for array in arrays.values():
        if array.dtype.kind == "f":
            broken |= np.isnan(array).reshape(width, -1).any(1)
    return np.where(broken, Outcome.failed.value, Outcome.undecided.value).astype(np.uint8)


# A code is one byte.
CODES = int(np.iinfo(np.uint8).max) + 1

# What the file format knows, in its own order of bytes.
DTYPES = ("b1", *(f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)), "f2", "f4", "f8")


def names_of_codes(layout: tuple[Variable, ...]) -> dict[int, str]:
    """The names of the outcomes by code; those of `Outcome` for an empty layout."""
    found = next((variable.meanings for variable in layout if variable.name == "outcome"), OUTCOMES)
    return {code: name for name, code in sorted(found.items(), key=lambda item: item[1])}


def failed_block(layout: tuple[Variable, ...], width: int) -> dict[str, np.ndarray]:
    """The results of a block that no worker survived: every trial `failed`, NaN where numbers were expected."""
    arrays = {
        variable.name: np.full((width, *variable.shape), fill_value(variable), dtype=variable.dtype)
        for variable in layout
    }
    arrays["outcome"] = np.full(width, Outcome.failed.value, np.uint8)
    return arrays


def fill_value(variable: Variable) -> Any:
    """What stands where nothing was computed: NaN, False or 0 (which is `not_run` for a code), or the padding."""
    if variable.padding is not None:
        return variable.padding
    kind = np.dtype(variable.dtype).kind
    return float("nan") if kind == "f" else False if kind == "b" else 0


def difference(known: tuple[Variable, ...], found: tuple[Variable, ...]) -> str:
    """In words, how two layouts differ; empty where they do not."""
    before, now = {v.name: v for v in known}, {v.name: v for v in found}
    lost = [f"{name} is missing" for name in before if name not in now]
    new = [f"{name} is new" for name in now if name not in before]
    changed = [f"{before[n]} became {now[n]}" for n in before if n in now and before[n] != now[n]]
    return "; ".join([*lost, *new, *changed])
