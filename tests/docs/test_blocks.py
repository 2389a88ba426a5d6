"""Every block of README and documentation runs, as a reader would run it: page by page, in a folder of its own."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.main import get_command

from jaxflow.cli import app
from tests.docs.pages import DOCS, PAGES, ROOT, Block, Page

# Written from notebooks, which tests/notebooks runs.
PAGES = [page for page in PAGES if DOCS / "notebooks" not in page.path.parents]
WITH_PYTHON = [page for page in PAGES if page.of("python")]
WITH_COMMANDS = [page for page in PAGES if page.of("bash")]

# Commands that are looked at and not run, which the tests named here do.
ELSEWHERE = {
    "verify": ROOT / "tests" / "papers" / "test_whole_verify.py",
    "factored": ROOT / "tests" / "papers" / "test_factored.py",
    "conjecture": ROOT / "tests" / "papers" / "test_conjecture.py",
    "lora": ROOT / "tests" / "papers" / "test_boix2023_practical.py",
    "equivalence": ROOT / "tests" / "papers" / "test_figures.py",
    "demo": ROOT / "tests" / "cli" / "test_demo.py",
    "reproduce": ROOT / "tests" / "papers" / "test_figures.py",
    "--executor": ROOT / "tests" / "study" / "test_executors.py",
}


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    scripts = str(Path(sys.executable).parent)
    return os.environ | {
        "PYTHONPATH": path,
        "PATH": os.pathsep.join([scripts, os.environ.get("PATH", "")]),
        "MPLBACKEND": "agg",
        "PYTHONWARNINGS": "error::DeprecationWarning:__main__",
    }


# What docs/own-model.md prints, section by section.
PRINTED = {
    "A linear model": "one minimum among the points",
    "Many classes": "multiclass SVM",
    "Next words": "Thrampoulidis (2024)",
    "A ReLU network": "KKT point",
    "W = UUᵀ": "KKT point",
    "Attention with weights of your own": "KKT point",
    "A head of your own": "certified by",
    "Squared error: matrix sensing": "Gradient flow interpolates",
    "A loss of your own": "Gradient flow interpolates",
    "What cannot be concluded": "not homogeneous",
    "A theorem of your own": "It solves the predicted program",
}


def sections(page: Page) -> dict[str, list[Block]]:
    """The blocks of a page by heading; those above its first one under an empty name."""
    heads = [
        (token.map[0], page.tokens[at + 1].content)
        for at, token in enumerate(page.tokens)
        if token.type == "heading_open" and token.tag == "h2"
    ]
    found: dict[str, list[Block]] = {}
    for block in page.of("python"):
        above = [head for line, head in heads if line < block.line]
        found.setdefault(above[-1] if above else "", []).append(block)
    return found


def as_script(blocks: list[Block]) -> str:
    """The blocks at the lines where they stand on the page, so that a traceback names the line of the page."""
    lines: list[str] = []
    for block in blocks:
        lines += [""] * (block.line - len(lines)) + block.text.splitlines()
    return "\n".join(lines) + "\n"


def scripts(page: Page) -> list[str]:
    """What runs with names of its own: a page, or a section of docs/own-model.md after the imports of that page."""
    if page.path.name != "own-model.md":
        return [as_script(page.of("python"))]
    found = sections(page)
    return [as_script([*found[""], *blocks]) for name, blocks in found.items() if name]


def write_files(page: Page, folder: Path) -> None:
    """The TOML files of a page, named in their first lines."""
    for block in page.of("toml"):
        name = re.match(r"# (\S+\.toml)\n", block.text)
        assert name, "a file needs its name in the first line"
        (folder / name[1]).write_text(block.text)


# One process runs all pages: they share what is traced and compiled, which is nearly all of their time.
RUNNER = """
import contextlib, io, json, os, sys, traceback
from pathlib import Path

