"""The metadata of a store: read, checked against its checksum, and parsed. Nothing that it names is imported."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxflow.study import layout
from jaxflow.study.files import read_file, side_folder
from jaxflow.study.plan import Plan
from jaxflow.study.results import Variable

SCHEMA_VERSION = 1

# From version n to n + 1: each entry rewrites the store in place and raises its `schema_version`, as the last
# thing it does, by one, and drops the checksum of what it rewrote. A version that was ever released keeps its entry
# for good.
MIGRATIONS: dict[int, Callable[[Path], None]] = {}

# The attribute with the numbers of trials that the study had before, while blocks that it grew into are open.
GROWN = "grown"

# The name of the metadata of a group, and of the copy beside the store.
HEAD = "zarr.json"

_REMEDY = f"Without a copy of {HEAD}, run the study again in another folder"


@dataclass(frozen=True)
class Head:
    """The metadata of a store: its study, what its results look like (None while unknown), all attributes, and the
    sentences about results."""

    plan: Plan
    variables: tuple[Variable, ...] | None
    attributes: dict[str, Any]
    definitions: dict[str, str]


def read_document(path: Path) -> dict[str, Any]:
    """The JSON of a group, of which nothing but the version is known.

    **Raises:** `FileNotFoundError`; `ValueError` where it is none, or not that of a study.
    """
    data = read_file(path / HEAD) if not path.is_file() else b"{}"
    if data is None:
        raise FileNotFoundError(f"store: there is no store at {path}{_copy_of(path)}")
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"store: {path} is no study of jaxflow, or its {HEAD} is damaged ({error}){_copy_of(path)}. {_REMEDY}"
        ) from error
    attributes = _table(document, "attributes")
    if not isinstance(attributes.get("schema_version"), int) or "study" not in attributes:
        if layout.SEAL in attributes:
            raise damaged(path, f"its {HEAD} does not match its own checksum")
        raise ValueError(f"store: {path} is no study of jaxflow (it has no schema_version)")
    return document


def _schema_version(path: Path) -> int:
    """That of a store, today's or one that `migrate` brings to it.

    **Raises:** as `read_document`; `ValueError` for a schema that this version cannot read.
    """
    version = read_document(path)["attributes"]["schema_version"]
    newer = version > SCHEMA_VERSION
    if newer or not all(step in MIGRATIONS for step in range(version, SCHEMA_VERSION)):
        raise ValueError(
            f"store: {path} has schema_version {version}, written by {'a newer' if newer else 'another'} jaxflow; "
            f"this one reads {SCHEMA_VERSION}"
        )
    return version


def migrate(path: Path) -> None:
    """Applies the table until the store has today's schema; nothing where it has it already."""
    while (version := _schema_version(path)) < SCHEMA_VERSION:
        MIGRATIONS[version](path)
        if _schema_version(path) != version + 1:
            raise RuntimeError(f"store: the migration of {path} from schema_version {version} did not raise it by one")


def read_head(path: Path) -> Head:
    """All metadata of a store.

    **Raises:** as `read_document`; `ValueError` for another schema, for damage, and for attributes of other kinds.
    """
    if _schema_version(path) < SCHEMA_VERSION:
        raise ValueError(f"store: {path} has an older schema; continuing the study brings it to today's")
    document = read_document(path)
    attributes = dict(document["attributes"])
    stored = attributes.pop(layout.SEAL, None)
    # Stores of earlier versions have none.
    if stored is not None and stored != layout.seal(document):
        raise damaged(path, f"its {HEAD} does not match its own checksum")
    for name in ("study", "manifest", "mixed", "layout"):
        if not isinstance(attributes.get(name, ""), str):
            raise damaged(path, f"`{name}` is no text")
    try:
        plan = Plan.from_identity(json.loads(attributes["study"]))
        variables = layout.from_json(attributes["layout"]) if attributes.get("layout") else None
        told = json.loads(attributes.get("manifest") or "{}")
    except (ValueError, RecursionError) as error:
        raise damaged(path, str(error)) from error
    tables = isinstance(told, dict) and all(
        isinstance(told.get(name) or {}, dict) for name in ("packages", "settings", "commit")
    )
    if not tables:
        raise damaged(path, "its manifest is no table")
    grown = attributes.get(GROWN, [])
    if not isinstance(grown, list) or not all(type(count) is int and 0 < count < plan.trials for count in grown):
        raise damaged(path, f"it grew from {grown!r} trials")
    listed = _table(_table(document, "consolidated_metadata"), "metadata")
    sentences = {name: _table(_table(listed, name), "attributes").get("long_name") for name in listed}
    definitions = {name: sentence for name, sentence in sentences.items() if isinstance(sentence, str)}
    return Head(plan, variables, attributes, definitions)


def damaged(path: Path, what: str) -> ValueError:
    """The error for metadata that cannot be what was written."""
    return ValueError(f"store: {path} is damaged: {what}{_copy_of(path)}. {_REMEDY}")


def _copy_of(path: Path) -> str:
    """Where the last run left the same metadata."""
    copy = side_folder(path) / HEAD
    there = path.is_dir() and copy.is_file()
    return f"; the last run left a copy of that file, to be put back: {copy}" if there else ""


def _table(document: Any, name: str) -> dict[str, Any]:
    """The table of this name in a document that may be anything; empty where there is none."""
    found = document.get(name) if isinstance(document, dict) else None
    return found if isinstance(found, dict) else {}
