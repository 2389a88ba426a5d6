"""From the schema of an older store to today's."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

SCHEMA_VERSION = 1

# From version n to n + 1: each entry rewrites the store in place and raises its `schema_version`, as the last
# thing it does, by one, and drops the checksum of what it rewrote. A version that was ever released keeps its entry
# for good.
MIGRATIONS: dict[int, Callable[[Path], None]] = {}


def version_of(path: Path, attributes: Mapping[str, Any]) -> int:
    """**Raises:** `ValueError` where the attributes of a group are not those of a study."""
    version = attributes.get("schema_version")
    if not isinstance(version, int) or "study" not in attributes:
        raise ValueError(f"store: {path} is no study of jaxflow (it has no schema_version)")
    return version


def check_version(path: Path, attributes: Mapping[str, Any]) -> bool:
    """Whether the store has today's schema; False where `migrate` can bring it there.

    **Raises:** `ValueError` for a schema of which this version knows nothing.
    """
    version = version_of(path, attributes)
    if version == SCHEMA_VERSION:
        return True
    if all(step in MIGRATIONS for step in range(version, SCHEMA_VERSION)) and version < SCHEMA_VERSION:
        return False
    newer = "a newer" if version > SCHEMA_VERSION else "another"
    raise ValueError(
        f"store: {path} has schema_version {version}, written by {newer} jaxflow; this one reads {SCHEMA_VERSION}"
    )


def migrate(path: Path, read_attributes: Callable[[Path], Mapping[str, Any]]) -> None:
    """Applies the table until the store has today's schema; nothing where it has it already."""
    while not check_version(path, attributes := read_attributes(path)):
        version = version_of(path, attributes)
        MIGRATIONS[version](path)
        if version_of(path, read_attributes(path)) != version + 1:
            raise RuntimeError(f"store: the migration of {path} from schema_version {version} did not raise it by one")
