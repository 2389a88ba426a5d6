"""The six verdicts: the whole table of what decides between them, and what goes in."""

import itertools
from typing import Any

import numpy as np
import pytest

from jaxflow.papers.claims import CLAIMS, Finding, as_json, findings_markdown, told
from jaxflow.papers.dataset import Draw
from jaxflow.papers.statement import Again, Statement, hold
from jaxflow.papers.verdicts import Check, Evidence, Rate, Verdict, common_rate, decide, fit
from tests.papers.toy_experiment import TOY

AGREES, DISAGREES = Rate(1.0, 0.1, 1.05), Rate(1.0, 0.1, 1.2)
CONFIRMS, DIFFERS = Check(3, 3, "CVXPY", 1e-9), Check(2, 3, "CVXPY", 0.1)


@pytest.mark.parametrize("limit", [False, True])
@pytest.mark.parametrize("rate", [None, AGREES, DISAGREES])
@pytest.mark.parametrize("check", [None, CONFIRMS, DIFFERS, Check(0, 0, "NumPy")])
def test_the_whole_table(limit: bool, rate: Rate | None, check: Check | None) -> None:
    for contradicted, undecided in itertools.product((0, 1, 3), (0, 2)):
        found = decide(Evidence(5, contradicted, undecided, limit, rate, check))
        if contradicted and check is CONFIRMS:
            assert found is Verdict.counterexample_found
        elif contradicted or undecided:
            assert found is Verdict.not_settled
        elif not limit:
            assert found is Verdict.holds
        elif rate is AGREES:
            assert found is Verdict.holds_at_this_rate
        else:
            assert found is Verdict.not_settled
    assert decide(Evidence(0, 0, 0, limit, rate, check)) is Verdict.outside_hypotheses
    assert decide(Evidence(0, 0, 0, limit, rate, check, ran=False)) is Verdict.not_run


def test_what_is_not_decided_is_neither_good_nor_bad() -> None:
    said = Statement[np.ndarray](source="", says="", residual=lambda n: n, bound=1.0, late=2.0)
    evidence = hold(said, np.array([0.0, 1.5, 3.0, np.nan])).evidence
    assert (evidence.inside, evidence.confirmed, evidence.contradicted, evidence.undecided) == (4, 1, 1, 2)
    # One decided of a hundred settles nothing.
    assert hold(said, np.append(0.0, np.full(99, np.nan))).verdict is Verdict.not_settled


@pytest.mark.parametrize("counts", [(-1, 0, 0), (1, -1, 0), (1, 0, -1), (2, 2, 1), (0, 1, 0)])
def test_counts_that_cannot_be_are_refused(counts: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="evidence"):
        Evidence(*counts)
    with pytest.raises(ValueError, match="not run"):
        Evidence(1, ran=False)


def test_a_rate_agrees_where_its_interval_contains_the_prediction() -> None:
    assert AGREES.agrees and not DISAGREES.agrees
    assert Rate(1.0, 0.1, 1.2, bias=0.1).agrees
    # An interval that is as wide as its exponent says nothing.
    assert not Rate(1.0, 1.0, 1.0).agrees
    # Without a prediction the distance must fall, beyond the error of the fit.
    assert Rate(0.5, 0.1, None).agrees
    assert not Rate(0.05, 0.1, None).agrees and not Rate(-1.0, 0.1, None).agrees
    assert not Rate(float("nan"), 0.1, 1.0).agrees and not Rate(1.0, float("nan"), None).agrees


def test_a_common_rate_compares_each_instance_with_its_own_prediction() -> None:
    rate = common_rate(np.array([0.1, 0.5, 0.9, np.nan]), np.array([0.11, 0.49, 0.9, 1.0]), law="gap")
    assert rate is not None and rate.agrees and rate.half_width < 0.03 and rate.fitted == pytest.approx(0.5)
    off = common_rate(np.array([0.1, 0.5, 0.9]), np.array([0.2, 0.6, 1.0]))
    assert off is not None and not off.agrees
    assert common_rate(np.array([1.0, 1.0]), 1.0) is None
    # The interval is that of the mean: half a standard deviation of four, times Student's factor of three degrees.
    spread = common_rate(np.array([0.0, 2.0, 0.0, 2.0]), None)
    assert spread is not None and spread.half_width == pytest.approx(3.182446 * np.sqrt(4.0 / 3.0) / 2.0)


