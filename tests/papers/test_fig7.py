"""Figure 7: its arithmetic and its verdicts by hand."""

from typing import Any

import numpy as np
import pytest

from jaxflow import papers
from jaxflow._core import Outcome
from jaxflow.papers.claims import Finding
from jaxflow.papers.table import Table
from jaxflow.papers.tarzanagh2023 import bias_runs
from jaxflow.papers.verdicts import Verdict


def test_decorrelation_resolves_what_one_minus_a_cosine_does_not() -> None:
    target = np.diag([1.0, 0.0])[None]
    angle = 1e-10
    weights = 5.0 * np.array([[[[np.cos(angle), np.sin(angle)], [0.0, 0.0]]]])
    # 1 − cos(1e-10) = 5e-21, far below the spacing of numbers at one.
    np.testing.assert_allclose(bias_runs.decorrelation(weights, target), angle**2 / 2, rtol=1e-6)


def test_excess_is_zero_at_the_optimum_and_infinite_without_a_margin() -> None:
    weights = np.diag([3.0, 4.0])[None, None]
    assert bias_runs.excess("frobenius", weights, np.array([[2.0]]), np.array([2.5]))[0, 0] == 0.0
    assert bias_runs.excess("nuclear", weights, np.array([[2.0]]), np.array([3.5]))[0, 0] == 0.0
    assert bias_runs.excess("nuclear", weights, np.array([[-1.0]]), np.array([3.5]))[0, 0] == np.inf


def test_rows_are_interpolated_between_logarithms() -> None:
    times = np.array([[1.0, 3.0, 3.0]])
    values = np.array([[1e-2, 1e-4, 1e-4]])
    np.testing.assert_allclose(bias_runs.on_grid(np.array([2.0, 3.0]), times, values), [[1e-3, 1e-4]], rtol=1e-12)


def numbers(last: float = 1e-4) -> Table:
    """Four instances whose distance falls like 1/log t; the fourth selected badly."""
    times = np.geomspace(1.0, 1e3, 31)
    falling, other = np.tile(last * times[-1] / times, (1, 4, 1)), np.full((1, 4, 31), 0.2)

    def runs(own: int) -> Table:
        distance = np.stack([other, falling] if own else [falling, other], axis=2)
        codes = [Outcome.globally_optimal] * 2 + [Outcome.locally_optimal, Outcome.not_locally_optimal]
        return Table(
            outcome=np.array([codes], np.uint8),
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


def found(of: Table) -> list[Finding]:
    return papers.find_figure("tarzanagh2023", "fig7").find(of)[0]


def test_verdicts_where_all_is_well() -> None:
    findings = found(numbers())
    rate = Verdict.holds_at_this_rate
    assert [finding.verdict for finding in findings] == [Verdict.holds, rate, rate, Verdict.holds]
    # Falling exactly like 1/log t; the instance outside the hypotheses is not among them.
    assert findings[1].evidence.rate is not None and findings[1].evidence.rate.fitted == pytest.approx(1.0)
    assert (findings[1].evidence.inside, findings[1].outside) == (3, 1)
    assert found(numbers(last=1e-12))[1].verdict is Verdict.holds


@pytest.mark.parametrize(
    ("kind", "field", "place", "value", "finding"),
    [
        ("combined", "smallest", (0, 1), 0.7, 0),
        ("combined", "excess", (0, 0, 0), 0.1, 1),  # no longer falling
        ("factored", "excess", (0, 1, 1), 0.1, 2),
        ("factored", "distance", (0, 3, 1), 0.5, 3),  # nearer to the other program
    ],
)
def test_one_bad_instance_settles_nothing(kind: str, field: str, place: Any, value: float, finding: int) -> None:
    data = numbers()
    getattr(getattr(data, kind), field)[place] = value
    verdicts = [one.verdict for one in found(data)]
    assert verdicts[finding] is Verdict.not_settled
    assert Verdict.not_settled not in verdicts[:finding] + verdicts[finding + 1 :]


def test_what_is_undecided_or_outside_is_counted() -> None:
    data = numbers()
    for runs in (data.combined, data.factored):
        runs.outcome[0, 3] = Outcome.undecided
    findings = found(data)
    assert {finding.verdict for finding in findings} == {Verdict.not_settled}
    assert [finding.evidence.undecided for finding in findings] == [2, 1, 1, 2]
    # A correlation that is still far from one is open.
    data = numbers()
    data.factored.distance[:, :, 1] = 0.11
    finding = found(data)[2]
    assert finding.verdict is Verdict.not_settled and finding.evidence.undecided == 3
    # Without locally optimal selections nothing is said.
    for runs in (data.combined, data.factored):
        runs.outcome[:] = Outcome.finite_stationary_point
        runs.smallest[:] = 0.4
    findings = found(data)
    assert findings[0].verdict is Verdict.not_settled and findings[0].evidence.contradicted == 8
    assert {finding.verdict for finding in findings[1:]} == {Verdict.outside_hypotheses}
