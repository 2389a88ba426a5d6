"""Figures 2, 5 and 6: their claims on numbers made by hand."""

from typing import Any

import numpy as np
import pytest

from jaxflow import papers
from jaxflow._core import Outcome
from jaxflow.margin import ProgramResult
from jaxflow.papers.claims import Finding
from jaxflow.papers.statement import hold
from jaxflow.papers.table import Table
from jaxflow.papers.tarzanagh2023 import fig2, fig5, fig6, percent
from jaxflow.papers.tarzanagh2023.percent import approaching, rising
from jaxflow.papers.verdicts import Verdict
from jaxflow.plots import draw_percentage_curves

GLOBAL, LOCAL, NOT = Outcome.globally_optimal, Outcome.locally_optimal, Outcome.not_locally_optimal
HOLDS, RATE = Verdict.holds, Verdict.holds_at_this_rate
# Intervals alone settle nothing that goes against a sentence: nothing else has checked it.
OPEN, OUTSIDE = Verdict.not_settled, Verdict.outside_hypotheses


@pytest.mark.parametrize("module", [fig2, fig5, fig6])
def test_scales_are_what_they_say(module: Any) -> None:
    # The text gives no number for figure 6: as many as figure 5 has.
    assert module.SIZES["paper"].trials == 500
    assert module.SIZES["large"].trials == 100_000
    assert module.SIZES["paper"].d == module.SIZES["large"].d
    assert all(size.d == tuple(sorted(size.d)) for size in module.SIZES.values())
    assert fig2.SIZES["paper"].parametrizations == ("W",)
    assert set(fig6.SIZES["paper"].settings) == {(5, 5), (10, 5), (20, 5), (5, 10), (5, 20)}


def made_up(shares: dict[str, list[int]], trials: int = 100) -> dict[str, np.ndarray]:
    """One setting, d = 2, 4, 8; `shares` of 100 that are global, the rest local; B.1 on the first half of them."""
    outcome = np.full((1, len(shares), 3, trials), int(LOCAL), np.uint8)
    margin = np.full(outcome.shape, 1.5)
    for p, counts in enumerate(shares.values()):
        for k, count in enumerate(counts):
            outcome[0, p, k, :count] = GLOBAL
            margin[0, p, k, : count // 2] = 1.0
    return {
        "n": np.array([5]),
        "T": np.array([5]),
        "d": np.array([2, 4, 8]),
        "parametrization": np.array(list(shares)),
        "score_gap": np.asarray(0.1),
        "accepted": np.full((1, 3), 0.8),
        "outcome": outcome,
        "program_gap": np.full(outcome.shape, 1e-15),
        "optimal_program": np.full(outcome.shape, int(ProgramResult.optimal), np.uint8),
        "largest_margin": margin,
        "mean_margin": 1.0 + (margin - 1.0) / 4.0,
    }


GRID = ("n", "T", "d", "parametrization", "score_gap", "accepted")


def typed(data: dict[str, np.ndarray]) -> Table:
    """Numbers of arrays `(s, p, k, b)`."""
    shape = data["outcome"].shape
    columns = {"num_steps": np.ones(shape, int), "rounds": np.ones(shape, int), **data}
    kept = (*percent.ENDS, *(fig5.MARGINS if "optimal_program" in data else ()))
    cells = {name: columns[name].swapaxes(1, 2).reshape(-1, shape[-1]) for name in kept}
    return Table(grid=Table({name: data[name] for name in GRID}), ends=Table(cells))


def said(name: str, data: dict[str, np.ndarray]) -> list[Finding]:
    """Of a figure, on these numbers."""
    return papers.find_figure("tarzanagh2023", name).find(typed(data))[0]


def notes_of(data: dict[str, np.ndarray]) -> list[str]:
    return papers.find_figure("tarzanagh2023", "fig5").find(typed(data))[1]


@pytest.mark.parametrize(
    ("said", "counts", "verdict"),
    [
        (rising, [[20, 60, 90]], HOLDS),
        (rising, [[20, 90, 60]], OPEN),  # a fall between neighbours
        (rising, [[90, 80, 20]], OPEN),
        (rising, [[50, 52, 55]], OPEN),  # the intervals overlap
        (rising, [[20, 60, 55]], HOLDS),  # a fall within the intervals
        (rising, None, OUTSIDE),
        (approaching, [[20, 60, 100]], HOLDS),
        (approaching, [[20, 60, 95]], RATE),
        (approaching, [[20, 90, 92]], OPEN),  # no longer told apart over the last doubling
        (approaching, [[20, 95, 60]], OPEN),
        (approaching, None, OUTSIDE),
        # The worst curve decides.
        (rising, [[20, 60, 90], [90, 60, 20]], OPEN),
        (approaching, [[20, 60, 100], [20, 60, 95]], RATE),
    ],
)
def test_one_curve_decides(said: Any, counts: list[list[int]] | None, verdict: Verdict) -> None:
    found = held(said, counts)
    assert found.verdict is verdict
    if said is rising and counts and len(counts) == 2:
        assert (found.evidence.contradicted, found.evidence.undecided) == (1, 0)


def held(said: Any, counts: list[list[int]] | None) -> Finding:
    """What is said of curves of a hundred instances at d = 2, 4, 8, or of none."""
    curves = np.array(counts or [[0, 0, 0]])
    return hold(said("", "", lambda n: (curves, np.full(curves.shape, 100 * (counts is not None)))), made_up_grid())


def made_up_grid() -> Table:
    return typed(made_up({"W": [0, 0, 0]}))


def test_the_rate_of_an_approach() -> None:
    rate = held(approaching, [[0, 60, 90]]).evidence.rate
    # From 40 to 10 lacking while d doubles: d^-2.
    assert rate is not None and rate.fitted == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("small", "large", "residual"),
    [
        ((60, 90, 100), (10, 50, 99), 0.0),
        ((60, 90, 100), (10, 99, 40), 1.0),
        ((10, 50, 99), (60, 90, 100), 1.0),
        ((50, 60, 70), (51, 60, 71), np.nan),
    ],
)
def test_harder(small: tuple[int, ...], large: tuple[int, ...], residual: float) -> None:
    counts = np.array([small, large])
    np.testing.assert_equal(fig6.harder(counts, np.full(counts.shape, 100)), residual)


