"""Made-up numbers for every statement of tarzanagh2023: that confirm it, that violate it, or that decide nothing."""

from typing import Any

import numpy as np

from jaxflow._core import Outcome, SelectionStatus
from jaxflow.margin import ProgramResult
from jaxflow.papers.tarzanagh2023 import concave_ends, fig9, fig12
from jaxflow.papers.tarzanagh2023.composition import FlowEnd
from jaxflow.papers.tarzanagh2023.verify import (
    assumptions,
    cone_lemmas,
    equal_scores,
    hypotheses,
    inequalities,
    local_convergence,
    local_paths,
    paths,
    sequence_paths,
    smooth,
)
from jaxflow.papers.tarzanagh2023.verify import cones as cone_checks
from jaxflow.papers.tarzanagh2023.verify import feasibility as feasible
from jaxflow.papers.tarzanagh2023.verify import sequences as sequence_checks
from jaxflow.papers.tarzanagh2023.verify.nearly_equal import NearlyEqualNumbers
from tests.papers import (
    test_composition,
    test_conjecture,
    test_factored,
    test_fig1_and_10,
    test_fig7,
    test_percentages,
    test_ranks,
    test_verify_paths,
)
from tests.papers.made_up.cross_check import programs

OPTIMAL, INFEASIBLE = ProgramResult.optimal.value, ProgramResult.infeasible.value
GLOBAL = SelectionStatus.global_.value

Data = dict[str, Any]


def plane_data() -> list[Any]:
    numbers = test_fig1_and_10.plane_numbers
    return [numbers(2.0), numbers(-0.5), numbers(2.0, status=-1)]


def columns_data() -> list[Any]:
    made_up = test_fig1_and_10.made_up
    late, outside = made_up(0.1, 0.2), made_up(0.3, 0.2)
    for runs in (late.flow, late.descent):
        runs.misalignment[:] = np.flip(runs.misalignment, axis=0)
    late.flow.halfway[:] = 1e-4
    for runs in (outside.flow, outside.descent):
        runs.rank[:] = -1
    return [made_up(0.3, 0.2), late, outside]


def bars(shares: list[int], *outcomes: Outcome, names: tuple[str, ...] = ("W", "KQ")) -> Data:
    data = test_percentages.made_up({name: shares for name in names})
    for number, outcome in enumerate(outcomes):
        data["outcome"][0, :, :, number] = outcome
    return data


def figure2() -> list[Any]:
    typed = test_percentages.typed
    return [
        typed(bars([20, 60, 90], names=("W",))),
        typed(bars([90, 50, 10], Outcome.not_locally_optimal, names=("W",))),
    ]


def figure5() -> list[Any]:
    well = bars([20, 60, 100])
    rare = bars([90, 50, 10], Outcome.not_locally_optimal, Outcome.finite_stationary_point)
    rare["largest_margin"] = np.where(np.arange(3)[:, None] > 0, rare["largest_margin"], 1.0)
    rare["mean_margin"] = np.where(np.arange(3)[:, None] > 0, rare["mean_margin"], 1.0)
    return [test_percentages.typed(well), test_percentages.typed(rare)]


def figure6() -> list[Any]:
    def data(*shares: list[int]) -> Any:
        cells = [bars(one, *([Outcome.not_locally_optimal] if one[0] > one[-1] else [])) for one in shares]
        found = {name: cells[0][name] for name in ("d", "parametrization", "score_gap")}
        found |= {"n": np.array([5, 10, 5]), "T": np.array([5, 5, 10]), "accepted": np.full((3, 3), 0.8)}
        found |= {name: np.concatenate([cell[name] for cell in cells]) for name in ("outcome", "program_gap")}
        return test_percentages.typed(found)

    return [data([60, 80, 100], [20, 40, 100], [10, 30, 100]), data([90, 50, 10], [95, 90, 80], [99, 95, 90])]


def figure7() -> list[Any]:
    good, bad = test_fig7.numbers(), test_fig7.numbers()
    for runs in bad:
        runs.smallest[:], runs.distance[:] = 0.5, 0.3
    return [good, bad]


