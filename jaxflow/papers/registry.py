"""Which papers, theorems and figures there are."""

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxflow._core import unknown_name
from jaxflow.report import Claim

SCALES = ("quick", "paper", "large")

Data = dict[str, np.ndarray]


@dataclass(frozen=True)
class Theorem:
    """A theorem by which `jaxflow.theory.predict` answers, and the model class it is used for."""

    name: str
    statement: str
    model: type


@dataclass(frozen=True)
class Paper:
    """A paper: its short name, how to cite it, the theorems in use."""

    name: str
    title: str
    reference: str
    theorems: tuple[Theorem, ...]


class AbstractFigure(abc.ABC):
    """A figure of a paper: data, drawing and claims are separate steps, joined by a saved file."""

    @abc.abstractmethod
    def compute(self, scale: str, seed: int, say: Callable[[str], None]) -> Data:
        """The numbers of the figure; `say` reports progress. Every instance is in them."""

    @abc.abstractmethod
    def draw(self, data: Data) -> Any:
        """A Matplotlib figure drawn from saved numbers alone."""

    @abc.abstractmethod
    def claims(self, data: Data) -> tuple[list[Claim], list[str]]:
        """The paper's sentences about the figure with verdicts, and notes for below the table."""


@dataclass(frozen=True)
class Entry:
    """A registered figure; `run_times` says for each scale how much is computed and how long it takes."""

    paper: str
    name: str
    title: str
    run_times: dict[str, str]
    figure: AbstractFigure


_PAPERS: dict[str, Paper] = {}
_FIGURES: dict[tuple[str, str], Entry] = {}


def register_paper(paper: Paper) -> Paper:
    """Enters a paper."""
    _PAPERS[paper.name] = paper
    return paper


def register_figure(
    paper: str, name: str, *, title: str, run_times: dict[str, str]
) -> Callable[[type[AbstractFigure]], type[AbstractFigure]]:
    """Enters a figure class under its paper and name.

    **Raises:** `ValueError` unless every scale has a run time, and for a name that is taken.
    """
    if set(run_times) != set(SCALES):
        raise ValueError(f"run_times: expected one text for each of {', '.join(SCALES)}")

    def enter(figure: type[AbstractFigure]) -> type[AbstractFigure]:
        if (paper, name) in _FIGURES:
            raise ValueError(f"name: {paper} {name} is registered twice")
        _FIGURES[paper, name] = Entry(paper, name, title, run_times, figure())
        return figure

    return enter


def known_papers() -> list[Paper]:
    """All papers by name."""
    return [_PAPERS[name] for name in sorted(_PAPERS)]


def figures_of(paper: str) -> list[Entry]:
    """The figures of a paper by name."""
    return [entry for (owner, _), entry in sorted(_FIGURES.items()) if owner == paper]


def find_figure(paper: str, name: str) -> Entry:
    """**Raises:** `ValueError` with the nearest name for an unknown paper or figure."""
    if paper not in _PAPERS:
        raise unknown_name("paper", paper, _PAPERS)
    if (paper, name) not in _FIGURES:
        known = [entry.name for entry in figures_of(paper)]
        if not known:
            raise ValueError(f"figure: there is no figure of {paper} yet")
        raise unknown_name("figure", name, known)
    return _FIGURES[paper, name]
