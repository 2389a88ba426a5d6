"""Every block of README and documentation runs, as a reader would run it: page by page, in a folder of its own."""

import re
import shlex
from typing import Any

import pytest

from tests.docs.pages import DOCS, ROOT, Page
from tests.docs.reader import ELSEWHERE, PAGES, STUDIES, commands, parse, read_pages, sections

# The others are in test_studies.py.
HERE = [page for page in PAGES if page not in STUDIES]
WITH_COMMANDS = [page for page in PAGES if page.of("bash")]

# What docs/own-model.md prints, section by section.
PRINTED = {
    "A linear model": "one minimum among the points",
    "Many classes": "multiclass SVM",
    "Next words": "Thrampoulidis (2024)",
    "Attention over a vocabulary": "Li et al. (2024)",
    "A ReLU network": "KKT point",
    "W = UUᵀ": "KKT point",
    "Attention with weights of your own": "KKT point",
    "A prompt and its head together": "prompt:",
    "A head of your own": "certified by",
    "Squared error: matrix sensing": "Gradient flow interpolates",
    "A loss of your own": "Gradient flow interpolates",
    "What cannot be concluded": "not homogeneous",
    "A theorem of your own": "It solves the predicted program",
}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[Any, Any]:
    return read_pages(HERE, tmp_path_factory)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("page", HERE, ids=lambda page: page.name)
def test_blocks_run(page: Page, ran: dict[Any, Any]) -> None:
    assert not ran[page.name]["error"], ran[page.name]["error"][-4000:]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_sections_on_own_models_are_short_and_print_their_outcomes(ran: dict[Any, Any]) -> None:
    page = Page(DOCS / "own-model.md")
    printed, found = ran[page.name]["printed"], sections(page)
    assert [name for name in found if name] == list(PRINTED)
    at = 0
    for name, sentence in PRINTED.items():
        at = printed.find(sentence, at)
        assert at >= 0, f"{name}\n{printed}"
        lines = [line for block in found[name] for line in block.text.splitlines() if line.strip()]
        assert len(lines) <= 22, f"{name} is no longer a short script"


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda page: page.name)
def test_commands_parse(page: Page) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for line in commands(page):
        program, *rest = shlex.split(line)
        if program == "make":
            assert all(word in targets or "=" in word for word in rest), line
        elif program == "pip":
            extras = re.findall(r"\[(\w+)\]", line)
            assert all(f"\n{extra} = [" in (ROOT / "pyproject.toml").read_text() for extra in extras), line
        elif program == "python":
            assert (ROOT / rest[0]).exists(), line
        else:
            assert program == "jaxflow", line
            parse([program, *rest])


def test_what_is_not_run_here_is_run_elsewhere() -> None:
    assert all(path.exists() for path in ELSEWHERE.values())
    used = {word for page in WITH_COMMANDS for line in commands(page) for word in shlex.split(line)}
    assert set(ELSEWHERE) <= used | {"demo"}
