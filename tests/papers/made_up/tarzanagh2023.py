"""Numbers for every statement of tarzanagh2023 that confirm it where a statement can be confirmed, and variants: the
figures, and the checks of `tarzanagh2023_checks`."""

from typing import Any

import numpy as np

from jaxflow._core import Outcome
from jaxflow.margin import AssumptionStatus
from jaxflow.papers.table import Table
from jaxflow.papers.tarzanagh2023 import fig1, percent
from jaxflow.papers.tarzanagh2023.composed_instances import Fate
from jaxflow.papers.tarzanagh2023.composition import FlowEnd
from tests.papers.made_up import tarzanagh2023_checks as checks
from tests.papers.made_up.records import changed, filled

LOCAL, OTHER = Outcome.locally_optimal, Outcome.not_locally_optimal
YES = AssumptionStatus.holds


def plane(power: float = 2.0) -> Table:
    """In both settings for both kinds both ways four runs whose 1 − corr falls like this power of the length, from 1e-2
    at a length of 10 to one of 1,000."""
    lengths = np.linspace(np.log(10.0), np.log(1000.0), 21)
    distances = 1e-2 * np.exp(-power * (lengths - lengths[0]))
    shapes = {"tokens": (2, 5, 2), "queries": (2, 2), "path": (21, 2, 2), "frobenius": (2, 2), "nuclear": (2, 2)}
    flags = {"visible": (2, 5), "optimal": (2, 5), "selection": (2, 5), "reached": (21,)}
    each: dict[str, Any] = {name: np.zeros(shape) for name, shape in shapes.items()}
    each |= {name: np.ones(shape, bool) for name, shape in flags.items()}
    each |= {"log_length": lengths, "distances": distances}
    ends = {"own": distances[-1], "other": distances[-1] + 0.1, "stationary": False, "status": fig1.LOCALLY_OPTIMAL[0]}
    runs = filled((2, 2, 4), "settled log_time", each=each, **ends)
    return Table(flow=runs, descent=runs)


# Figures 2, 5 and 6


