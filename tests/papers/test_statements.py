"""Statements of all papers on numbers that runs have left, and on those numbers with other columns."""

import functools
import re
from typing import Any

import numpy as np
import pytest

from jaxflow import papers
from jaxflow._core import Outcome, SelectionStatus
from jaxflow.margin import AssumptionStatus, ProgramResult
from jaxflow.papers.claims import Finding
from jaxflow.papers.tarzanagh2023.composed_instances import Fate
from jaxflow.papers.tarzanagh2023.composition import FlowEnd
from tests.papers.recorded import EXPERIMENTS, changed, entry_of, letters, numbers_of, recorded, said_of

BEST, LOCAL, OTHER = Outcome.globally_optimal, Outcome.locally_optimal, Outcome.not_locally_optimal
AT_REST, UNDECIDED, FAILED = Outcome.finite_stationary_point, Outcome.undecided, Outcome.failed
YES, NO, OPEN = AssumptionStatus.holds, AssumptionStatus.violated, AssumptionStatus.undecided
INFEASIBLE, INACCURATE = ProgramResult.infeasible, ProgramResult.inaccurate

# Measured outside of the hypotheses, to show what becomes of the conclusion there; and of Assumption B.1, of which the
# numbers of figure 6 say nothing.
OUTSIDE = {
    ("boix2023", "supports"): {1},
    ("sheen2024", "alignment"): {2},
    ("sheen2024", "failures"): {1, 2, 4, 5, 6},
    ("sheen2024", "general"): {5},
    ("tarzanagh2023", "fig6"): {4},
    ("tarzanagh2023", "local-convergence"): {1},
}


# Numbers of the wrong sign and order: NumPy warns of logarithms and of fits that these make NaN.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
@pytest.mark.parametrize(("paper", "name"), EXPERIMENTS)
def test_what_is_said_of_the_numbers_and_of_every_change_of_a_column(paper: str, name: str) -> None:
    """`python -m tests.papers.record` writes what is said; a line that differs is a statement that has changed."""
    assert said_of(paper, name) == recorded(paper)[name]


def row(experiment: str, changes: list[Any], verdicts: str, **counts: Any) -> tuple[Any, ...]:
    """An experiment, changes of its columns, a pattern of letters, and counts of the evidence (`inside`, `outside`,
    `contradicted`, `undecided`): of all statements, or by their places."""
    paper, name = experiment.split("/")
    return paper, name, changes, verdicts, counts


def lost(part: str, place: Any = ...) -> list[Any]:
    """Flows that do not select the target."""
    lost_to = (("selected", False), ("target_attention", 1e-30), ("misaligned", 0.5))
    return [(f"{part}.{name}", value, place) for name, value in lost_to]


def grown(gradient: list[float], norm: list[float], *later: list[float]) -> list[Any]:
    """Three readings of a run of descent, and of a longer one."""
    again = later or [[np.nan] * 3] * 2
    return [("growing.log_gradient", np.log([gradient, again[0]])), ("growing.norm", [norm, again[1]])]


def start(part: str, *changes: Any) -> list[Any]:
    """One start near a direction, by flow (0) or by descent (1)."""
    return [(f"runs.{name}", value, (0, int(part == "descent"), 0)) for name, value in changes]


def at_rest(cell: int) -> list[Any]:
    """An instance of figure 5 that satisfies Assumption B.1."""
    changes = (("outcome", AT_REST), ("optimal_program", ProgramResult.optimal), ("largest_margin", 1.0))
    return [(f"ends.{name}", value, (cell, 0)) for name, value in changes]


SLOW = ([1e-2, 1e-3, 9e-4], [1.0, 2.0, 2.1])
FIRST, PUBLISHED = (0, 0), ("adam sgd network text.published", True)
SMALLER = ("adam.rank", np.array([1.0, 2.0, 3.0])[:, None, None, None])
UNSETTLED = ("flow descent.settled", False, np.s_[..., 0])
RESTING = ("limits.outcome", AT_REST, np.s_[:, 0])
GROWING = ("adam sgd network text.rank", np.linspace(0.5, 0.9, 5)[:, None, None, None, None], np.s_[:, :, :, :5])
# A misalignment that depends on T alone, and one that depends on m and n.
BY_T = np.repeat(numbers_of("tarzanagh2023", "fig10").grid.shapes[:, 1], 10)[:, None] * 0.01
BY_ROW = np.arange(50)[:, None] * 0.01
# Two products that enter one after the other at the larger α, and together at the smaller one.
TOGETHER = np.full((2, 12), np.nan)
TOGETHER[:, :2] = [[1.0, 3.0], [1.0, 1.2]]

