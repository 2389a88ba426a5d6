"""What a paper says, what was measured, and whether the two agree."""

import enum
from dataclasses import dataclass


class Verdict(enum.StrEnum):
    """How a sentence of a paper fares.

    - `holds`: on every instance inside its hypotheses, to the accuracy that is stated beside it.
    - `holds_at_this_rate`: true of the limit; at any finite time a distance is left, whose rate is given.
    - `counterexample_found`: at least one instance inside the hypotheses contradicts it.
    - `outside_hypotheses`: no instance satisfied the hypotheses, so that nothing can be said.
    """

    holds = "holds"
    holds_at_this_rate = "holds at this rate"
    counterexample_found = "counterexample found"
    outside_hypotheses = "outside its hypotheses"


@dataclass(frozen=True)
class Claim:
    """One sentence with its verdict; `measured` names its denominator, `values` are the numbers behind it."""

    source: str
    sentence: str
    measured: str
    verdict: Verdict
    values: dict[str, float | int]


def claims_markdown(title: str, claims: list[Claim], notes: list[str]) -> str:
    """A table of claims, and the notes below it."""
    lines = [f"# {title}", "", "| source | the paper says | measured | verdict |", "|---|---|---|---|"]
    for claim in claims:
        cells = (claim.source, claim.sentence, claim.measured, f"**{claim.verdict.value}**")
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
            "values": claim.values,
        }
        for claim in claims
    ]
    return {"title": title, "claims": rows, "notes": notes}
