"""What a paper says, what was measured, and whether the two agree: findings and their tables."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxflow._core import checked
from jaxflow.papers.verdicts import Evidence, Verdict, decide

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

    **Example:**

    ```python
    from jaxflow.papers import Finding
    from jaxflow.papers.verdicts import Evidence

    finding = Finding("Theorem 1", "All margins are positive.", "20 of 20", Evidence(20), outside=4)
    assert finding.verdict.value == "holds"
    ```
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


@checked()
def told(found: Finding, with_worst: bool = False) -> str:
    """What was measured, after the `worst` residual where it has no column of its own, and before the counts, the rate
    and the check that the verdict rests on.
    """
    evidence, parts = found.evidence, []
    if with_worst and math.isfinite(found.worst):
        parts.append(f"{found.unit}: at most {found.worst:.1e} on {found.values.get('known', 'all')}")
    parts.append(found.measured)
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
def counted(found: Finding) -> str:
    """The instances in words."""
    outside = f" (+ {found.outside} outside the hypotheses)" if found.outside else ""
    return f"{found.evidence.inside}{outside}"


@checked()
def worst(found: Finding) -> str:
    """The worst residual in words."""
    return f"{found.worst:.1e} ({found.unit})" if math.isfinite(found.worst) else "-"


Columns = Mapping[str, Callable[[Finding], str]]

# The columns of the table beside a figure, and of that of a paper's statements.
CLAIMS: Columns = {
    "source": lambda found: found.source,
    "the paper says": lambda found: found.says,
    "measured": lambda found: told(found, with_worst=True),
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
def as_json(found: Finding) -> dict[str, Any]:
    """A finding as a dictionary for `json`, with None for what is not finite."""
    return _finite(dataclasses.asdict(found)) | {"verdict": found.verdict.value}


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
