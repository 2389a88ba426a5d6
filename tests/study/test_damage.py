"""Stores that are damaged, foreign, moved or packed by somebody else: the same numbers, or one sentence."""

import json
import pickle
import re
import shutil
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import xarray
import zarr.errors
from typer.testing import CliRunner

import jaxflow.study as s
from jaxflow.cli.study import app
from jaxflow.report import study_html
from jaxflow.study import FunctionExperiment, open_results, status
from jaxflow.study.files import side_folder
from tests.processes import ROOT
from tests.study.cheap import attack, cheap, edit, payload, restore, small_study, tiny_study


def run(path: Path) -> None:
    tiny_study().run(path, progress=False).close()


# All of them read the metadata of a store in the same way.
USES = (status, open_results, study_html, run)


def damages(data: bytes, places: int = 3) -> dict[str, bytes | None]:
    """Nothing left, half of it, all but a byte, no file; and one bit the other way, at several places."""
    found: dict[str, bytes | None] = {"empty": b"", "half": data[: len(data) // 2], "short": data[:-1], "gone": None}
    for at in {round(place) for place in np.linspace(0, len(data) - 1, places if data else 0)}:
        turned = bytearray(data)
        turned[at] ^= 1 << (at % 8)
        found[f"bit {at}"] = bytes(turned)
    return found


def in_one_sentence(error: BaseException) -> bool:
    """Whether an error is one of jaxflow's own: it names the store and says what to do."""
    text = str(error)
    known = isinstance(error, ValueError | FileNotFoundError) and text.startswith("store: ") and "\n" not in text
    return known and any(advice in text for advice in ("run the study again", "put back", "there is no store"))


def read(path: Path, expected: xarray.Dataset) -> str:
    """`same`, `refused`, or what is wrong."""
    try:
        with open_results(path) as results:
            return "same" if results.load().equals(expected) else "OTHER NUMBERS"
    except Exception as error:
        return "refused" if in_one_sentence(error) else f"{type(error).__name__}: {error}"


@pytest.mark.slow
def test_every_file_damaged(tmp_path, tiny):
    """Read, it is the same or refused; a run ends in the bytes of an undisturbed one, or refuses the group's metadata.

    One chunk of each kind is damaged in all ways, every other file in one of them. All in one store at a time would
    hide one behind the other."""
    files, expected = tiny
    path = tmp_path / "r.zarr"
    for at, (name, data) in enumerate(files.items()):
        ways = list(damages(data).items())
        every = name.startswith(("d/c", "value/c/0/0/1", "block_checksum/c/0/0/0"))
        for how, damaged in ways if every else [ways[at % len(ways)]]:
            restore(path, files)
            attack(path / name, damaged)
            found = read(path, expected)
            if name == "zarr.json":
                assert found == "refused", how
                continue
            # Chunks are refused, each and every one; what can be made from the study is.
            chunk = "/c/" in name and name.split("/")[0] in ("outcome", "value", "steps")
            sums = name.startswith("block_checksum/c")
            assert found == "refused" if chunk else found == "same" or (sums and found == "refused"), (name, how, found)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                told = status(path, verify=True)
            assert not told.complete, (name, how)
            if name == "value/c/0/0/1":
                assert (told.damaged, told.blocks) == (1, 1) and "1 blocks are damaged" in str(told)
            run(path)
            assert payload(path) == files, (name, how)
            assert status(path, verify=True).complete


def test_metadata_of_the_group(copy, tiny):
    """A bit the other way is found by every command, or it is white space and the numbers are the same."""
    files, expected = tiny
    whole = json.loads(files["zarr.json"])
    for at, (how, damaged) in enumerate(damages(files["zarr.json"], 80).items()):
        attack(copy / "zarr.json", damaged)
        try:
            same = json.loads(damaged or b"") == whole
        except ValueError:
            same = False
        assert read(copy, expected) == ("same" if same else "refused"), how
        for use in () if same else USES if at % 3 == 0 else USES[:1]:
            with pytest.raises((ValueError, FileNotFoundError)) as error:
                use(copy)
            assert in_one_sentence(error.value), (how, error.value)
        (copy / "zarr.json").write_bytes(files["zarr.json"])


def no_name(name: str) -> dict[str, str]:
    """A layout with a result of this name."""
    listed = [[name, "f8", [], {}], ["outcome", "u1", [], {"not_run": 0, "failed": 9}]]
    return {"layout": json.dumps(sorted(listed))}


# Attributes without a checksum, as in a store of an earlier version, or one that somebody made up; and what is said.
ATTRIBUTES = [
    ({"study": "[]"}, "is damaged"),
    ({"study": "{"}, "is damaged"),
    ({"study": '{"trials": 7}'}, "is damaged"),
    # A size alone, in a study that is otherwise in order, is refused by its name, before anything of it is made.
    ({"study": {"trials": 10**18}}, "is damaged: trials: "),
    ({"study": {"trials": 10**9, "block": 1}}, "is damaged: (trials|block): "),
    ({"study": {"block": 0}}, "is damaged: block: "),
    ({"study": 7}, "is damaged"),
    ({"layout": '[["outcome", "O", [], {"not_run": 0}]]'}, "is damaged"),
    ({"layout": '[["outcome", "u1", [1000000000000], {"not_run": 0}]]'}, "is damaged"),
    ({"layout": "7"}, "is damaged"),
    ({"manifest": "["}, "is damaged"),
    ({"manifest": '{"packages": [1]}'}, "is damaged"),
    ({"grown": ["a"]}, "is damaged"),
    ({"mixed": []}, "is damaged"),
    # Names of results are no paths: refused before any file is asked.
    *((no_name(name), "is no name for a result") for name in ("../../outside", "/etc/passwd", "a/b", "trial", "")),
]


@pytest.mark.parametrize(("attributes", "message"), ATTRIBUTES)
def test_attributes_of_other_kinds(attributes, message, copy):
    edit(copy, **attributes)
    for use in USES:
        with pytest.raises(ValueError, match=message) as error:
            use(copy)
        assert in_one_sentence(error.value), error.value
    assert {found.name for found in copy.parent.iterdir()} <= {"r.zarr", "r.zarr.side"}


def test_the_copy_of_the_metadata_is_named_and_serves(tmp_path, tiny):
    path, files = tmp_path / "r.zarr", tiny[0]
    run(path)
    changed = files["zarr.json"].replace(b'\\"seed\\": 0', b'\\"seed\\": 1')
    (path / "zarr.json").write_bytes(changed)
    copy = side_folder(path) / "zarr.json"
    with pytest.raises(ValueError, match="does not match its own checksum; the last run left a copy") as error:
        run(path)
    assert str(copy) in str(error.value)
    shutil.copy(copy, path / "zarr.json")
    run(path)
    assert payload(path) == files
    # What does not match is removed all the same where the caller says so.
    (path / "zarr.json").write_bytes(changed)
    tiny_study().run(path, progress=False, overwrite=True)
    assert payload(path) == files


@pytest.mark.parametrize("name", ["value/c/0/0/0", "zarr.json", "block_checksum/c/0/0/0/0"])
def test_folders_in_the_place_of_files(name, copy, tiny):
    (copy / name).unlink()
    (copy / name).mkdir()
    assert read(copy, tiny[1]) in ("refused", "same")
    with pytest.raises((OSError, ValueError), match=r"run the same command again|there is no store") as error:
        run(copy)
    assert "\n" not in str(error.value)


def test_a_store_of_an_earlier_version_is_read_and_brought_to_this_one(copy, tiny):
    files, expected = tiny
    top = json.loads(files["zarr.json"])
    del top["attributes"]["metadata_checksum"]
    coordinate = top["consolidated_metadata"]["metadata"]["d"]
    coordinate["codecs"] = [codec for codec in coordinate["codecs"] if codec["name"] != "crc32c"]
    (copy / "zarr.json").write_text(json.dumps(top))
    (copy / "d/zarr.json").write_text(json.dumps(coordinate))
    (copy / "d/c/0").write_bytes(files["d/c/0"][:-4])
    assert read(copy, expected) == "same" and xarray.open_zarr(copy, consolidated=False)["d"].values.tolist() == [1]
    run(copy)
    assert payload(copy) == files


def test_plain_zarr_refuses_a_damaged_coordinate(copy, tiny):
    (copy / "d/c/0").write_bytes(b"\3" + tiny[0]["d/c/0"][1:])
    with pytest.raises((ValueError, zarr.errors.BaseZarrError), match="checksum"):
        xarray.open_zarr(copy)


def test_a_moved_store_is_the_same_store(copy, tmp_path, tiny, monkeypatch):
    """Or one by another name: from within, and through a link."""
    moved = tmp_path / "deep" / "er" / "no ending"
    moved.parent.mkdir(parents=True)
    shutil.move(copy, moved)
    (tmp_path / "link").symlink_to(moved)
    monkeypatch.chdir(moved)
    for path in (moved, Path("."), tmp_path / "link"):
        (moved / "outcome/c/0/0/1").unlink()
        assert status(path, verify=True).damaged == 1
        run(path)
        assert payload(moved) == tiny[0]
    assert not (tmp_path / "link.side").exists()


def test_what_lies_beside_the_store_changes_nothing(copy, tiny):
    files = tiny[0]
    run(copy)
    for damage in ("empty", "half", "short", "gone", "bytes"):
        for file in [found for found in side_folder(copy).rglob("*") if found.is_file()]:
            data = file.read_bytes()
            attack(file, b"\xff\xfe" + data if damage == "bytes" else damages(data)[damage])
        (copy / "value/c/0/0/1").unlink()
        run(copy)
        # A torn line of the log swallows no other.
        last = (side_folder(copy) / "log.jsonl").read_bytes().splitlines()[-2:]
        assert [json.loads(line)["event"] for line in last] == ["run", "block"]
        assert payload(copy) == files and (side_folder(copy) / "zarr.json").read_bytes() == files["zarr.json"]


IN_A_STORE = ("value", "value/c", "value/c/0/0", "block_checksum/c/0")
BESIDE_A_STORE = (".", "lock", "log.jsonl", "scratch", "zarr.json")


@pytest.mark.parametrize("name", [*IN_A_STORE, *(f"side/{name}" for name in BESIDE_A_STORE)])
def test_links_lead_nowhere_that_is_written(name, tmp_path, copy):
    """In a store or beside it."""
    beside = name.startswith("side/")
    link = side_folder(copy) / name.removeprefix("side/") if beside else copy / name
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("years of work")
    if not beside:
        link.rename(tmp_path / "was")
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(outside / "file" if name.endswith(("lock", "log.jsonl", "json")) else outside)
    with pytest.raises(ValueError, match="is a link.* nothing is written"):
        run(copy)
    assert payload(outside) == {"file": b"years of work"}


# Packed by somebody else: whoever reads runs nothing.
SCRIPT = "<script>alert(1)</script>"


def look(path: Path) -> None:
    """Everything that can be done with a store but for running it."""
    status(path, verify=True)
    with open_results(path) as results:
        results.load()
        for use in (s.percentages, s.summary, s.quantities, s.to_dataframe, s.plot):
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


class Bomb:
    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (self.mark,)


def test_reading_imports_nothing_that_the_store_names_and_reads_no_pickle(copy, evil):
    """A codec and an experiment by name; arrays of format 2, whose filter is pickle, and files of that format."""
    told = {"name": "draw", "import": "evil_module:draw", "settings": {"name": "evil_module:draw"}}
    entry = json.loads((copy / "zarr.json").read_text())["consolidated_metadata"]["metadata"]["steps"]
    entry |= {"codecs": [{"name": "evil_module:Codec", "configuration": {}}], "data_type": "evil_module"}
    array = {"shape": [1], "chunks": [1], "dtype": "|O", "fill_value": None, "order": "C", "zarr_format": 2}
    array |= {"filters": [{"id": "pickle", "protocol": 5}], "compressor": None, "dimension_separator": "."}
    listed = {name: array | {"attributes": {"_ARRAY_DIMENSIONS": ["d"]}} for name in ("value", "d", "stranger")}
    edit(copy, sealed=True, study={"experiment": told}, arrays={"steps": entry, **listed})
    (copy / "steps/zarr.json").write_text(json.dumps(entry))
    (copy / ".zgroup").write_text('{"zarr_format": 2}')
    for name, chunk in {"value": "0.0.0", "d": "c/0", "stranger": "c/0"}.items():
        for file in (chunk, "0"):
            (copy / name / file).parent.mkdir(parents=True, exist_ok=True)
            (copy / name / file).write_bytes(pickle.dumps(Bomb(evil)))
        (copy / name / ".zarray").write_text(json.dumps(array))
        (copy / name / ".zattrs").write_text('{"_ARRAY_DIMENSIONS": ["d"]}')
    look(copy)
    with open_results(copy) as results:
        assert results["d"].values.tolist() == [1] and "stranger" not in results
    assert "evil_module" not in sys.modules and not evil.exists()


def test_resuming_says_what_it_imports_before_it_does(copy, evil):
    told = {"name": "draw", "import": "evil_module:draw", "settings": {"name": "draw"}}
    edit(copy, sealed=True, study={"experiment": told})
    said = []

    def announce(name):
        said.append(name)
        assert not evil.exists()
        raise InterruptedError  # as one who does not want it

    with pytest.raises(InterruptedError):
        s.study_of_store(copy, announce)
    assert said == ["evil_module:draw"] and "evil_module" not in sys.modules
    found = CliRunner().invoke(app, ["resume", str(copy), "--quiet"])
    assert found.output.startswith(f"Importing evil_module:draw, as {copy} asks for.")
    # What is found under the name is not what the store describes, or no name at all.
    for name, message in {
        "evil_module:other": "evil_module:other has changed",
        "os:system": "experiment|factors",
        "builtins:exec": "experiment|factors",
        "evil module:draw": "experiment",
        "evil_module:draw.__globals__[0]": "experiment",
    }.items():
        edit(copy, sealed=True, study={"experiment": {**told, "import": name}})
        with pytest.raises(ValueError, match=message):
            s.study_of_store(copy)


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
    """Neither markup of a page nor of a terminal, which the run itself meets."""
    path = tmp_path / "r.zarr"
    study = small_study(
        FunctionExperiment(lambda key, law="a", d=2: cheap(key, d), f"{SCRIPT} [/red] [bold]"),
        data_factors={"law": [SCRIPT, "$\\undefined$", "a&b"], "d": [2]},
        method_factors={},
    )
    study.run(path)
    entry = json.loads((path / "zarr.json").read_text())["consolidated_metadata"]["metadata"]["gap"]
    edit(path, sealed=True, mixed=SCRIPT, manifest=json.dumps({SCRIPT: SCRIPT, "packages": {SCRIPT: SCRIPT}}))
    edit(path, sealed=True, arrays={"gap": {**entry, "attributes": {"long_name": SCRIPT}}})
    text = study_html(path)
    assert "<script" not in text and text.count("&lt;script&gt;") >= 6 and "a&amp;b" in text
    with open_results(path) as results:
        s.plot(results, "curves", x="law", outcome="undecided").canvas.draw()
        s.plot(results, "heat_map", x="d").canvas.draw()
        assert "<script" not in s.summary(results).to_html()


def test_a_report_of_a_store_that_claims_too_much_is_refused(copy):
    """A billion instances fit into a file of some kilobytes, and into no memory."""
    listed = json.loads(json.loads((copy / "zarr.json").read_text())["attributes"]["layout"])
    edit(copy, sealed=True, layout=json.dumps([*listed, ["wide", "f8", [10**9], {}]]))
    assert "wide" not in study_html(copy).partition("What the names mean")[0]
