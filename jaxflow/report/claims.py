"""What a paper says, what was measured, and whether the two agree."""

from dataclasses import dataclass

from jaxflow.report.verdicts import Evidence, Verdict, decide, evidence_json


@dataclass(frozen=True)
class Claim:
    """One sentence with its evidence; `measured` names its denominator, `values` are the numbers behind it."""

    source: str
    sentence: str
    measured: str
    evidence: Evidence
    values: dict[str, float | int]

    @property
    def verdict(self) -> Verdict:
        """Decided by the evidence."""
        return decide(self.evidence)


def with_evidence(measured: str, evidence: Evidence) -> str:
    """What was measured, followed by the counts, the rate and the check that the verdict rests on."""
    parts = [measured]
    if evidence.contradicted or evidence.undecided:
        parts.append(
            f"of {evidence.inside} inside {evidence.contradicted} contradict it and {evidence.undecided} are undecided"
        )
    if evidence.rate is not None:
        parts.append(evidence.rate.in_words())
    if evidence.contradicted and evidence.checked_by:
        parts.append(f"checked by {evidence.checked_by}")
    return "; ".join(parts)


def claims_markdown(title: str, claims: list[Claim], notes: list[str]) -> str:
    """A table of claims, and the notes below it."""
    lines = [f"# {title}", "", "| source | the paper says | measured | verdict |", "|---|---|---|---|"]
    for claim in claims:
        cells = (
            claim.source,
            claim.sentence,
            with_evidence(claim.measured, claim.evidence),
            f"**{claim.verdict.value}**",
        )
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join([*lines, "", *(f"- {note}" for note in notes), ""])


def claims_json(title: str, claims: list[Claim], notes: list[str]) -> dict:
    """The same as a dictionary for `json`."""
    rows = [
        {
            "source": claim.source,
            "sentence": claim.sentence,
            "measured": claim.measured,
            "verdict": claim.verdict.value,
            "evidence": evidence_json(claim.evidence),
            "values": claim.values,
        }
        for claim in claims
    ]
    return {"title": title, "claims": rows, "notes": notes}
