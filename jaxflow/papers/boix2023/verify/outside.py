"""Algorithm 1 outside its assumptions: a loss with an exponential tail, and Adam instead of the gradient flow."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxflow.data import LinearData
from jaxflow.flow import follow_products
from jaxflow.losses import Logistic, Squared
from jaxflow.models import DiagonalLinear, HadamardNetwork
from jaxflow.papers.checks import AbstractCheck, Row, register_check
from jaxflow.papers.registry import Data
from jaxflow.report import Evidence, count_evidence
from jaxflow.risk import EmpiricalRisk
from jaxflow.theory import StageResult, incremental_learning

P = 3

# The order is looked at where the first stages are apart by this share of their time.
SEPARATED = 0.1

# Two scales: what is not in order at the first may be in order at the second.
LOG_ALPHAS = (-1000.0, -10_000.0)


class Size(NamedTuple):
    """Instances; steps of Adam, and its rate."""

    trials: int
    steps: int = 4000
    rate: float = 1e-3


SIZES = {"quick": Size(4), "paper": Size(40), "large": Size(1000)}


@register_check("boix2023", "outside", statements="§6: exponential tails, Adam")
class OutsideCheck(AbstractCheck):
    """Linear diagonal networks of three products."""

    def compute(self, scale: str, key: Any, say: Callable[[str], None]) -> Data:
        return compute(SIZES[scale], key, say)

    def rows(self, data: Data) -> list[Row]:
        return [_tails(data), _adam(data)]


def compute(size: Size, key: Any, say: Callable[[str], None]) -> Data:
    """By instance: what Algorithm 1 found, when products were learned by the flow of the logistic loss and by Adam."""
    say(f"{size.trials} instances with the logistic loss, and {size.trials} with Adam")
    data: Data = {name: np.zeros(size.trials, int) for name in ("count", "diverges", "square_count")}
    data |= {name: np.full((size.trials, P), -1) for name in ("coordinates", "square_coordinates")}
    data |= {name: np.full((size.trials, P), np.nan) for name in ("times", "square_times", "adam")}
    data["crossings"] = np.full((size.trials, len(LOG_ALPHAS), P), np.nan)
    for trial in range(size.trials):
        one = jax.random.fold_in(key, trial)
        risk, model = instance(one, Logistic())
        stages = jax.device_get(_predict(risk, model))
        count = _fill(data, trial, stages, "")
        data["diverges"][trial] = int(np.any(np.asarray(stages.results.value) == StageResult.not_converged))
        if count:
            times, products = data["times"][trial, :count], np.asarray(stages.products)
            for row, log_alpha in enumerate(LOG_ALPHAS):
                path = follow_products(risk, model.scaled(log_alpha), log_alpha, float(1.02 * times[-1]))
                for k in range(count):
                    i = int(stages.coordinates[k])
                    passed = path.crossings(i, 0.5 * float(products[k, i]))
                    if len(passed):
                        data["crossings"][trial, row, k] = passed[np.argmin(np.abs(passed - times[k]))]
        risk, model = instance(one, Squared())
        stages = jax.device_get(_predict(risk, model))
        count = _fill(data, trial, stages, "square_")
        learned = np.asarray(_adam_products(risk, model.scaled(np.log(1e-8)), size.steps, size.rate))
        for k in range(count):
            i = int(stages.coordinates[k])
            target = float(np.asarray(stages.products)[k, i])
            passed = np.flatnonzero(learned[:, i] * np.sign(target) >= 0.5 * abs(target))
            if len(passed):
                data["adam"][trial, k] = passed[0]
    return data


def _fill(data: Data, trial: int, stages: Any, prefix: str) -> int:
    """The first entries of coordinates; one that comes back a second time is not looked at."""
    count = min(int(stages.count), P)
    coordinates = np.asarray(stages.coordinates)[:count]
    if len(np.unique(coordinates)) < count:
        count = int(np.argmax([c in coordinates[:k] for k, c in enumerate(coordinates)]))
    data[f"{prefix}count"][trial] = count
    data[f"{prefix}coordinates"][trial, :count] = coordinates[:count]
    data[f"{prefix}times"][trial, :count] = np.asarray(stages.times)[:count]
    return count


def instance(key: Any, loss: Any) -> tuple[EmpiricalRisk, HadamardNetwork]:
    """A linear diagonal network of three products on nine points with random labels."""
    key_inputs, key_labels, key_model = jax.random.split(key, 3)
    # Nine points with random labels: separable in three dimensions often enough, and often enough not.
    inputs = jax.random.normal(key_inputs, (9, P))
    labels = jnp.where(jax.random.bernoulli(key_labels, 0.5, (9,)), 1.0, -1.0)
    return EmpiricalRisk(LinearData(inputs, labels), loss), HadamardNetwork.init(key_model, DiagonalLinear(), P)


@jax.jit
def _predict(risk: Any, model: Any) -> Any:
    return incremental_learning(risk, model, max_stages=P)


@partial(jax.jit, static_argnums=(2, 3))
def _adam_products(risk: Any, model: Any, steps: int, rate: float) -> Any:
    # As in practice: the constant that Adam adds to its denominator stays at 1e-8.
    optimizer = optax.adam(rate)
    weights = (model.u, model.v)

    def step(carry: Any, _: Any) -> Any:
        before, state = carry
        gradient = jax.grad(lambda w: risk(HadamardNetwork(model.h, *w)))(before)
        updates, state = optimizer.update(gradient, state, before)
        after: Any = optax.apply_updates(before, updates)
        return (after, state), after[0] * after[1]

    return jax.lax.scan(step, (weights, optimizer.init(weights)), None, length=steps)[1]


def _tested(data: Data, prefix: str) -> np.ndarray:
    """Two stages at least, well apart: only then is there an order."""
    return (data[f"{prefix}count"] >= 2) & well_apart(data[f"{prefix}times"])


def well_apart(times: np.ndarray) -> np.ndarray:
    """Row by row, whether no stage follows the one before it within a share `SEPARATED` of its time."""
    apart = np.ones(len(times), bool)
    for k in range(1, times.shape[1]):
        known = ~np.isnan(times[:, k])
        apart &= ~known | (times[:, k] - times[:, k - 1] > SEPARATED * times[:, k])
    return apart


def in_order(times: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Whether the first `counts` times increase, row by row; a time that is missing does not."""
    rows = [bool(np.all(np.diff(row[:n]) > 0)) for row, n in zip(times, counts, strict=True)]
    return np.array(rows, bool)


