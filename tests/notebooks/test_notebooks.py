"""Every notebook is stored without outputs and runs through: those on studies in tests/docs/test_studies.py."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest

from tests.docs.pages import DOCS, ROOT
from tests.docs.reader import job, read_all

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
names = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)


def read(path: Path) -> nbformat.NotebookNode:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    return notebook


def numbers(pattern: str, text: str) -> list[float]:
    """The numbers in a line of the text."""
    found = re.search(pattern, text)
    assert found, pattern
    return [float(x) for x in found.groups()]


def first_limit(text: str) -> None:
    assert "outcome: globally_optimal" in text
    for norm in ("Frobenius-norm", "nuclear-norm", "l1-norm"):
        assert f"its direction solves the {norm} max-margin program" in text


def transformers_as_svms(text: str) -> None:
    norms = re.findall(r"^(W|K, Q): Frobenius norm ([\d.]+), nuclear norm ([\d.]+)", text, re.MULTILINE)
    (_, *combined), (_, *factored) = norms
    # Each parametrisation is the smaller one in its own norm.
    assert float(combined[0]) < float(factored[0]) and float(combined[1]) > float(factored[1])
    count, starts = numbers(r"(\d+) of (\d+) starts converge", text)
    assert count == starts >= 3
    circle, rest = numbers(r"each of the five tokens: \[(\d+), (\d+), 0, 0, 0\]", text)
    assert circle > rest > 0 and circle + rest == 24
    assert "from zero: tokens [1 0], locally_optimal" in text
    assert "from near the optimal direction: tokens [1 1], globally_optimal" in text
    attention = [float(x) for x in re.findall(r"^step +\d+: .* and ([\d.]+)$", text, re.MULTILINE)]
    assert len(attention) == 5 and attention == sorted(attention, reverse=True) and attention[-1] < 0.01


def linear_networks(text: str) -> None:
    for corollary in ("Corollary 1", "Corollary 2", "Corollary 3", "Corollary 5"):
        assert f"Yun et al. (2021), {corollary}" in text
    fitted, predicted = numbers(r"fitted exponent ([\d.]+), predicted ([\d.]+)", text)
    assert abs(fitted - predicted) < 0.02
    assert numbers(r"distance to the closed form: ([\d.e+-]+)", text)[0] < 1e-8


def incremental_learning(text: str) -> None:
    for support in ("[2]", "[0, 2]", "[0, 1]", "[0, 1, 2]"):
        assert f"support {support}\n" in text
    # Stages of the head at e^(-10000), in time to 0.1% and in products to 1e-6.
    stages = re.findall(r"stage \d: time off by (\S+), products by (\S+)", text)
    assert len(stages) == 3 and all(abs(float(time)) <= 1e-3 for time, _ in stages)


def three_parametrisations(text: str) -> None:
    assert len(re.findall(r"^True \(slack", text, re.MULTILINE)) == 4
    assert len(re.findall(r": globally_optimal, certified to", text)) == 3
    norms = re.findall(r"Frobenius norm ([\d.]+), nuclear norm ([\d.]+)", text)
    frobenius, nuclear = np.asarray(norms, float).T
    # Each is the least in its own norm; the diagonal limit is the least in neither.
    assert np.argmin(frobenius) == 0 and np.argmin(nuclear) == 1
    assert numbers(r"difference of the two flows: (\S+)", text)[0] <= 1e-8
    assert numbers(r"integral form: (\S+)", text)[0] <= 1e-6
    averaged, gap = numbers(r"residual (\S+), instantaneous gap (\S+)", text)
    assert gap < 1e-3 < averaged


def own_model(text: str) -> None:
    assert "outcome kkt_point, degree 2" in text
    assert numbers(r"KKT residual (\S+)", text)[0] <= 1e-6
    left, directions = numbers(r"(\d+) of 16 units are left, in (\d+) directions", text)
    assert 1 <= directions <= left <= 16


# What a notebook prints, and how many pictures it shows.
PRINTS: dict[Callable[[str], None], int] = {
    first_limit: 2,
    transformers_as_svms: 3,
    linear_networks: 2,
    incremental_learning: 1,
    three_parametrisations: 2,
    own_model: 2,
}
ON_STUDIES = {"percentage_study", "reading_a_store"}


def test_all_are_run() -> None:
    assert {path.stem for path in NOTEBOOKS} == {check.__name__ for check in PRINTS} | ON_STUDIES


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """By one process, which compiles once what they share."""
    jobs = {}
    for name in (check.__name__ for check in PRINTS):
        cells = [cell.source for cell in read(ROOT / "notebooks" / f"{name}.ipynb").cells if cell.cell_type == "code"]
        jobs[name] = job(tmp_path_factory.mktemp(name), cells=cells)
    return dict(zip(jobs, read_all(list(jobs.values()), tmp_path_factory.mktemp("jobs")), strict=True))


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("check", PRINTS, ids=lambda check: check.__name__)
def test_it_prints_what_it_is_about(check: Callable[[str], None], ran: dict[str, Any]) -> None:
    answer = ran[check.__name__]
    assert not answer["error"], answer["error"][-4000:]
    check(answer["printed"])
    assert answer["pictures"] == PRINTS[check]


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
