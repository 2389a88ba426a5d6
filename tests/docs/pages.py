"""The pages of the documentation: their code blocks, links, headings and pictures, by a parser of Markdown."""

import importlib.util
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml
from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and the line of the page on which the text begins (from 0)."""

    language: str
    text: str
    line: int


@dataclass(frozen=True)
class Page:
    """A Markdown file."""

    path: Path

    @property
    def name(self) -> str:
        return str(self.path.relative_to(ROOT))

    @cached_property
    def tokens(self) -> list:
        parser = MarkdownIt("commonmark").enable("table")
        return parser.parse(self.path.read_text(encoding="utf-8"))

    @cached_property
    def blocks(self) -> list[Block]:
        found = [token for token in self.tokens if token.type == "fence"]
        return [Block(token.info.strip(), token.content, token.map[0] + 1) for token in found]

    def of(self, language: str) -> list[Block]:
        return [block for block in self.blocks if block.language == language]

    @cached_property
    def links(self) -> list[str]:
        return [str(token.attrs["href"]) for token in self._inline("link_open")]

    @cached_property
    def pictures(self) -> list[str]:
        return [str(token.attrs["src"]) for token in self._inline("image")]

    def _inline(self, kind: str) -> list:
        return [child for token in self.tokens for child in token.children or [] if child.type == kind]

    @cached_property
    def anchors(self) -> set[str]:
        """Headings as `toc` of Python-Markdown names them."""
        heads = [self.tokens[at + 1].content for at, token in enumerate(self.tokens) if token.type == "heading_open"]
        return {slug(head) for head in heads}


def slug(heading: str) -> str:
    text = re.sub(r"[`*]", "", heading)
    text = text.encode("ascii", "ignore").decode()
    text = re.sub(r"[^\w\s-]", "", text).strip().lower()
    return re.sub(r"[-\s]+", "-", text)


PAGES = [Page(ROOT / "README.md"), *(Page(path) for path in sorted(DOCS.rglob("*.md")))]
NOTEBOOKS = [path.stem for path in sorted((ROOT / "notebooks").glob("*.ipynb"))]


def notebook_of(name: str) -> Any:
    """A notebook as it is stored."""
    import nbformat

    notebook = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
    nbformat.validate(notebook)
    return notebook


def code_of(name: str) -> list[str]:
    """What the cells of a notebook run."""
    return [cell.source for cell in notebook_of(name).cells if cell.cell_type == "code"]


class _Lenient(yaml.SafeLoader):
    """MkDocs' configuration may name Python objects; none is needed here."""


_Lenient.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: None)


def module_of(script: str) -> Any:
    """A script of the documentation, as a module."""
    spec = importlib.util.spec_from_file_location(Path(script).stem, DOCS / script)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def configuration() -> dict:
    """`mkdocs.yml`."""
    return yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Loader=_Lenient)


def navigation(entries: list | None = None) -> list[str]:
    """The files of the navigation, in order."""
    found: list[str] = []
    for entry in configuration()["nav"] if entries is None else entries:
        target = next(iter(entry.values())) if isinstance(entry, dict) else entry
        found += navigation(target) if isinstance(target, list) else [target]
    return found