def percentages(*shares: list[int], sizes: Any = ((5, 5),), margins: bool = True) -> Table:
    """Settings with n and T, W and (K, Q) by turns (W alone, if there is one list), d = 2, 4, 8: of a hundred instances
    these `shares` are global, the rest local; Assumption B.1 holds on the first half of them."""
    kinds = ("W", "KQ")[: len(shares) // len(sizes)]
    counts = np.array(shares).reshape(len(sizes), len(kinds), 3).swapaxes(1, 2).reshape(-1, 1)
    first = np.arange(100) < counts
    margin = np.where(np.arange(100) < counts // 2, 1.0, 1.5)
    n, T = np.array(sizes).T
    grid = {"n": n, "T": T, "d": np.array([2, 4, 8]), "parametrization": np.array(kinds)}
    outcome = np.where(first, Outcome.globally_optimal, LOCAL).astype(np.uint8)
    ends = filled(
        first.shape, "result", outcome=outcome, program_gap=1e-15, num_steps=1, rounds=1, largest_margin=margin
    )
    ends = Table(ends.named, optimal_program=ends.result, mean_margin=1.0 + (margin - 1.0) / 4.0)
    kept = (*percent.ENDS, *(("optimal_program", "mean_margin", "largest_margin") if margins else ()))
    grid |= {"score_gap": np.asarray(0.1), "accepted": np.full((len(sizes), 3), 0.8)}
    return Table(grid=Table(grid), ends=Table({name: ends.named[name] for name in kept}))


def figure5() -> list[Table]:
    high, rare = percentages([20, 60, 100], [20, 60, 100]), percentages([90, 50, 10], [90, 50, 10])
    # Of the first d, both margins hold on every instance.
    first = [(f"ends.{name}_margin", 1.0, np.s_[:2]) for name in ("largest", "mean")]
    outcomes = [
        ("ends.outcome", outcome, np.s_[:, k]) for k, outcome in enumerate((OTHER, Outcome.finite_stationary_point))
    ]
    return [high, changed(rare, *first, *outcomes)]


SETTINGS = ((5, 5), (10, 5), (5, 10))


def figure6() -> list[Table]:
    shares = [[60, 80, 100]] * 2 + [[20, 40, 100]] * 2 + [[10, 30, 100]] * 2
    return [percentages(*shares, sizes=SETTINGS, margins=False)]


# Figures 7 and 10


def biases(last: float = 1e-4) -> Table:
    """Four instances whose distance falls like 1/log t; the fourth selected badly."""
    times = np.geomspace(1.0, 1e3, 31)
    falling, other = last * times[-1] / times, np.full(31, 0.2)

    def runs(own: int) -> Table:
        distance = np.stack([other, falling] if own else [falling, other])
        each = {"attention": np.ones(31), "distance": distance, "excess": distance, "gap": np.full(2, 1e-15)}
        each |= {"descent_log_time": times[:5], "descent_attention": np.ones(5), "descent_distance": distance[:, :5]}
        outcome = np.array([Outcome.globally_optimal] * 2 + [LOCAL, OTHER], np.uint8)
        return filled((1, 4), each=each, outcome=outcome, smallest=1.0, agrees=True)

    axes = Table(shape=np.array([6, 8, 10]), log_time=np.stack([times, times]))
    return Table(axes=axes, combined=runs(0), factored=runs(1))


def columns(misalignment: float = 0.3, floor: float = 0.2) -> Table:
    """Two values of n and T, two runs each; rank 2; m = 1 as given (a little more for the larger n), m = 2 aligned."""
    apart = np.array([misalignment, 2e-3, misalignment + 0.01, 1e-3, misalignment, 1e-3])[:, None]
    ends = {"misalignment": apart, "floor": np.array([floor, 0.0] * 3)[:, None], "halfway_log_time": 15.0}
    runs = filled((6, 2), "settled good log_time", **ends, rank=2, result=1, status=1, halfway=1e-2)
    grid = Table(shapes=np.array([[2, 3], [3, 3], [2, 6]]), columns=np.array([1, 2]), d=np.asarray(4))
    return Table(grid=grid, flow=runs, descent=runs)


# Figure 4, sections 5.2 and 9


def ranks(rank: int = 2) -> Table:
    """One instance with n = T = 3, d = 4."""
    grid = Table(shapes=np.array([[3, 3]]), dimensions=np.array([4]))
    programs = [filled((1, 1), "result", rank=r, relative_rank=r, gap=0.0, outside=0.0) for r in (3, rank)]
    return Table(grid=grid, frobenius=programs[0], nuclear=programs[1])


def conjecture(flow: list[int], b1: list[int], d: list[int], unique: list[int], **others: list[int]) -> Table:
    """Instances by these outcomes and assumptions."""
    given = {"outcome": flow, "descent": flow, "B1": b1, "D": d, "support": d, "unique": unique}
    instances = filled((1, len(flow)), locally_optimal=1, **{k: np.array(v, int) for k, v in (given | others).items()})
    return Table(grid=Table(d=np.array([7]), n=np.asarray(5), T=np.asarray(5)), instances=instances)


def factored(outcomes: list[Outcome], excess: list[float], own: list[float], m: int = 5) -> Table:
    """Ends of flows of (K, Q) with m columns."""
    ends = {"outcome": np.array(outcomes, int), "excess": excess, "flow_gap": own, "program_gap": 1e-15}
    pairs = Table(d=np.array([5]), m=np.array([m]), seed=np.asarray(0))
    return Table(pairs=pairs, ends=filled((1, len(outcomes)), **ends, num_steps=60, rounds=1))


# Figures 8 and 11


def compositions(
    scale: tuple[float, float] = (4e-3, 2e-3), *, slope: float = 1.0, one: float = 0.5, exponent: float = 1.0
) -> Table:
    """Two dimensions, twelve instances, the last two of which the filter leaves out."""
    rates, trials = np.array([1e-2, 1e-3, 1e-4]), np.arange(12.0)
    distance = np.array(scale)[:, None] * (1.0 + 0.01 * trials)
    first = np.ones_like(distance)
    columns = {
        "fate": np.where(trials < 10, Fate.kept, Fate.between),
        "log_masked": np.stack([-9.3 + slope * 0.2 * trials, -15.0 + slope * 0.1 * trials]),
        "svmeq": np.stack([first, distance], axis=-1),
        "mm": np.stack([first, 2 * distance], axis=-1),
    }
    each = {"labels": np.array([-1.0, 1.0, 1.0]), "tokens_selected": np.ones(3, int), "units_off": np.zeros(3, bool)}
    each |= {"kink_distance": np.ones(3), "one": np.full(2, one)}
    rest = dict.fromkeys(("log_time", "gamma", "best", "best_gamma"), 0.0)
    instances = filled((2, 12), each=each, **columns, **rest, at_rest=False, progress=1.0)
    # The constants of single instances scatter about one.
    apart = rates**exponent * (1.0 + 0.05 * np.arange(6.0).reshape(2, 3, 1) * (rates > 1e-3))
    counts = dict.fromkeys(("crossed", "met", "sliding"), 1)
    flows = filled((2, 3), "steps", end=FlowEnd.reached, log_time=0.0, **counts, distance=0.0, apart=apart)
    flows = Table(flows.named, apart_log_time=0.0 * apart)
    grid = Table(dimensions=np.array([4, 8]), steps=np.array([0, 2000]), rates=rates)
    return Table(grid=grid, instances=instances, flows=flows)


# Figures 9 and 12


def concave_runs(good: bool, low: float, moved: list[float], sizes: list[int], lam: list[float]) -> Table:
    """What both figures share: three penalties or bounds, four instances, ten tokens."""
    shape, size = (len(sizes), 4), np.array(sizes)[:, None]
    attention = np.where(np.arange(10) < size[..., None], 1.0, 0.0)
    scores = {"scores": np.linspace(0.0, -1.0, 10)}
    # More tokens, worse predicted: or the other way round.
    combined = 1.0 - (size if good else size[::-1]) / 1000.0 - low
    ends = filled(shape, "good solved", attention=attention, direction=1.0, combined=combined, spanned=1.0)
    errors = {"error": 0.0 if good else 1.0, "error_early": 0.0, "length": 1.0}
    flow = filled(shape, "late", each={"moved": 1.0 - np.array(moved)}, target=attention, **errors)
    targets = filled(shape, "near_tie", each=scores, lam=np.array(lam)[:, None], size=size)
    return Table(targets=targets, flow=Table(ends.named | flow.named), descent=ends)


def figure9() -> list[Table]:
    # With k of ten tokens the motion aligns like t^(−k/5): from 1e-3, over eight units of log t.
    falling = [1e-3, 1e-3 * np.exp(-8.0 * 2.0 * 5 / 10)]
    lambdas = [0.0, 1.0, 2.5]
    well = concave_runs(True, 0.0, falling, [1, 5, 10], lambdas)
    # As many tokens for every penalty, so that one rate is that of all.
    even = concave_runs(True, 0.0, falling, [5, 5, 5], lambdas)
    bad = concave_runs(False, 0.5, [1e-3, 1e-3], [9, 5, 4], lambdas)
    # Scores so far apart that no penalty of these takes all tokens.
    return [well, even, changed(bad, ("targets.scores", 100.0 * bad.targets.scores))]


def figure12() -> list[Table]:
    sizes = [2, 3, 4]
    exact = filled((3, 6), "near_tie", size=np.array(sizes)[:, None], draws=2)
    runs = concave_runs(True, 0.0, [1e-3, 1e-4], sizes, [0.1, 0.2, 0.3])
    return [Table(runs.named, exact=Table(exact.named, tau=np.array([3, 5, 7])))]


PROBES = {
    **checks.PROBES,
    "fig1": lambda: [plane(), plane(-0.5)],
    "fig2": lambda: [percentages([20, 60, 90])],
    "fig4": lambda: [ranks()],
    "fig5": figure5,
    "fig6": figure6,
    "fig7": lambda: [biases()],
    "fig8": lambda: [compositions()],
    "fig9": figure9,
    "fig10": lambda: [columns()],
    "fig11": lambda: [compositions()],
    "fig12": figure12,
    "conjecture": lambda: [conjecture([Outcome.globally_optimal], [YES], [YES], [YES])],
    "factored": lambda: [
        factored([LOCAL] * 2, [1e-9] * 2, [2e-9] * 2),
        factored([LOCAL, Outcome.prediction_contradicted], [1e-7, 0.3], [2e-9, 0.4]),
    ],
    "ranks": lambda: [ranks()],
}