def verdicts(claims: list[Finding]) -> list[Verdict]:
    return [claim.verdict for claim in claims]


def test_claims_where_all_is_well() -> None:
    data = made_up({"W": [20, 60, 100], "KQ": [30, 60, 95]})
    assert verdicts(said("fig5", data)[:5]) == [HOLDS, HOLDS, HOLDS, RATE, HOLDS]
    assert verdicts(said("fig2", data)) == [HOLDS, HOLDS, HOLDS]
    assert verdicts(said("fig5", data)[5:]) == [HOLDS] * 7
    exact, published, total = fig5.assumption_counts(typed(data))
    assert exact.tolist() == [[10, 30, 50], [15, 30, 47]] and (total == 100).all()
    # (1.5 − 1) / 4 more than 1 is above 1.1.
    assert (published == exact).all()


def test_b1_that_is_more_frequent_than_global_convergence_is_a_counterexample() -> None:
    data = made_up({"W": [20, 60, 90]})
    data["largest_margin"][0, 0, 0] = 1.0
    claims = said("fig5", data)[-5:]
    assert verdicts(claims) == [OPEN, HOLDS, OPEN, HOLDS, HOLDS]
    data["mean_margin"][0, 0, 0] = 1.05
    assert said("fig5", data)[-5:][3].evidence.contradicted == 1


def test_without_a_solution_there_is_no_assumption() -> None:
    data = made_up({"W": [20, 60, 90]})
    data["optimal_program"][:] = ProgramResult.infeasible
    assert verdicts(said("fig5", data)[-5:]) == [OPEN, OPEN, HOLDS, HOLDS, OUTSIDE]


def test_a_stationary_point_under_b1_contradicts_theorem_3() -> None:
    data = made_up({"KQ": [20, 60, 90], "W": [20, 60, 90]})
    data["outcome"][0, 1, 2, 7] = Outcome.finite_stationary_point
    claim = said("fig5", data)[-5:][-1]
    assert claim.evidence.contradicted == 1 and claim.verdict is OPEN
    # The theorem is about W.
    data["outcome"][0, 1, 2, 7] = GLOBAL
    data["outcome"][0, 0, 2, 7] = Outcome.finite_stationary_point
    assert said("fig5", data)[-5:][-1].verdict is HOLDS


