"""Figures 2, 5 and 6: what one curve says, notes and drawings, on numbers made by hand."""

from typing import Any

import numpy as np
import pytest

from jaxflow import papers
from jaxflow._core import Outcome
from jaxflow.papers.claims import Finding
from jaxflow.papers.statement import hold
from jaxflow.papers.tarzanagh2023 import fig2, fig5, fig6
from jaxflow.papers.tarzanagh2023.percent import approaching, rising
from jaxflow.plots import draw_percentage_curves
from tests.papers.findings import letters
from tests.papers.made_up.records import changed
from tests.papers.made_up.tarzanagh2023 import SETTINGS, percentages

RISING = percentages([20, 60, 90])
BOTH = percentages([20, 60, 90], [30, 60, 95])


@pytest.mark.parametrize("module", [fig2, fig5, fig6])
def test_scales_are_what_they_say(module: Any) -> None:
    # The text gives no number for figure 6: as many as figure 5 has.
    assert module.SIZES["paper"].trials == 500
    assert module.SIZES["large"].trials == 100_000
    assert module.SIZES["paper"].d == module.SIZES["large"].d
    assert all(size.d == tuple(sorted(size.d)) for size in module.SIZES.values())
    assert fig2.SIZES["paper"].parametrizations == ("W",)
    assert set(fig6.SIZES["paper"].settings) == {(5, 5), (10, 5), (20, 5), (5, 10), (5, 20)}


def held(said: Any, *counts: list[int]) -> Finding:
    """What is said of curves of a hundred instances at d = 2, 4, 8, or of none."""
    curves = np.array(counts or [[0, 0, 0]])
    return hold(said("", "", lambda n: (curves, np.full(curves.shape, 100 * bool(counts)))), RISING)


@pytest.mark.parametrize(
    ("said", "counts", "verdict"),
    [
        (rising, [[20, 60, 90]], "H"),
        (rising, [[20, 90, 60]], "O"),  # a fall between neighbours
        (rising, [[90, 80, 20]], "O"),
        (rising, [[50, 52, 55]], "O"),  # the intervals overlap
        (rising, [[20, 60, 55]], "H"),  # a fall within the intervals
        (rising, [], "N"),
        (approaching, [[20, 60, 100]], "H"),
        (approaching, [[20, 60, 95]], "R"),
        (approaching, [[20, 90, 92]], "O"),  # no longer told apart over the last doubling
        (approaching, [[20, 95, 60]], "O"),
        (approaching, [], "N"),
        # The worst curve decides.
        (rising, [[20, 60, 90], [90, 60, 20]], "O"),
        (approaching, [[20, 60, 100], [20, 60, 95]], "R"),
    ],
)
def test_one_curve_decides(said: Any, counts: list[list[int]], verdict: str) -> None:
    found = held(said, *counts)
    assert letters([found]) == verdict
    if said is rising and len(counts) == 2:
        assert (found.evidence.contradicted, found.evidence.undecided) == (1, 0)


def test_the_rate_of_an_approach() -> None:
    rate = held(approaching, [0, 60, 90]).evidence.rate
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


def test_instances_under_assumption_b1_are_counted() -> None:
    exact, published, total = fig5.assumption_counts(percentages([20, 60, 100], [30, 60, 95]))
    assert exact.tolist() == [[10, 30, 50], [15, 30, 47]] and (total == 100).all()
    # (1.5 − 1) / 4 more than 1 is above 1.1.
    assert (published == exact).all()


def test_notes_count_every_outcome() -> None:
    def notes(*changes: tuple[Outcome, list[int]]) -> list[str]:
        numbers = changed(RISING, *(("ends.outcome", outcome, (0, trials)) for outcome, trials in changes))
        return papers.find_figure("tarzanagh2023", "fig5").find(numbers)[1]

    failed, undecided = (Outcome.failed, [60, 61, 62, 63]), Outcome.undecided
    few = notes(failed, (undecided, list(range(50, 60))), (Outcome.not_locally_optimal, [23, 41]))
    assert "W, n=5, T=5, d=4: 60 globally_optimal, 40 locally_optimal" in few
    assert "failed: W, n=5, T=5, d=2: trials 60, 61, 62, 63." in few
    assert "not_locally_optimal: W, n=5, T=5, d=2: trials 23, 41." in few
    # A long list of trials is cut and counted.
    assert "39 and 20 more" in " ".join(notes(failed, (undecided, list(range(20, 60)))))


def test_bars_stack_and_name_what_the_complement_is() -> None:
    figure = fig5.draw(changed(BOTH, ("ends.outcome", Outcome.finite_stationary_point, np.s_[0, 50:60])))
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert "not local (finite stationary point: 10)" in labels and "Assumption B.1: all margins 1" in labels
    axis = figure.axes[0]
    assert [bar.get_height() for bar in axis.containers[0]] == [20.0, 60.0, 90.0]
    tops = [bar.get_y() + bar.get_height() for bar in axis.containers[2]]
    np.testing.assert_allclose(tops, 100)
    assert [bar.get_height() for bar in axis.containers[3]] == [10.0, 30.0, 45.0]


def test_curves_of_both_panels() -> None:
    numbers = percentages(*[[20, 60, 90], [30, 60, 95]] * 3, sizes=SETTINGS, margins=False)
    curves = fig6.panels(numbers)
    assert curves["panels"] == ["(a) $T=5$", "(b) $n=5$"]
    assert curves["curves"][:4] == ["$n=5$, $W$", "$n=5$, $(K,Q)$", "$n=10$, $W$", "$n=10$, $(K,Q)$"]
    assert curves["dashed"] == [False, True] * 4 and curves["color"] == [0, 0, 1, 1] * 2
    assert np.isnan(curves["percentage"][1, :4]).all() and (curves["percentage"][0, 0] == [20, 60, 90]).all()
    assert [len(axis.lines) for axis in draw_percentage_curves(curves).axes] == [4, 4]
    claims, notes = papers.find_figure("tarzanagh2023", "fig6").find(numbers)
    # What is said of Assumption B.1 is not judged by these numbers; that more is harder is a sentence of its own.
    assert letters(claims[4:6]) == "NO"
    assert len(claims) == 7 and any("n=10, T=5, d=8" in note for note in notes)
