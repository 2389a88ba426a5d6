"""Checks as classes: rows from arrays by name."""

import abc
from collections.abc import Callable
from typing import Any

from jaxflow.papers.dataset import checksum_key
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

        times: dict[str, str] = dict.fromkeys(SCALES, "not measured")
        dataset = whole(paper, name, compute, checksum_key(name))
        enter(Entry(paper, name, statements, times, dataset, find, verified=True, check=check))
        return kind

    return enter_class