def test_exceptions_to_definition_2() -> None:
    data = made_up({"W": [20, 60, 90]})
    data["outcome"][0, 0, 0, [23, 41]] = NOT
    claim = said("fig2", data)[-1]
    assert claim.verdict is OPEN and claim.evidence.contradicted == 2 and claim.evidence.inside == 300
    assert "not_locally_optimal: W, n=5, T=5, d=2: trials 23, 41." in notes_of(data)
    data["outcome"][0, 0, 0, [23, 41]] = Outcome.infeasible_program
    claim = said("fig2", data)[-1]
    assert claim.verdict is HOLDS
    data["outcome"][:] = Outcome.finite_stationary_point
    assert said("fig2", data)[-1].verdict is OUTSIDE
    # One that was not followed to its end is in the denominator.
    data = made_up({"W": [20, 60, 90]})
    data["outcome"][0, 0, 0, 41] = Outcome.undecided
    claim = said("fig2", data)[-1]
    assert claim.verdict is HOLDS and (claim.evidence.inside, claim.evidence.undecided) == (300, 1)
    # Taken for exceptions, 20 of 300 are too many.
    data["outcome"][0, 0, 0, 41:60] = Outcome.undecided
    data["outcome"][0, 0, 0, 0] = Outcome.undecided
    claim = said("fig2", data)[-1]
    assert claim.verdict is OPEN and (claim.evidence.inside, claim.evidence.undecided) == (300, 20)


def test_notes_count_every_outcome() -> None:
    data = made_up({"W": [20, 60, 90]})
    data["outcome"][0, 0, 0, 50:60] = Outcome.undecided
    data["outcome"][0, 0, 0, 60:64] = Outcome.failed
    notes = notes_of(data)
    assert "W, n=5, T=5, d=4: 60 globally_optimal, 40 locally_optimal" in notes
    assert "failed: W, n=5, T=5, d=2: trials 60, 61, 62, 63." in notes
    # A long list of trials is cut and counted.
    data["outcome"][0, 0, 0, 20:50] = Outcome.undecided
    assert "39 and 20 more" in " ".join(notes_of(data))


def test_bars_stack_and_name_what_the_complement_is() -> None:
    data = made_up({"W": [20, 60, 90], "KQ": [30, 60, 95]})
    data["outcome"][0, 0, 0, 50:60] = Outcome.finite_stationary_point
    figure = fig5.draw(typed(data))
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert "not local (finite stationary point: 10)" in labels and "Assumption B.1: all margins 1" in labels
    axis = figure.axes[0]
    assert [bar.get_height() for bar in axis.containers[0]] == [20.0, 60.0, 90.0]
    tops = [bar.get_y() + bar.get_height() for bar in axis.containers[2]]
    np.testing.assert_allclose(tops, 100)
    assert [bar.get_height() for bar in axis.containers[3]] == [10.0, 30.0, 45.0]


def test_curves_of_both_panels() -> None:
    one = made_up({"W": [20, 60, 90], "KQ": [30, 60, 95]})
    data = {
        **one,
        "n": np.array([5, 10, 5]),
        "T": np.array([5, 5, 10]),
        "accepted": np.full((3, 3), 0.8),
        "outcome": np.repeat(one["outcome"], 3, axis=0),
    }
    curves = fig6.panels(typed(data))
    assert curves["panels"] == ["(a) $T=5$", "(b) $n=5$"]
    assert curves["curves"][:4] == ["$n=5$, $W$", "$n=5$, $(K,Q)$", "$n=10$, $W$", "$n=10$, $(K,Q)$"]
    assert curves["dashed"] == [False, True] * 4 and curves["color"] == [0, 0, 1, 1] * 2
    assert np.isnan(curves["percentage"][1, :4]).all() and (curves["percentage"][0, 0] == [20, 60, 90]).all()
    figure = draw_percentage_curves(curves)
    assert [len(axis.lines) for axis in figure.axes] == [4, 4]
    data = {name: data[name] for name in (*GRID, "outcome")} | {"program_gap": 0.0 * data["outcome"]}
    claims, notes = papers.find_figure("tarzanagh2023", "fig6").find(typed(data))
    # What is said of Assumption B.1 is not judged by these numbers; that more is harder is a sentence of its own.
    assert [claim.verdict for claim in claims[4:6]] == [OUTSIDE, OPEN]
    assert len(claims) == 7 and any("n=10, T=5, d=8" in note for note in notes)
