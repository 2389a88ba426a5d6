"""Figures 1, 4, 7 and 10, section 5.2's conjecture and section 9's question: their verdicts by hand."""

from typing import Any

import numpy as np
import pytest

from jaxflow._core import Outcome
from jaxflow.margin import AssumptionStatus, ProgramResult
from jaxflow.papers.table import Table
from jaxflow.papers.tarzanagh2023 import bias_runs, fig1
from tests.papers.findings import found, verdicts

YES, NO, OPEN = AssumptionStatus.holds, AssumptionStatus.violated, AssumptionStatus.undecided
BEST, LOCAL, OTHER = Outcome.globally_optimal, Outcome.locally_optimal, Outcome.not_locally_optimal


def said(name: str, numbers: Table) -> str:
    return verdicts("tarzanagh2023", name, numbers)


def counts(name: str, numbers: Table) -> list[tuple[int, int]]:
    """Instances inside and undecided, of every statement."""
    return [(one.evidence.inside, one.evidence.undecided) for one in found("tarzanagh2023", name, numbers)]


def plane_numbers(
    power: float, status: int = fig1.LOCALLY_OPTIMAL[0], settled: bool = True, stationary: bool = False
) -> Table:
    """In both settings for both kinds both ways four runs whose 1 − corr falls like this power of the length, from 1e-2
    at a length of 10 to one of 1,000; `settled` and `stationary` are of the first of the four."""
    lengths, shape = np.linspace(np.log(10.0), np.log(1000.0), 21), (2, 2, 4)
    distances = np.tile(1e-2 * np.exp(-power * (lengths - lengths[0])), (*shape, 1))
    end, first = distances[..., -1], np.broadcast_to(np.arange(4) == 0, shape)
    runs = Table(
        tokens=np.zeros((*shape, 2, 5, 2)),
        visible=np.ones((*shape, 2, 5), bool),
        optimal=np.ones((*shape, 2, 5), bool),
        queries=np.zeros((*shape, 2, 2)),
        path=np.zeros((*shape, 21, 2, 2)),
        reached=np.ones((*shape, 21), bool),
        log_length=np.tile(lengths, (*shape, 1)),
        distances=distances,
        own=end,
        other=end + 0.1,
        frobenius=np.zeros((*shape, 2, 2)),
        nuclear=np.zeros((*shape, 2, 2)),
        selection=np.ones((*shape, 2, 5), bool),
        settled=~first | settled,
        stationary=first & stationary,
        status=np.full(shape, status),
        log_time=np.full(shape, 30.0),
    )
    return Table(flow=runs, descent=runs)


def test_figure_1() -> None:
    # W, by flow and descent, then (K, Q), in each setting.
    assert said("fig1", plane_numbers(2.0)) == "RH" * 8
    # Another exponent than the predicted one of W; of (K, Q) none is predicted.
    assert said("fig1", plane_numbers(1.0)) == ("OH" * 2 + "RH" * 2) * 2
    # Moving away, and not there.
    assert said("fig1", plane_numbers(-0.5)) == "O" * 16
    # A run that has not settled may still do so; one at rest, or on tokens that are not locally optimal, is outside.
    late = plane_numbers(2.0, settled=False)
    assert said("fig1", late) == "O" * 16 and set(counts("fig1", late)) == {(4, 1)}
    assert set(counts("fig1", plane_numbers(2.0, settled=False, stationary=True))) == {(3, 0)}
    assert said("fig1", plane_numbers(2.0, status=-1)) == "N" * 16


def rank_numbers(rank: int, outside: float = 0.0, result: ProgramResult = ProgramResult.optimal) -> Table:
    """One instance with n = T = 3, d = 4."""

    def program(rank: int) -> Table:
        one = np.ones((1, 1))
        count = np.full(one.shape, rank)
        code = np.full(one.shape, result.value)
        return Table(result=code, rank=count, relative_rank=count, gap=0.0 * one, outside=outside * one)

    grid = Table(shapes=np.array([[3, 3]]), dimensions=np.array([4]))
    return Table(grid=grid, frobenius=program(3), nuclear=program(rank))


def test_figure_4() -> None:
    assert said("fig4", rank_numbers(2)) == "HHHHH"
    assert said("fig4", rank_numbers(4)) == "OHOHO"
    assert said("fig4", rank_numbers(5)) == "OOOHO"
    assert said("fig4", rank_numbers(2, outside=1e-3)) == "HHHOH"
    found_4 = found("tarzanagh2023", "fig4", rank_numbers(4))
    assert [one.evidence.contradicted for one in found_4] == [1, 0, 1, 0, 1]
    # Neither solved nor proven to have no solution.
    assert said("fig4", rank_numbers(2, result=ProgramResult.inaccurate)) == "OOOOO"
    assert said("fig4", rank_numbers(2, result=ProgramResult.infeasible)) == "NNNNN"


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


