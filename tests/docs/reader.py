"""Runs pages, commands and notebooks as a reader would, many in one process: nearly all of their time is tracing and
compilation, which they then share. Each has names, a folder and settings of JAX of its own.

    python -m tests.docs.reader JOBS.json

A line of JSON for each job: what it printed, how many pictures it showed, and the traceback of what failed.
"""

import contextlib
import functools
import gc
import io
import json
import os
import re
import shlex
import sys
import traceback
from pathlib import Path
from typing import Any

from tests.docs.pages import DOCS, PAGES, ROOT, Block, Page
from tests.processes import said

# Written from notebooks, which run themselves.
PAGES = [page for page in PAGES if DOCS / "notebooks" not in page.path.parents]
# Pages on one study, which their blocks and commands share: tests/docs/test_studies.py.
STUDIES = [page for page in PAGES if page.path.stem in ("README", "studies", "percentages", "machines")]

# Commands that are looked at and not run: tests that run commands of this kind are named here.
ELSEWHERE = {
    "verify": ROOT / "tests" / "papers" / "test_runs.py",
    "reproduce": ROOT / "tests" / "papers" / "test_runs.py",
    "demo": ROOT / "tests" / "cli" / "test_answers.py",
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


def job(folder: Path, scripts: Any = (), commands: Any = (), cells: Any = ()) -> dict[str, Any]:
    """What runs in a folder: Python with names of its own for each script, words of commands, cells of a notebook."""
    return {"folder": str(folder), "scripts": list(scripts), "commands": list(commands), "cells": list(cells)}


def read_all(jobs: dict[str, dict[str, Any]], folder: Path) -> dict[str, dict[str, Any]]:
    """The answers to all jobs by name, by one process, which leaves its list of jobs in a folder."""
    (folder / "jobs.json").write_text(json.dumps(list(jobs.values())))
    text = said("-m", "tests.docs.reader", str(folder / "jobs.json"), seconds=1700, **environment())
    return dict(zip(jobs, map(json.loads, text.splitlines()), strict=True))


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


def job_of(page: Page, folder: Path) -> dict[str, Any]:
    """The Python of a page in a folder, then its commands at their least scale in one below."""
    shown = page.of("toml") or not any("selection.zarr" in line for line in commands(page))
    assert shown, f"{page.name} uses a study that it does not show"
    (folder / "commands").mkdir()
    write_files(page, folder)
    write_files(page, folder / "commands")
    words = [quick(shlex.split(line)) for line in commands(page)]
    return job(folder, scripts(page), [w[1:] for w in words if w[0] == "jaxflow" and not skipped(w)])


def commands(page: Page) -> list[str]:
    """The command lines of a page, without comments."""
    lines = [line.partition("  #")[0].strip() for block in page.of("bash") for line in block.text.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def quick(words: list[str]) -> list[str]:
    """The same command at its least scale."""
    return ["quick" if words[at - 1] == "--scale" else word for at, word in enumerate(words)]


def skipped(words: list[str]) -> bool:
    return any(word in ELSEWHERE for word in words)


def parse(words: list[str]) -> None:
    """Sees that a command of `jaxflow` knows its arguments and options; nothing is run."""
    from typer.main import get_command

    from jaxflow.cli import app

    node, rest = get_command(app), words[1:]
    while hasattr(node, "commands") and rest and rest[0] in node.commands:
        node, rest = node.commands[rest[0]], rest[1:]
    if rest != ["--help"]:
        node.make_context(words[0], list(rest))


def run_command(words: list[str]) -> None:
    """A command of `jaxflow`, which must end well."""
    from jaxflow.cli import main

    try:
        main(words)
    except SystemExit as end:
        assert not end.code, f"{' '.join(words)}: exit code {end.code}"


@functools.cache
def notebook_shell() -> Any:
    """What runs cells: IPython without a terminal and without a window, which displays the value of a cell."""
    from IPython.core.displayhook import DisplayHook
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.display import display

    class Displayed(DisplayHook):
        def __call__(self, result: Any = None) -> None:
            if result is not None:
                display(result)

    class Shell(InteractiveShell):
        displayhook_class = Displayed

        def enable_gui(self, gui: Any = None) -> None:
            pass

    return Shell.instance()


def run_cells(sources: list[str]) -> tuple[str, int]:
    """What cells print, and how many pictures they show, as in a notebook."""
    from IPython.utils.capture import capture_output

    shell = notebook_shell()
    shell.run_line_magic("reset", "-f")
    shell.run_line_magic("matplotlib", "inline")
    printed, pictures = "", 0
    for source in sources:
        with capture_output() as captured:
            found = shell.run_cell(source)
        found.raise_error()
        printed += captured.stdout
        pictures += sum("image/png" in output.data for output in captured.outputs)
    return printed, pictures


def run(one: dict[str, Any]) -> dict[str, Any]:
    import jax

    import jaxflow.theory.prediction as prediction

    os.chdir(one["folder"])
    jax.config.update("jax_enable_x64", False)
    rules, printed, error, pictures = dict(prediction._RULES), io.StringIO(), "", 0
    with contextlib.redirect_stdout(printed):
        try:
            for number, script in enumerate(one["scripts"]):
                exec(compile(script, f"script {number}", "exec"), {"__name__": "__main__"})
            if one["commands"]:
                os.chdir(Path(one["folder"], "commands"))
            for words in one["commands"]:
                run_command(words)
            if one["cells"]:
                text, pictures = run_cells(one["cells"])
                print(text)
        except BaseException:
            error = traceback.format_exc()
    # A rule that a page registers is for its own sentences.
    prediction._RULES.clear()
    prediction._RULES.update(rules)
    return {"error": error, "printed": printed.getvalue(), "pictures": pictures}


if __name__ == "__main__":
    # As tests/conftest.py does.
    gc.set_threshold(100_000, 50, 1000)
    for one in json.loads(Path(sys.argv[1]).read_text()):
        print(json.dumps(run(one)), flush=True)