def test_a_mean_does_not_speak_for_instances_that_rise() -> None:
    exponents = np.full(100, 0.5)
    exponents[:6] = -0.1
    rate = common_rate(exponents, None)
    assert rate is not None and rate.fitted - rate.half_width > 0.4 and rate.falls == 0.94 and not rate.agrees
    assert "6% of single ones are not positive" in rate.in_words()
    exponents[:2] = 0.1
    rate = common_rate(exponents, None)
    assert rate is not None and rate.falls == 0.96 and rate.agrees


def test_each_instance_is_judged_by_its_own_interval() -> None:
    fitted, aims = np.array([1.0, 1.0, 0.4, 1.6]), np.array([1.0, 1.05, 0.4, 1.6])
    rate = common_rate(fitted, aims, half=np.full(4, 0.1))
    assert rate is not None and rate.share == 1.0 and rate.agrees
    # The means agree as well as before: it is one of four that does not.
    rate = common_rate(fitted, np.array([1.0, 1.25, 0.4, 1.4]), half=np.full(4, 0.1))
    assert rate is not None and rate.share == 0.5 and not rate.agrees
    assert "in the intervals of 50% of the instances" in rate.in_words()
    # An interval that is as wide as its exponent contains every prediction, and zero.
    wide = common_rate(fitted, aims, half=fitted)
    assert wide is not None and wide.share == 0.0 and not wide.agrees
    # Without a prediction the interval lies above zero.
    rate = common_rate(np.array([0.5, 0.5, -0.5]), None, half=np.full(3, 0.1))
    assert rate is not None and rate.share == pytest.approx(2 / 3) and not rate.agrees


def test_a_fit_has_the_interval_of_student_in_any_units() -> None:
    slope, half = fit([0.0, 1.0, 2.0], [0.0, 1.1, 2.0])
    # The residuals are 1/30 (-1, 2, -1): their variance over one degree of freedom is 1/150, over a spread of two.
    assert slope == pytest.approx(1.0) and half == pytest.approx(12.7062 * np.sqrt(1.0 / 300.0), rel=1e-5)
    scaled = fit([0.0, 1e200, 2e200], [0.0, 1.1e300, 2e300])
    assert scaled == pytest.approx((1e100 * slope, 1e100 * half), rel=1e-12)


def test_few_open_instances_of_many_leave_a_bound() -> None:
    few = Evidence(24_996, undecided=3)
    # Clopper and Pearson, three of 24,996: 7.754 / 24,996, nearly.
    assert few.exceptions == pytest.approx(3.10e-4, rel=0.01) and decide(few) is Verdict.holds
    assert "3 are undecided: exceptions are at most 0.031% (95%)" in told(Finding("", "", "", few))
    assert Evidence(24_996).exceptions == pytest.approx(3.0 / 24_996, rel=2e-3)
    assert decide(Evidence(100, undecided=2)) is Verdict.not_settled
    assert decide(Evidence(24_996, contradicted=1, undecided=3)) is Verdict.not_settled
    assert decide(Evidence(24_996, undecided=3, limit=True)) is Verdict.not_settled


def test_a_table_shows_what_a_verdict_rests_on() -> None:
    broken = Finding("Lemma 1", "It holds.", "3 exceed", Evidence(5, 3, 1, check=CONFIRMS))
    rate = Finding("Lemma 2", "It tends.", "small", Evidence(5, limit=True, rate=AGREES))
    text = findings_markdown("title", CLAIMS, [broken, rate], [])
    assert "of 5 inside 3 contradict it and 1 are undecided; CVXPY agrees on 3 of 3, residuals at most 1e-09" in text
    assert "apart | **counterexample found** |" in text
    assert "exponent 1.000 ± 0.100, predicted 1.050 | **holds at this rate** |" in text
    saved = [as_json(broken), as_json(rate)]
    assert saved[0]["verdict"] == "counterexample found" and saved[0]["evidence"]["contradicted"] == 3
    assert saved[1]["evidence"]["rate"]["predicted"] == 1.05


