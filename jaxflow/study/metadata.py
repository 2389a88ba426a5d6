"""What a store says of itself: read, held to its own checksum, and taken apart. Nothing that it names is imported."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxflow.study import layout, migrate
from jaxflow.study.files import read_file, side_folder
from jaxflow.study.plan import Plan
from jaxflow.study.results import Variable

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
    """The JSON of a group, unchecked. **Raises:** `FileNotFoundError`; `ValueError` where it is none."""
    data = read_file(path / HEAD) if not path.is_file() else b"{}"
    if data is None:
        raise FileNotFoundError(f"store: there is no store at {path}{_copy_of(path)}")
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"store: {path} is no study of jaxflow, or its {HEAD} is damaged ({error}){_copy_of(path)}. {_REMEDY}"
        ) from error
    if not isinstance(document, dict) or not isinstance(document.get("attributes", {}), dict):
        raise ValueError(f"store: {path} is no study of jaxflow (it has no schema_version)")
    attributes = document.get("attributes", {})
    if layout.SEAL in attributes and not {"schema_version", "study"} <= attributes.keys():
        raise damaged(path, f"its {HEAD} does not match its own checksum")
    return document


def read_attributes(path: Path) -> dict[str, Any]:
    """The attributes of the group but for their seal. **Raises:** as `read_document`; `ValueError` for damage."""
    document = read_document(path)
    attributes = dict(document.get("attributes", {}))
    stored = attributes.pop(layout.SEAL, None)
    # Stores of earlier versions have none.
    if stored is not None and stored != layout.seal(document):
        raise damaged(path, f"its {HEAD} does not match its own checksum")
    return attributes


def read_head(path: Path) -> Head:
    """All that a store says of itself.

    **Raises:** as `read_attributes`; `ValueError` for another schema, and for attributes of other kinds.
    """
    if not migrate.check_version(path, read_document(path).get("attributes", {})):
        raise ValueError(f"store: {path} has an older schema; continuing the study brings it to today's")
    attributes = read_attributes(path)
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
    return Head(plan, variables, attributes, _definitions(read_document(path)))


def read_plan(path: Path) -> Plan:
    """The study that a store belongs to. **Raises:** as `read_head`."""
    return read_head(path).plan


def damaged(path: Path, what: str) -> ValueError:
    """The error for metadata that cannot be what was written."""
    return ValueError(f"store: {path} is damaged: {what}{_copy_of(path)}. {_REMEDY}")


def _copy_of(path: Path) -> str:
    """Where the last run left the same metadata."""
    copy = side_folder(path) / HEAD
    there = path.is_dir() and copy.is_file()
    return f"; the last run left a copy of that file, to be put back: {copy}" if there else ""


def _definitions(document: Mapping[str, Any]) -> dict[str, str]:
    """The sentences that stand beside results."""
    found: dict[str, str] = {}
    listed: Any = document
    for name in ("consolidated_metadata", "metadata"):
        listed = listed.get(name) if isinstance(listed, Mapping) else None
    for name, entry in listed.items() if isinstance(listed, Mapping) else ():
        attributes = entry.get("attributes") if isinstance(entry, Mapping) else None
        sentence = attributes.get("long_name") if isinstance(attributes, Mapping) else None
        if isinstance(sentence, str):
            found[name] = sentence
    return found