def composition() -> list[Any]:
    made_up = test_composition.made_up
    other, spent = made_up((2e-3, 4e-2), slope=-1.0, one=1e-6), made_up(exponent=0.5)
    other.instances.log_masked[:] = np.flip(other.instances.log_masked, axis=0)
    spent.flows.end[:] = FlowEnd.budget_spent
    return [made_up(), other, made_up((4e-2, 2e-2)), test_composition.none_kept(), spent]


def conjecture() -> list[Any]:
    best, local = Outcome.globally_optimal, Outcome.locally_optimal
    yes, no, unclear = test_conjecture.YES, test_conjecture.NO, test_conjecture.OPEN
    made_up = test_conjecture.made_up
    implied = made_up([local], [yes], [no], [yes], support=[yes])
    return [made_up([best], [yes], [yes], [yes]), made_up([local], [yes], [yes], [unclear]), implied]


def factored() -> list[Any]:
    made_up = test_factored.made_up
    good, other = Outcome.locally_optimal, Outcome.prediction_contradicted
    return [made_up([good] * 2, [1e-9] * 2, [2e-9] * 2), made_up([good, other], [1e-7, 0.3], [2e-9, 0.4])]


def ranks_figure() -> list[Any]:
    made_up = test_ranks.made_up
    return [made_up(2), made_up(5), made_up(2, outside=1e-3)]


def ranks_check() -> list[Any]:
    return [
        test_ranks.made_up(2),
        test_ranks.made_up(2, outside=1e-3),
        test_ranks.made_up(2, result=ProgramResult.infeasible),
    ]


def tarzanagh_assumptions() -> list[Any]:
    def numbers(exact: bool, push: float, gap: float) -> Any:
        shape = (len(assumptions.DIMENSIONS), 2)
        largest = np.full(shape, 1.0 if exact else 2.0)
        result, average = np.full(shape, OPTIMAL), np.ones(shape)
        return assumptions.AssumptionNumbers(
            assumptions.Support(result, np.full(shape, exact), average, largest, np.full(shape, push)),
            assumptions.Holds(np.ones((2, 2), bool)),
            test_verify_paths.ends(np.ones((2, 2), bool), gap),
        )

    return [numbers(True, -0.1, 1e-12), numbers(False, -0.1, 1.0), numbers(True, 0.1, 1.0)]


def cones() -> list[Any]:
    def numbers(depth: float) -> Any:
        local, other = SelectionStatus.local.value, SelectionStatus.not_local.value
        choices = cone_checks.Choices(
            status=np.array([local] * 4 + [other]),
            empty=np.array([False, True, True, True, False]),
            near=np.zeros(5, bool),
            depth=np.array([depth] * 4 + [-depth]),
            d=np.array([4, 4, 6, 6, 4]),
        )
        return cone_checks.ConeNumbers(choices)

    return [numbers(0.2), numbers(-0.2)]


def equal_cells() -> list[Any]:
    def numbers(selected: bool, gap: float, attention: float) -> Any:
        more = {"target_attention": attention, "misaligned": 1e-12 if selected else 0.5}
        flow, cells = (test_verify_paths.ends(np.full(shape, selected), gap, **more) for shape in ((1,), (6, 1)))
        one = {"score_gap": 0.1, "score_spread": 0.0, "optimal_tokens": 1, "program_result": OPTIMAL}
        one |= {"program_gap": 1e-16, "steps": 100, "rate": 0.1, "attention": np.full((2, 2), attention)}
        one |= {"misaligned": 0.5, "norm": 8.0}
        explicit = equal_scores.Explicit(**{name: np.asarray(value) for name, value in one.items()})
        return equal_scores.EqualNumbers(explicit, flow, cells)

    return [numbers(True, 1e-12, 1.0), numbers(False, 1e-12, 1e-30), numbers(False, 1.0, 0.5)]


