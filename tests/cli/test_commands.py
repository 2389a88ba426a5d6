"""The command line: what it prints, what it refuses, and that a refusal computes and writes nothing."""

import importlib.metadata
import json
import os
from pathlib import Path

import jax
import pytest
from typer.testing import CliRunner

from jaxflow import papers
from jaxflow.cli import app, session
from tests.processes import said

runner = CliRunner()


@pytest.fixture(autouse=True)
def no_computation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No command of this file may get as far as computing, and all run in an empty folder."""

    def computed(*args, **kwargs):
        raise AssertionError("something was computed")

    monkeypatch.setattr(papers.Dataset, "collect", computed)
    monkeypatch.setattr("jaxflow.cli.demo.find_limits", computed)
    monkeypatch.chdir(tmp_path)


def test_version() -> None:
    found = runner.invoke(app, ["--version"])
    assert found.exit_code == 0
    try:
        expected = importlib.metadata.version("jaxflow-bias")
    except importlib.metadata.PackageNotFoundError:
        expected = "(not installed)"
    assert found.output.strip() == f"jaxflow {expected}"
    # The package runs as a module too.
    assert said("-m", "jaxflow", "--version") == found.output


def test_list_names_every_paper_figure_and_theorem() -> None:
    """Or those of one paper; as a table and as JSON. Names to type stand whole in a narrow terminal."""
    found = runner.invoke(app, ["list"], env={"COLUMNS": "500"})
    assert found.exit_code == 0
    told = json.loads(runner.invoke(app, ["list", "--json"]).stdout)
    for paper, as_json in zip(papers.known_papers(), told, strict=True):
        assert paper.name in found.output and paper.name == as_json["name"]
        assert all(theorem.name in found.output for theorem in paper.theorems)
        sizes = {entry["name"]: entry["sizes"] for entry in as_json["entries"]}
        assert sizes.keys() == {entry.name for entry in papers.entries_of(paper.name)}
        for entry in papers.entries_of(paper.name):
            assert entry.name in found.output and (entry.draw or entry.title in found.output)
            assert all(entry.size(scale) in found.output for scale in papers.SCALES)
            assert sizes[entry.name] == {scale: entry.size(scale) for scale in papers.SCALES}
    words = runner.invoke(app, ["list", "tarzanagh2023"], env={"COLUMNS": "60"}).output.split()
    for entry in papers.entries_of("tarzanagh2023"):
        assert entry.name in words and ("reproduce" if entry.draw else "verify") in words
    found = runner.invoke(app, ["list", "sheen2024"], env={"COLUMNS": "400"})
    assert found.exit_code == 0 and "multipliers" in found.output and "tarzanagh2023" not in found.output


def test_the_seed_reaches_the_figure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seeds = []

    def collect(self, folder, *, seed, **more):
        seeds.append(seed)
        raise AssertionError("computed")

    monkeypatch.setattr(papers.Dataset, "collect", collect)
    command = ["reproduce", "tarzanagh2023", "fig7", "--out", str(tmp_path), "--executor", "serial"]
    for more in ([], ["--seed", "5"]):
        assert isinstance(runner.invoke(app, [*command, *more]).exception, AssertionError)
    assert seeds == [0, 5]


def test_numbers_of_another_version_are_refused_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def collect(self, *arguments, **more):
        raise papers.OtherNumbers("numbers are others. Here: --overwrite begins again")

    monkeypatch.setattr(papers.Dataset, "collect", collect)
    for command in (["reproduce", "sheen2024", "rates"], ["verify", "sheen2024"]):
        found = runner.invoke(app, [*command, "--out", str(tmp_path)])
        assert found.exit_code == 2 and "Error: numbers are others" in found.output and "Traceback" not in found.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["demo", "--out", __file__], "is a file, not a folder"),
        (["list", "sheen2042"], "did you mean 'sheen2024'?"),
        (["reproduce", "tarzanagh2032", "fig7"], "paper: unknown name 'tarzanagh2032'; did you mean 'tarzanagh2023'?"),
        (["reproduce", "tarzanagh2023", "fig77"], "figure: unknown name 'fig77'; did you mean 'fig7'?"),
        (["reproduce", "tarzanagh2023", "fig7", "--scale", "papper"], "scale: unknown name 'papper'; did you mean"),
        (["verify", "tarzanagh2023", "--only", "cone"], "only: unknown name 'cone'; did you mean 'cones'?"),
    ],
)
def test_wrong_arguments_are_answered_with_what_would_be_right(arguments: list[str], message: str) -> None:
    found = runner.invoke(app, arguments)
    assert found.exit_code == 2
    assert message in found.output
    assert "Traceback" not in found.output


@pytest.mark.parametrize(
    ("command", "existing"),
    [
        (["reproduce", "tarzanagh2023", "fig7"], "fig7-claims.md"),
        (["reproduce", "tarzanagh2023", "fig7"], "fig7.npz"),
        (["verify", "tarzanagh2023"], "verify.md"),
        (["demo"], "demo.png"),
    ],
)
def test_nothing_is_written_over_an_output_unless_it_is_asked_for(
    command: list[str], existing: str, tmp_path: Path
) -> None:
    folder = tmp_path / "results"
    folder.mkdir()
    (folder / existing).write_text("mine")
    found = runner.invoke(app, [*command, "--out", str(folder)])
    assert found.exit_code == 2
    assert existing in found.output and "--overwrite" in found.output
    assert [path.name for path in folder.iterdir()] == [existing]
    assert (folder / existing).read_text() == "mine"
    found = runner.invoke(app, [*command, "--out", str(folder), "--overwrite"])
    assert isinstance(found.exception, AssertionError)


@pytest.mark.parametrize("given", [None, "--xla_cpu_max_isa=AVX2", "--xla_cpu_multi_thread_eigen=true"])
def test_what_the_user_asks_of_xla_stands(monkeypatch: pytest.MonkeyPatch, given: str | None) -> None:
    if given is None:
        monkeypatch.delenv("XLA_FLAGS", raising=False)
    else:
        monkeypatch.setenv("XLA_FLAGS", given)
    session.configure()
    flags = os.environ["XLA_FLAGS"].split()
    assert given is None or given in flags
    assert sum("xla_cpu_multi_thread_eigen" in flag for flag in flags) == 1


def test_a_cache_folder_that_is_set_stands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = jax.config.jax_compilation_cache_dir
    assert before is not None  # the tests' own
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    session.configure()
    assert jax.config.jax_compilation_cache_dir == before
    assert not list(tmp_path.iterdir())
