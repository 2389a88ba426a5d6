"""A store that somebody else has packed: whoever reads it runs nothing, and whoever goes on writes nowhere else."""

import ast
import json
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from jaxflow.cli.study import app
from jaxflow.report import study_html
from jaxflow.study import (
    FunctionExperiment,
    open_results,
    percentages,
    plot,
    quantities,
    status,
    study_of_store,
    summary,
    to_dataframe,
)
from jaxflow.study.files import side_folder
from jaxflow.study.layout import seal
from tests.study.cheap import cheap, payload, restore, small_study, tiny_study

ROOT = Path(__file__).resolve().parents[2]

SCRIPT = "<script>alert(1)</script>"


def change(path: Path, *, attributes=None, study=None, arrays=None) -> None:
    """Metadata as somebody wants them, with the checksum that fits."""
    top = json.loads((path / "zarr.json").read_text())
    told = top["attributes"]
    if study is not None:
        told["study"] = json.dumps(json.loads(told["study"]) | study)
    told.update(attributes or {})
    top["consolidated_metadata"]["metadata"].update(arrays or {})
    told["metadata_checksum"] = seal(top)
    (path / "zarr.json").write_text(json.dumps(top))


def look(path: Path) -> None:
    """Everything that can be done with a store but for running it."""
    status(path, verify=True)
    with open_results(path) as results:
        results.load()
        for use in (percentages, summary, quantities, to_dataframe, plot):
            use(results)
    assert study_html(path).startswith("<!DOCTYPE html>")
    runner = CliRunner()
    for command in (["status", str(path), "--verify"], ["status", str(path), "--json"]):
        assert runner.invoke(app, command).exit_code in (0, 3)
    assert runner.invoke(app, ["report", str(path), "--out", str(path.parent / "r.html")]).exit_code == 0


@pytest.fixture
def evil(tmp_path, monkeypatch):
    """A module that leaves a mark when it is imported, where Python finds it."""
    folder, mark = tmp_path / "modules", tmp_path / "mark"
    folder.mkdir()
    text = f"from pathlib import Path\nPath({str(mark)!r}).touch()\n\n\ndef draw(key, d=2, parametrization='W'):\n"
    (folder / "evil_module.py").write_text(text + "    return {'value': 1.0}\n\n\nother = draw\n")
    monkeypatch.syspath_prepend(folder)
    yield mark
    sys.modules.pop("evil_module", None)


def test_reading_imports_nothing_that_the_store_names(tmp_path, tiny, evil):
    path = tmp_path / "r.zarr"
    restore(path, tiny[0])
    told = {"name": "draw", "import": "evil_module:draw", "settings": {"name": "evil_module:draw"}}
    codec = {"name": "evil_module:Codec", "configuration": {}}
    top = json.loads((path / "zarr.json").read_text())
    entry = top["consolidated_metadata"]["metadata"]["value"]
    change(path, study={"experiment": told}, arrays={"value": {**entry, "codecs": [codec], "data_type": "evil_module"}})
    (path / "value/zarr.json").write_text(json.dumps({**entry, "codecs": [codec]}))
    look(path)
    assert "evil_module" not in sys.modules and not evil.exists()


def test_resuming_says_what_it_imports_before_it_does(tmp_path, tiny, evil):
    path = tmp_path / "r.zarr"
    restore(path, tiny[0])
    told = {"name": "draw", "import": "evil_module:draw", "settings": {"name": "draw"}}
    change(path, study={"experiment": told})
    said = []

    def announce(name):
        said.append(name)
        assert not evil.exists()
        raise InterruptedError  # as one who does not want it

    with pytest.raises(InterruptedError):
        study_of_store(path, announce)
    assert said == ["evil_module:draw"] and "evil_module" not in sys.modules
    found = CliRunner().invoke(app, ["resume", str(path), "--quiet"])
    assert found.output.startswith(f"Importing evil_module:draw, as {path} asks for.")
    # What is found under the name is not what the store describes.
    change(path, study={"experiment": {**told, "import": "evil_module:other"}})
    with pytest.raises(ValueError, match="evil_module:other has changed"):
        study_of_store(path)
    for name in (
        "os:system",
        "builtins:exec",
        "subprocess:Popen",
        "evil module:draw",
        "evil_module:draw.__globals__[0]",
    ):
        change(path, study={"experiment": {**told, "import": name}})
        with pytest.raises(ValueError, match="experiment|factors"):
            study_of_store(path)


class Bomb:
    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (Path(self.mark),)


@pytest.mark.parametrize("whose", ["value", "d", "stranger"])
def test_no_pickle_is_read(whose, tmp_path, tiny):
    """An array of format 2, whose filter is pickle, among the consolidated metadata; and files of that format."""
    path, mark = tmp_path / "r.zarr", tmp_path / "mark"
    restore(path, tiny[0])
    array = {"shape": [1], "chunks": [1], "dtype": "|O", "fill_value": None, "order": "C", "zarr_format": 2}
    array |= {"filters": [{"id": "pickle", "protocol": 5}], "compressor": None, "dimension_separator": "."}
    change(path, arrays={whose: array | {"attributes": {"_ARRAY_DIMENSIONS": ["d"]}}})
    (path / whose).mkdir(exist_ok=True)
    (path / ".zgroup").write_text('{"zarr_format": 2}')
    (path / whose / ".zarray").write_text(json.dumps(array))
    (path / whose / ".zattrs").write_text('{"_ARRAY_DIMENSIONS": ["d"]}')
    for chunk in {"value": ("0", "0.0.0"), "d": ("0", "c/0"), "stranger": ("0", "c/0")}[whose]:
        (path / whose / chunk).parent.mkdir(parents=True, exist_ok=True)
        (path / whose / chunk).write_bytes(pickle.dumps(Bomb(mark)))
    look(path)
    with open_results(path) as results:
        assert results["d"].values.tolist() == [2] and "stranger" not in results
    assert not mark.exists()


