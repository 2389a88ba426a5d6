"""Which papers, theorems, figures and checks there are: one entry for each experiment."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from jaxflow._core import as_path, unknown_name
from jaxflow.papers.claims import Finding
from jaxflow.papers.dataset import Dataset, Draw, Sweep
from jaxflow.papers.statement import Statement, hold

SCALES = ("quick", "paper", "large")

N = TypeVar("N")

Found = tuple[list[Finding], list[str]]


@dataclass(frozen=True)
class Theorem:
    """A theorem that `jaxflow.theory.predict` uses, and the model class for which it is used."""

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


@dataclass(frozen=True)
class Entry:
    """An experiment: its numbers, the paper's statements that they test, and a picture of them.

    `said`: the statements about the numbers. `draw`: a Matplotlib figure; without one it is a check, whose findings are
    rows of the table of `verify`.
    """

    paper: str
    name: str
    title: str
    dataset: Dataset
    said: Callable[[Any], Sequence[Statement[Any]]]
    notes: Callable[[Any], list[str]]
    draw: Callable[[Any], Any] | None = None

    def find(self, numbers: Any, draw: Draw | None = None) -> Found:
        """The finding for every statement, and the notes. Contradictions are computed again from `draw`."""
        return [hold(statement, numbers, draw) for statement in self.said(numbers)], self.notes(numbers)

    def size(self, scale: str) -> str:
        """How much is computed: the instances of all parts, and the sweeps, which have none."""
        studies = [study for name in self.dataset.parts for study in self.dataset.studies(name, scale, 0).values()]
        instances = sum(study.plan.instance_count for study in studies)
        sweeps = sum(isinstance(part, Sweep) for part in self.dataset.parts.values())
        kinds = {"instance": instances, "sweep": sweeps}
        return ", ".join(f"{count:,} {kind}{'s' * (count > 1)}" for kind, count in kinds.items() if count)


_PAPERS: dict[str, Paper] = {}
_ENTRIES: dict[tuple[str, str], Entry] = {}


def register_paper(paper: Paper) -> Paper:
    """Enters a paper."""
    _PAPERS[paper.name] = paper
    return paper


def register(
    dataset: Dataset,
    name: str = "",
    *,
    title: str,
    statements: Sequence[Statement[N]] | Callable[[N], Sequence[Statement[N]]],
    notes: Callable[[N], list[str]] = lambda numbers: [],
    draw: Callable[[N], Any] | None = None,
) -> Entry:
    """Enters an experiment under the paper of its dataset: a figure where it has a drawing, else a check of `verify`.

    `name`: that of the dataset, by default. `statements` may depend on what these numbers are about: a scale may leave
    out a parametrisation.

    **Raises:** `ValueError` for a name that is taken.
    """
    name = name or dataset.name
    if (dataset.paper, name) in _ENTRIES:
        raise ValueError(f"name: {dataset.paper} {name} is registered twice")
    said = statements if callable(statements) else lambda numbers: statements
    entry = Entry(dataset.paper, name, title, dataset, said, notes, draw)
    _ENTRIES[dataset.paper, name] = entry
    return entry


def known_papers() -> list[Paper]:
    """All papers by name."""
    return [_PAPERS[name] for name in sorted(_PAPERS)]


def find_paper(name: str) -> Paper:
    """**Raises:** `ValueError` with the nearest name for an unknown paper.

    **Example:**

    ```python
    from jaxflow import papers

    try:
        papers.find_paper("yun2012")
    except ValueError as reason:
        print(reason)  # ... did you mean 'yun2021'?
    ```
    """
    if not isinstance(name, str) or name not in _PAPERS:
        raise unknown_name("paper", name, _PAPERS)
    return _PAPERS[name]


def entries_of(paper: str) -> list[Entry]:
    """The experiments of a paper, in the order in which they were registered."""
    name = find_paper(paper).name
    return [entry for (owner, _), entry in _ENTRIES.items() if owner == name]


def figures_of(paper: str) -> list[Entry]:
    """The figures of a paper by name."""
    return sorted((entry for entry in entries_of(paper) if entry.draw), key=lambda entry: entry.name)


def checks_of(paper: str) -> list[Entry]:
    """The checks of `verify`, in the order in which they were registered."""
    return [entry for entry in entries_of(paper) if entry.draw is None]


def find_figure(paper: str, name: str) -> Entry:
    """**Raises:** `ValueError` with the nearest name for an unknown paper or figure."""
    figures = {entry.name: entry for entry in figures_of(find_paper(paper).name)}
    if not isinstance(name, str) or name not in figures:
        if not figures:
            raise ValueError(f"figure: there is no figure of {paper} yet")
        raise unknown_name("figure", name, list(figures))
    return figures[name]


def default_folder(paper: str, out: Path | str | None) -> Path:
    """Where the files of a paper go."""
    return Path("out") / paper if out is None else as_path("out", out)