def feasibility() -> list[Any]:
    def numbers(result: int) -> Any:
        shape = (2, 3, 5)
        sizes = (np.full(2, 3), np.full(2, 3), np.full(2, 3), np.array([0, 1]))
        programs = feasible.Programs(
            *sizes,
            np.full(shape, result),
            np.full(shape, 1e-15),
            np.full(shape, result == OPTIMAL),
            np.full(shape, 0.1),
        )
        return feasible.FeasibilityNumbers(programs)

    return [numbers(OPTIMAL), numbers(INFEASIBLE), numbers(ProgramResult.budget_spent.value)]


def hypotheses_data() -> list[Any]:
    def numbers(good: bool) -> Any:
        off, shape = 0.0 if good else 2.0, (len(hypotheses.DIMENSIONS), 2)
        yes, no = np.ones(shape, bool), np.zeros(shape, bool)
        some = yes if good else no
        return hypotheses.HypothesisNumbers(
            hypotheses.Slopes(np.full((3, 4), off), np.full((3, 4), off), np.full((3, 4), off - 1.0)),
            hypotheses.Equal(np.full(2, off), np.ones(2), np.full(2, OPTIMAL)),
            hypotheses.Support(some, yes, no, np.full(shape, int(not good)), no),
            hypotheses.TopScores(np.full((len(hypotheses.HEADS), 2), -1.0 if good else 1.0)),
        )

    return [numbers(True), numbers(False)]


def inequalities_data() -> list[Any]:
    lemma10 = np.asarray(inequalities._lemma10())

    def numbers(sign: float, far: float, ratio: np.ndarray) -> Any:
        two = np.ones(2)
        limit = 0.0 if sign > 0 else 1.0
        return inequalities.InequalityNumbers(
            inequalities.Gradients(np.full(2, OPTIMAL), sign * two, limit * two, -sign * two, far * two),
            inequalities.Concave(np.full(2, 2 if sign > 0 else 1), np.full(2, 3), np.zeros(2)),
            inequalities.Centred(-sign * two),
            inequalities.Explicit(ratio),
        )

    return [numbers(1.0, -1.0, np.ones(4)), numbers(-1.0, -1e-20, lemma10)]


def local_convergence_data() -> list[Any]:
    def numbers(selected: bool, certified: bool, descends: bool = True) -> Any:
        ends = np.array([selected, selected and descends])[None, :, None] & np.ones((2, 2, 3), bool)
        plain = np.ones((2, 3))
        runs = local_convergence.Runs(
            reached=ends & certified,
            left=~ends & certified,
            stationary=np.zeros_like(ends),
            misaligned=np.where(ends, 1e-12, 0.4),
            flow_gap=np.full(ends.shape, 1e-12 if certified else 1.0),
            rate=0.1 * plain,
            moved=1e-6 * plain,
            near_first=1e-4 * plain,
            near_last=1e-5 * plain,
            attention=plain,
            empty=plain < 0,
            mu=1e-4 * plain,
            steps=np.array([100, 100]),
        )
        return local_convergence.ConvergenceNumbers(runs)

    return [numbers(True, True), numbers(False, True), numbers(True, False), numbers(True, True, descends=False)]


def local_paths_data() -> list[Any]:
    def numbers(power: float, inside: bool = True) -> Any:
        radii = local_paths.GROWTH ** np.arange(local_paths.LEVELS)
        paths = test_verify_paths.made_up([radii**-power] * 3, radii, inside=np.full(3, inside))
        return test_verify_paths.local_numbers(paths)

    return [numbers(1.0), numbers(0.1), numbers(1.0, inside=False)]


def nearly_equal_data() -> list[Any]:
    ends = test_verify_paths.ends

    def numbers(selected: bool, gap: float) -> Any:
        return NearlyEqualNumbers(*[ends(np.full((4, 2), selected), gap)] * 2, ends([selected] * 2, gap))

    return [numbers(True, 1e-12), numbers(False, 1e-12), numbers(False, 1.0)]


