"""Experiments of Sheen et al. (2024): verdicts that follow made-up numbers."""

from typing import Any

import jax
import numpy as np
import pytest

from jaxflow._core import Outcome
from jaxflow.margin import ProgramResult
from jaxflow.papers.sheen2024 import failures, rates, separability
from jaxflow.papers.sheen2024.rates import growth
from tests.papers.findings import entry_of, found, judge, row
from tests.papers.made_up.records import changed
from tests.papers.made_up.sheen2024 import (
    LATE,
    aligned_numbers,
    assumption_numbers,
    diagonal_numbers,
    failure_numbers,
    limit_numbers,
)

TIMES = np.geomspace(1.0, 1e6, 7)


def test_growth_and_rates_are_exponents() -> None:
    assert growth(TIMES[None] ** 0.7, TIMES)[0] == pytest.approx(0.7)
    assert growth(np.ones((1, 7)), TIMES)[0] == 0.0
    assert rates.observed_exponent(TIMES[None] ** -0.3, TIMES)[0] == pytest.approx(0.3)
    assert np.isnan(rates.observed_exponent(-np.ones((1, 7)), TIMES)[0])
    gaps = TIMES[None] ** -np.array([[0.1], [0.8]])
    jump = gaps * np.where(TIMES < 0.3 * TIMES[-1], 1.0, 1e-2)
    assert np.all(rates.bend(jump, TIMES) > rates.BENT) and np.all(rates.bend(gaps, TIMES) < 1e-12)


BAD = diagonal_numbers(
    1.0, apart=1e-7, identity=1e-5, size=1.0, gap=1.0, selects=np.array([1, -1, 1]), stationarity=0.4,
    slackness=0.1, weights_gap=1e-3, averaged=2.0 * diagonal_numbers().flows.averaged,
)  # fmt: skip
# The start without an instance inside the hypotheses; one that is late, of which notes say whether it waits for a
# constraint.
APART = diagonal_numbers(small=np.array([[1.0], [1.0], [-1.0]]))
WAITING = diagonal_numbers(weights_gap=LATE ** -np.array([[0.1], [0.5], [0.3]]), behind=np.array([0.0, 0.0, 0.3]))
MISALIGNED = aligned_numbers(1e-2, alignment=1e-3, oracle_excess=1e-3, oracle=1e-2, lifted_gap=1e-2, attention=1.0)

# Three limits of two data sets: the second has no direction in one norm; the first is not followed to its end.
NO_DIRECTION = changed(limit_numbers(), ("limits.results", ProgramResult.infeasible.value, np.s_[:, 1]))
UNDECIDED = changed(limit_numbers(), ("limits.outcome", Outcome.undecided.value, (0, 0)))
# A point at rest, of which the program is infeasible, or may be feasible.
REST = changed(limit_numbers(), ("limits.outcome", Outcome.finite_stationary_point.value, np.s_[:, 0]))
INFEASIBLE = changed(REST, ("limits.separable", 0.0, np.s_[:, 0]), ("limits.separable", 0.1, np.s_[..., 0]))
LOST = limit_numbers(outcome=np.array([Outcome.undecided.value, Outcome.failed.value]))
SOME = failure_numbers(selects=np.array([1, 0, -1]), small=np.array([1.0, 1.0, -1.0]), diagonal=0.1)
GENERAL = [0.1, 0.1, 0.0, np.nan]

