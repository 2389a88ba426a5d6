"""Every notebook is stored without outputs and runs through."""

import os
from pathlib import Path

import jax
import nbclient
import nbformat
import pytest
from nbclient.exceptions import CellExecutionError

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
# Seconds for one cell, most of which is compilation.
CELL_LIMIT = 240


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
    assert "first_limit.ipynb" in [path.name for path in NOTEBOOKS]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_stored_without_outputs(path):
    cells = [cell for cell in read(path).cells if cell.cell_type == "code"]
    assert cells
    for cell in cells:
        assert cell.outputs == [] and cell.execution_count is None


def test_an_error_in_a_cell_is_an_error_here():
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1 / 0")])
    with pytest.raises(CellExecutionError, match="ZeroDivisionError"):
        run(notebook)


def test_first_limit():
    done = outputs(run(read(ROOT / "notebooks" / "first_limit.ipynb")))
    text = "".join(output.text for output in done if output.get("name") == "stdout")
    assert "outcome: globally_optimal" in text
    for norm in ("Frobenius-norm", "nuclear-norm", "l1-norm"):
        assert f"its direction solves the {norm} max-margin program" in text
    pictures = [output for output in done if "image/png" in output.get("data", {})]
    assert len(pictures) == 2
