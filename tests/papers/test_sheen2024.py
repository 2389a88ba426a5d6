"""Experiments of Sheen et al. (2024): verdicts that follow made-up numbers."""

from typing import Any

import jax
import numpy as np
import pytest

from jaxflow._core import Outcome
from jaxflow.margin import ProgramResult
from jaxflow.papers.claims import Finding
from jaxflow.papers.registry import Entry
from jaxflow.papers.sheen2024 import assumptions, failures, rates
from jaxflow.papers.sheen2024.equivalence import growth
from jaxflow.papers.verdicts import Verdict
from tests.papers.findings import entry_of, found, letters
from tests.papers.made_up import sheen2024 as made_up

HOLDS, OPEN = Verdict.holds, Verdict.not_settled
TIMES = np.geomspace(1.0, 1e6, 7)


def entry(name: str) -> Entry:
    return entry_of("sheen2024", name)


def find(name: str, numbers: Any) -> list[Finding]:
    return found("sheen2024", name, numbers)


def verdicts(name: str, numbers: Any) -> str:
    return letters(find(name, numbers))


def test_growth_and_rates_are_exponents() -> None:
    assert growth(TIMES[None] ** 0.7, TIMES)[0] == pytest.approx(0.7)
    assert growth(np.ones((1, 7)), TIMES)[0] == 0.0
    assert rates.observed_exponent(TIMES[None] ** -0.3, TIMES)[0] == pytest.approx(0.3)
    assert np.isnan(rates.observed_exponent(-np.ones((1, 7)), TIMES)[0])
    gaps = TIMES[None] ** -np.array([[0.1], [0.8]])
    jump = gaps * np.where(TIMES < 0.3 * TIMES[-1], 1.0, 1e-2)
    assert np.all(rates.bend(jump, TIMES) > rates.BENT) and np.all(rates.bend(gaps, TIMES) < 1e-12)


def test_statements_of_diagonal_weights_follow_their_numbers() -> None:
    good, bad, lost = made_up.diagonal()
    said = find("diagonal", good)
    assert letters(said) == "HHRRRRRORHH"
    assert said[7].source == "App. A.7" and said[7].worst == pytest.approx(1.0 - 2.0 / 3.0)
    # No independent code confirms any of it.
    said = find("diagonal", bad)
    assert letters(said) == "OOOOOOOOOHH"
    assert [one.evidence.contradicted for one in said] == [9, 9, 9, 1, 0, 3, 3, 3, 0, 0, 0]
    said = find("diagonal", lost)
    assert letters(said) == "OOOOOOOOOOO"
    assert [one.evidence.undecided for one in said] == [9, 9, 9, 3, 3, 3, 3, 3, 3, 9, 3]
    empty = made_up.diagonal_numbers(ok=False, diagonal=0.0)
    assert verdicts("diagonal", empty) == "OONNNNNNNON"


def test_a_few_late_instances_are_no_counterexample_and_no_proof() -> None:
    gaps = 1.0 / made_up.LATE * np.array([[1.0], [1.0], [2e4]])
    now = find("diagonal", made_up.diagonal_numbers(gap=gaps))[4]
    assert now.verdict is OPEN and (now.evidence.undecided, now.evidence.contradicted) == (1, 0)


def test_multipliers_are_judged_for_each_start() -> None:
    numbers = made_up.diagonal_numbers()
    assert verdicts("multipliers", numbers) == "RRRRRR"
    stays = made_up.diagonal_numbers(slackness=0.1, gap=1e-6)
    assert verdicts("multipliers", stays)[:3] == "ROO"
    assert verdicts("multipliers", made_up.diagonal_numbers(stationarity=0.4))[0] == "O"
    # The start without an instance inside the hypotheses has no curve.
    small = np.ones((3, 3)) * np.array([[1.0], [1.0], [-1.0]])
    apart = made_up.diagonal_numbers(small=small)
    assert verdicts("multipliers", apart) == "RRRNNN"
    figure = entry("multipliers").draw(apart)  # pyright: ignore[reportOptionalCall]
    assert sum("0.001" in str(line.get_label()) for line in figure.axes[1].lines) == 0


def test_rates_compare_exponent_and_slack() -> None:
    numbers = made_up.diagonal_numbers()
    assert verdicts("rates", numbers) == "R"
    assert verdicts("rates", made_up.diagonal_numbers(kappa=0.0)) == "O"
    # One that is late is no proof, and no counterexample; the notes say whether it waits for a constraint.
    late = made_up.LATE ** -np.array([[0.1], [0.5], [0.3]])
    waiting = made_up.diagonal_numbers(weights_gap=late, behind=np.array([0.0, 0.0, 0.3]))
    findings, notes = entry("rates").find(waiting)
    assert findings[0].verdict is OPEN and findings[0].evidence.contradicted == 0
    assert "Of 3 exponents 1 wait" in notes[-1] and "Of the 2 others 2 are within" in notes[-1]
    figure = entry("rates").draw(waiting)  # pyright: ignore[reportOptionalCall]
    # Two of those inside do not wait, one does, and the third line is the diagonal.
    assert [len(line.get_xdata()) for line in figure.axes[1].lines] == [2, 1, 2]


