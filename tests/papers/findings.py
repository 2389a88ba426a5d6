"""What experiments say of numbers: findings, and their verdicts as letters, one statement after another."""

import re
from typing import Any

from jaxflow import papers
from jaxflow.papers.claims import Finding
from jaxflow.papers.registry import Entry
from jaxflow.papers.statement import Statement, hold
from jaxflow.papers.verdicts import Verdict

# Holds, holds at this Rate, Open, counterexample (X), None inside the hypotheses, and not run (-).
LETTERS = {
    Verdict.holds: "H",
    Verdict.holds_at_this_rate: "R",
    Verdict.not_settled: "O",
    Verdict.counterexample_found: "X",
    Verdict.outside_hypotheses: "N",
    Verdict.not_run: "-",
}


def entry_of(paper: str, name: str) -> Entry:
    """A figure or a check."""
    return next(entry for entry in papers.entries_of(paper) if entry.name == name)


def found(paper: str, name: str, numbers: Any) -> list[Finding]:
    return entry_of(paper, name).find(numbers)[0]


def letters(findings: list[Finding]) -> str:
    return "".join(LETTERS[finding.verdict] for finding in findings)


def row(name: str | Statement[Any], numbers: Any, verdicts: str, **counts: Any) -> tuple[Any, ...]:
    """A line of a table of verdicts: an experiment or one statement, numbers, a pattern of letters, and counts of the
    evidence (`inside`, `outside`, `contradicted`, `undecided`): of all statements, or by their places."""
    return name, numbers, verdicts, counts


def judge(paper: str, name: str | Statement[Any], numbers: Any, verdicts: str, counts: dict[str, Any]) -> None:
    """Sees that a line of such a table is true."""
    said = found(paper, name, numbers) if isinstance(name, str) else [hold(name, numbers)]
    assert re.fullmatch(verdicts, letters(said)), letters(said)
    for what, wanted in counts.items():
        seen = [one.outside if what == "outside" else getattr(one.evidence, what) for one in said]
        if isinstance(wanted, dict):
            assert {place: seen[place] for place in wanted} == wanted, what
        else:
            assert seen == (wanted if isinstance(wanted, list) else [wanted] * len(seen)), what
