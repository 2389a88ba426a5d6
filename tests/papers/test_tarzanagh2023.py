"""The figures of tarzanagh2023, section 5.2's conjecture and section 9's question: their verdicts by hand."""

from typing import Any

import numpy as np
import pytest

from jaxflow._core import Outcome
from jaxflow.margin import AssumptionStatus, ProgramResult
from jaxflow.papers.table import Table
from jaxflow.papers.tarzanagh2023 import bias_runs
from jaxflow.papers.tarzanagh2023.composed_instances import Fate
from jaxflow.papers.tarzanagh2023.composition import FlowEnd
from tests.papers.findings import found, judge, row
from tests.papers.made_up.records import changed
from tests.papers.made_up.tarzanagh2023 import (
    biases,
    columns,
    compositions,
    conjecture,
    factored,
    percentages,
    plane,
    ranks,
)

YES, NO, OPEN = AssumptionStatus.holds, AssumptionStatus.violated, AssumptionStatus.undecided
BEST, LOCAL, OTHER = Outcome.globally_optimal, Outcome.locally_optimal, Outcome.not_locally_optimal
CONTRADICTED, UNDECIDED, AT_REST = Outcome.prediction_contradicted, Outcome.undecided, Outcome.finite_stationary_point
RISING = [20, 60, 90]
NONE_KEPT = changed(compositions(), ("instances.fate", Fate.between))
# No worse for the larger n, and moving away; twice as far for the larger T as for the larger n.
MIXED = changed(
    columns(), ("flow.misalignment", 0.25, 2), ("flow.halfway", 1e-4), ("descent.misalignment", 0.32, 4)
)  # fmt: skip
# Of two parametrisations the cells alternate.
BOTH = percentages([20, 60, 100], [30, 60, 95])
UNSETTLED = changed(plane(), ("flow descent.settled", False, np.s_[..., 0]))


def exceptions(outcome: Outcome, *trials: int) -> Table:
    """Of these instances in the first dimension."""
    return changed(percentages(RISING), ("ends.outcome", outcome, (0, list(trials))))


def bad(kind: str, column: str, place: Any, value: float) -> Table:
    """Figure 7 with one bad instance."""
    return changed(biases(), (f"{kind}.{column}", value, place))


