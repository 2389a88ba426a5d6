"""Numbers for every statement of tarzanagh2023 that confirm it where a statement can be confirmed, and variants."""

from typing import Any

import numpy as np

from jaxflow._core import Outcome, SelectionStatus
from jaxflow.margin import ProgramResult
from jaxflow.papers.table import Table, stacked
from jaxflow.papers.tarzanagh2023.verify import (
    assumptions,
    hypotheses,
    inequalities,
    local_paths,
    sequence_paths,
    smooth,
)
from tests.papers import (
    test_composition,
    test_percentages,
    test_tarzanagh2023,
    test_verify_paths,
)
from tests.papers.made_up.records import filled, programs

OPTIMAL = ProgramResult.optimal.value
GLOBAL, LOCAL, OTHER = (SelectionStatus[name].value for name in ("global_", "local", "not_local"))


def plane() -> list[Any]:
    numbers = test_tarzanagh2023.plane_numbers
    return [numbers(2.0), numbers(-0.5)]


def bars(shares: list[int], *outcomes: Outcome, names: tuple[str, ...] = ("W", "KQ")) -> dict[str, Any]:
    data = test_percentages.made_up({name: shares for name in names})
    for number, outcome in enumerate(outcomes):
        data["outcome"][0, :, :, number] = outcome
    return data


def figure2() -> list[Any]:
    return [test_percentages.typed(bars([20, 60, 90], names=("W",)))]


def figure5() -> list[Any]:
    rare = bars([90, 50, 10], Outcome.not_locally_optimal, Outcome.finite_stationary_point)
    for name in ("largest_margin", "mean_margin"):
        rare[name] = np.where(np.arange(3)[:, None] > 0, rare[name], 1.0)
    return [test_percentages.typed(data) for data in (bars([20, 60, 100]), rare)]


def figure6() -> list[Any]:
    cells = [bars(shares) for shares in ([60, 80, 100], [20, 40, 100], [10, 30, 100])]
    found = {name: cells[0][name] for name in ("d", "parametrization", "score_gap")}
    found |= {"n": np.array([5, 10, 5]), "T": np.array([5, 5, 10]), "accepted": np.full((3, 3), 0.8)}
    found |= {name: np.concatenate([cell[name] for cell in cells]) for name in ("outcome", "program_gap")}
    return [test_percentages.typed(found)]


def conjecture() -> list[Any]:
    yes = [test_tarzanagh2023.YES]
    return [test_tarzanagh2023.conjecture_numbers([Outcome.globally_optimal], yes, yes, yes)]


def factored() -> list[Any]:
    made_up = test_tarzanagh2023.factored_numbers
    good, other = Outcome.locally_optimal, Outcome.prediction_contradicted
    return [made_up([good] * 2, [1e-9] * 2, [2e-9] * 2), made_up([good, other], [1e-7, 0.3], [2e-9, 0.4])]


def tarzanagh_assumptions() -> list[Any]:
    support = filled(
        Table,
        (len(assumptions.DIMENSIONS), 2),
        result=OPTIMAL,
        exact=True,
        average=1.0,
        largest=1.0,
        push=-0.1,
    )
    separating = Table(holds=np.ones((2, 2), bool))
    return [Table(support=support, separating=separating, flows=test_verify_paths.ends(separating.holds))]


def cones() -> list[Any]:
    choices = Table(
        status=np.array([LOCAL] * 4 + [OTHER, GLOBAL]),
        empty=np.array([False, True, True, True, False, False]),
        near=np.zeros(6, bool),
        depth=np.array([0.2] * 4 + [-0.2, np.inf]),
        d=np.array([4, 4, 6, 6, 4, 4]),
        trial=np.zeros(6, int),
        choice=np.arange(6),
    )
    return [Table(choices=choices)]


def equal_cells() -> list[Any]:
    def numbers(selected: bool, attention: float) -> Any:
        more = {"target_attention": attention, "misaligned": 1e-12 if selected else 0.5}
        flow, cells = (test_verify_paths.ends(np.full(shape, selected), **more) for shape in ((1,), (6, 1)))
        one = {"score_gap": 0.1, "score_spread": 0.0, "optimal_tokens": 1, "program_result": OPTIMAL}
        one |= {"program_gap": 1e-16, "steps": 100, "rate": 0.1, "attention": np.full((2, 2), attention)}
        one |= {"misaligned": 0.5, "norm": 8.0}
        explicit = Table({name: np.asarray(value) for name, value in one.items()})
        return Table(explicit=explicit, flow=flow, cells=cells)

    return [numbers(True, 1.0), numbers(False, 1e-30)]