def bias_numbers(last: float = 1e-4) -> Table:
    """Four instances whose distance falls like 1/log t; the fourth selected badly."""
    times = np.geomspace(1.0, 1e3, 31)
    falling, other = np.tile(last * times[-1] / times, (1, 4, 1)), np.full((1, 4, 31), 0.2)

    def runs(own: int) -> Table:
        distance = np.stack([other, falling] if own else [falling, other], axis=2)
        return Table(
            outcome=np.array([[BEST, BEST, LOCAL, OTHER]], np.uint8),
            attention=np.ones((1, 4, 31)),
            smallest=np.ones((1, 4)),
            distance=distance,
            excess=distance.copy(),
            gap=np.full((1, 4, 2), 1e-15),
            descent_log_time=np.tile(times[:5], (1, 4, 1)),
            descent_attention=np.ones((1, 4, 5)),
            descent_distance=distance[..., :5],
            agrees=np.ones((1, 4), bool),
        )

    axes = Table(shape=np.array([6, 8, 10]), log_time=np.stack([times, times]))
    return Table(axes=axes, combined=runs(0), factored=runs(1))


def test_figure_7() -> None:
    assert said("fig7", bias_numbers()) == "HRRH"
    one = found("tarzanagh2023", "fig7", bias_numbers())[1]
    # Falling exactly like 1/log t; the instance outside the hypotheses is not among them.
    assert one.evidence.rate is not None and one.evidence.rate.fitted == pytest.approx(1.0)
    assert (one.evidence.inside, one.outside) == (3, 1)
    assert said("fig7", bias_numbers(last=1e-12)) == "HHHH"


@pytest.mark.parametrize(
    ("kind", "field", "place", "value", "verdicts"),
    [
        ("combined", "smallest", (0, 1), 0.7, "ORRH"),
        ("combined", "excess", (0, 0, 0), 0.1, "HORH"),  # no longer falling
        ("factored", "excess", (0, 1, 1), 0.1, "HROH"),
        ("factored", "distance", (0, 3, 1), 0.5, "HRRO"),  # nearer to the other program
    ],
)
def test_one_bad_instance_settles_nothing(kind: str, field: str, place: Any, value: float, verdicts: str) -> None:
    data = bias_numbers()
    getattr(getattr(data, kind), field)[place] = value
    assert said("fig7", data) == verdicts


def test_what_is_undecided_or_outside_is_counted() -> None:
    data = bias_numbers()
    for runs in (data.combined, data.factored):
        runs.outcome[0, 3] = Outcome.undecided
    assert said("fig7", data) == "OOOO" and [open_ for _, open_ in counts("fig7", data)] == [2, 1, 1, 2]
    # A correlation that is still far from one is open.
    data = bias_numbers()
    data.factored.distance[:, :, 1] = 0.11
    assert said("fig7", data)[2] == "O" and counts("fig7", data)[2][1] == 3
    # Without locally optimal selections nothing is said.
    for runs in (data.combined, data.factored):
        runs.outcome[:] = Outcome.finite_stationary_point
        runs.smallest[:] = 0.4
    assert said("fig7", data) == "ONNN"
    assert found("tarzanagh2023", "fig7", data)[0].evidence.contradicted == 8


def column_numbers(misalignment: float, floor: float) -> Table:
    """Two values of n and T, two runs each; rank 2; m = 1 as given (a little more for the larger n), m = 2 aligned."""
    shape = (6, 2)
    runs = [
        Table(
            misalignment=np.repeat([misalignment, 2e-3, misalignment + 0.01, 1e-3, misalignment, 1e-3], 2).reshape(
                shape
            ),
            floor=np.repeat([[floor], [0.0]] * 3, 2, axis=1),
            rank=np.full(shape, 2),
            result=np.ones(shape, int),
            settled=np.ones(shape, bool),
            good=np.ones(shape, bool),
            status=np.ones(shape, int),
            log_time=np.full(shape, 30.0),
            halfway=np.full(shape, 1e-2),
            halfway_log_time=np.full(shape, 15.0),
        )
        for _ in range(2)
    ]
    grid = Table(shapes=np.array([[2, 3], [3, 3], [2, 6]]), columns=np.array([1, 2]), d=np.asarray(4))
    return Table(grid=grid, flow=runs[0], descent=runs[1])


