"""The laws of the house, held against the house."""

import re
import tomllib
from pathlib import Path

import pytest

from tests.architecture import classes, floors, kernels, texts, verdicts
from tests.architecture.sources import Package, read_package

ROOT = Path(__file__).resolve().parents[2]

# Distributions whose import name differs, and the command line's own dependencies.
IMPORT_NAMES = {"scikit-learn": "sklearn", "dask": "dask distributed"}


@pytest.fixture(scope="module")
def house() -> Package:
    return read_package(ROOT / "jaxflow")


@pytest.fixture(scope="module")
def files() -> list[Path]:
    return texts.repository_files(ROOT)


def declared_imports() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lists = [project["dependencies"], *project["optional-dependencies"].values()]
    distributions = [re.split(r"[^\w-]", line)[0] for names in lists for line in names]
    return {name for this in distributions for name in IMPORT_NAMES.get(this, this.replace("-", "_")).split()}


def report(findings: list[str]) -> None:
    assert not findings, "\n" + "\n".join(findings)


def test_the_house_is_read(house):
    assert {"jaxflow._core", "jaxflow.data", "jaxflow.data.tokens"} <= house.modules.keys()
    assert len(house.imports) > len(house.modules)


def test_every_room_has_a_floor(house):
    report(floors.unknown_rooms(house))


def test_imports_point_down(house):
    report(floors.wrong_arrows(house))


def test_no_import_cycle(house):
    report(floors.import_cycles(house))


def test_a_class_is_abstract_or_final(house):
    report(classes.neither_abstract_nor_final(house))


def test_factorisations_go_one_at_a_time(house):
    report(kernels.batched_kernels(house))


def test_one_file_decides_all_verdicts(house):
    assert {"holds", "not_settled", "counterexample_found"} <= verdicts._members(house).keys()
    report(verdicts.named_elsewhere(house))


def test_heavy_libraries_are_imported_lazily(house):
    report(floors.eager_imports(house))


def test_no_private_names_of_other_libraries(house):
    report(floors.private_imports(house))


def test_every_library_is_declared(house):
    report(floors.undeclared_imports(house, declared_imports()))


def test_files_are_short(files):
    report(texts.long_files(ROOT, files))


def test_no_machine_path_no_index_address_and_no_mark_of_a_merge(files):
    assert ROOT / "pyproject.toml" in files
    report(texts.forbidden_texts(ROOT, files))


def test_constraints_are_names_and_versions():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert pins
    report([line for line in pins if not re.fullmatch(r"[\w.-]+==[\w.!+]+", line)])


def test_contributing_shows_the_same_floors():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    shown = {
        name: int(floor)
        for floor, names in re.findall(r"^\| +(\d+) \| ([^|]+) \|", text, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", names)
    }
    assert shown == floors.FLOORS
