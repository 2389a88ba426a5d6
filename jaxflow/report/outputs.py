"""The manifest of a result, and the files that a command writes: existing files are replaced only on request."""

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax

from jaxflow._core import as_boolean, as_path, checked, require
from jaxflow.study.manifest import origin, package_version


def refuse_existing(paths: Iterable[Path], overwrite: bool) -> None:
    """Checks that no output exists yet. To be called before anything is computed.

    **Raises:** `FileExistsError` with the names of the outputs that exist, unless `overwrite`;
    `NotADirectoryError` where a folder cannot be made because a file has its name.
    """
    require(isinstance(paths, Iterable), "paths", "expected paths", got=paths)
    as_boolean("overwrite", overwrite)
    paths = [as_path("paths", path) for path in paths]
    for folder in {parent for path in paths for parent in path.parents}:
        if folder.exists() and not folder.is_dir():
            raise NotADirectoryError(f"out: {folder} is a file, not a folder")
    existing = [path for path in paths if path.exists()]
    if existing and not overwrite:
        names = ", ".join(path.name for path in existing)
        raise FileExistsError(f"out: {existing[0].parent} already holds {names}; --overwrite replaces them")


def write_json(path: Path, value: Any) -> None:
    """JSON with an indentation, and a newline at the end."""
    as_path("path", path).write_text(json.dumps(value, indent=2, allow_nan=False) + "\n", encoding="utf-8")


@checked(nonnegative=["seconds", "cpu_seconds"])
def manifest(
    *, arguments: dict[str, Any], seed: int, seconds: float, cpu_seconds: float | None = None
) -> dict[str, Any]:
    """Version, commit (where there is one), seed, package versions, device and arguments, for `json`.

    **Arguments:** `cpu_seconds`: of the processor, those of the whole process so far by default.
    """
    found = origin()
    return {
        **found,
        "seed": seed,
        "arguments": arguments,
        "seconds": round(seconds, 1),
        # What `seconds` would be without other work on the machine, or more.
        "cpu_seconds": round(time.process_time() if cpu_seconds is None else cpu_seconds, 1),
        "packages": found["packages"] | {"matplotlib": package_version("matplotlib")},
        "device_kind": jax.devices()[0].device_kind,
        "device_count": jax.device_count(),
        "double_precision": jax.numpy.result_type(float) == jax.numpy.float64,
    }
