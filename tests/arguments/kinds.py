"""What an argument may be: from a valid value follow those that must be refused, one for each kind of fault, and those
that must be taken."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

NAN, INF = float("nan"), float("inf")
KEY = jax.random.key(0)


class Kind(NamedTuple):
    """`refused(value)` and `taken(value)`: other values for an argument whose valid value is `value`."""

    refused: Callable[[Any], Iterator[Any]]
    taken: Callable[[Any], Iterator[Any]] = lambda value: iter(())


def _kind(wrong: tuple, *forms: Callable[[Any], Any], nothing: bool = False) -> Kind:
    """The same wrong values whatever is valid, and forms of the valid value; `nothing`: None is fine too."""
    refused = tuple(value for value in wrong if not (nothing and value is None))
    return Kind(lambda value: iter(refused), lambda value: (form(value) for form in forms if value is not None))


def values(*wrong: Any, kind: Kind | None = None) -> Kind:
    """These wrong values, and those of another kind."""
    if kind is None:
        return _kind(wrong)
    return Kind(lambda value: iter((*kind.refused(value), *wrong)), kind.taken)


NO_NUMBER = (None, "1", 1j, True, [1], np.ones(2), KEY, NAN, 10**400)


def count(least: int = 1, nothing: bool = False) -> Kind:
    """An integer from `least`; `nothing`: or None."""
    return _kind((*NO_NUMBER, 2.5, INF, least - 1), np.int64, jnp.asarray, nothing=nothing)


def seed() -> Kind:
    """Any integer that eight bytes hold."""
    return _kind((*NO_NUMBER, 2.5, INF, 2**64), np.int64)


def number(
    positive: bool = False,
    least: float | None = None,
    most: float | None = None,
    nothing: bool = False,
    infinite: bool = False,
) -> Kind:
    """A real number, or a scalar array of one."""
    wrong: tuple = (*NO_NUMBER, jnp.asarray(NAN))
    wrong += () if infinite else (INF,)
    wrong += (0.0, -1e-300) if positive else ()
    wrong += () if least is None else (least - 1.0,)
    wrong += () if most is None else (most + 1.0,)
    return _kind(wrong, np.float64, np.float32, jnp.asarray, nothing=nothing)


def choice(*, nothing: bool = False) -> Kind:
    """A name, or an object that it stands for."""
    return _kind((None, "abc", "", b"abc", 3, True, [], jnp.ones(2), type), nothing=nothing)


def instance(*, nothing: bool = False) -> Kind:
    """An object of a class of the library, or of a library below it."""
    return _kind((None, "abc", 3, True, [1.0], {}, jnp.ones(3), print), nothing=nothing)


def function(*, nothing: bool = False) -> Kind:
    """Something that can be called."""
    return _kind((None, "abc", 3, True, [print], jnp.ones(3)), nothing=nothing)


def boolean() -> Kind:
    """True or False."""
    return _kind((None, "no", 1, 1.0, [True], np.ones(2, bool)), np.bool_)


def key() -> Kind:
    """One key, or a seed."""
    wrong = (None, "abc", 2.5, True, [0, 1], 10**400, np.int32([0, 1]), jax.random.split(KEY))
    forms = (lambda _: 0, lambda _: jnp.asarray(7), lambda _: np.uint32([0, 1]), lambda _: jax.random.PRNGKey(7))
    return _kind(wrong, *forms)


def path(*, nothing: bool = False) -> Kind:
    """A path of this machine."""
    return _kind((None, b"abc", 3, "  ", ["a"], "s3://bucket/a", "a\0b"), nothing=nothing)


def text() -> Kind:
    """A string."""
    return _kind((None, b"abc", 3, ["abc"], jnp.ones(2)))


def sequence(*wrong: Any) -> Kind:
    """A tuple or list whose entries the valid value shows."""
    return _kind((None, "abc", 3, jnp.ones(()), *wrong))


def mapping(*wrong: Any) -> Kind:
    """A dictionary."""
    return _kind((None, "abc", 3, [("a", 1)], {}, *wrong))


def array(
    *,
    infinite: bool = False,
    nan: bool = False,
    mixed: bool = False,
    lower: bool = True,
    higher: bool = True,
    nothing: bool = False,
    classes: bool = False,
    wrong: tuple = (),
) -> Kind:
    """Real numbers of the shape of the valid value.

    **Arguments:** `infinite`, `nan`: such entries are fine; `mixed`: complex ones too; `lower`, `higher`: whether an
    axis less or more is wrong; `classes`: two strings, and False and True, are labels; `wrong`: others that are.
    """

    def refused(value: Any) -> Iterator[Any]:
        valid = np.asarray(value, complex if mixed else float)
        yield from ("abc", True, KEY, [[1.0, 2.0], [1.0]], np.ones(valid.shape, bool))
        yield np.full(valid.shape, "a")
        yield from () if nothing else (None,)
        yield from () if mixed else (valid + 0j,)
        yield from (valid[0],) if valid.ndim and lower else ()
        yield from (valid[None],) if higher else ()
        for entry in () if nan else (NAN,) if infinite else (NAN, INF):
            spoiled = valid.copy()
            spoiled.flat[-1] = entry
            yield spoiled
        yield from wrong

    forms = [np.asarray, lambda value: np.asarray(value).tolist()]
    if classes:
        forms += [lambda value: np.asarray(value) > 0, lambda value: np.where(np.asarray(value) > 0, "b", "a")]
    return Kind(refused, _kind((), *forms).taken)


def mask(*, nothing: bool = False, numbers: bool = False) -> Kind:
    """Booleans of the shape of the valid value; `numbers`: or integers 0 and 1."""

    def refused(value: Any) -> Iterator[Any]:
        valid = np.asarray(value)
        yield from ("abc", 0.5, KEY, valid.astype(float), [[True, False], [True]], valid[0], valid[None])
        yield 2 * valid.astype(int) if numbers else valid.astype(int)
        yield from () if nothing else (None,)

    forms = [np.asarray, lambda value: np.asarray(value).tolist()]
    return Kind(refused, _kind((), *forms, *([lambda value: np.asarray(value).astype(int)] if numbers else [])).taken)


def integers(*wrong: Any, nothing: bool = False) -> Kind:
    """Integers of the shape of the valid value."""

    def refused(value: Any) -> Iterator[Any]:
        valid = np.asarray(value)
        yield from ("abc", 1j, KEY, valid + 0.5, valid.astype(bool), valid[0], valid[None], *wrong)
        yield from () if nothing else (None,)

    return Kind(refused, _kind((), np.asarray, lambda value: np.asarray(value).tolist()).taken)
