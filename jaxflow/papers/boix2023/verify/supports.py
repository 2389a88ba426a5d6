"""How supports change: the flow itself from tiny starts, and Algorithm 1 on many random linear networks at once."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxflow.data import LinearData
from jaxflow.flow import ProductPath, follow_products, stage_controller, stage_solver
from jaxflow.losses import Squared
from jaxflow.models import DiagonalLinear, HadamardNetwork
from jaxflow.papers.checks import AbstractCheck, Row, register_check
from jaxflow.papers.registry import Data
from jaxflow.report import Evidence, count_evidence
from jaxflow.risk import EmpiricalRisk
from jaxflow.theory import StageResult, Stages, incremental_learning

P = 3
SAMPLES = 4

# A path may go through a support more than once; twelve stages end almost all of them.
STAGES = 4 * P

# The flow is followed at both; its own time is log(1/α) times the rescaled one.
LOG_ALPHAS = (-1000.0, -10_000.0)

# A product counts as learned from here on: products of order one are far above, e^(-1000) far below.
ACTIVE = 1e-3

# Between two stages passes a share of log(1/α), ten times more of the flow's own time at the second α; what happens
# within one stage takes the same time at both. From APART on two products entered in two stages, up to ONE in one.
APART, ONE = 3.0, 1.5

# Nor have they entered one after the other unless as many e-folds of a product lie between them. The first one takes
# log(1/α) of them to enter.
FOLDS = 10.0

# Of the logarithms of weights; times of entry are compared between two integrations.
TOLERANCE = 1e-6

# Past the last stage of Algorithm 1 the flow is followed for this share of the time more: something may follow.
HORIZON = 1.5


class Size(NamedTuple):
    """How many instances: of Algorithm 1, and of these how many that the flow is followed on."""

    trials: int
    flows: int


SIZES = {"quick": Size(200, 6), "paper": Size(5000, 60), "large": Size(200_000, 1000)}


class Entries(NamedTuple):
    """Which products entered the support of a flow, and when, in order; arrays `(flow, α, STAGES)`.

    `coordinates` (−1 where there is none), `times` (rescaled, NaN); `inside` `(flow,)`: Algorithm 1 goes to its end
    with Assumptions 4.3 and 4.4 met; `failed` `(flow,)`: an integration did not reach its end.
    """

    coordinates: np.ndarray
    times: np.ndarray
    inside: np.ndarray
    failed: np.ndarray


@register_check("boix2023", "supports", statements="Theorem 4.1: supports along the flow and in Algorithm 1")
class SupportsCheck(AbstractCheck):
    """Linear diagonal networks of three products, four Gaussian samples with Gaussian targets."""

    def compute(self, scale: str, key: Any, say: Callable[[str], None]) -> Data:
        size = SIZES[scale]
        say(f"Algorithm 1 on {size.trials} instances, the flow on {size.flows} of them at {len(LOG_ALPHAS)} scales")
        keys = jax.random.split(key, size.trials)
        stages = jax.device_get(_predict(keys))
        entries = follow_entries(keys[: size.flows], stages)
        return {
            "results": np.asarray(stages.results.value),
            "support": np.asarray(stages.products) != 0.0,
            "residuals": np.asarray(stages.residuals),
            "coordinates": np.asarray(stages.coordinates),
            "times": np.asarray(stages.times),
        } | {f"flow_{name}": value for name, value in entries._asdict().items()}

    def rows(self, data: Data) -> list[Row]:
        return [_grows(data), _leaves(data)]


@jax.jit
def _predict(keys: Any) -> Stages:
    return jax.lax.map(lambda key: incremental_learning(*instance(key), max_stages=STAGES), keys, batch_size=100)


def instance(key: Any) -> tuple[EmpiricalRisk, HadamardNetwork]:
    """A linear diagonal network with its data, from a start of size one."""
    key_inputs, key_targets, key_model = jax.random.split(key, 3)
    data = LinearData(jax.random.normal(key_inputs, (SAMPLES, P)), jax.random.normal(key_targets, (SAMPLES,)))
    return EmpiricalRisk(data, Squared()), HadamardNetwork.init(key_model, DiagonalLinear(), P)


def follow_entries(keys: Any, stages: Stages) -> Entries:
    """The flow of every key's instance at both scales."""
    shape = (len(keys), len(LOG_ALPHAS), STAGES)
    found = Entries(np.full(shape, -1), np.full(shape, np.nan), np.zeros(len(keys), bool), np.zeros(len(keys), bool))
    for row, key in enumerate(keys):
        one = jax.tree.map(lambda x, row=row: np.asarray(x)[row], stages)
        count = int(np.sum(one.results.value == StageResult.learned))
        ended = bool(np.any(one.results.value == StageResult.finished)) and count > 0
        met = np.all(one.gaps[:count] > 0) and np.all(one.curvatures[:count] > 0) and np.all(one.leaving[:count] > 0)
        found.inside[row] = ended and bool(met)
        if not found.inside[row]:
            continue
        risk, model = instance(key)
        until = HORIZON * float(one.times[count - 1])
        for column, log_alpha in enumerate(LOG_ALPHAS):
            start, solver = model.scaled(log_alpha), stage_solver(TOLERANCE)
            controller = stage_controller(solver, start.log_weights.log_conserved, TOLERANCE)
            path = follow_products(risk, start, log_alpha, until, solver=solver, controller=controller)
            found.failed[row] |= bool(path.times[-1] < until * (1 - 1e-12))
            order = entries_of(path)[:STAGES]
            found.coordinates[row, column, : len(order)] = [coordinate for _, coordinate in order]
            found.times[row, column, : len(order)] = [time for time, _ in order]
    return found