def test_figure_10() -> None:
    assert said("fig10", column_numbers(0.3, 0.2)) == "RHHHHHHH"
    assert said("fig10", column_numbers(0.1, 0.2)) == "ROHHHOHH"
    # Falling is not enough: at 0.06 from W*mm nothing is reached.
    far = column_numbers(0.3, 0.2)
    far.flow.misalignment[1::2], far.flow.halfway[:] = 0.06, 0.5
    assert said("fig10", far)[0] == "O"
    numbers = column_numbers(0.3, 0.2)
    numbers.flow.misalignment[2] = 0.25  # no worse for the larger n
    numbers.flow.halfway[:] = 1e-4  # and moving away
    # Twice as far for the larger T as for the larger n.
    numbers.descent.misalignment[4] = 0.32
    assert said("fig10", numbers) == "OHOHHHHO"
    # What has not settled is undecided; without two means there is nothing to compare.
    for runs in (numbers.flow, numbers.descent):
        runs.settled[:] = False
    assert said("fig10", numbers) == "OONN" * 2
    for runs in (numbers.flow, numbers.descent):
        runs.rank[:] = -1
    assert said("fig10", numbers) == "N" * 8


def conjecture_numbers(flow: list[int], b1: list[int], d: list[int], unique: list[int], **others: list[int]) -> Table:
    columns = {"outcome": flow, "descent": flow, "B1": b1, "D": d, "support": d, "unique": unique}
    columns |= {"locally_optimal": [1] * len(flow), **others}
    instances = {name: np.array([[int(x) for x in values]]) for name, values in columns.items()}
    return Table(grid=Table(d=np.array([7]), n=np.asarray(5), T=np.asarray(5)), instances=Table(instances))


@pytest.mark.parametrize(
    ("columns", "others", "place", "verdict"),
    [
        (([BEST, LOCAL], [YES, NO], [YES, NO], [YES, NO]), {}, slice(None), "HHHHH"),
        (([LOCAL, BEST], [YES, NO], [YES, NO], [YES, NO]), {}, slice(2), "OO"),
        # A path that was not followed to its end is neither proof nor counterexample.
        (([Outcome.undecided, BEST], [YES, NO], [YES, NO], [YES, NO]), {}, 0, "O"),
        (([BEST, BEST], [NO, NO], [YES, NO], [YES, NO]), {}, 0, "N"),
        (([BEST], [YES], [YES], [NO]), {}, -1, "O"),
        (([BEST], [YES], [YES], [OPEN]), {}, -1, "O"),
        (([LOCAL], [YES], [NO], [NO]), {}, 2, "O"),
        # Where descent, which takes other steps, does go to W^mm, nothing has confirmed the flow.
        (([LOCAL], [YES], [YES], [YES]), {"descent": [BEST]}, 0, "O"),
        (([BEST], [YES], [NO], [YES]), {"support": [YES]}, 3, "O"),
    ],
)
def test_the_conjecture(columns: Any, others: dict[str, Any], place: Any, verdict: str) -> None:
    assert said("conjecture", conjecture_numbers(*columns, **others))[place] == verdict


def factored_numbers(outcomes: list[Outcome], excess: list[float], own: list[float], m: int = 5) -> Table:
    n = len(outcomes)
    return Table(
        pairs=Table(d=np.array([5]), m=np.array([m]), seed=np.asarray(0)),
        ends=Table(
            outcome=np.array([[int(x) for x in outcomes]]),
            excess=np.array([excess]),
            flow_gap=np.array([own]),
            program_gap=np.full((1, n), 1e-15),
            num_steps=np.full((1, n), 60),
            rounds=np.ones((1, n), int),
        ),
    )


CONTRADICTED, UNDECIDED = Outcome.prediction_contradicted, Outcome.undecided


@pytest.mark.parametrize(
    ("outcomes", "excess", "own", "verdict"),
    [
        ([LOCAL, UNDECIDED], [1e-9, 0.5], [2e-9, 0.4], "OH"),
        ([LOCAL, LOCAL], [1e-9, 1e-9], [2e-9, 2e-9], "HH"),
        ([LOCAL, CONTRADICTED], [1e-9, 0.3], [2e-9, 0.4], "OH"),
        # A flow that claims 2e-9 where the program finds 1e-7.
        ([LOCAL, LOCAL], [1e-9, 1e-7], [2e-9, 2e-9], "HO"),
        ([UNDECIDED], [0.5], [0.4], "ON"),
        ([Outcome.finite_stationary_point], [0.5], [0.4], "NN"),
    ],
)
def test_the_question_of_section_9(outcomes: Any, excess: list[float], own: list[float], verdict: str) -> None:
    numbers = factored_numbers(outcomes, excess, own)
    assert said("factored", numbers) == verdict
    open_, wrong = outcomes.count(UNDECIDED), outcomes.count(CONTRADICTED)
    evidence = found("tarzanagh2023", "factored", numbers)[0].evidence
    assert (evidence.undecided, evidence.contradicted) == (open_, wrong)


def test_fewer_columns_than_rows_are_a_question_of_their_own() -> None:
    numbers = factored_numbers([LOCAL, CONTRADICTED], [1e-9, 0.3], [2e-9, 0.4], m=2)
    assert said("factored", numbers) == "NOH"