def cone_lemmas_data() -> list[Any]:
    def numbers(ratios: list[float], push: float, least: float) -> Any:
        yes, one, at = np.ones(4, bool), np.ones(4), np.ones((4, 4))
        optimal = cone_lemmas.Cone(yes, ~yes, push * at, 1.0 + ratios * at, 0.5 * at, 2.0 * at, one, one)
        choices = optimal._replace(empty=np.array([False, False, False, True]))
        local = cone_lemmas.Cone(*(np.stack([x] * 2) for x in choices))
        return cone_lemmas.ConeLemmaNumbers(optimal, local, cone_lemmas.Ranks(np.full(2, least), np.ones(2)))

    return [numbers([0.64, 0.16, 0.04, 0.01], 1.0, 1.0), numbers([0.6] * 4, -1.0, 0.0)]


def descents_data() -> list[Any]:
    grown, descended = test_verify_paths.grown, test_verify_paths.descended
    slow = grown([1e-2, 1e-3, 9e-4])
    bad = descended(slow, ratio=np.full((2, 2), 60.0), push=-np.ones((2, 2)))
    return [descended(), bad._replace(flows=test_verify_paths.ends(np.zeros((2, 3, 2), bool)))]


def concave_runs(good: bool, low: float, moved: list[float], sizes: list[int], lam: list[float]) -> Any:
    """What figures 9 and 12 share: three penalties or bounds, four instances, ten tokens."""
    shape = (len(sizes), 4)
    size = np.broadcast_to(np.array(sizes)[:, None], shape)
    penalty = np.broadcast_to(np.array(lam)[:, None], shape)
    scores = np.tile(np.linspace(0.0, -1.0, 10), (*shape, 1))
    targets = concave_ends.Targets(penalty, scores, size, np.zeros(shape, bool))
    ends = concave_ends.Ends(
        attention=np.where(np.arange(10) < size[..., None], 1.0, 0.0),
        good=np.ones(shape, bool),
        direction=np.ones(shape),
        # More tokens, worse predicted: or the other way round.
        combined=1.0 - (size if good else size[::-1]) / 1000.0 - low,
        spanned=np.ones(shape),
        solved=np.ones(shape, bool),
    )
    flow = concave_ends.Flows(
        **ends._asdict(),
        target=ends.attention,
        error=np.full(shape, 0.0 if good else 1.0),
        error_early=np.zeros(shape),
        late=np.zeros(shape, bool),
        length=np.ones(shape),
        moved=1.0 - np.tile(moved, (*shape, 1)),
    )
    return targets, flow, ends


def figure9() -> list[Any]:
    # With k of ten tokens the motion aligns like t^(−k/5): from 1e-3, over eight units of log t.
    falling = [1e-3, 1e-3 * np.exp(-8.0 * 2.0 * 5 / 10)]
    lambdas = [0.0, 1.0, 2.5]
    well = fig9.PenaltyNumbers(*concave_runs(True, 0.0, falling, [1, 5, 10], lambdas))
    # As many tokens for every penalty, so that one rate is that of all.
    even = fig9.PenaltyNumbers(*concave_runs(True, 0.0, falling, [5, 5, 5], lambdas))
    bad = fig9.PenaltyNumbers(*concave_runs(False, 0.5, [1e-3, 1e-3], [9, 5, 4], lambdas))
    # Scores so far apart that no penalty of these takes all tokens.
    return [well, even, bad._replace(targets=bad.targets._replace(scores=100.0 * bad.targets.scores))]


def figure12() -> list[Any]:
    def numbers(good: bool, sizes: list[int]) -> Any:
        size = np.broadcast_to(np.array(sizes)[:, None], (3, 6))
        exact = fig12.Exact(np.array([3, 5, 7]), size, np.zeros((3, 6), bool), np.full((3, 6), 2))
        targets, flow, descent = concave_runs(good, 0.0, [1e-3, 1e-4], sizes, [0.1, 0.2, 0.3])
        return fig12.Lemma6Numbers(targets, flow, descent, exact)

    return [numbers(True, [2, 3, 4]), numbers(False, [9, 1, 1])]