Numbers = dict[str, np.ndarray]


def statement(**more: Any) -> Statement[Numbers]:
    given: dict[str, Any] = {"source": "Lemma 1", "says": "it is small", "bound": (1.0, "size")}
    given |= {"inside": lambda n: n["inside"], "residual": lambda n: n["residual"]}
    return Statement(**given | {"found": lambda n, known: f"{int(known.sum())} seen"} | more)


def test_a_finding_counts_every_instance() -> None:
    numbers = {"inside": np.array([True, True, True, False]), "residual": np.array([0.5, 0.1, 0.2, 9.0])}
    found = hold(statement(), numbers)
    assert found.verdict is Verdict.holds and (found.evidence, found.outside) == (Evidence(3), 1)
    assert found.worst == 0.5 and found.measured == "3 seen"
    assert told(found, with_worst=True) == "size: at most 5.0e-01 on 3; 3 seen"
    open_ = hold(statement(), numbers | {"residual": np.array([0.5, np.nan, 0.2, 9.0])})
    assert open_.verdict is Verdict.not_settled and open_.evidence == Evidence(3, 0, 1)
    above = numbers | {"residual": np.array([2.0, 0.1, np.inf, 9.0])}
    assert hold(statement(), above).evidence == Evidence(3, 2, 0)
    assert hold(statement(late=3.0), above).evidence == Evidence(3, 1, 1)
    # The residual again, right or a little off; without a place to draw from nothing is computed.
    draw = Draw(TOY, "quick", 0)
    for off, agrees in ((0.0, 2), (1e-3, 1)):
        again = Again[Numbers]("NumPy", lambda n, draw, at, off=off: n["residual"][at] + off, within=1e-6)
        checked = hold(statement(again=again), above, draw)
        check = checked.evidence.check
        assert check is not None and (check.agrees, check.tried) == (agrees, 2)
        assert check.apart == pytest.approx(off) and hold(statement(again=again), above).evidence.check is None
        assert (checked.verdict is Verdict.counterexample_found) == (off == 0.0)
    # One that does not contradict, and one that is not known, confirm nothing.
    for other in (0.9, np.nan):
        again = Again[Numbers]("NumPy", lambda n, draw, at, other=other: other, within=10.0)
        check = hold(statement(again=again), above, draw).evidence.check
        assert check is not None and (check.agrees, check.tried) == (0, 2)
    empty = hold(statement(), numbers | {"inside": np.zeros(4, bool)})
    assert empty.verdict is Verdict.outside_hypotheses and as_json(empty)["worst"] is None
    empty = hold(statement(), {"inside": np.zeros(0, bool), "residual": np.zeros(0)})
    assert empty.verdict is Verdict.not_run and empty.outside == 0
    beyond = hold(statement(beyond=True), above)
    assert beyond.verdict is Verdict.outside_hypotheses and beyond.outside == 4


def test_a_limit_wants_a_rate() -> None:
    numbers = {"inside": np.ones(4, bool), "residual": np.full(4, 0.1)}
    with pytest.raises(ValueError, match="rate"):
        statement(limit=True)
    with pytest.raises(ValueError, match="certified"):
        statement(limit=True, rate=lambda n, known: None, certified="a dual")
    certified = hold(statement(certified="a dual"), numbers)
    assert certified.verdict is Verdict.holds and certified.measured.endswith("certified by a dual")
    assert hold(statement(limit=True, rate=lambda n, known: None), numbers).verdict is Verdict.not_settled
    for exponents, verdict in (([1.0, 1.1, 0.9, 1.0], Verdict.holds_at_this_rate), ([2.0] * 4, Verdict.not_settled)):
        rated = statement(limit=True, rate=lambda n, known, e=exponents: common_rate(np.asarray(e)[known], 1.0))
        assert hold(rated, numbers).verdict is verdict
    assert "**holds**" in findings_markdown("title", CLAIMS, [hold(statement(), numbers)])
