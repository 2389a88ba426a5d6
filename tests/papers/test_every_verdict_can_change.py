"""No statement whose verdict ignores its data: numbers that violate it, or that decide nothing, change the verdict.

Every registered figure and check is either fed with the numbers in `made_up`, or stands in `UNCOVERED` with the reason.
Within those that are fed, a statement whose verdict stays the same stands in `FIXED` with the reason.
"""

from typing import Any

import pytest

from jaxflow import papers
from tests.papers.made_up import boix2023, sheen2024, tarzanagh2023, yun2021

PAPERS = {"boix2023": boix2023, "sheen2024": sheen2024, "tarzanagh2023": tarzanagh2023, "yun2021": yun2021}
PROBES = {(paper, name): probe for paper, made_up in PAPERS.items() for name, probe in made_up.PROBES.items()}

# Figures and checks whose numbers nobody has made up yet, with the reason.
UNCOVERED: dict[tuple[str, str], str] = {}

NO_RATE = "of a limit, and the numbers have no rate: not settled, or outside where no instance is inside"
BY_NATURE = "measured outside of the hypotheses, to show what becomes of the conclusion there"

# Statements by their place in the table whose verdict no numbers of these probes change, with the reason.
FIXED: dict[tuple[str, str], dict[int, str]] = {
    ("boix2023", "supports"): {1: BY_NATURE},
    ("sheen2024", "alignment"): {2: BY_NATURE},
    ("sheen2024", "failures"): {1: BY_NATURE, 2: BY_NATURE, 4: BY_NATURE, 5: BY_NATURE, 6: BY_NATURE},
    ("sheen2024", "general"): {5: BY_NATURE},
    ("tarzanagh2023", "fig6"): {4: "said of Assumption B.1, of which these numbers say nothing"},
    ("tarzanagh2023", "local-convergence"): {1: BY_NATURE},
    ("yun2021", "directions"): dict.fromkeys((0, 11), NO_RATE),
}


def claims_of(paper: str, name: str, data: Any) -> list[Any]:
    """What a figure or a check says of these numbers, each with its source and its verdict."""
    return next(entry for entry in papers.entries_of(paper) if entry.name == name).find(data)[0]


def registered() -> set[tuple[str, str]]:
    """Every figure and check by paper and name."""
    return {(paper, entry.name) for paper in PAPERS for entry in papers.entries_of(paper)}


def test_every_figure_and_check_is_fed_or_listed_with_a_reason() -> None:
    assert PROBES.keys() | UNCOVERED.keys() == registered()
    assert not PROBES.keys() & UNCOVERED.keys() and FIXED.keys() <= PROBES.keys()


@pytest.mark.parametrize(("paper", "name"), list(PROBES))
def test_the_verdict_of_every_statement_follows_its_numbers(paper: str, name: str) -> None:
    found = [claims_of(paper, name, data) for data in PROBES[paper, name]()]
    assert len({len(one) for one in found}) == 1, "the same statements for all numbers"
    fixed = FIXED.get((paper, name), {})
    for number, statement in enumerate(zip(*found, strict=True)):
        seen = {one.verdict for one in statement}
        what = f"{number}: {statement[0].source}, {sorted(seen)}"
        assert (len(seen) == 1) == (number in fixed), what
