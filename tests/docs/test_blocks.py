"""Every block of README and documentation runs, as a reader would run it: page by page, in a folder of its own. So do
all notebooks but those on studies, which are in test_studies.py."""

import re
import shlex
from typing import Any

import pytest

from tests.docs.pages import DOCS, NOTEBOOKS, ROOT, Page, code_of
from tests.docs.reader import ELSEWHERE, PAGES, STUDIES, commands, job, job_of, parse, read_all, sections

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


COROLLARIES = [f"Yun et al. (2021), Corollary {number}" for number in (1, 2, 3, 5)]
# How many pictures a notebook shows, and what it prints. Its numbers are those of laws that are tested where they are
# computed, and its page shows them.
PRINTS = {
    "first_limit": (2, ["outcome: globally_optimal", "its direction solves the nuclear-norm max-margin program"]),
    "transformers_as_svms": (
        3,
        [
            "from zero: tokens [1 0], locally_optimal",
            "from near the optimal direction: tokens [1 1], globally_optimal",
        ],
    ),
    "linear_networks": (2, [*COROLLARIES, "fitted exponent 0.5", "predicted 0.5"]),
    "incremental_learning": (1, [f"support {found}\n" for found in ("[2]", "[0, 2]", "[0, 1]", "[0, 1, 2]")]),
    "three_parametrisations": (2, ["True (slack", ": globally_optimal, certified to"]),
    "own_model": (2, ["outcome kkt_point, degree 2"]),
}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What pages and notebooks did, in one process, which compiles once what they share."""
    new = tmp_path_factory.mktemp
    jobs = {page.name: job_of(page, new("page")) for page in HERE}
    return read_all(jobs | {name: job(new(name), cells=code_of(name)) for name in PRINTS}, new("jobs"))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", HERE, ids=lambda page: page.name)
def test_blocks_run(page: Page, ran: dict[str, dict[str, Any]]) -> None:
    assert not ran[page.name]["error"], ran[page.name]["error"][-4000:]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_sections_on_own_models_are_short_and_print_their_outcomes(ran: dict[str, dict[str, Any]]) -> None:
    page = Page(DOCS / "own-model.md")
    printed, found = ran[page.name]["printed"], sections(page)
    assert [name for name in found if name] == list(PRINTED)
    at = 0
    for name, sentence in PRINTED.items():
        at = printed.find(sentence, at)
        assert at >= 0, f"{name}\n{printed}"
        lines = [line for block in found[name] for line in block.text.splitlines() if line.strip()]
        assert len(lines) <= 22, f"{name} is no longer a short script"


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", PRINTS)
def test_a_notebook_prints_what_it_is_about(name: str, ran: dict[str, dict[str, Any]]) -> None:
    answer, (pictures, wanted) = ran[name], PRINTS[name]
    assert not answer["error"], answer["error"][-4000:]
    assert not [text for text in wanted if text not in answer["printed"]]
    assert answer["pictures"] == pictures


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
    assert set(NOTEBOOKS) == PRINTS.keys() | {"percentage_study", "reading_a_store"}
