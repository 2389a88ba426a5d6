"""The laws of the house, held against the house."""

import re
import tomllib
from functools import partial
from pathlib import Path

import pytest

import jaxflow
from tests.architecture import floors, texts, uses
from tests.architecture.sources import Package, read_package

ROOT = Path(__file__).resolve().parents[2]

# Distributions whose import name differs, and the command line's own dependencies.
IMPORT_NAMES = {"scikit-learn": "sklearn", "dask": "dask distributed"}


@pytest.fixture(scope="module")
def house() -> Package:
    return read_package(ROOT / "jaxflow")


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


LAWS = {
    "every room has a floor": floors.unknown_rooms,
    "imports point down": floors.wrong_arrows,
    "no import cycle": floors.import_cycles,
    "heavy libraries are imported lazily": floors.eager_imports,
    "every library is declared": partial(floors.undeclared_imports, declared=declared_imports()),
    "no private names of other libraries": uses.private_names,
    "factorisations go one at a time": uses.batched_kernels,
    "one file decides all verdicts": uses.verdicts_elsewhere,
    "classes stand in modules": uses.local_classes,
}


@pytest.mark.parametrize("law", LAWS)
def test_the_house_keeps_the_law(law, house):
    report(LAWS[law](house))


def test_a_class_is_abstract_or_final():
    classes = uses.classes_of(jaxflow)
    assert jaxflow.trajectory.Trajectory in classes
    report(uses.neither_abstract_nor_final(classes))


def test_files_are_short_without_machine_paths_index_addresses_and_marks_of_a_merge():
    files = texts.repository_files(ROOT)
    assert ROOT / "pyproject.toml" in files
    report(texts.long_files(ROOT, files))
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
