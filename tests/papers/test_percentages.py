"""Figures 2, 5 and 6: what one curve says, notes and drawings, on numbers made by hand."""

from typing import Any

import numpy as np
import pytest

from jaxflow import papers
from jaxflow._core import Outcome
from jaxflow.margin import ProgramResult
from jaxflow.papers.claims import Finding
from jaxflow.papers.statement import hold
from jaxflow.papers.table import Table
from jaxflow.papers.tarzanagh2023 import fig5, fig6, percent
from jaxflow.papers.tarzanagh2023.percent import approaching, rising
from jaxflow.plots import draw_percentage_curves
from jaxflow.study import TokenSelection, trial_key
from tests.papers.recorded import changed, letters, numbers_of

FIVE = numbers_of("tarzanagh2023", "fig5")
GRID = Table(grid=Table(d=np.array([2, 4, 8])))


@pytest.mark.parametrize("sizes", [fig5.SIZES_2, fig5.SIZES, fig6.SIZES])
def test_scales_are_what_they_say(sizes: dict[str, Table]) -> None:
    # The text gives no number for figure 6: as many as figure 5 has.
    assert sizes["paper"].trials == 500
    assert sizes["large"].trials == 100_000
    assert sizes["paper"].d == sizes["large"].d
    assert all(size.d == tuple(sorted(size.d)) for size in sizes.values())
    assert fig5.SIZES_2["paper"].parametrizations == ("W",)
    assert set(fig6.SIZES["paper"].settings) == {(5, 5), (10, 5), (20, 5), (5, 10), (5, 20)}


def held(said: Any, *counts: list[int]) -> Finding:
    """What is said of curves of a hundred instances at d = 2, 4, 8, or of none."""
    curves = np.array(counts or [[0, 0, 0]])
    return hold(said("", "", lambda n: (curves, np.full(curves.shape, 100 * bool(counts)))), GRID)


@pytest.mark.parametrize(
    ("said", "counts", "verdict"),
    [
        (rising, [[20, 60, 90]], "H"),
        (rising, [[20, 90, 60]], "C"),  # a fall between neighbours
        (rising, [[90, 80, 20]], "C"),
        (rising, [[50, 52, 55]], "O"),  # the intervals overlap
        (rising, [[20, 60, 55]], "H"),  # a fall within the intervals
        (rising, [], "N"),
        (approaching, [[20, 60, 100]], "H"),
        (approaching, [[20, 60, 95]], "R"),
        (approaching, [[20, 90, 92]], "O"),  # no longer told apart over the last doubling
        (approaching, [[20, 95, 60]], "C"),
        (approaching, [], "N"),
        # The worst curve decides.
        (rising, [[20, 60, 90], [90, 60, 20]], "C"),
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


def test_margins_are_those_of_the_instances_of_the_outcomes() -> None:
    factors = {"n": 5, "T": 5, "d": int(FIVE.grid.d[-1]), "score_gap": percent.SCORE_GAP}
    # The last two cells are W and (K, Q) at the largest d.
    trial = int(np.flatnonzero(FIVE.ends.optimal_program[-2] == ProgramResult.optimal)[0])
    key = trial_key(0, TokenSelection().name(), factors, trial)
    found = fig5._support("frobenius", *fig5.EXPERIMENT.setup(key, **factors, parametrization="W"))
    assert int(found["optimal_program"]) == ProgramResult.optimal
    np.testing.assert_allclose(found["largest_margin"], FIVE.ends.largest_margin[-2, trial], rtol=1e-9)


def test_notes_count_every_outcome() -> None:
    def notes(*changes: tuple[Outcome, slice]) -> list[str]:
        numbers = changed(FIVE, *(("ends.outcome", outcome, (0, trials)) for outcome, trials in changes))
        return papers.find_figure("tarzanagh2023", "fig5").find(numbers)[1]

    few = notes((Outcome.failed, np.s_[60:64]), (Outcome.undecided, np.s_[50:60]))
    assert "failed: W, n=5, T=5, d=2: trials 60, 61, 62, 63." in few
    # A long list of trials is cut and counted.
    assert "39 and 20 more" in " ".join(notes((Outcome.failed, np.s_[60:64]), (Outcome.undecided, np.s_[20:60])))


def test_bars_stack_and_name_what_the_complement_is() -> None:
    figure = fig5.draw(changed(FIVE, ("ends.outcome", Outcome.finite_stationary_point, np.s_[0, 50:60])))
    labels = " ".join(text.get_text() for text in figure.legends[0].get_texts())
    assert "finite stationary point: " in labels and "Assumption B.1: all margins 1" in labels
    axis = figure.axes[0]
    best = np.sum(FIVE.ends.outcome[2::2] == Outcome.globally_optimal, axis=1)
    assert [bar.get_height() for bar in axis.containers[0]][1:] == best.tolist()
    np.testing.assert_allclose([bar.get_y() + bar.get_height() for bar in axis.containers[2]], 100)
    exact, published, total = fig5.assumption_counts(FIVE)
    assert [bar.get_height() for bar in axis.containers[3]] == exact[0].tolist()
    assert (exact <= published).all() and (total == 100).all()


def test_curves_of_both_panels() -> None:
    numbers = numbers_of("tarzanagh2023", "fig6")
    curves = fig6.panels(numbers)
    assert curves["panels"] == ["(a) $T=5$", "(b) $n=5$"]
    assert curves["curves"][:4] == ["$n=5$, $W$", "$n=5$, $(K,Q)$", "$n=10$, $W$", "$n=10$, $(K,Q)$"]
    assert curves["dashed"] == [False, True] * 6 and curves["color"] == [0, 0, 1, 1, 2, 2] * 2
    best = np.sum(numbers.ends.outcome[:10:2] == Outcome.globally_optimal, axis=1)
    assert np.isnan(curves["percentage"][1, :6]).all() and (curves["percentage"][0, 0] == best).all()
    assert [len(axis.lines) for axis in draw_percentage_curves(curves).axes] == [6, 6]