def feasibility() -> list[Any]:
    sizes, one = (np.full(2, 3), np.full(2, 3), np.full(2, 3), np.array([0, 1])), np.ones((2, 3, 5))
    found = {"result": np.full(one.shape, OPTIMAL), "gap": 1e-15 * one, "separated": one > 0, "least": 0.1 * one}
    claims = filled(Table, (2,), least=0.1, off=1e-15)
    return [Table(programs=Table(zip(("n", "T", "d", "kind"), sizes, strict=True), **found), claims=claims)]


def assumed() -> list[Any]:
    shape = (len(hypotheses.DIMENSIONS), 2)
    return [
        Table(
            slopes=filled(Table, (3, 4), bend=0.0, excess=0.0, slope=-1.0),
            equal=filled(Table, (2,), spread=0.0, gap=1.0, result=OPTIMAL),
            support=filled(Table, shape, separating=True, meets=True, unsure=False, others=0, ambiguous=False),
            top=filled(Table, (len(hypotheses.HEADS), 2), excess=-1.0),
        )
    ]


def inequalities_data() -> list[Any]:
    def numbers(sign: float, far: float, ratio: np.ndarray) -> Any:
        limit = 0.0 if sign > 0 else 1.0
        return Table(
            gradients=filled(
                Table, (2,), result=OPTIMAL, excess=sign, limit=limit, push=-sign, far_push=far, origin=1.0
            ),
            concave=filled(Table, (2,), nonzero=2 if sign > 0 else 1, tau=3, kkt=0.0),
            centred=filled(Table, (2,), over=-sign),
            explicit=Table(ratio=ratio),
        )

    return [numbers(1.0, -1.0, np.ones(4)), numbers(-1.0, -1e-20, np.asarray(inequalities._lemma10()))]


