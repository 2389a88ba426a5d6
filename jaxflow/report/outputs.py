"""Files that a command writes: never over others unless asked."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jaxflow._core import as_boolean, as_path, require


def refuse_existing(paths: Iterable[Path], overwrite: bool) -> None:
    """To be called before anything is computed.

    **Raises:** `FileExistsError` with the names of the outputs that exist, unless `overwrite`;
    `NotADirectoryError` where a folder cannot be made because a file has its name.

    **Example:**

    ```python
    from pathlib import Path

    Path("mine.txt").write_text("numbers")
    try:
        jf.report.refuse_existing([Path("mine.txt")], overwrite=False)
    except FileExistsError as reason:
        print(reason)
    ```
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
    """JSON with an indentation, and a newline at the end.

    **Example:**

    ```python
    from pathlib import Path

    jf.report.write_json(Path("made.json"), {"seed": 0})
    ```
    """
    as_path("path", path).write_text(json.dumps(value, indent=2, allow_nan=False) + "\n", encoding="utf-8")
