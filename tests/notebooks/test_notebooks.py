"""Every notebook is stored without outputs and runs through: those on studies in tests/docs/test_studies.py."""

from pathlib import Path
from typing import Any

import nbformat
import pytest

from tests.docs.pages import DOCS, ROOT
from tests.docs.reader import job, read_all

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
names = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)


def read(path: Path) -> nbformat.NotebookNode:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    return notebook


COROLLARIES = [f"Yun et al. (2021), Corollary {number}" for number in (1, 2, 3, 5)]
# How many pictures a notebook shows, and what it prints. Its numbers are those of laws that are tested where they are
# computed, and its page shows them.
PRINTS = {
    "first_limit": (2, ["outcome: globally_optimal", "its direction solves the nuclear-norm max-margin program"]),
    "transformers_as_svms": (
        3,
        [
            "from zero: tokens [1 0], locally_optimal",
            "from near the optimal direction: tokens [1 1], globally_optimal",
        ],
    ),
    "linear_networks": (2, [*COROLLARIES, "fitted exponent 0.5", "predicted 0.5"]),
    "incremental_learning": (1, [f"support {found}\n" for found in ("[2]", "[0, 2]", "[0, 1]", "[0, 1, 2]")]),
    "three_parametrisations": (2, ["True (slack", ": globally_optimal, certified to"]),
    "own_model": (2, ["outcome kkt_point, degree 2"]),
}
ON_STUDIES = {"percentage_study", "reading_a_store"}


def test_all_are_run() -> None:
    assert {path.stem for path in NOTEBOOKS} == PRINTS.keys() | ON_STUDIES


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """By one process, which compiles once what they share."""
    jobs = {}
    for name in PRINTS:
        cells = [cell.source for cell in read(ROOT / "notebooks" / f"{name}.ipynb").cells if cell.cell_type == "code"]
        jobs[name] = job(tmp_path_factory.mktemp(name), cells=cells)
    return dict(zip(jobs, read_all(list(jobs.values()), tmp_path_factory.mktemp("jobs")), strict=True))


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", PRINTS)
def test_it_prints_what_it_is_about(name: str, ran: dict[str, Any]) -> None:
    answer, (pictures, wanted) = ran[name], PRINTS[name]
    assert not answer["error"], answer["error"][-4000:]
    assert not [text for text in wanted if text not in answer["printed"]]
    assert answer["pictures"] == pictures


@names
def test_stored_without_outputs(path: Path) -> None:
    cells = [cell for cell in read(path).cells if cell.cell_type == "code"]
    assert cells
    for cell in cells:
        assert cell.outputs == [] and cell.execution_count is None


def test_the_page_of_notebooks_names_all_of_them() -> None:
    text = (DOCS / "notebooks.md").read_text(encoding="utf-8")
    assert all(f"notebooks/{path.stem}.md" in text for path in NOTEBOOKS)


@names
def test_its_page_shows_the_same_cells_and_their_outputs(path: Path) -> None:
    page = (DOCS / "notebooks" / f"{path.stem}.md").read_text(encoding="utf-8")
    places = [page.find(cell.source) for cell in read(path).cells]
    assert min(places) >= 0 and places == sorted(places)
    assert "```text" in page and f"images/notebooks/{path.stem}-" in page
