"""What a strict build of the documentation would find, without building it: links, pictures, navigation, blocks."""

import ast
import json
import re
import tomllib
from urllib.parse import unquote

import pytest

from jaxflow import papers
from tests.architecture.floors import FLOORS
from tests.docs.pages import DOCS, NOTEBOOKS, PAGES, ROOT, Page, module_of, navigation, notebook_of
from tests.processes import said

LANGUAGES = {"python", "bash", "toml", "text", "bibtex"}
# Bytes of a picture: a page of forty loads in a moment.
LARGEST = 150_000
ids = [page.name for page in PAGES]


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_links_and_pictures_lead_somewhere(page: Page) -> None:
    broken = []
    for target in [*page.links, *page.pictures]:
        if re.match(r"[a-z]+:", target):
            assert target.startswith("https://"), target
            continue
        path, _, anchor = target.partition("#")
        file = page.path if not path else (page.path.parent / unquote(path)).resolve()
        if file.is_relative_to(DOCS / "api"):
            # Written by the hook while the pages are built: one for each room.
            known = file.stem in FLOORS
        else:
            known = file.exists() and (not anchor or file.suffix != ".md" or anchor in Page(file).anchors)
        broken += [] if known else [target]
    assert not broken


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_blocks_are_closed_labelled_and_parse(page: Page) -> None:
    fences = [line for line in page.path.read_text(encoding="utf-8").splitlines() if line.lstrip().startswith("```")]
    assert len(fences) == 2 * len(page.blocks)
    for block in page.blocks:
        assert block.language in LANGUAGES, f"{page.name}:{block.line}: {block.language!r}"
        if block.language == "python":
            ast.parse(block.text)
        if block.language == "toml":
            tomllib.loads(block.text)


def test_every_page_is_in_the_navigation_or_linked_from_one_that_is() -> None:
    shown = {(DOCS / name).resolve() for name in navigation()}
    assert all(path.exists() for path in shown), "the navigation names files that are not there"
    assert len(shown) == len(navigation())
    reached, waiting = set(shown), list(shown)
    while waiting:
        page = Page(waiting.pop())
        targets = {(page.path.parent / link.partition("#")[0]).resolve() for link in page.links if "://" not in link}
        new = {path for path in targets if path.suffix == ".md" and path.exists()} - reached
        reached |= new
        waiting += new
    lost = [str(path.relative_to(ROOT)) for path in DOCS.rglob("*.md") if path.resolve() not in reached]
    assert not lost


def test_every_picture_is_small_shown_and_described() -> None:
    files = [path for path in (DOCS / "images").rglob("*") if path.suffix in (".svg", ".webp", ".png")]
    shown = {(page.path.parent / picture).resolve() for page in PAGES for picture in page.pictures}
    assert not [path.name for path in files if path.resolve() not in shown]
    assert not [(path.name, path.stat().st_size) for path in files if path.stat().st_size > LARGEST]
    texts = [token.content for page in PAGES for token in page._inline("image")]
    assert texts and all(len(text) > 10 for text in texts), "a picture says what it shows"


def test_the_page_of_benchmarks_is_what_the_results_say() -> None:
    assert (DOCS / "benchmarks.md").read_text(encoding="utf-8") == said("benchmarks/page.py")


def test_every_fault_has_a_test() -> None:
    """50 kills and 30 other faults at least: rows of the page, each with a test of that name."""
    rows = re.findall(r"^\| (\d+) \|.*\| `([^`:]+)::(\w+)` \|$", (DOCS / "faults.md").read_text(encoding="utf-8"), re.M)
    assert [int(number) for number, *_ in rows] == list(range(1, len(rows) + 1))
    faults = {name for _, _, name in rows}
    assert "test_killed_at_random_moments" in faults and len(faults) > 30
    for _, file, name in rows:
        functions = [
            node.name
            for node in ast.parse((ROOT / file).read_text(encoding="utf-8")).body
            if isinstance(node, ast.FunctionDef)
        ]
        assert name in functions, name


def test_the_papers_pages_are_what_claims_and_pictures_say() -> None:
    figures = module_of("figures.py")
    for page in figures.PAGES:
        assert figures.with_figures(page) == page.read_text(encoding="utf-8"), page.name


# Drawn in minutes even at quick scale, and not committed yet.
NOT_DRAWN = {"sheen2024-failures", "tarzanagh2023-conjecture", "tarzanagh2023-factored", "tarzanagh2023-fig6"}


def test_the_gallery_shows_every_figure_and_how_it_was_drawn() -> None:
    record = json.loads((DOCS / "images" / "figures.json").read_text(encoding="utf-8"))
    drawn_on = {*(DOCS / "papers").glob("*.md"), DOCS / "results.md"}
    shown = [picture for page in PAGES if page.path in drawn_on for picture in page.pictures]
    assert len(shown) == len(set(shown)) == len(record)
    # What can be drawn by `jaxflow reproduce` is in the gallery, and the other way round.
    drawn = {f"{paper.name}-{entry.name}" for paper in papers.known_papers() for entry in papers.figures_of(paper.name)}
    assert set(record) | NOT_DRAWN == drawn
    assert {told["scale"] for told in record.values()} <= set(papers.SCALES)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_stored_without_outputs_and_its_page_has_them(name: str) -> None:
    cells = notebook_of(name).cells
    code = [cell for cell in cells if cell.cell_type == "code"]
    assert code and all(cell.outputs == [] and cell.execution_count is None for cell in code)
    page = (DOCS / "notebooks" / f"{name}.md").read_text(encoding="utf-8")
    places = [page.find(cell.source) for cell in cells]
    assert min(places) >= 0 and places == sorted(places)
    assert "```text" in page and f"images/notebooks/{name}-" in page
    assert f"notebooks/{name}.md" in (DOCS / "notebooks.md").read_text(encoding="utf-8")