def paths_data() -> list[Any]:
    radii = 4.0 ** np.arange(8)

    def numbers(power: float, value: float, balance: float) -> Any:
        one = test_verify_paths.made_up([radii**-power] * 3, radii, balance=np.full((3, 8), balance))
        programs = paths.Programs(
            result=np.full((2, 3), OPTIMAL),
            value=np.array([[3.0] * 3, [value] * 3]),
            rank=np.full((2, 3), 2),
            weights=np.tile(np.eye(3), (2, 3, 1, 1)),
            shape=np.array([3, 3, 3]),
            columns=np.array([3]),
        )
        return paths.PathNumbers(one, paths.Paths(*(field[None] for field in one)), programs)

    return [numbers(1.0, 3.0, 0.0), numbers(0.1, 4.0, 1e9)]


def sequence_paths_data() -> list[Any]:
    radii = 4.0 ** np.arange(8)

    def numbers(power: float, good: bool) -> Any:
        one = test_verify_paths.made_up([radii**-power] * 3, radii)
        local, other = SelectionStatus.local.value, SelectionStatus.not_local.value
        sizes = len(sequence_paths.CONES)
        choices = sequence_paths.Choices(
            size=np.repeat(np.arange(sizes), 4),
            status=np.tile([GLOBAL, local, local, other], sizes),
            empty=np.tile([False, False, True, False], sizes),
            near=np.zeros(4 * sizes, bool),
            depth=np.tile([np.inf, 0.2, 0.2, -0.1] if good else [-1.0, -0.2, -np.inf, 0.1], sizes),
            optimal=np.tile([True, False, False, False], sizes),
            anywhere=np.tile([np.inf if good else 1.0, 0.1, -0.1, 0.3], sizes),
        )
        return sequence_paths.SequenceNumbers(paths.Paths(*(np.stack([field] * 6) for field in one)), choices)

    return [numbers(1.0, True), numbers(0.1, False)]


def sequences_data() -> list[Any]:
    def numbers(gap: float, far: float, outcome: Outcome = Outcome.globally_optimal, status: int = GLOBAL) -> Any:
        one = sequence_checks.Limits(*map(np.asarray, (outcome.value, status, gap, gap, far, 1.0, True, 30.0)))
        combined, factored = (
            sequence_checks.Limits(*(np.broadcast_to(x, (cells, 2)) for x in one)) for cells in (3, 1)
        )
        return sequence_checks.SequenceNumbers(combined, factored)

    return [
        numbers(1e-12, 1e-12),
        numbers(1e-12, 0.5),
        numbers(1e-12, 1e-12, status=SelectionStatus.ambiguous.value),
        numbers(1.0, 0.5, Outcome.finite_stationary_point),
    ]


def smoothness_data() -> list[Any]:
    def numbers(ratio: float, factors: float, descent: float) -> Any:
        sized = np.full((2, 2, len(smooth.SIZES)), factors)
        return smooth.SmoothNumbers(
            smooth.Ratios(np.full((2, 2), ratio), sized, sized, sized, sized, np.full((2, 2, 2), descent))
        )

    return [numbers(0.5, 0.5, -0.5), numbers(2.0, 2.0 * max(smooth.SIZES), 0.5), numbers(0.5, 0.5, np.nan)]


PROBES = {
    "programs": lambda: programs(4),
    "fig9": figure9,
    "fig12": figure12,
    "regularization-paths": paths_data,
    "cone-lemmas": cone_lemmas_data,
    "descents": descents_data,
    "fig1": plane_data,
    "fig2": figure2,
    "fig4": ranks_figure,
    "fig5": figure5,
    "fig6": figure6,
    "fig7": figure7,
    "fig8": composition,
    "fig10": columns_data,
    "fig11": composition,
    "conjecture": conjecture,
    "factored": factored,
    "assumptions": tarzanagh_assumptions,
    "cones": cones,
    "equal-scores": equal_cells,
    "feasibility": feasibility,
    "hypotheses": hypotheses_data,
    "inequalities": inequalities_data,
    "local-convergence": local_convergence_data,
    "local-paths": local_paths_data,
    "nearly-equal-scores": nearly_equal_data,
    "ranks": ranks_check,
    "sequences": sequences_data,
    "sequence-paths": sequence_paths_data,
    "smoothness": smoothness_data,
}
