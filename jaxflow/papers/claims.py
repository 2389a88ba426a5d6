"""What a paper says, what was measured, and whether the two agree: findings, their two views, and their tables."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxflow._core import checked
from jaxflow.papers.verdicts import Evidence, Verdict, decide, evidence_json

Values = Mapping[str, float | int]


@dataclass(frozen=True)
class Finding:
    """One statement, held to instances.

    - `source`: which statement; `says`: it, in one sentence; `measured`: what was found, with its denominator.
    - `evidence`: what the verdict rests on. Its `inside` counts the instances that satisfied the hypotheses, decided or
      not; `outside` those that did not.
    - `worst`: the largest residual over the instances inside, in the sense of `unit`; +inf where the statement leaves
      nothing to measure.
    - `values`: the numbers behind the text.
    """

    source: str
    says: str
    measured: str
    evidence: Evidence
    outside: int = 0
    worst: float = math.inf
    unit: str = ""
    values: Values = field(default_factory=dict)

    @property
    def verdict(self) -> Verdict:
        """Decided by the evidence."""
        return decide(self.evidence)


@dataclass(frozen=True)
class Claim:
    """A finding beside a figure: `measured` names its denominator, `values` are the numbers behind it."""

    source: str
    sentence: str
    measured: str
    evidence: Evidence
    values: Values

    @staticmethod
    def of(finding: Finding) -> "Claim":
        """The view of a finding: the worst residual, which has a column of its own in the other, is told in words."""
        words = finding.measured
        if math.isfinite(finding.worst):
            words = f"{finding.unit}: at most {finding.worst:.1e} on {finding.values.get('known', 'all')}; {words}"
        return Claim(finding.source, finding.says, words, finding.evidence, finding.values)

    @property
    def finding(self) -> Finding:
        """What it is a view of."""
        return Finding(self.source, self.sentence, self.measured, self.evidence, values=self.values)

    @property
    def verdict(self) -> Verdict:
        """Decided by the evidence."""
        return decide(self.evidence)


@dataclass(frozen=True)
class Row:
    """A finding in the table of a paper's statements: what was `checked`, the `instances` inside and `outside` the
    hypotheses, and the `worst` of the residuals, in the sense of `residual`.

    **Raises:** `ValueError` where `instances` is not the denominator of the evidence.

    **Example:**

    ```python
    from jaxflow.papers.claims import Finding, Row
    from jaxflow.papers.verdicts import Evidence

    finding = Finding("Theorem 1", "All margins are positive.", "20 of 20", Evidence(20), outside=4)
    row = Row.of(finding)
    assert (row.instances, row.outside) == (20, 4)
    ```
    """

    source: str
    checked: str
    measured: str
    instances: int
    outside: int
    worst: float
    residual: str
    evidence: Evidence
    values: Values = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.instances != self.evidence.inside:
            raise ValueError(f"instances: {self.instances} of {self.source}, but evidence of {self.evidence.inside}")

    @staticmethod
    def of(finding: Finding) -> "Row":
        """The view of a finding."""
        inside = finding.evidence.inside
        return Row(
            finding.source, finding.says, finding.measured, inside, finding.outside, finding.worst, finding.unit,
            finding.evidence, finding.values,
        )  # fmt: skip

    @property
    def finding(self) -> Finding:
        """What it is a view of."""
        return Finding(
            self.source,
            self.checked,
            self.measured,
            self.evidence,
            self.outside,
            self.worst,
            self.residual,
            self.values,
        )

    @property
    def verdict(self) -> Verdict:
        """Decided by the evidence."""
        return decide(self.evidence)


@checked()
def with_evidence(measured: str, evidence: Evidence) -> str:
    """What was measured, followed by the counts, the rate and the check that the verdict rests on."""
    parts = [measured]
    if evidence.contradicted or evidence.undecided:
        counts = (
            f"of {evidence.inside} inside {evidence.contradicted} contradict it and {evidence.undecided} are undecided"
        )
        bound = f": exceptions are at most {100 * evidence.exceptions:.2g}% (95%)"
        parts.append(counts + ("" if evidence.contradicted else bound))
    if evidence.rate is not None:
        parts.append(evidence.rate.in_words())
    if evidence.contradicted and evidence.check is not None:
        parts.append(evidence.check.in_words())
    return "; ".join(parts)


@checked()
def told(found: Row | Claim | Finding) -> str:
    """What was measured, and what the verdict rests on.

    **Example:**

    ```python
    from jaxflow.papers.claims import Finding, told
    from jaxflow.papers.verdicts import Evidence

    assert told(Finding("Theorem 1", "All margins are positive.", "20 of 20", Evidence(20))) == "20 of 20"
    ```
    """
    return with_evidence(found.measured, found.evidence)


@checked()
def counted(found: Row | Finding) -> str:
    """The instances in words.

    **Example:**

    ```python
    from jaxflow.papers.claims import Finding, counted
    from jaxflow.papers.verdicts import Evidence

    finding = Finding("Theorem 1", "All margins are positive.", "20 of 20", Evidence(20), outside=4)
    assert counted(finding) == "20 (+ 4 outside the hypotheses)"
    ```
    """
    outside = f" (+ {found.outside} outside the hypotheses)" if found.outside else ""
    return f"{found.evidence.inside}{outside}"


@checked()
def worst(found: Row | Finding) -> str:
    """The worst residual in words.

    **Example:**

    ```python
    from jaxflow.papers.claims import Finding, worst
    from jaxflow.papers.verdicts import Evidence

    finding = Finding("Theorem 1", "All margins are positive.", "20 of 20", Evidence(20), worst=1e-12, unit="slack")
    assert worst(finding) == "1.0e-12 (slack)"
    ```
    """
    unit = found.residual if isinstance(found, Row) else found.unit
    return f"{found.worst:.1e} ({unit})" if math.isfinite(found.worst) else "-"


Columns = Mapping[str, Callable[[Finding], str]]

# The columns of the table beside a figure, and of that of a paper's statements.
CLAIMS: Columns = {
    "source": lambda found: found.source,
    "the paper says": lambda found: found.says,
    "measured": lambda found: told(Claim.of(found)),
    "verdict": lambda found: f"**{found.verdict.value}**",
}
ROWS: Columns = {
    "statement": lambda found: found.source,
    "checked": lambda found: found.says,
    "instances": counted,
    "measured": told,
    "worst residual": worst,
    "verdict": lambda found: f"**{found.verdict.value}**",
}


@checked()
def findings_markdown(title: str, columns: Columns, findings: Iterable[Finding], notes: Sequence[str] = ()) -> str:
    """A table of findings, and the notes below it."""
    lines = [f"# {title}", "", f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    for found in findings:
        lines.append("| " + " | ".join(cell(found).replace("|", "\\|") for cell in columns.values()) + " |")
    below = ["", *(f"- {note}" for note in notes)] if columns is CLAIMS else []
    return "\n".join([*lines, *below, ""])


@checked()
def as_json(view: Claim | Row) -> dict[str, Any]:
    """A view as a dictionary for `json`, with None for what is not finite.

    **Example:**

    ```python
    from jaxflow.papers.claims import Finding, Row, as_json
    from jaxflow.papers.verdicts import Evidence

    row = Row.of(Finding("Theorem 1", "All margins are positive.", "20 of 20", Evidence(20)))
    assert as_json(row)["verdict"] == "holds" and as_json(row)["worst"] is None
    ```
    """
    found = dataclasses.asdict(view)
    found |= {"verdict": view.verdict.value, "evidence": evidence_json(view.evidence)}
    found["values"] = {name: _finite(value) for name, value in view.values.items()}
    return found | ({"worst": _finite(view.worst)} if isinstance(view, Row) else {})


def _finite(value: float | int) -> float | int | None:
    return value if math.isfinite(value) else None
