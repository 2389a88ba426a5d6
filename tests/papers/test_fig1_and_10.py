"""Figures 1 and 10: their verdicts by hand."""

import numpy as np

from jaxflow import papers
from jaxflow.papers.claims import Finding
from jaxflow.papers.table import Table
from jaxflow.papers.tarzanagh2023 import fig1
from jaxflow.papers.verdicts import Verdict


def made_up(misalignment: float, floor: float) -> Table:
    """Two values of n, two runs each; rank 2; m = 1 as given (a little more for the larger n), m = 2 aligned."""
    shape = (4, 2)
    runs = [
        Table(
            misalignment=np.repeat([[misalignment], [1e-3], [misalignment + 0.01], [1e-3]], 2, axis=1),
            floor=np.repeat([[floor], [0.0]] * 2, 2, axis=1),
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
    grid = Table(shapes=np.array([[2, 3], [3, 3]]), columns=np.array([1, 2]), d=np.asarray(4))
    return Table(grid=grid, flow=runs[0], descent=runs[1])


def test_verdicts_follow_the_numbers() -> None:
    rate, holds, open_ = Verdict.holds_at_this_rate, Verdict.holds, Verdict.not_settled

    def verdicts(numbers: Table) -> list[Verdict]:
        return [found.verdict for found in papers.find_figure("tarzanagh2023", "fig10").find(numbers)[0]]

    assert verdicts(made_up(0.3, 0.2)) == [rate, holds, holds, holds, holds, holds]
    assert verdicts(made_up(0.1, 0.2)) == [rate, open_, holds, holds, open_, holds]
    # Falling is not enough: at 0.06 from W*mm nothing is reached.
    far = made_up(0.3, 0.2)
    far.flow.misalignment[1::2], far.flow.halfway[:] = 0.06, 0.5
    assert verdicts(far)[0] == open_
    numbers = made_up(0.3, 0.2)
    numbers.flow.misalignment[2] = 0.25  # no worse for the larger n
    numbers.flow.halfway[:] = 1e-4  # and moving away
    assert verdicts(numbers) == [open_, holds, open_, holds, holds, holds]
    for runs in (numbers.flow, numbers.descent):
        runs.settled[:] = False
    # What has not settled is undecided; without two means there is nothing to compare.
    assert verdicts(numbers) == [open_, open_, Verdict.outside_hypotheses] * 2
    for runs in (numbers.flow, numbers.descent):
        runs.rank[:] = -1
    assert verdicts(numbers) == [Verdict.outside_hypotheses] * 6


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


def test_verdicts_on_the_plane_follow_the_numbers() -> None:
    def found(numbers: Table) -> list[Finding]:
        return papers.find_figure("tarzanagh2023", "fig1").find(numbers)[0]

    def verdicts(numbers: Table) -> list[Verdict]:
        return [finding.verdict for finding in found(numbers)]

    rate, holds, open_ = Verdict.holds_at_this_rate, Verdict.holds, Verdict.not_settled
    # W, by flow and descent, then (K, Q), in each setting.
    assert verdicts(plane_numbers(2.0)) == [rate, holds] * 8
    # Another exponent than the predicted one of W; of (K, Q) none is predicted.
    assert verdicts(plane_numbers(1.0)) == ([open_, holds] * 2 + [rate, holds] * 2) * 2
    # Moving away, and not there.
    assert verdicts(plane_numbers(-0.5)) == [open_] * 16
    # A run that has not settled may still do so; one at rest, or on tokens that are not locally optimal, is outside.
    late = found(plane_numbers(2.0, settled=False))
    assert {finding.verdict for finding in late} == {open_}
    assert {(finding.evidence.inside, finding.evidence.undecided) for finding in late} == {(4, 1)}
    rest = found(plane_numbers(2.0, settled=False, stationary=True))
    assert {(finding.evidence.inside, finding.evidence.undecided) for finding in rest} == {(3, 0)}
    assert verdicts(plane_numbers(2.0, status=-1)) == [Verdict.outside_hypotheses] * 16