for folder in sys.argv[1:]:
    os.chdir(folder)
    printed, error = io.StringIO(), ""
    with contextlib.redirect_stdout(printed):
        for script in sorted(Path().glob("page_*.py")):
            try:
                exec(compile(script.read_text(), str(script), "exec"), {"__name__": "__main__"})
            except BaseException:
                error += traceback.format_exc()
    print(json.dumps({"error": error, "printed": printed.getvalue()}), flush=True)
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """What each page with Python printed, and the traceback of what failed."""
    folders = []
    for page in WITH_PYTHON:
        folder = tmp_path_factory.mktemp("page")
        write_files(page, folder)
        for at, script in enumerate(scripts(page)):
            (folder / f"page_{at:02}.py").write_text(script)  # sorted by name, the order of the page
        folders.append(str(folder))
    done = subprocess.run(
        [sys.executable, "-c", RUNNER, *folders], env=environment(), capture_output=True, text=True, timeout=1100
    )
    assert done.returncode == 0, done.stderr[-4000:]
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    return {page.name: answer for page, answer in zip(WITH_PYTHON, answers, strict=True)}


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("page", WITH_PYTHON, ids=lambda page: page.name)
def test_python(page: Page, ran: dict[str, dict[str, str]]) -> None:
    assert not ran[page.name]["error"], ran[page.name]["error"][-4000:]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_sections_of_own_models_are_short_and_print_their_outcomes(ran: dict[str, dict[str, str]]) -> None:
    page = Page(DOCS / "own-model.md")
    found = sections(page)
    assert [name for name in found if name] == list(PRINTED)
    printed = ran[page.name]["printed"]
    at = 0
    for name, sentence in PRINTED.items():
        at = printed.find(sentence, at)
        assert at >= 0, f"{name}\n{printed}"
        lines = [line for block in found[name] for line in block.text.splitlines() if line.strip()]
        assert len(lines) <= 22, f"{name} is no longer a short script"


def commands(page: Page) -> list[str]:
    """The command lines of a page, without comments."""
    lines = [line.partition("  #")[0].strip() for block in page.of("bash") for line in block.text.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def quick(words: list[str]) -> list[str]:
    """The same command at its least scale."""
    return ["quick" if words[at - 1] == "--scale" else word for at, word in enumerate(words)]


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
            node = get_command(app)
            while hasattr(node, "commands") and rest and rest[0] in node.commands:
                node, rest = node.commands[rest[0]], rest[1:]
            if rest != ["--help"]:
                node.make_context(line, list(rest))


def skipped(words: list[str]) -> bool:
    return any(word in ELSEWHERE for word in words)


def test_what_is_not_run_here_is_run_elsewhere() -> None:
    assert all(path.exists() for path in ELSEWHERE.values())
    used = {word for page in WITH_COMMANDS for line in commands(page) for word in shlex.split(line)}
    assert set(ELSEWHERE) <= used | {"demo", "conjecture"}


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Page], Path]:
    """A folder with the files of a page; the same for pages of the same files, which finds their studies complete."""
    folders: dict[str, Path] = {}

    def made(page: Page) -> Path:
        text = "".join(block.text for block in page.of("toml"))
        if text not in folders:
            folders[text] = tmp_path_factory.mktemp("commands")
            write_files(page, folders[text])
        return folders[text]

    return made


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda page: page.name)
def test_commands(page: Page, folder_of: Callable[[Page], Path]) -> None:
    if any("selection.zarr" in line for line in commands(page)) and not page.of("toml"):
        pytest.fail("the page uses a study that it does not show")
    for line in commands(page):
        words = quick(shlex.split(line))
        if words[0] != "jaxflow" or skipped(words):
            continue
        done = subprocess.run(
            words, cwd=folder_of(page), env=environment(), capture_output=True, text=True, timeout=580
        )
        assert done.returncode == 0, f"{line}\n{done.stdout[-1500:]}\n{done.stderr[-3000:]}"