def _tails(data: Data) -> Row:
    tested = _tested(data, "")
    good = np.stack([in_order(x, data["count"])[tested] for x in np.moveaxis(data["crossings"], 1, 0)])
    count, total = int(tested.sum()), len(tested)
    # A stage that the flow never passes is as far off as can be.
    learned = ~np.isnan(data["times"][tested])
    relative = np.abs(data["crossings"][tested, -1] / data["times"][tested] - 1.0)[learned]
    relative = np.where(np.isnan(relative), np.inf, relative)
    orders = " and ".join(f"{int(x.sum())} at α = e^({a:.0f})" for x, a in zip(good, LOG_ALPHAS, strict=True))
    return Row(
        "Beyond: logistic loss",
        "stages that exist are passed by the flow in the order of Algorithm 1",
        f"of {count} in order: {orders}; in {int(data['diverges'].sum())} of {total} a stage has no "
        "limit (the data are separable on its support), and Algorithm 1 ends there",
        count,
        int(total - count),
        float(relative.max(initial=0.0)) if count else float("inf"),
        f"relative distance in time at e^({LOG_ALPHAS[-1]:.0f})",
        order_evidence(good[-1], passed(data["crossings"][:, -1], data["count"])[tested]),
        {"in_order": int(good[-1].sum()), "instances": count, "diverging": int(data["diverges"].sum())},
    )


def _adam(data: Data) -> Row:
    tested = _tested(data, "square_")
    steps = data["adam"]
    good = in_order(steps, data["square_count"])[tested]
    count, total = int(tested.sum()), len(tested)
    missing = int(np.sum(np.isnan(steps[tested]) & ~np.isnan(data["square_times"][tested])))
    first, last = steps[tested][:, 0], np.nanmax(np.where(np.isnan(steps), -1.0, steps), axis=1)[tested]
    spread = np.median(last / np.maximum(first, 1.0)) if count else float("nan")
    ratio = np.nanmax(data["square_times"][tested], axis=1) / data["square_times"][tested][:, 0] if count else np.nan
    return Row(
        "Beyond: Adam",
        "Adam from α = 1e-8 learns the products in the order of Algorithm 1",
        f"in order in {int(good.sum())} of {count}; the last stage comes at {spread:.2f} times the steps of the first "
        f"(median), where Algorithm 1 says {np.median(ratio):.2f}; {missing} products never reach half of their size",
        count,
        int(total - count),
        float(count - good.sum()),
        "instances out of order",
        order_evidence(good, passed(steps, data["square_count"])[tested]),
        {"in_order": int(good.sum()), "instances": count},
    )


def passed(times: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Whether the first `counts` times are all known, row by row."""
    return np.array([not np.isnan(row[:n]).any() for row, n in zip(times, counts, strict=True)], bool)


def order_evidence(good: np.ndarray, decided: np.ndarray) -> Evidence:
    """A question that the paper leaves open: does the order survive? What was not passed in time is undecided."""
    return count_evidence(good, decided=decided)