def test_alignment_is_judged_inside_the_assumptions() -> None:
    good, bad, lost, outside = made_up.aligned()
    said = find("general", good)
    assert letters(said) == "HHHHHNH"
    assert [one.evidence.inside for one in said] == [8, 6, 6, 6, 2, 0, 6]
    said = find("general", bad)
    assert letters(said) == "OOOOONH"
    assert [one.evidence.contradicted for one in said] == [8, 6, 6, 6, 2, 0, 0]
    assert verdicts("general", lost) == "OOHHHNO"
    assert verdicts("general", outside) == "NNNNNNN"
    unsolved = made_up.aligned_numbers(result=ProgramResult.budget_spent.value)
    assert verdicts("general", unsolved) == "HHOHHNH"
    # The same matrix again shows nothing of uniqueness.
    assert verdicts("general", made_up.aligned_numbers(apart=0.0))[4] == "O"


def test_norms_are_compared_where_all_three_limits_are_directions() -> None:
    assert verdicts("norms", made_up.limit_numbers()) == "HHHHHH"
    some = np.full((3, 2, 3), ProgramResult.optimal.value)
    some[:, 1] = ProgramResult.infeasible.value
    said = find("norms", made_up.limit_numbers(results=some))
    assert all(one.evidence.inside == 1 and one.outside == 1 for one in said)
    same = find("norms", made_up.limit_numbers(1.0 + 1e-6, 1.0))
    assert letters(same) == "OOOOOO" and same[3].evidence.contradicted == 2
    lost = np.full((3, 2), Outcome.globally_optimal.value)
    lost[0, 0] = Outcome.undecided.value
    # Each in its own norm by its own flow; in another norm by all three.
    assert [one.evidence.undecided for one in find("norms", made_up.limit_numbers(outcome=lost))] == [1, 0, 0, 1, 1, 1]
    # The first data set is one on which a flow selects other tokens: the second is drawn.
    weights = np.stack([np.stack([np.eye(3), 2.0 * np.eye(3)])] * 3)
    figure = entry("norms").draw(made_up.limit_numbers(outcome=lost, weights=weights))  # pyright: ignore
    assert figure.axes[0].images[0].get_array().max() == 2.0 and len(figure.axes) == 4


def test_lemma_4_2_as_printed_is_refuted_by_points_at_rest() -> None:
    rest, best = Outcome.finite_stationary_point.value, Outcome.globally_optimal.value
    diagonal = {"outcome": np.array([rest, best]), "separable": np.ones((3, 2, 3)) * np.array([[0.0], [1.0]])}
    diagonal["separable"][..., 0] = 0.1
    printed, mended = find("divergence", made_up.limit_numbers(**diagonal))
    assert (printed.verdict, printed.evidence.inside, printed.evidence.contradicted) == (OPEN, 2, 1)
    assert (mended.verdict, mended.evidence.inside, mended.outside) == (HOLDS, 1, 1)
    # A point at rest whose program may be feasible is refuted by nothing but itself.
    printed, mended = find("divergence", made_up.limit_numbers(outcome=diagonal["outcome"]))
    assert printed.verdict is OPEN and mended.evidence.contradicted == 1
    assert verdicts("divergence", made_up.limit_numbers()) == "HH"
    lost = np.array([Outcome.undecided.value, Outcome.failed.value])
    assert verdicts("divergence", made_up.limit_numbers(outcome=lost)) == "OO"


def test_failures_count_every_instance() -> None:
    good = made_up.failure_numbers()
    assert verdicts("failures", good) == "HNNHNNN"
    some = made_up.failure_numbers(
        selects=np.array([1, 0, -1]), small=np.array([1.0, 1.0, -1.0]), diagonal=np.array([0.1, 0.1, 0.1])
    )
    findings = find("failures", some)
    assert letters(findings) == "ONNONNN"
    assert (findings[0].evidence.inside, findings[0].evidence.undecided) == (12, 6)
    assert findings[1].measured == "6 of 6 select a wrong token"
    wrong = find("failures", made_up.failure_numbers(selects=np.array([1, 1, -1])))
    assert wrong[0].evidence.contradicted == 6
    assert failures.quantiles(good, 2) == pytest.approx(np.full((3, 3), 1e-2))


def test_assumptions_are_counted() -> None:
    mixed = made_up.assumption_numbers([0.1, 0.1, 0.0, np.nan], [0.1, 0.0, 0.0, 0.1])
    separable, gap = find("assumptions", mixed)
    assert (separable.verdict, separable.evidence.inside, separable.evidence.contradicted) == (OPEN, 3, 1)
    assert separable.evidence.undecided == 1 and separable.outside == 1
    assert find("assumptions", made_up.assumption_numbers([0.1, 0.1, 0.0, np.nan]))[0].verdict is OPEN
    assert verdicts("assumptions", made_up.assumption_numbers()) == "HH"
    assert gap.verdict is HOLDS and verdicts("assumptions", made_up.assumption_numbers(sign=-1.0))[1] == "O"
    slack = [assumptions.slack(jax.random.key(0), 4, 4, multiple) for multiple in (1.01, 0.99)]
    assert slack[0] > 0 > slack[1]
