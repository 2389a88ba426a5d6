"""Every file of a store, damaged in every way: the same numbers, or one sentence; never other numbers."""

import json
import shutil
import warnings
from pathlib import Path

import pytest
import xarray
import zarr.errors

from jaxflow.report import study_html
from jaxflow.study import open_results, status
from jaxflow.study.files import side_folder
from tests.study.cheap import HostExperiment, edit, payload, read_log, restore, tiny_study


def damages(data: bytes, more: int = 0) -> dict[str, bytes | None]:
    """Nothing left, half of it, all but a byte, no file; and one bit the other way, at several places."""
    found: dict[str, bytes | None] = {"empty": b"", "half": data[: len(data) // 2], "short": data[:-1], "gone": None}
    places = sorted({0, len(data) // 3, len(data) - 1, *range(0, len(data), max(1, len(data) // max(more, 1)))})
    for at in places if more else places[:3]:
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


def attack(path: Path, name: str, data: bytes | None) -> None:
    if data is None:
        (path / name).unlink()
    else:
        (path / name).write_bytes(data)


@pytest.mark.slow
def test_every_file_read(copy, tiny):
    path, (files, expected) = copy, tiny
    found = {}
    for name, data in files.items():
        for how, damaged in damages(data).items():
            attack(path, name, damaged)
            found[name, how] = read(path, expected)
            (path / name).write_bytes(data)
    wrong = {where: what for where, what in found.items() if what not in ("same", "refused")}
    assert not wrong
    # Chunks are refused, each and every one; what can be made from the study is.
    for (name, how), what in found.items():
        if name.split("/")[0] in ("outcome", "value", "steps") and "/c/" in name:
            assert what == "refused", (name, how)
        elif "/" in name and not (name.startswith("block_checksum/c") and how.startswith("bit")):
            assert what == "same", (name, how)


def test_every_file_mended_or_refused_by_a_run(tmp_path, tiny):
    """A run ends in the bytes of an undisturbed one, whatever was damaged; metadata of the group it refuses."""
    files, _ = tiny
    path, study = tmp_path / "r.zarr", tiny_study()
    for at, (name, data) in enumerate(files.items()):
        ways = damages(data)
        chosen = ["empty", "gone", list(ways)[-1]]
        # In all ways one chunk of each kind, and in one way each every other file. (All in one store at a time would
        # hide one behind the other.)
        for how in chosen if name.startswith(("d/c", "value/c/0/0/1", "block_checksum/c/0/0/0")) else [chosen[at % 3]]:
            restore(path, files)
            attack(path, name, ways[how])
            if name == "zarr.json":
                (path / name).unlink(missing_ok=True)  # its bits: the test below
                with pytest.raises((ValueError, FileNotFoundError)) as error:
                    study.run(path, progress=False)
                assert in_one_sentence(error.value), error.value
                continue
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                found = status(path, verify=True)
            assert not found.complete, (name, how)
            if name == "value/c/0/0/1":
                assert (found.damaged, found.blocks) == (1, 1) and "1 blocks are damaged" in str(found)
            study.run(path, progress=False)
            assert payload(path) == files, (name, how)
            assert status(path, verify=True).complete


def test_metadata_of_the_group(copy, tiny):
    """A bit the other way is found by every command, or it is white space and the numbers are the same."""
    path, study, (files, expected) = copy, tiny_study(), tiny
    whole = json.loads(files["zarr.json"])
    for at, (how, damaged) in enumerate(damages(files["zarr.json"], 80).items()):
        attack(path, "zarr.json", damaged)
        try:
            same = json.loads(damaged or b"") == whole
        except ValueError:
            same = False
        assert read(path, expected) == ("same" if same else "refused"), how
        # All read the same file in the same way.
        uses = (status, study.status, study_html, lambda p: study.run(p, progress=False))
        for use in () if same else uses if at % 3 == 0 else uses[:1]:
            with pytest.raises((ValueError, FileNotFoundError)) as error:
                use(path)
            assert in_one_sentence(error.value), (how, error.value)
        (path / "zarr.json").write_bytes(files["zarr.json"])


def test_the_copy_of_the_metadata_is_named_and_serves(tmp_path, tiny):
    path, study, files = tmp_path / "r.zarr", tiny_study(), tiny[0]
    study.run(path, progress=False)
    (path / "zarr.json").write_bytes(files["zarr.json"].replace(b'\\"seed\\": 0', b'\\"seed\\": 1'))
    copy = side_folder(path) / "zarr.json"
    with pytest.raises(ValueError, match="does not match its own checksum; the last run left a copy") as error:
        study.run(path, progress=False)
    assert str(copy) in str(error.value)
    shutil.copy(copy, path / "zarr.json")
    study.run(path, progress=False)
    assert payload(path) == files
    # What does not match is removed all the same where the caller says so.
    (path / "zarr.json").write_bytes(files["zarr.json"].replace(b'\\"seed\\": 0', b'\\"seed\\": 1'))
    study.run(path, progress=False, overwrite=True)
    assert payload(path) == files


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("study", "[]"),
        ("study", "{"),
        ("study", '{"trials": 7}'),
        ("study", {"trials": 10**18}),
        ("study", {"trials": 10**9, "block": 1}),
        ("study", {"trials": -1}),
        ("study", {"block": 0}),
        ("study", 7),
        ("study", '{"experiment": {}, "data_factors": [], "method_factors": [], "trials": 7, "seed": 0, "block": 4}'),
        ("layout", '[["../../outside", "f8", [], {}]]'),
        ("layout", '[["outcome", "u1", [], {}]]'),
        ("layout", '[["outcome", "O", [], {"not_run": 0}]]'),
        ("layout", '[["outcome", "u1", [1000000000000], {"not_run": 0}]]'),
        ("layout", "7"),
        ("manifest", "["),
        ("manifest", "[]"),
        ("manifest", '{"packages": [1]}'),
        ("grown", ["a"]),
        ("mixed", []),
    ],
)
def test_attributes_of_other_kinds(attribute, value, copy):
    """Without a checksum, as in a store of an earlier version, or one that somebody made up; absurd sizes, too."""
    # A size alone, in a study that is otherwise in order, is refused by its name, before anything of it is made.
    edit(copy, **{attribute: value})
    message = f"is damaged: ({'|'.join(value)}): " if isinstance(value, dict) else "is damaged"
    for use in (status, open_results, study_html, lambda p: tiny_study().run(p, progress=False)):
        with pytest.raises(ValueError, match=message) as error:
            use(copy)
        assert in_one_sentence(error.value), error.value


def test_folders_in_the_place_of_files(tmp_path, tiny):
    files, expected = tiny
    path = tmp_path / "r.zarr"
    for name in ("value/c/0/0/0", "zarr.json", "block_checksum/c/0/0/0/0"):
        restore(path, files)
        (path / name).unlink()
        (path / name).mkdir()
        assert read(path, expected) in ("refused", "same")
        with pytest.raises((OSError, ValueError), match=r"run the same command again|there is no store") as error:
            tiny_study().run(path, progress=False)
        assert "\n" not in str(error.value)


def test_a_store_of_an_earlier_version_is_read_and_brought_to_this_one(copy, tiny):
    path, (files, expected) = copy, tiny
    top = json.loads(files["zarr.json"])
    del top["attributes"]["metadata_checksum"]
    coordinate = top["consolidated_metadata"]["metadata"]["d"]
    coordinate["codecs"] = [codec for codec in coordinate["codecs"] if codec["name"] != "crc32c"]
    (path / "zarr.json").write_text(json.dumps(top))
    (path / "d/zarr.json").write_text(json.dumps(coordinate))
    (path / "d/c/0").write_bytes(files["d/c/0"][:-4])
    assert read(path, expected) == "same" and xarray.open_zarr(path, consolidated=False)["d"].values.tolist() == [2]
    tiny_study().run(path, progress=False)
    assert payload(path) == files


def test_plain_zarr_refuses_a_damaged_coordinate(copy, tiny):
    (copy / "d/c/0").write_bytes(b"\3" + tiny[0]["d/c/0"][1:])
    with pytest.raises((ValueError, zarr.errors.BaseZarrError), match="checksum"):
        xarray.open_zarr(copy)


def test_a_moved_store_is_the_same_store(tmp_path, tiny, monkeypatch):
    files, expected = tiny
    first, study = tmp_path / "first.zarr", tiny_study()
    study.run(first, progress=False)
    for moved in (tmp_path / "moved.zarr", tmp_path / "deep" / "er" / "no ending"):
        moved.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(first, moved)
        (moved / "outcome/c/0/0/1").unlink()
        assert status(moved, verify=True).damaged == 1
        study.run(moved, progress=False)
        assert payload(moved) == files and read(moved, expected) == "same"
        first = moved
    # By other names: from within, and through a link.
    monkeypatch.chdir(first)
    study.run(".", progress=False)
    (tmp_path / "link").symlink_to(first)
    (first / "value/c/0/0/1").unlink()
    study.run(tmp_path / "link", progress=False)
    assert payload(first) == files and not (tmp_path / "link.side").exists()


def test_what_lies_beside_the_store_changes_nothing(tmp_path, tiny):
    path, study, files = tmp_path / "r.zarr", tiny_study(), tiny[0]
    study.run(path, progress=False)
    for damage in ("empty", "half", "short", "gone", "bytes"):
        for file in [found for found in side_folder(path).rglob("*") if found.is_file()]:
            data = file.read_bytes()
            broken = {"empty": b"", "half": data[: len(data) // 2], "short": data[:-1], "bytes": b"\xff\xfe" + data}
            attack(file.parent, file.name, broken.get(damage))
        (path / "value/c/0/0/1").unlink()
        study.run(path, progress=False)
        assert payload(path) == files and [entry["event"] for entry in read_log(path)][-1] == "block"
        assert (side_folder(path) / "zarr.json").read_bytes() == files["zarr.json"]


def test_an_experiment_that_goes_to_another_folder(tmp_path, tiny, monkeypatch):
    files, _ = tiny
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(HostExperiment, "definitions", lambda self: monkeypatch.chdir(tmp_path) or {})
    numbers = HostExperiment.block_function

    def leaves(self, factors, width):
        monkeypatch.chdir(tmp_path / "elsewhere")
        return numbers(self, factors, width)

    monkeypatch.setattr(HostExperiment, "block_function", leaves)
    tiny_study().run("r.zarr", progress=False)
    assert payload(tmp_path / "r.zarr") == files and not list((tmp_path / "elsewhere").iterdir())