ROWS = [
    # W, by flow and descent, then (K, Q), in each setting.
    row("fig1", plane(), "RH" * 8),
    # Another exponent than the predicted one of W; of (K, Q) none is predicted. Moving away, and not there.
    row("fig1", plane(1.0), ("OH" * 2 + "RH" * 2) * 2),
    row("fig1", plane(-0.5), "O" * 16),
    # A run that has not settled may still do so; one at rest, or on tokens that are not locally optimal, is outside.
    row("fig1", UNSETTLED, "O" * 16, inside=4, undecided=1),
    row("fig1", changed(UNSETTLED, ("flow descent.stationary", True, np.s_[..., 0])), ".*", inside=3, undecided=0),
    row("fig1", changed(plane(), ("flow descent.status", -1)), "N" * 16),
    row("fig4", ranks(), "HHHHH"),
    row("fig4", ranks(4), "OHOHO", contradicted=[1, 0, 1, 0, 1]),
    row("fig4", ranks(5), "OOOHO"),
    row("fig4", changed(ranks(), ("frobenius nuclear.outside", 1e-3)), "HHHOH"),
    # Neither solved nor proven to have no solution.
    row("fig4", changed(ranks(), ("frobenius nuclear.result", ProgramResult.inaccurate)), "OOOOO"),
    row("fig4", changed(ranks(), ("frobenius nuclear.result", ProgramResult.infeasible)), "NNNNN"),
    # Figures 2 and 5. (1.5 − 1)/4 more than 1 is above 1.1: both readings of Assumption B.1 agree.
    row("fig5", BOTH, "HHHRH" + "H" * 7),
    row("fig2", BOTH, "HHH"),
    # Margins of B.1 where the outcome is local: more frequent than global convergence.
    row("fig5", changed(percentages(RISING), ("ends.largest_margin", 1.0, 0)), ".*OHOHH"),
    row(
        "fig5",
        changed(percentages(RISING), ("ends.largest_margin", 1.0, 0), ("ends.mean_margin", 1.05, 0)),
        ".*",
        contradicted={-2: 1},
    ),
    row("fig5", changed(percentages(RISING), ("ends.optimal_program", ProgramResult.infeasible)), ".*OOHHN"),
    # Theorem 3 is about W.
    row("fig5", changed(BOTH, ("ends.outcome", AT_REST, (4, 7))), ".*O", contradicted={-1: 1}),
    row("fig5", changed(BOTH, ("ends.outcome", AT_REST, (5, 7))), ".*H"),
    row("fig2", exceptions(OTHER, 23, 41), ".O", contradicted={-1: 2}, inside={-1: 300}),
    row("fig2", exceptions(Outcome.infeasible_program, 23, 41), ".H"),
    row("fig2", changed(percentages(RISING), ("ends.outcome", AT_REST)), ".N"),
    # One that was not followed to its end is in the denominator; taken for exceptions, 20 of 300 are too many.
    row("fig2", exceptions(UNDECIDED, 41), ".H", inside={-1: 300}, undecided={-1: 1}),
    row("fig2", exceptions(UNDECIDED, 0, *range(41, 60)), ".O", inside={-1: 300}, undecided={-1: 20}),
    # Falling exactly like 1/log t; the instance outside the hypotheses is not among them.
    row("fig7", biases(), "HRRH", inside={1: 3}, outside={1: 1}),
    row("fig7", biases(1e-12), "HHHH"),
    row("fig7", bad("combined", "smallest", (0, 1), 0.7), "ORRH"),
    # No longer falling; nearer to the other program.
    row("fig7", bad("combined", "excess", (0, 0, 0), 0.1), "HORH"),
    row("fig7", bad("factored", "excess", (0, 1, 1), 0.1), "HROH"),
    row("fig7", bad("factored", "distance", (0, 3, 1), 0.5), "HRRO"),
    row("fig7", changed(biases(), ("combined factored.outcome", UNDECIDED, (0, 3))), "OOOO", undecided=[2, 1, 1, 2]),
    # A correlation that is still far from one is open.
    row("fig7", bad("factored", "distance", np.s_[:, :, 1], 0.11), "..O.", undecided={2: 3}),
    # Without locally optimal selections nothing is said.
    row(
        "fig7",
        changed(biases(), ("combined factored.outcome", AT_REST), ("combined factored.smallest", 0.4)),
        "ONNN",
        contradicted={0: 8},
    ),
    row("fig10", columns(), "RHHHHHHH"),
    row("fig10", columns(0.1), "ROHHHOHH"),
    # Falling is not enough: at 0.06 from W*mm nothing is reached.
    row("fig10", changed(columns(), ("flow.misalignment", 0.06, np.s_[1::2]), ("flow.halfway", 0.5)), "O.{7}"),
    row("fig10", MIXED, "OHOHHHHO"),
    # What has not settled is undecided; without two means there is nothing to compare.
    row("fig10", changed(MIXED, ("flow descent.settled", False)), "OONN" * 2),
    row("fig10", changed(MIXED, ("flow descent.settled", False), ("flow descent.rank", -1)), "N" * 8),
    # Figures 8 and 11: means, with the error of each; after them, of sequences with label 1.
    row("fig8", compositions(), "HHHHHHRH"),
    row("fig8", compositions((2e-3, 4e-2)), "OHHHOHRH"),
    row("fig8", compositions(one=1e-6), "HOHHHHRH"),
    row("fig8", compositions(slope=-1.0), "HHOHHHRH"),
    row("fig8", NONE_KEPT, "NNNNNHRN"),
    # Of order one half, and of none; one flow that spends its budget; one that goes elsewhere than descent.
    *(row("fig8", compositions(exponent=order), ".{5}HOH") for order in (0.5, 0.0)),
    row("fig8", changed(compositions(), ("flows.end", FlowEnd.budget_spent, (0, 0))), ".{5}OOH"),
    row("fig8", changed(compositions(), ("flows.distance", 0.5, (1, 2))), ".{5}ORH"),
    # Too few instances; no kept instance of one d has a solution of (Att-SVM), and stays in the denominator.
    row("fig8", changed(compositions(), ("instances.fate", Fate.between, np.s_[1, 2:])), "HHO.{5}"),
    row(
        "fig8",
        changed(compositions(), ("instances.one", np.nan, 0)),
        ".*",
        inside={1: 2},
        contradicted={1: 0},
        undecided={1: 1},
    ),
    row("fig11", compositions(), "HHH"),
    row("fig11", compositions((4e-2, 2e-3)), "HHO"),
    row("fig11", compositions((4e-2, 2e-2)), "HOO"),
    row("fig11", NONE_KEPT, "NNN"),
    # A mean that is above the limit by less than its errors decides nothing.
    row("fig11", compositions((4e-2, 9.6e-3)), ".O.", contradicted={1: 0}),
    row("conjecture", conjecture([BEST, LOCAL], [YES, NO], [YES, NO], [YES, NO]), "HHHHH"),
    row("conjecture", conjecture([LOCAL, BEST], [YES, NO], [YES, NO], [YES, NO]), "OO..."),
    # A path that was not followed to its end is neither proof nor counterexample.
    row("conjecture", conjecture([UNDECIDED, BEST], [YES, NO], [YES, NO], [YES, NO]), "O...."),
    row("conjecture", conjecture([BEST, BEST], [NO, NO], [YES, NO], [YES, NO]), "N...."),
    row("conjecture", conjecture([BEST], [YES], [YES], [NO]), "....O"),
    row("conjecture", conjecture([BEST], [YES], [YES], [OPEN]), "....O"),
    row("conjecture", conjecture([LOCAL], [YES], [NO], [NO]), "..O.."),
    # Where descent, which takes other steps, does go to W^mm, nothing has confirmed the flow.
    row("conjecture", conjecture([LOCAL], [YES], [YES], [YES], descent=[BEST]), "O...."),
    row("conjecture", conjecture([BEST], [YES], [NO], [YES], support=[YES]), "...O."),
    row(
        "factored", factored([LOCAL, UNDECIDED], [1e-9, 0.5], [2e-9, 0.4]), "OH", undecided={0: 1}, contradicted={0: 0}
    ),
    row("factored", factored([LOCAL, LOCAL], [1e-9, 1e-9], [2e-9, 2e-9]), "HH", undecided={0: 0}, contradicted={0: 0}),
    row(
        "factored",
        factored([LOCAL, CONTRADICTED], [1e-9, 0.3], [2e-9, 0.4]),
        "OH",
        undecided={0: 0},
        contradicted={0: 1},
    ),
    # A flow that claims 2e-9 where the program finds 1e-7.
    row("factored", factored([LOCAL, LOCAL], [1e-9, 1e-7], [2e-9, 2e-9]), "HO", undecided={0: 0}, contradicted={0: 0}),
    row("factored", factored([UNDECIDED], [0.5], [0.4]), "ON", undecided={0: 1}, contradicted={0: 0}),
    row("factored", factored([AT_REST], [0.5], [0.4]), "NN", undecided={0: 0}, contradicted={0: 0}),
    # Fewer columns than rows are a question of their own.
    row("factored", factored([LOCAL, CONTRADICTED], [1e-9, 0.3], [2e-9, 0.4], m=2), "NOH"),
]