ROWS = [
    row("diagonal", diagonal_numbers(), "HHRRRRRORHH"),
    # No independent code confirms any of it.
    row("diagonal", BAD, "OOOOOOOOOHH", contradicted=[9, 9, 9, 1, 0, 3, 3, 3, 0, 0, 0]),
    row("diagonal", diagonal_numbers(ok=False), "O{11}", undecided=[9, 9, 9, 3, 3, 3, 3, 3, 3, 9, 3]),
    row("diagonal", diagonal_numbers(ok=False, diagonal=0.0), "OONNNNNNNON"),
    # A few late instances are no counterexample and no proof.
    row(
        "diagonal",
        diagonal_numbers(gap=1.0 / LATE * np.array([[1.0], [1.0], [2e4]])),
        "....O.*",
        undecided={4: 1},
        contradicted={4: 0},
    ),
    # Multipliers are judged for each start.
    row("multipliers", diagonal_numbers(), "RRRRRR"),
    row("multipliers", diagonal_numbers(slackness=0.1, gap=1e-6), "ROO..."),
    row("multipliers", diagonal_numbers(stationarity=0.4), "O....."),
    row("multipliers", APART, "RRRNNN"),
    row("rates", diagonal_numbers(), "R"),
    row("rates", diagonal_numbers(kappa=0.0), "O"),
    row("rates", WAITING, "O", contradicted=0),
    # Alignment is judged inside the assumptions; the same matrix again shows nothing of uniqueness.
    row("general", aligned_numbers(), "HHHHHNH", inside=[8, 6, 6, 6, 2, 0, 6]),
    row("general", MISALIGNED, "OOOOONH", contradicted=[8, 6, 6, 6, 2, 0, 0]),
    row("general", aligned_numbers(ok=False), "OOHHHNO"),
    row("general", aligned_numbers(small=-0.1), "NNNNNNN"),
    row("general", aligned_numbers(result=ProgramResult.budget_spent.value), "HHOHHNH"),
    row("general", aligned_numbers(apart=0.0), "....O.."),
    # Norms are compared where all three limits are directions: each in its own norm by its own flow, in another norm by
    # all three.
    row("norms", limit_numbers(), "HHHHHH"),
    row("norms", NO_DIRECTION, ".*", inside=1, outside=1),
    row("norms", limit_numbers(1.0 + 1e-6, 1.0), "OOOOOO", contradicted={3: 2}),
    row("norms", UNDECIDED, ".*", undecided=[1, 0, 0, 1, 1, 1]),
    # Lemma 4.2 as printed is refuted by points at rest; one whose program may be feasible refutes the mended one.
    row("divergence", limit_numbers(), "HH"),
    row("divergence", INFEASIBLE, "OH", inside=[2, 1], contradicted=[1, 0], outside={1: 1}),
    row("divergence", REST, "O.", contradicted={1: 1}),
    row("divergence", LOST, "OO"),
    # Failures count every instance.
    row("failures", failure_numbers(), "HNNHNNN"),
    row("failures", SOME, "ONNONNN", inside={0: 12}, undecided={0: 6}),
    row("failures", failure_numbers(selects=np.array([1, 1, -1])), ".*", contradicted={0: 6}),
    row("assumptions", assumption_numbers(), "HH"),
    row(
        "assumptions",
        assumption_numbers(GENERAL, [0.1, 0.0, 0.0, 0.1]),
        "OH",
        inside={0: 3},
        contradicted={0: 1},
        undecided={0: 1},
        outside={0: 1},
    ),
    row("assumptions", assumption_numbers(GENERAL), "O."),
    row("assumptions", assumption_numbers(sign=-1.0), ".O"),
]


@pytest.mark.parametrize(("name", "numbers", "verdicts", "counts"), ROWS)
def test_verdicts_follow_the_numbers(name: str, numbers: Any, verdicts: str, counts: dict[str, Any]) -> None:
    judge("sheen2024", name, numbers, verdicts, counts)


def test_findings_and_notes_name_what_is_unusual() -> None:
    multiplier = found("sheen2024", "diagonal", diagonal_numbers())[7]
    assert multiplier.source == "App. A.7" and multiplier.worst == pytest.approx(1.0 - 2.0 / 3.0)
    assert found("sheen2024", "failures", SOME)[1].measured == "6 of 6 select a wrong token"
    notes = entry_of("sheen2024", "rates").find(WAITING)[1]
    assert "Of 3 exponents 1 wait" in notes[-1] and "Of the 2 others 2 are within" in notes[-1]


def drawn(name: str, numbers: Any) -> Any:
    draw = entry_of("sheen2024", name).draw
    assert draw is not None
    return draw(numbers)


def test_drawings_leave_out_what_is_outside() -> None:
    lines = drawn("multipliers", APART).axes[1].lines
    assert sum("0.001" in str(line.get_label()) for line in lines) == 0
    # Two of those inside do not wait, one does, and the third line is the diagonal.
    assert [len(line.get_xdata()) for line in drawn("rates", WAITING).axes[1].lines] == [2, 1, 2]
    # The first data set is one on which a flow selects other tokens: the second is drawn.
    figure = drawn("norms", changed(UNDECIDED, ("limits.weights", 2.0 * np.eye(3), np.s_[:, 1])))
    assert figure.axes[0].images[0].get_array().max() == 2.0 and len(figure.axes) == 4


def test_quantiles_and_slacks() -> None:
    assert failures.quantiles(failure_numbers(), 2) == pytest.approx(np.full((3, 3), 1e-2))
    slack = [separability.slack(jax.random.key(0), 4, 4, multiple) for multiple in (1.01, 0.99)]
    assert slack[0] > 0 > slack[1]