def entries_of(path: ProductPath) -> list[tuple[float, int]]:
    """Time and coordinate of every product that passes ±`ACTIVE` away from zero, in order."""
    return sorted(
        (float(time), i)
        for i in range(path.log_sums.shape[1])
        for level in (ACTIVE, -ACTIVE)
        for time in path.crossings(i, level)
    )


def one_at_a_time(entries: Entries) -> tuple[np.ndarray, np.ndarray]:
    """By flow: whether no two products enter in one stage, and whether that is known.

    Of two neighbours in order it is told by how much longer they take at the smaller α, in the flow's own time.
    """
    first, second = entries.times[:, 0], entries.times[:, 1]
    lengths = np.asarray(LOG_ALPHAS)
    growth = (lengths[1] / lengths[0]) * np.diff(second, axis=1) / np.diff(first, axis=1)
    folds = -lengths[1] * np.diff(second, axis=1) / second[:, :1]
    pairs = ~np.isnan(second[:, 1:])
    same = (entries.coordinates[:, 0] == entries.coordinates[:, 1]).all(axis=1) & ~entries.failed
    good = same & np.all(~pairs | ((growth >= APART) & (folds >= FOLDS)), axis=1)
    together = same & np.any(pairs & (growth <= ONE), axis=1)
    return good, good | together


def _steps(data: Data) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For every learned stage of Algorithm 1 how many coordinates enter and how many leave."""
    learned = data["results"] == StageResult.learned
    before = np.concatenate([np.zeros_like(data["support"][:, :1]), data["support"][:, :-1]], axis=1)
    entering = np.sum(data["support"] & ~before, axis=-1) * learned
    leaving = np.sum(before & ~data["support"], axis=-1) * learned
    return learned, entering, leaving


def _counts(data: Data) -> str:
    ended = np.any(data["results"] == StageResult.finished, axis=1)
    stuck = np.any(data["results"] == StageResult.not_converged, axis=1)
    tied = np.any(data["results"] == StageResult.degenerate, axis=1)
    rest = len(ended) - int(ended.sum() + stuck.sum() + tied.sum())
    return (
        f"{int(ended.sum())} instances to the end, {int(stuck.sum())} without an inner limit, {int(tied.sum())} tied, "
        f"{rest} not at the end after {data['results'].shape[1]} stages"
    )


def _grows(data: Data) -> Row:
    entries = Entries(*(data[f"flow_{name}"] for name in Entries._fields))
    inside = entries.inside
    good, known = one_at_a_time(entries)
    learned, entering, _ = _steps(data)
    worst = float(np.max(data["residuals"], where=learned, initial=0.0))
    flows = len(inside)
    # Algorithm 1 beside it: the same coordinates in the same order at the smaller α, and when.
    own, predicted = entries.coordinates[:, -1], np.where(learned, data["coordinates"], -1)[:flows]
    agrees = inside & (own == predicted).all(axis=1)
    late = np.abs(entries.times[:, -1] / data["times"][:flows] - 1.0)[agrees][own[agrees] >= 0]
    count = int(np.sum(own[inside] >= 0))
    wrong = int((inside & known & ~good).sum())
    return Row(
        "Theorem 4.1 (supports)",
        "supp(θ^{k+1}) has at most one coordinate that supp(θ^k) has not: along the flow, no two products pass "
        f"{ACTIVE:g} in one stage, told by the time between them at α = e^(-1000) and e^(-10000)",
        f"one at a time in {int((inside & good).sum())} of {int(inside.sum())} flows with {count} entries; Algorithm 1 "
        f"names the same products in the same order in {int(agrees.sum())}, at times that differ by "
        f"{late.max(initial=0.0):.1e} at most; there at most {int(entering.max(initial=0))} enters in any of "
        f"{int(learned.sum())} stages, by construction, with slopes left on supports {worst:.1e} of those at zero; "
        f"{_counts(data)}",
        int(inside.sum()),
        int(np.sum(~inside)),
        float(wrong),
        "flows with two products in one stage",
        count_evidence(good[inside], decided=known[inside]),
        {"one_at_a_time": int((inside & good).sum()), "agrees": int(agrees.sum()), "entries": count},
    )


def _leaves(data: Data) -> Row:
    learned, _, leaving = _steps(data)
    with_departure = np.any(leaving > 0, axis=1)
    count, total = int(with_departure.sum()), len(with_departure)
    return Row(
        "Appendix A (departures)",
        "no coordinate ever leaves the support (said of the toy task; here of random linear networks)",
        f"a coordinate leaves in {count} of {total} instances ({count / total:.1%})",
        0,
        total,
        float(leaving.max(initial=0)),
        "coordinates leaving at once",
        # Said of the toy task alone: what other tasks do neither proves nor refutes it.
        Evidence(0),
        {"departures": count, "instances": total},
    )
