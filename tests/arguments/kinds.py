"""What an argument may be, and the wrong values that follow from it: given a valid value, those that must be refused
and those that must be taken."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

NAN, INF = float("nan"), float("inf")
KEY = jax.random.key(0)
KEYS = jax.random.split(KEY)


class Thing:
    """Of no use to anybody."""

    def __repr__(self) -> str:
        return "Thing()"


class Kind(NamedTuple):
    """`refused(value)` and `taken(value)`: other values for an argument whose valid value is `value`."""

    refused: Callable[[Any], Iterator[Any]]
    taken: Callable[[Any], Iterator[Any]] = lambda value: iter(())


NOTHING = (None, "abc", b"abc", {}, Thing())
# What is no single number either.
NO_NUMBER = (*NOTHING, "1", [], [1], {"a": 1}, 1j, True, np.ones(2), jnp.ones((1, 1)), KEY, print)


def _unless_none(*forms: Callable[[Any], Any]) -> Callable[[Any], Iterator[Any]]:
    """The value in other forms; of None there are none."""
    return lambda value: iter(()) if value is None else (form(value) for form in forms)


def _optional(values: tuple, nothing: bool) -> tuple:
    return tuple(value for value in values if not (nothing and value is None))


def count(least: int = 1, nothing: bool = False) -> Kind:
    """An integer from `least`; `nothing`: or None."""
    wrong = (
        *_optional(NO_NUMBER, nothing),
        2.5,
        4.0,
        NAN,
        INF,
        -INF,
        least - 1,
        -7,
        10**400,
        np.float64(4),
        np.bool_(1),
    )
    return Kind(lambda value: iter(wrong), _unless_none(np.int64, jnp.asarray))


def seed() -> Kind:
    """Any integer that eight bytes hold."""
    wrong = (*NO_NUMBER, 2.5, 4.0, NAN, INF, 10**400, 2**64, np.float64(4), np.bool_(1))
    return Kind(lambda value: iter(wrong), lambda value: iter((np.int64(value),)))


def number(
    positive: bool = False,
    least: float | None = None,
    most: float | None = None,
    nothing: bool = False,
    infinite: bool = False,
) -> Kind:
    """A real number, or a scalar array of one."""
    wrong: tuple = (*_optional(NO_NUMBER, nothing), NAN, np.float64(NAN), jnp.asarray(NAN), 10**400)
    wrong += () if infinite else (INF, -INF)
    wrong += (0, 0.0, -1.0, -1e-300, -INF) if positive else ()
    wrong += () if least is None else (least - 1.0, least - 1e300)
    wrong += () if most is None else (most + 1.0,)
    return Kind(lambda value: iter(wrong), _unless_none(np.float64, np.float32, jnp.asarray))


def choice(*, nothing: bool = False) -> Kind:
    """A name, or an object that it stands for."""
    wrong = (*_optional(NOTHING, nothing), "", 3, 2.5, NAN, True, [], ["a"], jnp.ones(2), 1j, type, KEY)
    return Kind(lambda value: iter(wrong))


def instance(*, nothing: bool = False, functions: bool = False) -> Kind:
    """An object of a class of the library, or of a library below it; `functions`: or a function."""
    wrong: tuple = (
        *_optional(NOTHING, nothing),
        3,
        -1,
        2.5,
        NAN,
        True,
        [],
        (),
        [1.0],
        jnp.ones(3),
        np.ones((2, 2)),
        1j,
    )
    wrong += () if functions else (print, int)
    return Kind(lambda value: iter(wrong))


def function(*, nothing: bool = False) -> Kind:
    """Something that can be called."""
    wrong = (*(x for x in _optional(NOTHING, nothing)), 3, 2.5, NAN, True, [], [print], jnp.ones(3), 1j)
    return Kind(lambda value: iter(wrong))


def boolean() -> Kind:
    """True or False."""
    wrong = (*NOTHING, "no", 0, 1, 1.0, NAN, [], [True], np.ones(2, bool), 1j)
    return Kind(lambda value: iter(wrong), lambda value: iter((np.bool_(value),)))


def key() -> Kind:
    """One key, or a seed."""
    wrong = (*NOTHING, 2.5, NAN, True, [], [0, 1], 10**400, np.int32([0, 1]), jnp.ones(()), KEYS)
    others = (0, np.int64(7), jnp.asarray(7), np.uint32([0, 1]), jax.random.PRNGKey(7))
    return Kind(lambda value: iter(wrong), lambda value: iter(others))


def path(*, nothing: bool = False) -> Kind:
    """A path of this machine."""
    wrong = (*_optional((None, b"abc", {}, Thing()), nothing), 3, 2.5, "", "  ", ["a"], "s3://bucket/a", "a\0b", True)
    return Kind(lambda value: iter(wrong))


def text() -> Kind:
    """A string."""
    wrong = (None, b"abc", {}, Thing(), 3, 2.5, NAN, True, [], ["abc"], jnp.ones(2))
    return Kind(lambda value: iter(wrong))


def array(
    *,
    infinite: bool = False,
    nan: bool = False,
    mixed: bool = False,
    lower: bool = True,
    higher: bool = True,
    nothing: bool = False,
    classes: bool = False,
    values: tuple = (),
) -> Kind:
    """Real numbers of the shape of the valid value.

    **Arguments:** `infinite`, `nan`: such entries are fine; `mixed`: complex ones too; `lower`, `higher`: whether an
    axis less or more is wrong; `classes`: two strings, and False and True, are labels; `values`: others that are wrong.
    """

    def refused(value: Any) -> Iterator[Any]:
        yield from _optional((*NOTHING, "1", 3 + 0j if not mixed else "a", True, KEY, print, int), nothing)
        valid = np.asarray(value, complex if mixed else float)
        yield np.full(valid.shape, "a") if classes else np.asarray(valid, str)
        yield np.ones(valid.shape, bool)
        yield [[1.0, 2.0], [1.0]]
        if not mixed:
            yield valid + 0j
        if valid.ndim and lower:
            yield valid[0]
            yield 1.0
        if higher:
            yield valid[None]
            yield jnp.asarray(valid[..., None])
        if valid.size and not nan:
            spoiled = valid.copy()
            spoiled.flat[-1] = NAN
            yield spoiled
            yield jnp.asarray(spoiled)
        if valid.size and not (infinite or nan):
            spoiled = valid.copy()
            spoiled.flat[0] = INF
            yield spoiled
        yield from values

    forms = (np.asarray, lambda value: np.asarray(value).tolist())
    named = (lambda value: np.asarray(value) > 0, lambda value: np.where(np.asarray(value) > 0, "b", "a"))
    return Kind(refused, _unless_none(*forms, *(named if classes else ())))


def mask(*, lower: bool = True, higher: bool = True, nothing: bool = False, numbers: bool = False) -> Kind:
    """Booleans of the shape of the valid value; `numbers`: or integers 0 and 1."""

    def refused(value: Any) -> Iterator[Any]:
        valid = np.asarray(value)
        yield from _optional((*NOTHING, 1, 0.5, 1j, "True", KEY, print), nothing)
        yield from (valid.astype(float), valid.astype(complex), [[True, False], [True]])
        yield 2 * valid.astype(int) if numbers else valid.astype(int)
        if lower:
            yield from (True, valid[0])
        if higher:
            yield valid[None]

    forms = (np.asarray, lambda value: np.asarray(value).tolist())
    return Kind(refused, _unless_none(*forms, *((lambda value: np.asarray(value).astype(int),) if numbers else ())))


def integers(*, nothing: bool = False, values: tuple = ()) -> Kind:
    """Integers of the shape of the valid value."""

    def refused(value: Any) -> Iterator[Any]:
        valid = np.asarray(value)
        yield from _optional((*NOTHING, 0.5, 1j, True, KEY, print), nothing)
        yield from (valid + 0.5, valid.astype(bool), valid.astype(complex), valid * NAN, valid[0], valid[None])
        yield from values

    return Kind(refused, _unless_none(np.asarray, lambda value: np.asarray(value).tolist()))


def sequence(*values: Any) -> Kind:
    """A tuple or list whose entries the valid value shows."""
    return Kind(lambda value: iter((None, "abc", b"abc", Thing(), 3, 2.5, NAN, True, jnp.ones(()), *values)))


def mapping(*values: Any) -> Kind:
    """A dictionary."""
    return Kind(lambda value: iter((None, "abc", b"abc", Thing(), 3, 2.5, NAN, True, [], [("a", 1)], {}, *values)))


def values(*wrong: Any, kind: Kind | None = None) -> Kind:
    """These wrong values, and those of another kind."""
    others = Kind(lambda value: iter(())) if kind is None else kind

    def refused(value: Any) -> Iterator[Any]:
        yield from others.refused(value)
        yield from wrong

    return Kind(refused, others.taken)
