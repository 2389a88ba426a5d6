"""Arguments looked at as their annotations say: one decorator for public functions of arrays, and for settings."""

import dataclasses
import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, ParamSpec, TypeVar, overload

import jax
import numpy as np
from jax.core import Tracer

from jaxflow._core.checks import (
    as_boolean,
    as_integer,
    as_key,
    as_numbers,
    as_plain,
    check_boolean,
    check_integer,
    check_kind,
    check_real,
    raw_array,
    require,
)

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=type)

Sizes = dict[str, Any]
Check = Callable[[str, Any, Sizes], Any]


class Checked(NamedTuple):
    r"""Holds the arguments of a function to their annotations before anything is traced; a decorator. So it does the
    fields of a class of Equinox, which stay what they are, before the class's own `__check_init__`.

    Arrays, given as those of JAX or NumPy or as lists, have the dtype and the shape of their annotation, where a name
    such as `d` is one size in all arguments (and that of data that stand beside them, see `named_sizes`), and no NaN
    or infinite entry. Integers, numbers, Booleans, keys and instances of a class are what they say. What is annotated
    with `Any` is left to the function.

    **Arguments:** `least`: of integers, by name (0 for the others); `most`: of numbers; `positive`: names of numbers
    that must be; `nonnegative`: or zero; `infinite`: names of numbers and arrays that may hold infinity; `nan`: of
    arrays that may hold NaN too; `rising`: of arrays `(m,)` whose entries must increase; `plain`: of numbers that
    Python code decides by, which scalar arrays become.

    **Raises:** `ValueError` whose sentence begins with the argument's name.
    """

    least: Mapping[str, int] = types.MappingProxyType({})
    positive: Sequence[str] = ()
    nonnegative: Sequence[str] = ()
    infinite: Sequence[str] = ()
    nan: Sequence[str] = ()
    rising: Sequence[str] = ()
    plain: Sequence[str] = ()
    most: Mapping[str, float] = types.MappingProxyType({})

    @overload
    def __call__(self, function: C) -> C: ...

    @overload
    def __call__(self, function: Callable[P, R]) -> Callable[P, R]: ...

    def __call__(self, function: Any) -> Any:
        if isinstance(function, type):
            return self._of_fields(function)
        signature = inspect.signature(function)

        @functools.cache
        def checks() -> dict[str, Check]:
            # At the first call: annotations may be strings whose names are defined below the function.
            hints = {name: parameter.annotation for name, parameter in signature.parameters.items()}
            if any(isinstance(hint, str) for hint in hints.values()):
                hints = typing.get_type_hints(inspect.unwrap(function))
            return self._checks({name: hint for name, hint in hints.items() if name != "return"})

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            arguments, sizes = bound.arguments, {}
            for value in arguments.values():
                sizes.update(getattr(value, "named_sizes", ()))
            for name, check in checks().items():
                if name in arguments:
                    arguments[name] = check(name, arguments[name], sizes)
            return function(*bound.args, **bound.kwargs)

        return call

    def _of_fields(self, kind: Any) -> Any:
        own = kind.__dict__.get("__check_init__", lambda settings: None)

        @functools.cache
        def checks() -> dict[str, Check]:
            return self._checks({field.name: field.type for field in dataclasses.fields(kind)})

        def check_init(settings: Any) -> None:
            for name, check in checks().items():
                check(name, getattr(settings, name), {})
            own(settings)

        kind.__check_init__ = check_init
        return kind

    def _checks(self, hints: Mapping[str, Any]) -> dict[str, Check]:
        found = {name: self.of(name, hint) for name, hint in hints.items()}
        return {name: check for name, check in found.items() if check is not None}

    def of(self, name: str, hint: Any) -> Check | None:
        """The check of an annotation; None where it cannot be checked."""
        origin, parts, least = typing.get_origin(hint), typing.get_args(hint), self.least.get(name, 0)
        if origin in (typing.Union, types.UnionType):
            return self._of_union(name, [part for part in parts if part is not type(None)], type(None) in parts)
        if origin is Literal or hint in (Any, inspect.Parameter.empty) or isinstance(hint, TypeVar):
            return None
        if hasattr(hint, "dim_str"):
            return self._of_array(name, hint)
        if hint is np.ndarray:
            return lambda argument, value, sizes: np.asarray(raw_array(argument, value))
        if hint is jax.Array:
            return _alone(as_numbers, ("float", "complex"), self._bad(name))
        if hint is int:
            return _alone(as_integer, least)
        if hint is float:
            return self._of_number(name)
        if hint is bool:
            return _alone(as_boolean)
        if origin is tuple or origin in (list, Sequence):
            return self._of_sequence(name, origin, parts)
        kind = origin if isinstance(origin, type) else hint
        if not isinstance(kind, type) or kind.__module__.startswith("jaxtyping"):
            return None
        return _instance_of((kind,))

    def _bad(self, name: str) -> str:
        """What an array must not hold."""
        return "" if name in self.nan else "NaN" if name in self.infinite else "NaN or infinite"

    def _of_number(self, name: str) -> Check:
        def number(argument: str, value: Any, sizes: Sizes) -> Any:
            least, most = 0.0 if name in self.nonnegative else -np.inf, self.most.get(name, np.inf)
            inf = name in self.infinite
            check_real(argument, value, positive=name in self.positive, least=least, most=most, inf=inf)
            return float(as_plain(value)) if isinstance(value, int) or name in self.plain else value

        return number

    def _of_union(self, name: str, parts: list[Any], nothing: bool) -> Check | None:
        plain = all(part in (bool, int, float) or hasattr(part, "dim_str") for part in parts)
        if len(parts) == 1:
            one = self.of(name, parts[0])
        elif bool in parts and plain:
            one = _alone(check_boolean)
        elif np.ndarray in parts:
            # One number for all, or one for each: left to the function.
            one = None
        elif float in parts:
            # A number, or a scalar array of one; what else may stand for it is left to the function.
            one = self._of_number(name) if plain else None
        elif int in parts:
            one = _alone(check_integer, self.least.get(name, 0))
        elif all(isinstance(part, type) and not hasattr(part, "dim_str") for part in parts):
            one = _instance_of(tuple(parts))
        else:
            one = None
        if one is None:
            return None

        def optional(argument: str, value: Any, sizes: Sizes) -> Any:
            return None if nothing and value is None else one(argument, value, sizes)

        return optional

    def _of_sequence(self, name: str, origin: Any, parts: tuple[Any, ...]) -> Check | None:
        entry = self.of(name, parts[0]) if parts and (origin is not tuple or parts[-1] is Ellipsis) else None

        def sequence(argument: str, value: Any, sizes: Sizes) -> Any:
            # A string is a sequence of strings, and never meant to be one.
            fits = isinstance(value, tuple | list)
            require(fits, argument, f"expected a tuple or list, got {type(value).__name__}")
            if entry is None:
                return value
            # `_ m` in a tuple: every entry has sizes of its own, but for the names.
            entries = [entry(f"{argument}[{k}]", part, sizes) for k, part in enumerate(value)]
            return tuple(entries) if origin is tuple else entries

        return sequence

    def _of_array(self, name: str, hint: Any) -> Check:
        kinds = tuple(
            kind
            for kind, dtype in (("float", "float64"), ("complex", "complex128"), ("int", "int64"), ("bool", "bool"))
            if dtype in hint.dtypes
        )
        dims, bad = hint.dim_str.split(), self._bad(name)
        positive, rising = name in self.positive, name in self.rising
        if "prng_key" in hint.dtypes:
            return _alone(as_key)

        def array(argument: str, value: Any, sizes: Sizes) -> Any:
            found = as_numbers(argument, value, kinds, bad)
            _match(argument, dims, found.shape, sizes)
            if positive and not isinstance(found, Tracer):
                require(bool((np.asarray(found) > 0).all()), argument, "expected positive numbers", got=value)
            if rising and not isinstance(found, Tracer):
                fits = found.size > 0 and bool((np.diff(np.asarray(found)) > 0).all())
                require(fits, argument, "expected increasing numbers", got=value)
            return found

        return array


