"""Checks as classes: rows from arrays by name."""

import abc
import zlib
from collections.abc import Callable
from typing import Any

import jax

from jaxflow.papers.registry import SCALES, Data, Entry, Found, enter, whole
from jaxflow.papers.registry import checks_of as checks_of
from jaxflow.report import Row as Row


class AbstractCheck(abc.ABC):
    """A group of statements: numbers first, rows from the saved numbers alone."""

    @abc.abstractmethod
    def compute(self, scale: str, key: Any, say: Callable[[str], None]) -> Data:
        """The numbers; every instance is in them, whatever became of it."""

    @abc.abstractmethod
    def rows(self, data: Data) -> list[Row]:
        """Rows with verdicts."""


def register_check(paper: str, name: str, *, statements: str) -> Callable[[type[AbstractCheck]], type[AbstractCheck]]:
    """Enters a check class under its paper and name; its numbers are kept as a whole.

    **Raises:** `ValueError` for a name that is taken.
    """

    def enter_class(kind: type[AbstractCheck]) -> type[AbstractCheck]:
        check = kind()

        def find(data: Data) -> Found:
            return [row.finding for row in check.rows(data)], []

        def compute(scale: str, key: Any, say: Callable[[str], None]) -> Data:
            return check.compute(scale, key, say)

        def draw_from(seed: int) -> Any:
            # A name's checksum, so that a new check leaves the instances of the others as they are.
            return jax.random.fold_in(jax.random.key(seed), zlib.crc32(name.encode()))

        times: dict[str, str] = dict.fromkeys(SCALES, "not measured")
        enter(Entry(paper, name, statements, times, whole(paper, name, compute, draw_from), find, verified=True,
                    check=check))  # fmt: skip
        return kind

    return enter_class