def local_convergence_numbers(selected: bool, certified: bool, descends: bool = True) -> Any:
    """Three starts near and three far, by flow and by descent."""
    ends = np.array([selected, selected and descends])[None, :, None] & np.ones((2, 2, 3), bool)
    plain = np.ones((2, 3))
    runs = Table(
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
    return Table(runs=runs)


def paths_of(growth: float, levels: int) -> Any:
    """Three paths that tend to their solutions like one over the radius."""
    radii = growth ** np.arange(levels)
    return test_verify_paths.made_up([1.0 / radii] * 3, radii, balance=np.zeros((3, levels)))


def local_paths_data() -> list[Any]:
    return [test_verify_paths.local_numbers(paths_of(local_paths.GROWTH, local_paths.LEVELS))]


def nearly_equal() -> list[Any]:
    cells = test_verify_paths.ends(np.ones((4, 2), bool))
    return [Table(single=cells, several=cells, pairs=test_verify_paths.ends([True] * 2))]


def lemmas_of_cones() -> list[Any]:
    yes, one, at = np.ones(4, bool), np.ones(4), np.ones((4, 4))
    ratios = 1.0 + np.array([0.64, 0.16, 0.04, 0.01]) * at
    more = {"lower": 0.5 * at, "upper": 2.0 * at, "bound": one, "mu": one, "slope": 0.1 * at}
    optimal = Table(inside=yes, empty=~yes, push=at, ratio=ratios, **more)
    local = stacked([optimal.replace(empty=np.array([False, False, False, True]))] * 2)
    return [Table(optimal=optimal, local=local, ranks=filled(Table, (2,), least=1.0, projected=1.0))]


def concave_runs(good: bool, low: float, moved: list[float], sizes: list[int], lam: list[float]) -> Table:
    """What figures 9 and 12 share: three penalties or bounds, four instances, ten tokens."""
    shape = (len(sizes), 4)
    size = np.broadcast_to(np.array(sizes)[:, None], shape)
    penalty = np.broadcast_to(np.array(lam)[:, None], shape)
    scores = np.tile(np.linspace(0.0, -1.0, 10), (*shape, 1))
    targets = Table(lam=penalty, scores=scores, size=size, near_tie=np.zeros(shape, bool))
    ends = Table(
        attention=np.where(np.arange(10) < size[..., None], 1.0, 0.0),
        good=np.ones(shape, bool),
        direction=np.ones(shape),
        # More tokens, worse predicted: or the other way round.
        combined=1.0 - (size if good else size[::-1]) / 1000.0 - low,
        spanned=np.ones(shape),
        solved=np.ones(shape, bool),
    )
    flow = Table(
        ends.named,
        target=ends.attention,
        error=np.full(shape, 0.0 if good else 1.0),
        error_early=np.zeros(shape),
        late=np.zeros(shape, bool),
        length=np.ones(shape),
        moved=1.0 - np.tile(moved, (*shape, 1)),
    )
    return Table(targets=targets, flow=flow, descent=ends)


def figure9() -> list[Any]:
    # With k of ten tokens the motion aligns like t^(−k/5): from 1e-3, over eight units of log t.
    falling = [1e-3, 1e-3 * np.exp(-8.0 * 2.0 * 5 / 10)]
    lambdas = [0.0, 1.0, 2.5]
    well = concave_runs(True, 0.0, falling, [1, 5, 10], lambdas)
    # As many tokens for every penalty, so that one rate is that of all.
    even = concave_runs(True, 0.0, falling, [5, 5, 5], lambdas)
    bad = concave_runs(False, 0.5, [1e-3, 1e-3], [9, 5, 4], lambdas)
    # Scores so far apart that no penalty of these takes all tokens.
    return [well, even, bad.replace(targets=bad.targets.replace(scores=100.0 * bad.targets.scores))]


def figure12() -> list[Any]:
    sizes = [2, 3, 4]
    size = np.broadcast_to(np.array(sizes)[:, None], (3, 6))
    exact = Table(tau=np.array([3, 5, 7]), size=size, near_tie=np.zeros((3, 6), bool), draws=np.full((3, 6), 2))
    return [Table(concave_runs(True, 0.0, [1e-3, 1e-4], sizes, [0.1, 0.2, 0.3]).named, exact=exact)]


def regularization_paths() -> list[Any]:
    one = paths_of(4.0, 8)
    programs = Table(
        result=np.full((2, 3), OPTIMAL),
        value=np.full((2, 3), 3.0),
        rank=np.full((2, 3), 2),
        weights=np.tile(np.eye(3), (2, 3, 1, 1)),
        shape=np.array([3, 3, 3]),
        columns=np.array([3]),
    )
    return [Table(combined=one, factored=one.at(None), programs=programs)]


def paths_of_sequences() -> list[Any]:
    sizes = len(sequence_paths.CONES)
    choices = Table(
        size=np.repeat(np.arange(sizes), 4),
        status=np.tile([GLOBAL, LOCAL, LOCAL, OTHER], sizes),
        empty=np.tile([False, False, True, False], sizes),
        near=np.zeros(4 * sizes, bool),
        depth=np.tile([np.inf, 0.2, 0.2, -0.1], sizes),
        trial=np.zeros(4 * sizes, int),
        choice=np.tile(np.arange(4), sizes),
        optimal=np.tile([True, False, False, False], sizes),
        anywhere=np.tile([np.inf, 0.1, -0.1, 0.3], sizes),
    )
    return [Table(paths=stacked([paths_of(4.0, 8)] * 6), choices=choices)]


def sequences() -> list[Any]:
    best = Outcome.globally_optimal.value
    combined, factored = (
        filled(
            Table,
            (cells, 2),
            outcome=best,
            status=GLOBAL,
            flow_gap=1e-12,
            certificate_gap=1e-12,
            misaligned=1e-12,
            log_time=30.0,
        )
        for cells in (4, 1)
    )
    return [Table(combined=combined, factored=factored)]


def smoothness() -> list[Any]:
    sized = np.full((2, 2, len(smooth.SIZES)), 0.5)
    ratios = Table(W=np.full((2, 2), 0.5), K=sized, Q=sized, descent=np.full((2, 2, 2), -0.5))
    return [Table(pairs=ratios)]


PROBES = {
    "programs": lambda: programs(4),
    "fig9": figure9,
    "fig12": figure12,
    "regularization-paths": regularization_paths,
    "cone-lemmas": lemmas_of_cones,
    "descents": lambda: [test_verify_paths.descended()],
    "fig1": plane,
    "fig2": figure2,
    "fig4": lambda: [test_tarzanagh2023.rank_numbers(2)],
    "fig5": figure5,
    "fig6": figure6,
    "fig7": lambda: [test_tarzanagh2023.bias_numbers()],
    "fig8": lambda: [test_composition.made_up()],
    "fig10": lambda: [test_tarzanagh2023.column_numbers(0.3, 0.2)],
    "fig11": lambda: [test_composition.made_up()],
    "conjecture": conjecture,
    "factored": factored,
    "assumptions": tarzanagh_assumptions,
    "cones": cones,
    "equal-scores": equal_cells,
    "feasibility": feasibility,
    "hypotheses": assumed,
    "inequalities": inequalities_data,
    "local-convergence": lambda: [local_convergence_numbers(True, True)],
    "local-paths": local_paths_data,
    "nearly-equal-scores": nearly_equal,
    "ranks": lambda: [test_tarzanagh2023.rank_numbers(2)],
    "sequences": sequences,
    "sequence-paths": paths_of_sequences,
    "smoothness": smoothness,
}
