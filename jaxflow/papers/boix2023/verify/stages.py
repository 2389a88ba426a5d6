"""Theorem 4.1 (times, weights, sparsity) and Lemma 4.2 on small random instances."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxflow.data import LinearData
from jaxflow.flow import LogHadamard, RescaledTime, follow_products, integrate, stage_controller, stage_solver
from jaxflow.losses import Squared
from jaxflow.models import DiagonalHead, DiagonalLinear, HadamardNetwork
from jaxflow.papers.checks import AbstractCheck, Row, register_check
from jaxflow.papers.registry import Data
from jaxflow.report import Evidence, bounded_evidence, common_rate, count_evidence
from jaxflow.risk import EmpiricalRisk
from jaxflow.teachers import diagonal_head_task
from jaxflow.theory import StageResult, incremental_learning

FAMILIES = ("linear", "head")

# Where a stage takes the crossing of half its product at a distance from T of about 1/log(1/α), what has to be
# seen is that distance shrink in proportion from one α to the next.
LOG_ALPHAS = (-100.0, -1000.0, -10_000.0)

# Stages closer than this share of their time are not separated at the largest α of the ladder.
SEPARATED = 0.1

# Of the logarithms of weights: what is measured is by how many e-folds a stage comes late, and that may happen to be
# hundredths of one.
TOLERANCE = 1e-6

# Allowed distance of the observed order of the error in 1/log(1/α) from one, between the two smallest α.
ORDER = 0.1

# Weights in the middle of a plateau at the smallest α: what is not learned yet is exponentially small in
# log(1/α) times the distance to the next stage, so that only the integration's tolerance is left.
WEIGHTS = 1e-4

# A product counts as nonnegligible from here on: half a product of order one is far above, e^(-1000) far below.
ACTIVE = 1e-3

# Two integrations whose steps have relative errors of 1e-6 and less, over some hundred of them.
DRIFT = 1e-8


class Size(NamedTuple):
    """Instances of each family; `stages` of each."""

    trials: int
    stages: int = 3


SIZES = {"quick": Size(5), "paper": Size(40), "large": Size(1000)}


@register_check("boix2023", "stages", statements="Theorem 4.1, Lemma 4.2")
class StagesCheck(AbstractCheck):
    """Linear diagonal networks of three products and attention heads of four."""

    def compute(self, scale: str, key: Any, say: Callable[[str], None]) -> Data:
        return compute(SIZES[scale], key, say)

    def rows(self, data: Data) -> list[Row]:
        return [_times(data), _weights(data), _sparsity(data), _conservation(data)]


def compute(size: Size, key: Any, say: Callable[[str], None]) -> Data:
    """Arrays by family, trial (and α, and stage)."""
    shape = (len(FAMILIES), size.trials)
    ladder = (*shape, len(LOG_ALPHAS))
    data: Data = {
        "count": np.zeros(shape, int),
        "inside": np.zeros(shape, bool),
        "failed": np.zeros(shape, bool),
        "predicted": np.full((*shape, size.stages), np.nan),
        "measured": np.full((*ladder, size.stages), np.nan),
        "distance": np.full((*ladder, size.stages), np.nan),
        "entering": np.zeros(shape, int),
        "entering_predicted": np.zeros(shape, int),
        "drift": np.full(shape, np.nan),
        "gap": np.full(shape, np.nan),
        "curvature": np.full(shape, np.nan),
    }
    for row, family in enumerate(FAMILIES):
        say(f"{family}: {size.trials} instances at {len(LOG_ALPHAS)} scales")
        for trial in range(size.trials):
            risk, model = _instance(family, jax.random.fold_in(jax.random.fold_in(key, row), trial))
            _measure(data, (row, trial), size, risk, model)
    return data


def _instance(family: str, key: Any) -> tuple[EmpiricalRisk, HadamardNetwork]:
    key_data, key_model = jax.random.split(key)
    if family == "head":
        data, _ = diagonal_head_task(key_data, 8, 3, 2)
        return EmpiricalRisk(data, Squared()), HadamardNetwork.init(key_model, DiagonalHead(), 4)
    key_inputs, key_targets = jax.random.split(key_data)
    data = LinearData(jax.random.normal(key_inputs, (6, 3)), jax.random.normal(key_targets, (6,)))
    return EmpiricalRisk(data, Squared()), HadamardNetwork.init(key_model, DiagonalLinear(), 3)


@partial(jax.jit, static_argnums=2)
def _predict(risk: Any, model: Any, stages: int) -> Any:
    return incremental_learning(risk, model, max_stages=stages)


def _measure(data: Data, at: tuple[int, int], size: Size, risk: EmpiricalRisk, model: HadamardNetwork) -> None:
    # One stage more than is measured: the last plateau ends where the next stage begins.
    stages = jax.device_get(_predict(risk, model, size.stages + 1))
    results = np.asarray(stages.results.value)
    known = int(np.sum(results == StageResult.learned))
    count = min(known, size.stages)
    data["count"][at] = count
    # Algorithm 1 itself could not say what comes next: the instance says nothing about the theorem.
    decided = count > 0 and not np.isin(results, (StageResult.not_converged, StageResult.degenerate)).any()
    times, products = np.asarray(stages.times)[:count], np.asarray(stages.products)[:count]
    if count == 0:
        return
    around = np.concatenate([[0.0], np.asarray(stages.times)[:known]])
    apart = bool(np.all(np.diff(around) > SEPARATED * around[1:]))
    data["gap"][at] = np.min(np.asarray(stages.gaps)[:count])
    data["curvature"][at] = np.min(np.asarray(stages.curvatures)[:count])
    data["inside"][at] = decided and apart and data["curvature"][at] > 0
    data["predicted"][at][:count] = times
    supports = np.concatenate([np.zeros((1, products.shape[1]), bool), products != 0.0])
    data["entering_predicted"][at] = np.max(np.sum(supports[1:] & ~supports[:-1], axis=1))
    # Where nothing follows: half as long again as the last stage took.
    ends = np.append(around[2:], times[-1] + 0.5 * np.diff(around)[-1])[:count]
    middles = 0.5 * (times + ends)
    for step, log_alpha in enumerate(LOG_ALPHAS):
        start, solver = model.scaled(log_alpha), stage_solver(TOLERANCE)
        controller = stage_controller(solver, start.log_weights.log_conserved, TOLERANCE)
        path = follow_products(risk, start, log_alpha, float(ends[-1]), solver=solver, controller=controller)
        if path.times[-1] < ends[-1] * (1 - 1e-12):
            data["failed"][at] = True
            return
        for k in range(count):
            coordinate = int(stages.coordinates[k])
            passed = path.crossings(coordinate, 0.5 * float(products[k, coordinate]))
            if len(passed):
                data["measured"][at][step, k] = passed[np.argmin(np.abs(passed - times[k]))]
        there = path.products_at(middles)
        data["distance"][at][step, :count] = np.max(np.abs(there - products), axis=1)
    active = np.concatenate([np.zeros((1, products.shape[1]), bool), np.abs(there) > ACTIVE])
    data["entering"][at] = np.max(np.sum(active[1:] & ~active[:-1], axis=1))
    data["drift"][at] = _drift(risk, model, float(ends[-1]))


def _drift(risk: EmpiricalRisk, model: HadamardNetwork, until: float) -> float:
    """How far log(u + v) + log(u − v) moves, relative to itself, when both are integrated."""
    log_alpha = LOG_ALPHAS[-1]
    start = model.scaled(log_alpha)
    path = integrate(
        risk,
        start,
        clock=RescaledTime(log_alpha),
        until=jnp.asarray(until),
        coordinates=LogHadamard(separate=True),
        throw=False,
    )
    before, after = start.log_weights.log_conserved, path.final.model.log_weights.log_conserved
    return float(jnp.max(jnp.abs(after / before - 1.0)))


def _shifts(data: Data) -> np.ndarray:
    return np.abs(data["measured"] - data["predicted"][:, :, None, :])


def _tested(data: Data) -> np.ndarray:
    return data["inside"] & ~data["failed"]


def _times(data: Data) -> Row:
    tested = _tested(data)
    shifts = _shifts(data)[tested]
    learned = ~np.isnan(data["predicted"][tested])
    # A stage that the flow never reaches at the smallest α would be a NaN here: an infinite residual.
    relative = shifts[:, -1] / data["predicted"][tested]
    relative = np.where(learned & np.isnan(relative), np.inf, relative)[learned]
    ratio = (shifts[:, -2] / shifts[:, -1])[learned]
    order = np.log10(ratio)
    count, inside = int(tested.sum()), data["inside"]
    every = _shifts(data)
    slopes = np.log10(every[:, :, -2] / every[:, :, -1])
    stages = ~np.isnan(data["predicted"])
    # An order that is unknown, of a stage that the flow has not reached, makes its instance undecided.
    decided = ~data["failed"] & np.all(~stages | ~np.isnan(slopes), axis=-1)
    good = np.all(~stages | (np.abs(slopes - 1.0) <= ORDER), axis=-1)
    rate = common_rate(order, 1.0, bias=ORDER, law="distance in time against log(1/α)")
    return Row(
        "Theorem 4.1 (times)",
        "the flow passes half of the product of i_k at rescaled time T_{k+1} as α → 0",
        f"relative distance at α = e^(-10000): median {np.median(relative):.1e}; order of the distance in 1/log(1/α) "
        f"between e^(-1000) and e^(-10000): {order.min():.3f} to {order.max():.3f}"
        if order.size
        else "no stage",
        int(inside.sum()),
        int(np.sum(~inside)),
        float(relative.max(initial=0.0)) if count else float("inf"),
        "relative distance at e^(-10000)",
        count_evidence(good[inside], decided=decided[inside], limit=True, rate=rate),
        {"stages": int(learned.sum()), "instances": count},
    )


def _weights(data: Data) -> Row:
    tested = _tested(data)
    distance = data["distance"][tested][:, -1]
    worst = distance[~np.isnan(distance)]
    far = data["distance"][tested][:, 0]
    count, inside = int(tested.sum()), data["inside"]
    last = data["distance"][:, :, -1]
    return Row(
        "Theorem 4.1 (weights)",
        "θ(t log(1/α)) → θ^k in the middle of every plateau",
        f"{int(np.sum(worst <= WEIGHTS))} of {worst.size} plateaus within {WEIGHTS:.0e} at α = e^(-10000), median "
        f"{np.median(worst):.1e}; at e^(-100) median {np.nanmedian(far):.1e}"
        if worst.size
        else "no plateau",
        int(inside.sum()),
        int(np.sum(~inside)),
        float(worst.max(initial=0.0)) if count else float("inf"),
        "distance of the products",
        _of_inside(data, _worst_of(last, ~np.isnan(last)), WEIGHTS),
        {"plateaus": int(worst.size), "instances": count},
    )


def _sparsity(data: Data) -> Row:
    ran = (data["count"] > 0) & ~data["failed"]
    most = int(data["entering"][_tested(data)].max(initial=0))
    count = int(_tested(data).sum())
    return Row(
        "Theorem 4.1 (sparsity)",
        "the support grows by at most one coordinate a stage",
        f"largest increase from one plateau to the next: {most} along the flow, "
        f"{int(data['entering_predicted'][ran].max(initial=0))} in Algorithm 1 (over all {int(ran.sum())} instances)",
        int(data["inside"].sum()),
        int(np.sum(~data["inside"])),
        float(max(most - 1, 0)),
        "coordinates beyond one",
        _of_inside(data, data["entering"].astype(float), 1.0),
        {"largest": most, "instances": count},
    )


def _conservation(data: Data) -> Row:
    drift = data["drift"][~np.isnan(data["drift"])]
    worst = float(drift.max(initial=0.0))
    return Row(
        "Lemma 4.2",
        "u² − v² is conserved: log(u + v) and log(u − v) integrated separately",
        f"largest relative drift of log(u² − v²) at α = e^(-10000): {worst:.1e}",
        int(data["drift"].size),
        0,
        worst if len(drift) else float("inf"),
        "relative drift",
        bounded_evidence(data["drift"], DRIFT),
        {"worst": worst, "instances": len(drift)},
    )


def _worst_of(values: np.ndarray, known: np.ndarray) -> np.ndarray:
    """The largest value of each instance among those that are known; NaN where none is."""
    largest = np.max(np.where(known, values, -np.inf), axis=-1, initial=-np.inf)
    return np.where(known.any(axis=-1), largest, np.nan)


def _of_inside(data: Data, values: np.ndarray, bound: float) -> Evidence:
    """Instances inside; the failed ones are undecided."""
    return bounded_evidence(np.where(data["failed"], np.nan, values)[data["inside"]], bound)
