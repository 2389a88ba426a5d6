"""A store that somebody else has packed: whoever reads it runs nothing, and whoever goes on writes nowhere else."""

import json
import pickle
import re
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
from tests.study.cheap import ROOT, cheap, edit, payload, restore, small_study, tiny_study

SCRIPT = "<script>alert(1)</script>"


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


def test_reading_imports_nothing_that_the_store_names(copy, evil):
    path = copy
    told = {"name": "draw", "import": "evil_module:draw", "settings": {"name": "evil_module:draw"}}
    codec = {"name": "evil_module:Codec", "configuration": {}}
    top = json.loads((path / "zarr.json").read_text())
    entry = top["consolidated_metadata"]["metadata"]["value"]
    edit(
        path,
        sealed=True,
        study={"experiment": told},
        arrays={"value": {**entry, "codecs": [codec], "data_type": "evil_module"}},
    )
    (path / "value/zarr.json").write_text(json.dumps({**entry, "codecs": [codec]}))
    look(path)
    assert "evil_module" not in sys.modules and not evil.exists()


def test_resuming_says_what_it_imports_before_it_does(copy, evil):
    path = copy
    told = {"name": "draw", "import": "evil_module:draw", "settings": {"name": "draw"}}
    edit(path, sealed=True, study={"experiment": told})
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
    edit(path, sealed=True, study={"experiment": {**told, "import": "evil_module:other"}})
    with pytest.raises(ValueError, match="evil_module:other has changed"):
        study_of_store(path)
    for name in (
        "os:system",
        "builtins:exec",
        "subprocess:Popen",
        "evil module:draw",
        "evil_module:draw.__globals__[0]",
    ):
        edit(path, sealed=True, study={"experiment": {**told, "import": name}})
        with pytest.raises(ValueError, match="experiment|factors"):
            study_of_store(path)


class Bomb:
    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (Path(self.mark),)


@pytest.mark.parametrize("whose", ["value", "d", "stranger"])
def test_no_pickle_is_read(whose, tmp_path, copy):
    """An array of format 2, whose filter is pickle, among the consolidated metadata; and files of that format."""
    path, mark = copy, tmp_path / "mark"
    array = {"shape": [1], "chunks": [1], "dtype": "|O", "fill_value": None, "order": "C", "zarr_format": 2}
    array |= {"filters": [{"id": "pickle", "protocol": 5}], "compressor": None, "dimension_separator": "."}
    edit(path, sealed=True, arrays={whose: array | {"attributes": {"_ARRAY_DIMENSIONS": ["d"]}}})
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
    """Pickles are read only from the driver of a study, and from a data set that comes so; no archive is unpacked."""
    pickles = r"\bpickle\.(?:loads?|Unpickler)\b"
    archives = r"\b(?:zipfile|tarfile|shelve|marshal|dill|unpack_archive|extractall)\b"
    found, loads = set(), []
    for file in sorted((ROOT / "jaxflow").rglob("*.py")):
        text, name = file.read_text(encoding="utf-8"), str(file.relative_to(ROOT / "jaxflow"))
        found |= {(name, call) for call in re.findall(f"{pickles}|{archives}", text)}
        loads += re.findall(r"\bnp\.load\(.*\)", text)
    assert found == {("study/blocks.py", "pickle.loads"), ("papers/boix2023/practical/data.py", "pickle.load")}
    assert loads and all("allow_pickle=False" in call for call in loads)


def test_names_in_a_report_are_text(tmp_path):
    path = tmp_path / "r.zarr"
    study = small_study(
        FunctionExperiment(lambda key, law="a", d=2: cheap(key, d), SCRIPT),
        data_factors={"law": [SCRIPT, "$\\undefined$", "a&b"], "d": [2]},
        method_factors={},
    )
    study.run(path, progress=False)
    edit(path, sealed=True, mixed=SCRIPT, manifest=json.dumps({SCRIPT: SCRIPT, "packages": {SCRIPT: SCRIPT}}))
    top = json.loads((path / "zarr.json").read_text())
    entry = top["consolidated_metadata"]["metadata"]["gap"]
    edit(path, sealed=True, arrays={"gap": {**entry, "attributes": {"long_name": SCRIPT}}})
    text = study_html(path)
    assert "<script" not in text and text.count("&lt;script&gt;") >= 6
    assert "a&amp;b" in text
    with open_results(path) as results:
        plot(results, "curves", x="law", outcome="undecided").canvas.draw()
        plot(results, "heat_map", x="d").canvas.draw()
        assert "<script" not in summary(results).to_html()


def test_a_name_that_looks_like_markup_of_the_terminal(tmp_path):
    tiny_study(FunctionExperiment(cheap, "[/red] [bold]")).run(tmp_path / "r.zarr")
    with pytest.raises(ValueError, match="name: expected a name in printable characters"):
        FunctionExperiment(cheap, "a\nb")


def test_names_of_results_are_no_paths(tmp_path, tiny):
    """`..`, what is absolute, and whatever else is no identifier: refused when it is read, before any file is asked."""
    path = tmp_path / "r.zarr"
    for name in ("../../outside", "/etc/passwd", "a/b", "trial", ""):
        restore(path, tiny[0])
        listed = [[name, "f8", [], {}], ["outcome", "u1", [], {"not_run": 0, "failed": 9}]]
        edit(path, sealed=True, layout=json.dumps(sorted(listed)))
        for use in (status, open_results, lambda p: tiny_study().run(p, progress=False)):
            with pytest.raises(ValueError, match="is no name for a result"):
                use(path)
    assert sorted(found.name for found in tmp_path.iterdir()) == ["r.zarr", "r.zarr.side"]


@pytest.mark.parametrize("name", ["value", "value/c", "value/c/0/0", "block_checksum/c/0"])
def test_links_in_a_store_lead_nowhere_that_is_written(name, tmp_path, copy):
    path, outside = copy, tmp_path / "outside"
    (path / name).rename(tmp_path / "was")
    outside.mkdir()
    (path / name).symlink_to(outside)
    with pytest.raises(ValueError, match="is a link that leads out of it; nothing is written there"):
        tiny_study().run(path, progress=False)
    assert not list(outside.iterdir())


@pytest.mark.parametrize("name", [".", "lock", "log.jsonl", "scratch", "zarr.json"])
def test_links_beside_a_store_neither(name, tmp_path, copy):
    outside, side = tmp_path / "outside", side_folder(copy)
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
        tiny_study().run(copy, progress=False)
    assert payload(outside) == before


def test_a_report_of_a_store_that_claims_too_much_is_refused(copy):
    """A billion instances fit into a file of some kilobytes, and into no memory."""
    listed = json.loads(json.loads((copy / "zarr.json").read_text())["attributes"]["layout"])
    listed.append(["wide", "f8", [10**9], {}])
    edit(copy, sealed=True, layout=json.dumps(listed))
    assert np.prod([size for _, _, shape, _ in listed for size in shape]) == 10**9
    assert "wide" not in study_html(copy).partition("What the names mean")[0]
