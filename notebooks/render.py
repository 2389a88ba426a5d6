"""Executes notebooks and writes them with their outputs as pages: python notebooks/render.py [NAME ...]

The notebooks themselves are stored without outputs; docs/notebooks/NAME.md and its pictures are what this writes.
"""

import argparse
import base64
import io
import os
import re
from pathlib import Path
from typing import Any

import nbclient
import nbformat

HERE = Path(__file__).resolve().parent
PAGES = HERE.parent / "docs" / "notebooks"
PICTURES = HERE.parent / "docs" / "images" / "notebooks"
# Seconds for one cell.
LIMIT = 900


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="without the ending; all by default")
    names = parser.parse_args().names or sorted(path.stem for path in HERE.glob("*.ipynb"))
    for name in names:
        print(name, flush=True)
        (PAGES / f"{name}.md").write_text(rendered(name, executed(name)), encoding="utf-8")


def executed(name: str) -> nbformat.NotebookNode:
    """The notebook with its outputs."""
    notebook = nbformat.read(HERE / f"{name}.ipynb", as_version=4)
    environment = os.environ | {"MPLBACKEND": "module://matplotlib_inline.backend_inline"}
    paths = [str(HERE.parent), os.environ.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    where: Any = {"metadata": {"path": str(HERE)}}
    nbclient.NotebookClient(notebook, timeout=LIMIT, kernel_name="python3", resources=where).execute(env=environment)
    return notebook


def rendered(name: str, notebook: nbformat.NotebookNode) -> str:
    """The page; pictures are stored beside."""
    parts: list[str] = []
    for old in PICTURES.glob(f"{name}-*.webp"):
        old.unlink()
    count = 0
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        for output in cell.outputs:
            data = output.get("data", {})
            if "image/png" in data:
                count += 1
                file = store(data["image/png"], f"{name}-{count}")
                heading = next(part for part in reversed(parts) if part.startswith("#")).splitlines()[0].lstrip("# ")
                parts.append(f"![{heading}, drawn by the cell above](../images/notebooks/{file})")
                continue
            text = output.get("text") or data.get("text/plain") or "\n".join(output.get("traceback", ()))
            if text.strip() and not text.startswith("<Figure"):
                # Escape sequences of the terminal say nothing on a page.
                plain = re.sub(r"\x1b\[[0-9;]*m", "", text).rstrip()
                parts.append(f"```text\n{plain}\n```")
    link = f"*The notebook itself, without outputs: `notebooks/{name}.ipynb`.*"
    return "\n\n".join([*parts, link]) + "\n"


def store(png: str, name: str) -> str:
    """A picture as WebP."""
    from PIL import Image

    PICTURES.mkdir(parents=True, exist_ok=True)
    with Image.open(io.BytesIO(base64.b64decode(png))) as image:
        image.convert("RGB").save(PICTURES / f"{name}.webp", quality=85, method=6)
    return f"{name}.webp"


if __name__ == "__main__":
    main()