ROWS = [
    # Theorem 4 is judged inside its hypotheses only; neither selected to the tolerance nor left is undecided.
    row("tarzanagh2023/equal-scores", lost("cells"), "..CCCCCC"),
    row("tarzanagh2023/equal-scores", [*lost("cells"), ("cells.feasible", INFEASIBLE)], "..NNNNNN", outside={2: 8}),
    row("tarzanagh2023/equal-scores", [*lost("cells"), ("cells.target_attention", 0.5)], "..OOOOOO"),
    # A lost sequence counts where the rest is certified.
    row("tarzanagh2023/equal-scores", [*lost("cells"), ("cells.flow_gap lost_gap", 1.0)], "..OOOOOO"),
    row("tarzanagh2023/equal-scores", [*lost("cells"), ("cells.flow_gap", 1.0), ("cells.lost_gap", 1e-12)], "..CCCCCC"),
    row("tarzanagh2023/nearly-equal-scores", lost("single"), ".C."),
    # One instance is lost at every spread; where it is not certified at one of them it is open.
    row("tarzanagh2023/nearly-equal-scores", lost("single", np.s_[:, 0]), ".C.", contradicted={1: 1}),
    row("tarzanagh2023/nearly-equal-scores",
        [*lost("single", np.s_[:, 0]), ("single.flow_gap lost_gap", 1.0, (1, 0))], ".O.", undecided={1: 1}),
    # Theorem 6 is judged where Assumption C holds, and a first step that the statement does not allow is outside.
    row("tarzanagh2023/assumptions", lost("flows"), "...CC"),
    row("tarzanagh2023/descents", lost("flows"), "..CCNCCN.."),
    row("tarzanagh2023/descents", [*lost("flows"), ("first.ratio", 0.5)], "..CCCCCCH."),
    # Theorem 3 wants a gradient that falls like 1/k and a growing norm. What is still on its way is undecided, and was
    # followed for many more steps; at rest it is contradicted.
    row("tarzanagh2023/descents", grown([1e-2, 1e-3, 1e-4], [1.0, 2.0, 3.0]), "RR.*"),
    row("tarzanagh2023/descents", grown([1e-2, 1e-3, 4e-4], [1.0, 2.0, 3.0]), "OO.*"),
    row("tarzanagh2023/descents", grown([1e-2, 1e-3, 1e-9], [1.0, 2.0, 2.0]), "CC.*"),
    row("tarzanagh2023/descents", grown(*SLOW), "OO.*", undecided={1: 8}),
    row("tarzanagh2023/descents", grown(*SLOW, [9e-4, 1e-5, 1e-6], [2.1, 3.0, 4.0]), "RR.*"),
    row("tarzanagh2023/descents", grown(*SLOW, [9e-4, 1e-5, 1e-6], [2.1, 3.0, 3.0]), "CC.*"),
    # Assumption C is empty where nothing satisfies it.
    row("tarzanagh2023/hypotheses", [("support.separating", False, 0)], "..O.."),
    # Another solution of equal norm belongs to the set; a path without stationary points is undecided.
    row("tarzanagh2023/regularization-paths", [("combined factored.distance", 0.5)], "OOO.."),
    row("tarzanagh2023/regularization-paths", [("combined factored.distance above", np.inf)], "CCC.."),
    row("tarzanagh2023/regularization-paths", [("combined.found", False, (1, -1))], "O....", undecided={0: 1}),
    row("tarzanagh2023/regularization-paths", [("programs.value", 2.1, FIRST)], "...C.", contradicted={3: 1}),
    row("tarzanagh2023/sequence-paths", [("paths.distance", 0.5)], "O{6}.*"),
    row("tarzanagh2023/sequence-paths", [("paths.distance above", np.inf)], "C{6}.*"),
    # Starts are followed by flow and by descent; one that is neither near nor far is undecided.
    row("tarzanagh2023/local-convergence", start("flow", ("reached", False), ("left", True)), "CN"),
    row("tarzanagh2023/local-convergence", start("descent", ("reached", False), ("left", True)), "CN"),
    row("tarzanagh2023/local-convergence", start("descent", ("reached", False)), "ON"),
    # Lemma 5's rows follow the depth, and the status of a choice.
    row("tarzanagh2023/cones", [("choices.depth", 0.2)], "HHHNCN"),
    row("tarzanagh2023/cones", [("choices.status", SelectionStatus.global_)], "CCCCNC"),
    row("tarzanagh2023/cones", [("choices.status", SelectionStatus.ambiguous)], "NNNNNN"),
    row("tarzanagh2023/cones", [("choices.status", SelectionStatus.global_), ("choices.depth", np.inf)], "....NH"),
    row("tarzanagh2023/cones", [("choices.d", 6)], "HCNCHN"),
    row("tarzanagh2023/sequence-paths", [("choices.depth anywhere", 0.2)], ".{8}C.*"),
    row("tarzanagh2023/sequence-paths", [("choices.optimal", True), ("choices.anywhere", np.inf)], ".{9}H.{3}H.{3}H"),
    row("tarzanagh2023/sequence-paths",
        [("choices.status", SelectionStatus.local), ("choices.empty", True), ("choices.depth", 0.2)],
        ".{7}H.{3}H.{3}H.."),
    row("tarzanagh2023/sequence-paths",
        [("choices.status", SelectionStatus.local), ("choices.empty", False), ("choices.depth", -0.1)], ".{6}C.*"),
    # Feasibility is asked at the bound and above.
    row("tarzanagh2023/feasibility", [("programs.result", INFEASIBLE), ("programs.separated", False)], "CCCC.."),
    # Limits of sequences are local, and those of their program. The better of two bounds certifies them, and what is
    # at rest without a bound is outside.
    row("tarzanagh2023/sequences", [("combined factored.status", SelectionStatus.not_local)], "CCCCC"),
    row("tarzanagh2023/sequences", [("combined factored.misaligned", 0.1)], "CCCCC"),
    row("tarzanagh2023/sequences", [("combined factored.status", SelectionStatus.ambiguous)], "OOOOO"),
    row("tarzanagh2023/sequences", [("combined factored.misaligned", np.nan)], "OOOOO"),
    row("tarzanagh2023/sequences", [("combined factored.outcome", AT_REST)], "HHHHH"),
    row("tarzanagh2023/sequences", [("combined factored.outcome", AT_REST),
        ("combined factored.flow_gap", 0.1), ("factored.certificate_gap", 0.1)], "NNNNN"),
    # Figure 1: a run that has not settled may still do so; one at rest, or on other tokens, is outside.
    row("tarzanagh2023/fig1", [UNSETTLED], "[OC]{16}", inside=4),
    row("tarzanagh2023/fig1", [UNSETTLED, ("flow descent.stationary", True, np.s_[..., 0])], ".*", inside=3),
    row("tarzanagh2023/fig1", [("flow descent.status", 255)], "N{16}"),
    row("tarzanagh2023/fig4", [("frobenius nuclear.outside", 1e-3)], "HHHCH"),
    # Neither solved nor proven to have no solution.
    row("tarzanagh2023/fig4", [("frobenius nuclear.result", INACCURATE)], "OOOOO"),
    row("tarzanagh2023/fig4", [("frobenius nuclear.result", INFEASIBLE)], "NNNNN"),
    # Shares that fall from one d to the next. Of two parametrisations the cells alternate, and Theorem 3 is about W.
    row("tarzanagh2023/fig2", [("ends.outcome", LOCAL, -1)], "CH"),
    row("tarzanagh2023/fig5", [("ends.outcome", LOCAL, np.s_[-2:])], "CCCC.*"),
    row("tarzanagh2023/fig5", at_rest(0), ".*C", contradicted={11: 1}),
    row("tarzanagh2023/fig5", at_rest(1), ".*H", contradicted={11: 0}),
    row("tarzanagh2023/fig6", [("ends.outcome", LOCAL, np.s_[8:10])], "CCCC.*"),
    row("tarzanagh2023/fig2", [("ends.outcome", OTHER, (0, [23, 41]))], "HC", contradicted={1: 2}, inside={1: 882}),
    row("tarzanagh2023/fig2", [("ends.outcome", Outcome.infeasible_program, (0, [23, 41]))], "HH"),
    row("tarzanagh2023/fig2", [("ends.outcome", AT_REST)], ".N"),
    # One that was not followed to its end is in the denominator; sixty of 900 exceptions would be too many.
    row("tarzanagh2023/fig2", [("ends.outcome", UNDECIDED, (0, 41))], "HH", inside={1: 882}, undecided={1: 1}),
    row("tarzanagh2023/fig2", [("ends.outcome", UNDECIDED, (0, np.s_[:60]))], "HO", undecided={1: 60}),
    # Figure 7: no longer falling; nearer to the other program; a correlation that is far from one.
    row("tarzanagh2023/fig7", [("combined.smallest", 0.7, (0, 1))], "CHRH"),
    row("tarzanagh2023/fig7", [("factored.excess", 0.1, (0, 1, 1))], "HHOH"),
    row("tarzanagh2023/fig7", [("factored.distance", 0.9, (0, 3, 1))], "HH.C"),
    row("tarzanagh2023/fig7", [("factored.distance", 0.11, np.s_[:, :, 1])], "HHO.", undecided={2: 8}),
    row("tarzanagh2023/fig7", [("combined factored.outcome", UNDECIDED, (0, 3))], "OOOO", undecided=[2, 1, 1, 2]),
    # Without locally optimal selections nothing is said.
    row("tarzanagh2023/fig7", [("combined factored.outcome", AT_REST), ("combined factored.smallest", 0.4)], "CNNN"),
    # Figures 8 and 11: what the filter leaves out; one flow that goes elsewhere than descent; no solution of (Att-SVM)
    # at one d, which stays in the denominator.
    row("tarzanagh2023/fig8", [("instances.fate", Fate.between)], "NNNNN.RN"),
    row("tarzanagh2023/fig8", [("flows.distance", 0.5, (1, 2))], ".*", contradicted={5: 4}),
    row("tarzanagh2023/fig8", [("flows.end", FlowEnd.budget_spent)], ".{5}OOH"),
    row("tarzanagh2023/fig8", [("instances.one", np.nan, 0)], ".*", inside={1: 4}, undecided={1: 1}),
    row("tarzanagh2023/fig8", [("instances.svmeq", 0.5, -1)], "CC..C..."),
    row("tarzanagh2023/fig11", [("instances.svmeq", 0.5, -1)], "CCC"),
    row("tarzanagh2023/fig9", [("targets.size", np.arange(18)[::-1, None])], "C.*"),
    # Attention between masked and selected: the filter keeps none.
    row("tarzanagh2023/fig9", [("descent.attention", 1e-5)], "..N.N...."),
    # What has not settled is undecided; without two means there is nothing to compare.
    row("tarzanagh2023/fig10", [("flow descent.settled", False)], "OONNOONN"),
    row("tarzanagh2023/fig10", [("flow descent.settled", False), ("flow descent.rank", -1)], "N{8}"),
    row("tarzanagh2023/fig10", [("flow descent.misalignment", BY_ROW)], "...H...H"),
    row("tarzanagh2023/fig10", [("flow descent.misalignment", BY_T)], "...C...C"),
    # Four tokens are too many for τ = 3; an error of 2e-8 is none of the flow's tokens.
    row("tarzanagh2023/fig12", [("exact.size", 4, (0, 7))], "CHHHH"),
    row("tarzanagh2023/fig12", [("flow.error", 2e-8)], "HHHHC"),
    row("tarzanagh2023/conjecture", [("instances.outcome", LOCAL)], "CCC.."),
    # A path that was not followed to its end is neither proof nor counterexample.
    row("tarzanagh2023/conjecture", [("instances.outcome", UNDECIDED)], "OO..."),
    row("tarzanagh2023/conjecture", [("instances.B1", NO)], "N...."),
    row("tarzanagh2023/conjecture", [("instances.unique", NO)], "....C"),
    row("tarzanagh2023/conjecture", [("instances.unique", OPEN)], "....O"),
    row("tarzanagh2023/conjecture", [("instances.support", YES), ("instances.D", NO)], "...C."),
    row("tarzanagh2023/factored", [("ends.outcome", Outcome.prediction_contradicted, FIRST),
        ("ends.excess flow_gap", 0.3, FIRST)], "C."),
    row("tarzanagh2023/factored", [("ends.outcome", UNDECIDED, FIRST)], "O.", undecided={0: 1}, contradicted={0: 0}),
    # A flow that claims less than the program finds; a flow at rest; fewer columns than rows, of which nothing is said.
    row("tarzanagh2023/factored", [("ends.excess", 1e-7, FIRST)], "HC"),
    row("tarzanagh2023/factored", [("ends.outcome", AT_REST)], "N."),
    # The paper's networks, then ours: networks that are not the paper's prove and refute nothing of it.
    row("boix2023/fig7", [PUBLISHED], "HNN"),
    row("boix2023/fig7", [PUBLISHED, SMALLER], "CNN"),
    row("boix2023/fig6", [PUBLISHED, SMALLER], "CNNCNNCNN"),
    row("boix2023/fig6", [PUBLISHED, ("adam.rank", 0.1), ("adam.spectrum", np.nan)], "ONNHNN..."),
    row("boix2023/fig4", [GROWING], "-H{8}-H{8}--"),
    row("boix2023/fig4", [PUBLISHED, GROWING], "HN{8}HN{8}HH"),
    row("boix2023/fig15", [GROWING], "-HHHH-HHHH"),
    row("boix2023/fig9", [("paths.products", 1.0, np.s_[:, :, 20:])], ".C"),
    *(row(f"boix2023/{name}", [PUBLISHED, ("adam sgd network text.rank", 9.0)], verdicts) for name, verdicts in (
        ("fig1", "CNNCNNCNN"), ("fig4", "C.{8}C.{8}CC"), ("fig5", "C.{4}C.*"),
    )),
    row("boix2023/stages", [("flows.inside", False)], "NNN.N{7}"),
    # Part (B) takes longer from a smaller scale.
    row("boix2023/stages", [("flows.length factor", np.array([3.0, 30.0, 300.0])[:, None])], ".{9}C."),
    # No two products of one stage.
    row("boix2023/supports", [("flows.times", 3.0)], "O.."),
    row("boix2023/supports", [("flows.times", TOGETHER), ("flows.coordinates", 0)], "C.."),
    # Flows that were not followed stay in every denominator.
    row("boix2023/decay", [("flows.passed excess", np.nan), ("flows.ok", False)], "O."),
    # A window may be too short, and so may the integration.
    row("boix2023/fig10", [("noise.end", 0.1)], "C"),
    row("boix2023/fig10", [("noise.followed", False)], "O"),
    # Multipliers are judged for each start that satisfies the hypotheses.
    row("sheen2024/multipliers", [("flows.slackness", 0.1), ("flows.gap", 1e-6)], "ROOROO"),
    row("sheen2024/multipliers", [("flows.slackness", np.linspace(1.0, 2.0, 25))], ".C..C."),
    # Lemma 4.2 as printed is refuted by points at rest, one whose program may be feasible refutes the mended one.
    row("sheen2024/divergence", [RESTING, ("limits.stationarity", 1e-12, np.s_[:, 0])], "CC"),
    row("sheen2024/divergence", [RESTING], "OO"),
    row("sheen2024/divergence", [("limits.outcome", UNDECIDED)], "OO"),
    row("sheen2024/diagonal", [("flows.ok", False), ("flows.diagonal", 0.0)], "OON{7}ON"),
    row("sheen2024/general", [("starts shapes.ok", False)], "OOHHHNO"),
    row("sheen2024/general", [("starts shapes.small", -0.1)], "N{7}"),
    row("sheen2024/general", [("starts shapes.result", ProgramResult.budget_spent)], "HHOHHNH"),
    # Norms are compared where all three limits are directions.
    row("sheen2024/norms", [("limits.results", INFEASIBLE, np.s_[:, 1])], ".*", inside=7, outside=1),
    row("sheen2024/norms", [("limits.outcome", UNDECIDED, FIRST)], ".*", undecided=[1, 0, 0, 1, 1, 1]),
    row("sheen2024/norms", [("limits.ratio", 1.0)], "HHHCCC"),
    row("sheen2024/failures", [("gaps spreads.selects", -1)], "CNNCNNN", contradicted={0: 2, 3: 6}),
    row("yun2021/fig3", [("classification.descent_steps", 1000)], "...N."),
    row("yun2021/fig3", [("classification.loss", 1e-3)], "...C."),
    # Descent from all starts to one direction.
    row("yun2021/fig3", [("classification.descent", 0.5)], "....C"),
    row("yun2021/bounds", [("separable datum.corrected", 1.1, (0, 1))], "C...C.."),
    # Of the ratio of a squared loss only one instance of two is said not to have ended.
    row("yun2021/bounds", [("separable datum stuck.ok", False), ("squared.ok", False, (0, 1))], "OOO.OOO"),
    row("yun2021/bounds", [("separable datum.gap", -1.0)], "NN..NN."),
    row("yun2021/directions", [("limits.outcome", FAILED)], "O{19}", contradicted=0),
    # A late rate is no counterexample.
    row("yun2021/directions", [("limits.exponent", 0.1)], "HHHHOHOHHOHH.*"),
    # An ensemble counts every outcome: a flow that failed proves nothing.
    row("yun2021/ensemble", [("limits.outcome", FAILED, FIRST)], "O", undecided=1),
    row("yun2021/ensemble", [("limits.error", 1e-7, FIRST)], "C", contradicted=1),
    # From W̄ = I there is to be no error at any α, and no rate is one.
    row("yun2021/connected", [("approaches.error", 1e-15)], ".HO.HO.."),
    # A flow that did not get there stays in the denominator.
    row("yun2021/push", [("paths.ok", False, np.s_[:, 3])], "O+", inside=4),
    row("yun2021/push", [("paths.drift", np.linspace(0.0, 0.2, 48), 0)], "O..."),
]  # fmt: skip

