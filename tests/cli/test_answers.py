"""How commands answer: examples in their help, tables as JSON, one line for an error."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from jaxflow import papers
from jaxflow.cli import app, main
from jaxflow.cli.session import print_json
from tests.docs.reader import parse

runner = CliRunner()
COMMANDS = [
    ["demo"],
    ["list"],
    ["reproduce"],
    ["verify"],
    *(["study", n] for n in ("run", "resume", "status", "report")),
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_has_examples_that_parse(command: list[str]) -> None:
    found = runner.invoke(app, [*command, "--help"])
    assert found.exit_code == 0
    lines = found.output.partition("Examples:\n")[2].splitlines()
    told = [line.split(">")[0].split() for line in lines if line.strip()]
    assert told and all(words[: 1 + len(command)] == ["jaxflow", *command] for words in told)
    for words in told:
        parse(words)


def test_help_names_the_exit_codes_and_every_table_takes_json() -> None:
    text = " ".join(runner.invoke(app, ["--help"]).output.split())
    assert "Exit codes: 0 done; 1 something failed" in text and "130 stopped by Ctrl-C" in text
    assert "--install-completion" in text and "--debug" in text
    tables = [command for command in COMMANDS if command != ["study", "report"]]
    assert all("--json" in runner.invoke(app, [*command, "--help"]).output for command in tables)


def test_list_as_json_is_the_registry() -> None:
    found = json.loads(runner.invoke(app, ["list", "--json"]).stdout)
    assert [paper["name"] for paper in found] == [paper.name for paper in papers.known_papers()]
    for paper in found:
        names = {entry.name: entry.size("paper") for entry in papers.entries_of(paper["name"])}
        assert {entry["name"]: entry["sizes"]["paper"] for entry in paper["entries"]} == names


def test_json_is_json_whatever_the_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": [float("inf"), float("nan"), 1.5], "path": Path("x"), "none": None})
    assert json.loads(capsys.readouterr().out) == {"a": ["inf", "nan", 1.5], "path": "x", "none": None}


def test_an_error_is_one_line_and_a_traceback_only_on_demand(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def breaks(*arguments, **more):
        raise ArithmeticError("the sky fell")

    monkeypatch.setattr(papers, "known_papers", breaks)
    with pytest.raises(SystemExit) as stop:
        main(["list"])
    told = capsys.readouterr().err
    assert (
        stop.value.code == 1 and told.startswith("Error: ArithmeticError: the sky fell\n") and "Traceback" not in told
    )
    with pytest.raises(ArithmeticError):
        main(["list", "--debug"])


def test_papers_are_completed_by_the_shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked = {"_JAXFLOW_COMPLETE": "complete_bash", "COMP_WORDS": "jaxflow verify ta", "COMP_CWORD": "2"}
    for name, value in asked.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit):
        main([])
    assert capsys.readouterr().out.split() == ["tarzanagh2023"]