@pytest.mark.parametrize(("name", "numbers", "verdicts", "counts"), ROWS)
def test_verdicts_follow_the_numbers(name: str, numbers: Table, verdicts: str, counts: dict[str, Any]) -> None:
    judge("tarzanagh2023", name, numbers, verdicts, counts)


def test_rates_are_those_of_the_numbers() -> None:
    rate = found("tarzanagh2023", "fig7", biases())[1].evidence.rate
    assert rate is not None and rate.fitted == pytest.approx(1.0)


def test_decorrelation_resolves_what_one_minus_a_cosine_does_not() -> None:
    target = np.diag([1.0, 0.0])[None]
    angle = 1e-10
    weights = 5.0 * np.array([[[[np.cos(angle), np.sin(angle)], [0.0, 0.0]]]])
    # 1 − cos(1e-10) = 5e-21, far below the spacing of numbers at one.
    np.testing.assert_allclose(bias_runs.decorrelation(weights, target), angle**2 / 2, rtol=1e-6)


@pytest.mark.parametrize(
    ("norm", "margin", "optimum", "excess"),
    [("frobenius", 2.0, 2.5, 0.0), ("nuclear", 2.0, 3.5, 0.0), ("nuclear", -1.0, 3.5, np.inf)],
)
def test_excess_is_zero_at_the_optimum_and_infinite_without_a_margin(
    norm: str, margin: float, optimum: float, excess: float
) -> None:
    weights = np.diag([3.0, 4.0])[None, None]
    assert bias_runs.excess(norm, weights, np.array([[margin]]), np.array([optimum]))[0, 0] == excess


def test_rows_are_interpolated_between_logarithms() -> None:
    times = np.array([[1.0, 3.0, 3.0]])
    values = np.array([[1e-2, 1e-4, 1e-4]])
    np.testing.assert_allclose(bias_runs.on_grid(np.array([2.0, 3.0]), times, values), [[1e-3, 1e-4]], rtol=1e-12)
