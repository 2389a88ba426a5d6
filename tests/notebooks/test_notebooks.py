"""Every notebook is stored without outputs and runs through: those on studies in tests/docs/test_studies.py."""

import os
import re
from pathlib import Path

import jax
import nbclient
import nbformat
import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
# Seconds for one cell, most of which is compilation.
CELL_LIMIT = 240
# As in tests/conftest.py: collecting garbage after every seven hundred objects is a sixth of the time.
FIRST = "import gc\n\ngc.set_threshold(100_000, 50, 1000)"


def read(path: Path) -> nbformat.NotebookNode:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    return notebook


def run(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Executes it in a kernel of this environment; an error in a cell is raised here."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        # Small problems run once: a third of the time is saved.
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    }
    cache = jax.config.jax_compilation_cache_dir
    if cache:
        environment["JAX_COMPILATION_CACHE_DIR"] = cache
    notebook.cells.insert(0, nbformat.v4.new_code_cell(FIRST))
    client = nbclient.NotebookClient(
        notebook,
        timeout=CELL_LIMIT,
        kernel_name="python3",
        resources={"metadata": {"path": str(ROOT / "notebooks")}},
    )
    client.execute(env=environment)
    return notebook


def outputs(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


def test_there_are_notebooks():
    names = [path.name for path in NOTEBOOKS]
    assert "first_limit.ipynb" in names and "transformers_as_svms.ipynb" in names


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_stored_without_outputs(path):
    cells = [cell for cell in read(path).cells if cell.cell_type == "code"]
    assert cells
    for cell in cells:
        assert cell.outputs == [] and cell.execution_count is None


@pytest.mark.slow
def test_first_limit():
    done = outputs(run(read(ROOT / "notebooks" / "first_limit.ipynb")))
    text = "".join(output.text for output in done if output.get("name") == "stdout")
    assert "outcome: globally_optimal" in text
    for norm in ("Frobenius-norm", "nuclear-norm", "l1-norm"):
        assert f"its direction solves the {norm} max-margin program" in text
    pictures = [output for output in done if "image/png" in output.get("data", {})]
    assert len(pictures) == 2


@pytest.mark.slow
def test_transformers_as_svms():
    done = outputs(run(read(ROOT / "notebooks" / "transformers_as_svms.ipynb")))
    text = "".join(output.text for output in done if output.get("name") == "stdout")
    norms = re.findall(r"^(W|K, Q): Frobenius norm ([\d.]+), nuclear norm ([\d.]+)", text, re.MULTILINE)
    (_, *combined), (_, *factored) = norms
    # Each parametrisation is the smaller one in its own norm.
    assert float(combined[0]) < float(factored[0]) and float(combined[1]) > float(factored[1])
    count, starts = (int(x) for x in re.findall(r"(\d+) of (\d+) starts converge", text)[0])
    assert count == starts >= 3
    (circle,) = re.findall(r"each of the five tokens: \[(\d+), (\d+), 0, 0, 0\]", text)
    assert int(circle[0]) > int(circle[1]) > 0 and int(circle[0]) + int(circle[1]) == 24
    assert "from zero: tokens [1 0], locally_optimal" in text
    assert "from near the optimal direction: tokens [1 1], globally_optimal" in text
    attention = [float(x) for x in re.findall(r"^step +\d+: .* and ([\d.]+)$", text, re.MULTILINE)]
    assert len(attention) == 5 and attention == sorted(attention, reverse=True) and attention[-1] < 0.01
    pictures = [output for output in done if "image/png" in output.get("data", {})]
    assert len(pictures) == 3


@pytest.mark.slow
def test_linear_networks():
    done = outputs(run(read(ROOT / "notebooks" / "linear_networks.ipynb")))
    text = "".join(output.text for output in done if output.get("name") == "stdout")
    for corollary in ("Corollary 1", "Corollary 2", "Corollary 3", "Corollary 5"):
        assert f"Yun et al. (2021), {corollary}" in text
    fitted, predicted = (float(x) for x in re.findall(r"fitted exponent ([\d.]+), predicted ([\d.]+)", text)[0])
    assert abs(fitted - predicted) < 0.02
    assert float(re.findall(r"distance to the closed form: ([\d.e+-]+)", text)[0]) < 1e-8
    assert sum("image/png" in output.get("data", {}) for output in done) == 2


@pytest.mark.slow
def test_incremental_learning():
    done = outputs(run(read(ROOT / "notebooks" / "incremental_learning.ipynb")))
    text = "".join(output.text for output in done if output.get("name") == "stdout")
    for support in ("[2]", "[0, 2]", "[0, 1]", "[0, 1, 2]"):
        assert f"support {support}\n" in text
    # Stages of the head at e^(-10000), in time to 0.1% and in products to 1e-6.
    stages = re.findall(r"stage \d: time off by (\S+), products by (\S+)", text)
    assert len(stages) == 3
    assert all(abs(float(time)) <= 1e-3 for time, _ in stages)
    assert any("image/png" in output.get("data", {}) for output in done)


@pytest.mark.slow
def test_three_parametrisations():
    done = outputs(run(read(ROOT / "notebooks" / "three_parametrisations.ipynb")))
    text = "".join(output.text for output in done if output.get("name") == "stdout")
    assert len(re.findall(r"^True \(slack", text, re.MULTILINE)) == 4
    assert len(re.findall(r": globally_optimal, certified to", text)) == 3
    norms = re.findall(r"Frobenius norm ([\d.]+), nuclear norm ([\d.]+)", text)
    frobenius, nuclear = np.asarray(norms, float).T
    # Each is the least in its own norm; the diagonal limit is the least in neither.
    assert np.argmin(frobenius) == 0 and np.argmin(nuclear) == 1
    assert float(re.findall(r"difference of the two flows: (\S+)", text)[0]) <= 1e-8
    assert float(re.findall(r"integral form: (\S+)", text)[0]) <= 1e-6
    averaged, gap = (float(x) for x in re.findall(r"residual (\S+), instantaneous gap (\S+)", text)[0])
    assert gap < 1e-3 < averaged
    assert sum("image/png" in output.get("data", {}) for output in done) == 2


@pytest.mark.slow
def test_own_model():
    done = outputs(run(read(ROOT / "notebooks" / "own_model.ipynb")))
    text = "".join(output.text for output in done if output.get("name") == "stdout")
    assert "outcome kkt_point, degree 2" in text
    assert float(re.findall(r"KKT residual (\S+)", text)[0]) <= 1e-6
    left, directions = (int(x) for x in re.findall(r"(\d+) of 16 units are left, in (\d+) directions", text)[0])
    assert 1 <= directions <= left <= 16
    assert sum("image/png" in output.get("data", {}) for output in done) == 2


RENDERED = [path for path in NOTEBOOKS if (ROOT / "docs" / "notebooks" / f"{path.stem}.md").exists()]


def test_the_page_of_notebooks_names_all_of_them():
    text = (ROOT / "docs" / "notebooks.md").read_text(encoding="utf-8")
    assert all(f"notebooks/{path.stem}.md" in text for path in RENDERED)
    assert RENDERED == NOTEBOOKS


@pytest.mark.parametrize("path", RENDERED, ids=lambda path: path.name)
def test_its_page_shows_the_same_cells_and_their_outputs(path):
    page = (ROOT / "docs" / "notebooks" / f"{path.stem}.md").read_text(encoding="utf-8")
    cells = read(path).cells
    places = [page.find(cell.source) for cell in cells]
    assert min(places) >= 0 and places == sorted(places)
    assert "```text" in page and f"images/notebooks/{path.stem}-" in page
