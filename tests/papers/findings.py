"""What experiments say of numbers: findings, and their verdicts as letters, one statement after another."""

from typing import Any

from jaxflow import papers
from jaxflow.papers.claims import Finding
from jaxflow.papers.registry import Entry
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


def verdicts(paper: str, name: str, numbers: Any) -> str:
    return letters(found(paper, name, numbers))
