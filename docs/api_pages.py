"""MkDocs hook: one API page for every room of jaxflow that exists, from what the room re-exports.

A room that is added shows up by itself; a page can neither rot nor be forgotten.
"""

import ast
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

# In pipeline order, as a reader meets them.
ROOMS = (
    *("data", "losses", "models", "risk", "teachers", "margin", "trajectory", "flow", "gradient_descent"),
    *("theory", "limits", "study", "plots", "report", "papers", "cli"),
)


# The names that examples use without a word; a test runs all of them.
PRELUDE = Path(__file__).parent / "examples_prelude.py"


def _source(config: MkDocsConfig, room: str) -> Path | None:
    package = Path(config.config_file_path).parent / "jaxflow"
    for path in (package / room / "__init__.py", package / f"{room}.py"):
        if path.exists():
            return path
    return None


def _exports(path: Path) -> list[str]:
    """Full names of what an `__init__` re-exports as `X as X`; none for a room of one file."""
    if path.name != "__init__.py":
        return []
    return [
        f"{node.module}.{alias.name}"
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname == alias.name
    ]


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    pages: list[Any] = [{f"jaxflow.{room}": f"api/{room}.md"} for room in ROOMS if _source(config, room)]
    config.nav = [*(config.nav or []), {"API": pages}]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for room in ROOMS:
        if path := _source(config, room):
            files.append(File.generated(config, f"api/{room}.md", content=_page(room, path)))
    return files


def _page(room: str, path: Path) -> str:
    exports = _exports(path)
    lines = [
        f"# `jaxflow.{room}`",
        "",
        '??? note "What the examples of this page start from"',
        "",
        "    ```python",
        *(f"    {line}".rstrip() for line in PRELUDE.read_text(encoding="utf-8").splitlines()),
        "    ```",
        "",
        f"::: jaxflow.{room}",
        "    options:",
        "      show_root_heading: false",
    ]
    if exports:
        # The names live in files below; each is shown under the room, where users import it from.
        lines += ["      members: false", ""]
        for name in exports:
            lines += [f"::: {name}", "    options:", "      heading_level: 2", ""]
    else:
        lines += ["      heading_level: 2", ""]
    return "\n".join(lines)