# That no instance of a few satisfies an assumption does not say that none does.
EMPTY = {("tarzanagh2023", "hypotheses"): {2}}


@functools.cache
def found_of(paper: str, name: str, at: int | None = None) -> list[Finding]:
    """What is said of the kept numbers, or of those of a row."""
    changes = () if at is None else ROWS[at][2]
    return entry_of(paper, name).find(changed(numbers_of(paper, name), *changes))[0]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("at", range(len(ROWS)), ids=lambda at: "/".join(ROWS[at][:2]))
def test_verdicts_follow_the_numbers(at: int) -> None:
    paper, name, _, verdicts, counts = ROWS[at]
    said = found_of(paper, name, at)
    assert re.fullmatch(verdicts, letters(said)), letters(said)
    for what, wanted in counts.items():
        seen = [one.outside if what == "outside" else getattr(one.evidence, what) for one in said]
        if isinstance(wanted, dict):
            assert {place: seen[place] for place in wanted} == wanted, what
        else:
            assert seen == (wanted if isinstance(wanted, list) else [wanted] * len(seen)), what


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("paper", "name"), EXPERIMENTS)
def test_no_verdict_ignores_its_numbers_and_every_statement_can_be_contradicted(paper: str, name: str) -> None:
    mine = [at for at, row in enumerate(ROWS) if row[:2] == (paper, name)]
    said = [letters(found_of(paper, name, at)) for at in (None, *mine)]
    count = len(said[0])
    said += [text.rpartition(": ")[2] for text in recorded(paper)[name][count:]]
    for place in set(range(count)) - OUTSIDE.get((paper, name), set()):
        seen = {verdicts[place] for verdicts in said}
        assert "C" in seen or place in EMPTY.get((paper, name), set()), f"{place}: {seen}"
        assert len(seen - {"N", "-"}) > 1, f"{place}: {seen}"


FIGURES = [(paper, name) for paper, name in EXPERIMENTS if entry_of(paper, name).draw]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("paper", "name"), FIGURES)
def test_figures_are_drawn_from_numbers_alone(paper: str, name: str) -> None:
    entry, numbers = papers.find_figure(paper, name), numbers_of(paper, name)
    assert entry.draw is not None and entry.notes(numbers)
    figure = entry.draw(numbers)
    assert figure.axes and all(axis.has_data() for axis in figure.axes)
