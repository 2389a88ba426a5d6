"""Every block of README and documentation runs, as a reader would run it: page by page, in a folder of its own."""

import os
import re
import resource
import shlex
import statistics
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.main import get_command

from jaxflow.cli import app
from tests.docs.pages import DOCS, PAGES, ROOT, Block, Page

# Written from notebooks, which tests/notebooks runs.
PAGES = [page for page in PAGES if DOCS / "notebooks" not in page.path.parents]
# The sections of docs/own-model.md run one by one, each from a cold process.
WITH_PYTHON = [page for page in PAGES if page.of("python") and page.path.name != "own-model.md"]
WITH_COMMANDS = [page for page in PAGES if page.of("bash")]

# Commands that are looked at and not run: minutes each, and run whole by the tests named here.
ELSEWHERE = {
    "verify": ROOT / "tests" / "papers" / "test_whole_verify.py",
    "factored": ROOT / "tests" / "papers" / "test_factored.py",
    "conjecture": ROOT / "tests" / "papers" / "test_conjecture.py",
    "lora": ROOT / "tests" / "papers" / "test_boix2023_practical.py",
    "equivalence": ROOT / "tests" / "papers" / "test_figures.py",
    "demo": ROOT / "tests" / "cli" / "test_demo.py",
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


def as_script(blocks: list[Block]) -> str:
    """The blocks at the lines where they stand on the page, so that a traceback names the line of the page."""
    lines: list[str] = []
    for block in blocks:
        lines += [""] * (block.line - len(lines)) + block.text.splitlines()
    return "\n".join(lines) + "\n"


def run(page: Page, folder: Path) -> subprocess.CompletedProcess[str]:
    for block in page.of("toml"):
        name = re.match(r"# (\S+\.toml)\n", block.text)
        if name:
            (folder / name[1]).write_text(block.text)
    script = folder / page.path.with_suffix(".py").name
    script.write_text(as_script(page.of("python")))
    return subprocess.run(
        [sys.executable, str(script)], cwd=folder, env=environment(), capture_output=True, text=True, timeout=580
    )


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_PYTHON, ids=lambda page: page.name)
def test_python(page: Page, tmp_path: Path) -> None:
    done = run(page, tmp_path)
    assert done.returncode == 0, f"{page.name}\n{done.stderr[-4000:]}"


# The outcomes of docs/own-model.md, in the order of the page.
OUTCOMES = {
    "A linear model": "one minimum among the points",
    "A ReLU network": "KKT point",
    "W = UUᵀ": "KKT point",
    "Attention with weights of your own": "KKT point",
    "A head of your own": "certified by",
    "Squared error: matrix sensing": "Gradient flow interpolates",
    "A loss of your own": "Gradient flow interpolates",
    "What cannot be concluded": "not homogeneous",
    "A theorem of your own": "It solves the predicted program",
}


def sections() -> dict[str, list[Block]]:
    """The blocks of docs/own-model.md by heading; the imports, which all of them need, under an empty one."""
    page = Page(DOCS / "own-model.md")
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


def test_the_sections_are_those_that_are_timed() -> None:
    assert [name for name in sections() if name] == list(OUTCOMES)


# The most processor time of one section over the median of all: what a machine is worth that day cancels. Seconds
# themselves are a matter of benchmarks/latency.py.
MOST = 2.0


class Run(NamedTuple):
    """A section in a cold process, nothing compiled before: what it printed, and its seconds of processor."""

    done: subprocess.CompletedProcess[str]
    seconds: float


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """Every section of docs/own-model.md."""
    found, out = sections(), {}
    for name in OUTCOMES:
        folder = tmp_path_factory.mktemp("section")
        script = folder / "ten_lines.py"
        script.write_text(as_script([*found[""], *found[name]]))
        cold = environment() | {"JAX_COMPILATION_CACHE_DIR": str(folder / "cache")}
        # As on a user's machine.
        for variable in ("JAX_DISABLE_MOST_OPTIMIZATIONS", "XLA_FLAGS"):
            cold.pop(variable, None)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([sys.executable, str(script)], cwd=folder, env=cold, capture_output=True, text=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        out[name] = Run(done, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return out


@pytest.mark.slow
@pytest.mark.parametrize("name", OUTCOMES)
def test_ten_lines_from_a_cold_process(name: str, runs: dict[str, Run]) -> None:
    done = runs[name].done
    assert done.returncode == 0, done.stderr[-4000:]
    assert OUTCOMES[name] in done.stdout, done.stdout
    lines = [line for block in sections()[name] for line in block.text.splitlines() if line.strip()]
    assert len(lines) <= 22, "no longer a short script"


@pytest.mark.slow
def test_no_section_takes_much_longer_than_the_others(runs: dict[str, Run]) -> None:
    seconds = {name: run.seconds for name, run in runs.items()}
    assert max(seconds.values()) <= MOST * statistics.median(seconds.values()), seconds


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


# A command that several pages show is run once.
_DONE: set[str] = set()


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda page: page.name)
def test_commands(page: Page, tmp_path: Path) -> None:
    if any("selection.zarr" in line for line in commands(page)) and not page.of("toml"):
        pytest.fail("the page uses a study that it does not show")
    for block in page.of("toml"):
        name = re.match(r"# (\S+\.toml)\n", block.text)
        assert name, "a file needs its name in the first line"
        (tmp_path / name[1]).write_text(block.text)
    for line in commands(page):
        words = quick(shlex.split(line))
        alone = words[:2] != ["jaxflow", "study"]
        if words[0] != "jaxflow" or skipped(words) or (alone and shlex.join(words) in _DONE):
            continue
        _DONE.add(shlex.join(words))
        done = subprocess.run(words, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=580)
        assert done.returncode == 0, f"{line}\n{done.stdout[-1500:]}\n{done.stderr[-3000:]}"