checked = Checked


def _alone(check: Callable[..., Any], *rest: Any) -> Check:
    """A check that does not depend on sizes."""
    return lambda argument, value, sizes: check(argument, value, *rest)


def _instance_of(kinds: tuple[type, ...]) -> Check:
    what = " or ".join(_described(kind) for kind in kinds)
    return _alone(check_kind, kinds, what)


def _described(kind: Any) -> str:
    if kind is str:
        return "a string"
    if kind is Callable or getattr(kind, "__name__", "") == "Callable":
        return "a function"
    name = getattr(kind, "__name__", str(kind)).removeprefix("Abstract")
    where = " of Diffrax" if kind.__module__.startswith("diffrax") else ""
    return f"{'an' if name[:1] in 'AEIO' else 'a'} {name}{where}"


def _match(argument: str, dims: list[str], shape: tuple[int, ...], sizes: Sizes) -> None:
    """**Raises:** `ValueError` where a shape is not that of the names, some of which have sizes already."""
    where = next((k for k, dim in enumerate(dims) if dim == "..." or dim.startswith("*")), None)
    fits = len(shape) == len(dims) if where is None else len(shape) >= len(dims) - 1
    parts: list[Any] = list(shape)
    if fits and where is not None:
        after = len(shape) - (len(dims) - where - 1)
        parts[where:after] = [shape[where:after]]
    new: Sizes = {}
    for dim, size in zip(dims, parts, strict=True) if fits else ():
        if dim.isdigit():
            fits = fits and size == int(dim)
        elif dim.lstrip("*").isidentifier() and dim != "_":
            fits = fits and sizes.get(dim, new.setdefault(dim, size)) == size
    if not fits:
        named = ", ".join(dict.fromkeys(dim for dim in dims))
        known = ", ".join(f"{dim} = {sizes[dim]}" for dim in dict.fromkeys(dims) if dim in sizes)
        wanted = f"({', '.join(dims)}{',' if len(dims) == 1 else ''})" if named else "()"
        raise ValueError(f"{argument}: expected shape {wanted}{f' with {known}' if known else ''}, got {shape}")
    sizes.update(new)