def test_nothing_in_the_library_unpickles_or_unpacks_what_it_is_given():
    """Every call by name: pickles are read only from the driver of a study, and from a data set that comes so."""
    known = {("study/blocks.py", "loads"), ("papers/boix2023/practical/images.py", "load")}
    found, loads, packers = set(), [], []
    for file in sorted((ROOT / "jaxflow").rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [getattr(node, "module", None) or "", *(alias.name for alias in node.names)]
                packers += [
                    (file, name) for name in names if name in ("zipfile", "tarfile", "shelve", "marshal", "dill")
                ]
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            owner = node.func.value.id if isinstance(node.func.value, ast.Name) else ""
            if owner == "pickle" and node.func.attr in ("load", "loads", "Unpickler"):
                found.add((str(file.relative_to(ROOT / "jaxflow")), node.func.attr))
            if owner == "np" and node.func.attr == "load":
                loads.append({word.arg: ast.unparse(word.value) for word in node.keywords}.get("allow_pickle"))
            if node.func.attr in ("unpack_archive", "extractall"):
                packers.append((file, node.func.attr))
    assert found == known and set(loads) == {"False"} and not packers


def test_names_in_a_report_are_text(tmp_path, quick):
    path = tmp_path / "r.zarr"
    study = small_study(
        FunctionExperiment(lambda key, law="a", d=2: cheap(key, d), SCRIPT),
        data_factors={"law": [SCRIPT, "$\\undefined$", "a&b"], "d": [2, 3]},
        method_factors={},
    )
    study.run(path, progress=False)
    change(path, attributes={"mixed": SCRIPT, "manifest": json.dumps({SCRIPT: SCRIPT, "packages": {SCRIPT: SCRIPT}})})
    top = json.loads((path / "zarr.json").read_text())
    entry = top["consolidated_metadata"]["metadata"]["gap"]
    change(path, arrays={"gap": {**entry, "attributes": {"long_name": SCRIPT}}})
    text = study_html(path)
    assert "<script" not in text and text.count("&lt;script&gt;") >= 6
    assert "a&amp;b" in text
    with open_results(path) as results:
        plot(results, "curves", x="law", outcome="undecided").canvas.draw()
        plot(results, "heat_map", x="d").canvas.draw()
        assert "<script" not in summary(results).to_html()


def test_a_name_that_looks_like_markup_of_the_terminal(tmp_path, quick):
    tiny_study(FunctionExperiment(cheap, "[/red] [bold]")).run(tmp_path / "r.zarr")
    with pytest.raises(ValueError, match="name: expected a name in printable characters"):
        FunctionExperiment(cheap, "a\nb")


def test_names_of_results_are_no_paths(tmp_path, tiny):
    """`..`, what is absolute, and whatever else is no identifier: refused when it is read, before any file is asked."""
    path = tmp_path / "r.zarr"
    for name in ("../../outside", "/etc/passwd", "a/b", "trial", ""):
        restore(path, tiny[0])
        listed = [[name, "f8", [], {}], ["outcome", "u1", [], {"not_run": 0, "failed": 9}]]
        change(path, attributes={"layout": json.dumps(sorted(listed))})
        for use in (status, open_results, lambda p: tiny_study().run(p, progress=False)):
            with pytest.raises(ValueError, match="is no name for a result"):
                use(path)
    assert sorted(found.name for found in tmp_path.iterdir()) == ["r.zarr", "r.zarr.side"]


@pytest.mark.parametrize("name", ["value", "value/c", "value/c/0/0", "block_checksum/c/0"])
def test_links_in_a_store_lead_nowhere_that_is_written(name, tmp_path, tiny, quick):
    path, outside = tmp_path / "r.zarr", tmp_path / "outside"
    restore(path, tiny[0])
    (path / name).rename(tmp_path / "was")
    outside.mkdir()
    (path / name).symlink_to(outside)
    with pytest.raises(ValueError, match="is a link that leads out of it; nothing is written there"):
        tiny_study().run(path, progress=False)
    assert not list(outside.iterdir())


@pytest.mark.parametrize("name", [".", "lock", "log.jsonl", "scratch", "zarr.json"])
def test_links_beside_a_store_neither(name, tmp_path, tiny, quick):
    path, outside = tmp_path / "r.zarr", tmp_path / "outside"
    restore(path, tiny[0])
    side = side_folder(path)
    outside.mkdir()
    (outside / "scratch").mkdir()
    (outside / "scratch" / "thesis.tex").write_text("years of work")
    (outside / "file").write_text("mine")
    if name != ".":
        side.mkdir()
    folder = name in (".", "scratch")
    (side / name).symlink_to(outside if name == "." else outside / "scratch" if folder else outside / "file")
    before = payload(outside)
    with pytest.raises(ValueError, match="is a link, behind which nothing is written; remove it"):
        tiny_study().run(path, progress=False)
    assert payload(outside) == before


def test_a_report_of_a_store_that_claims_too_much_is_refused(tmp_path, tiny):
    """A billion instances fit into a file of some kilobytes, and into no memory."""
    path = tmp_path / "r.zarr"
    restore(path, tiny[0])
    listed = json.loads(json.loads((path / "zarr.json").read_text())["attributes"]["layout"])
    listed.append(["wide", "f8", [10**9], {}])
    change(path, attributes={"layout": json.dumps(listed)})
    assert np.prod([size for _, _, shape, _ in listed for size in shape]) == 10**9
    assert "wide" not in study_html(path).partition("What the names mean")[0]
