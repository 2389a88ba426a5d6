"""How commands answer: examples in their help, tables as JSON, one line for an error; and the demo."""

import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from jaxflow import papers
from jaxflow._core import Outcome
from jaxflow.cli import app, demo, main
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


@pytest.mark.slow
def test_limits_of_the_demo_become_numbers_and_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """One parametrisation and two instances."""
    monkeypatch.setattr(demo, "PARAMETRISATIONS", demo.PARAMETRISATIONS[:1])
    limits = demo.find_limits(2, (3, 3, 3), Console(width=200, record=True, quiet=True))
    assert list(limits) == ["combined"] and len(limits["combined"]) == 2
    data = demo.saved_numbers(limits)
    assert data["combined_gaps"].shape == data["combined_log_times"].shape == (2, 8)

    # What is called certified is within 1e-8, what was asked for, of an optimum that is known as well.
    kept = data["combined_certified"]
    assert kept.any()
    assert np.all(data["combined_excess"][kept] <= 1e-8)
    assert np.all(data["combined_program_gap"][kept] <= 1e-8)

    recorded = Console(width=200, record=True, file=None, quiet=False)
    with recorded.capture() as captured:
        recorded.print(demo.table_of(data))
    shown = captured.get()
    codes, counts = np.unique(data["combined_outcome"], return_counts=True)
    for code, count in zip(codes, counts, strict=True):
        assert f"{count} {Outcome(int(code)).name.replace('_', ' ')}" in shown
    assert "of 2" in shown
