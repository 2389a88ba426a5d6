"""Pages on studies, and the notebooks on the study that they show: one process compiles it once."""

import re
from pathlib import Path
from typing import Any

import nbclient
import pytest

from tests.docs.pages import Page, code_of, notebook_of
from tests.docs.reader import STUDIES, environment, job, job_of, read_all


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the store that `reading_a_store` makes by a command."""
    folder = tmp_path_factory.mktemp("store")
    (folder / "commands").mkdir()
    (text,) = re.findall(r'write_text\("""(.*?)"""\)', code_of("reading_a_store")[0], re.DOTALL)
    (folder / "commands" / "selection.toml").write_text(text)
    return folder


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory, store: Path) -> dict[str, dict[str, Any]]:
    """What each page and the first notebook did; and the command of the other one."""
    command = ["study", "run", "selection.toml", "--out", "selection.zarr", "--quiet"]
    jobs = {page.name: job_of(page, tmp_path_factory.mktemp("page")) for page in STUDIES}
    jobs["percentages"] = job(tmp_path_factory.mktemp("notebook"), cells=code_of("percentage_study"))
    jobs["store"] = job(store, commands=[command])
    return read_all(jobs, tmp_path_factory.mktemp("jobs"))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", STUDIES, ids=lambda page: page.name)
def test_blocks_run(page: Page, ran: dict[str, dict[str, Any]]) -> None:
    assert not ran[page.name]["error"], ran[page.name]["error"][-4000:]


@pytest.mark.slow
def test_percentage_study(ran: dict[str, dict[str, Any]]) -> None:
    answer = ran["percentages"]
    assert not answer["error"], answer["error"][-4000:]
    assert "the first twenty are the same: True" in answer["printed"]
    rows = re.findall(r"d = +(\d+), (W|KQ) *: +([\d.]+)% of 60 \(([\d.]+) to ([\d.]+)\)", answer["printed"])
    assert len(rows) == 4 and all(float(low) <= float(p) <= float(high) for _, _, p, low, high in rows)
    assert answer["pictures"] == 3


@pytest.mark.slow
def test_reading_a_store(ran: dict[str, dict[str, Any]], store: Path) -> None:
    """In a kernel of its own, which imports neither JAX nor jaxflow; its command finds the study complete."""
    assert not ran["store"]["error"], ran["store"]["error"][-4000:]
    notebook, made = notebook_of("reading_a_store"), "Path(tempfile.mkdtemp())"
    (first,) = [cell for cell in notebook.cells if made in cell.source]
    first.source = first.source.replace(made, f"Path({str(store / 'commands')!r})")
    inline = {"MPLBACKEND": "module://matplotlib_inline.backend_inline"}
    client = nbclient.NotebookClient(notebook, timeout=240, kernel_name="python3")
    client.execute(env=environment() | inline)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    text = "".join(output.text for output in outputs if output.get("name") == "stdout")
    assert "complete: True" in text and "globally_optimal" in text
    assert any("image/png" in output.get("data", {}) for output in outputs)
