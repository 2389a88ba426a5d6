"""Algorithm 1 outside its assumptions: a loss with an exponential tail, and Adam instead of the gradient flow."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxflow.data import LinearData
from jaxflow.losses import Logistic, Squared
from jaxflow.models import DiagonalLinear, HadamardNetwork
from jaxflow.papers.boix2023.product_paths import algorithm_1, follow_products
from jaxflow.papers.dataset import Dataset, Part
from jaxflow.papers.registry import register
from jaxflow.papers.statement import Statement
from jaxflow.papers.table import Table
from jaxflow.risk import EmpiricalRisk
from jaxflow.study import subkey

P = 3
TRIALS = {"quick": 4, "paper": 40, "large": 1000}
# Steps of Adam and its rate, from products of 1e-16.
STEPS, RATE, ADAM_START = 4000, 1e-3, float(np.log(1e-8))

# The order is looked at where the first stages are apart by this share of their time.
SEPARATED = 0.1

# Two scales: what is not in order at the first may be in order at the second.
LOG_ALPHAS = (-1000.0, -10_000.0)


def draw(key: Any, loss: Any) -> tuple[EmpiricalRisk, HadamardNetwork]:
    """A linear diagonal network of three products on nine points with random labels."""
    # Nine points with random labels: separable in three dimensions often enough, and often enough not.
    inputs = jax.random.normal(subkey(key, "X"), (9, P))
    labels = jnp.where(jax.random.bernoulli(subkey(key, "y"), 0.5, (9,)), 1.0, -1.0)
    model = HadamardNetwork.init(subkey(key, "start"), DiagonalLinear(), P)
    return EmpiricalRisk(LinearData(inputs, labels), loss), model


def follow_tail(key: Any, setting: None) -> Table:
    """The flow of the logistic loss."""
    risk, model = draw(key, Logistic())
    stages, count = _first_stages(risk, model)
    passed = np.full((len(LOG_ALPHAS), P), np.nan)
    for row, log_alpha in enumerate(LOG_ALPHAS if count else ()):
        path = follow_products(risk, model.scaled(log_alpha), log_alpha, float(1.02 * stages.times[count - 1]))
        for k in range(count):
            i, time = int(stages.coordinates[k]), float(stages.times[k])
            passed[row, k] = path.passes(i, 0.5 * float(stages.products[k, i]), time)
    return _learned(stages, count, passed)


def follow_adam(key: Any, setting: None) -> Table:
    """Adam from weights of 1e-8."""
    risk, model = draw(key, Squared())
    stages, count = _first_stages(risk, model)
    learned = np.asarray(adam_products(risk, model.scaled(ADAM_START)))
    passed = np.full((1, P), np.nan)
    for k in range(count):
        i = int(stages.coordinates[k])
        target = float(stages.products[k, i])
        found = np.flatnonzero(learned[:, i] * np.sign(target) >= 0.5 * abs(target))
        if len(found):
            passed[0, k] = found[0]
    return _learned(stages, count, passed)


def _first_stages(risk: Any, model: Any) -> tuple[Any, int]:
    """The stages, and how many of the first ones have coordinates of their own."""
    stages = jax.tree.map(np.asarray, jax.device_get(algorithm_1(risk, model, max_stages=P)))
    coordinates = stages.coordinates[: int(stages.count)].tolist()
    fresh = [coordinate not in coordinates[:k] for k, coordinate in enumerate(coordinates)]
    return stages, fresh.index(False) if False in fresh else len(fresh)


def _learned(stages: Any, count: int, passed: np.ndarray) -> Table:
    """One instance: the first `count` stages of Algorithm 1, in which no product comes twice, at `times` (NaN filled
    up); when half of each product is `passed`, by the flow at a scales (in rescaled time) or by Adam (in steps), NaN
    where it never is.
    """
    times = np.where(np.arange(P) < count, stages.times[:P], np.nan)
    return Table(count=np.asarray(count), times=times, passed=passed)


@eqx.filter_jit
def adam_products(risk: Any, model: Any) -> Any:
    """The products u ⊙ v after every step of Adam."""
    # As in practice: the constant that Adam adds to its denominator stays at 1e-8.
    optimizer = optax.adam(RATE)
    weights = (model.u, model.v)

    def step(carry: Any, _: Any) -> Any:
        before, state = carry
        gradient = jax.grad(lambda w: risk(HadamardNetwork(model.h, *w)))(before)
        updates, state = optimizer.update(gradient, state, before)
        after: Any = optax.apply_updates(before, updates)
        return (after, state), after[0] * after[1]

    return jax.lax.scan(step, (weights, optimizer.init(weights)), None, length=STEPS)[1]


# `tails` `(1, b)`: the flow of the logistic loss; `adam` `(1, b)`: Adam on the squared loss, same data.
ORDERS = Dataset(
    "boix2023",
    "outside",
    {
        "tails": Part(follow_tail, {"logistic": None}, TRIALS, way="on host"),
        "adam": Part(follow_adam, {"squared": None}, TRIALS, instances="tails", way="on host"),
    },
    where=f"{__name__}:ORDERS",
)


def well_apart(times: np.ndarray) -> np.ndarray:
    """Row by row, whether no stage follows the one before it within a share `SEPARATED` of its time."""
    gaps = np.diff(times, axis=-1)
    return np.all(np.isnan(gaps) | (gaps > SEPARATED * times[..., 1:]), axis=-1)


def disorder(passed: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Row by row: 0 where the stages that have `times` are `passed` one after another, 1 where not, NaN where one of
    them was not."""
    asked = ~np.isnan(times)
    wrong = np.any(asked[..., 1:] & (np.diff(passed, axis=-1) <= 0), axis=-1)
    return np.where(np.any(asked & np.isnan(passed), axis=-1), np.nan, 1.0 * wrong)


def _tested(found: Table) -> np.ndarray:
    """Two stages at least, well apart: only then is there an order."""
    return np.asarray((found.count >= 2) & well_apart(found.times))


TAILS = Statement[Table](
    source="Beyond: logistic loss",
    says="stages that exist are passed by the flow in the order of Algorithm 1",
    inside=lambda n: _tested(n.tails),
    residual=lambda n: disorder(n.tails.passed[:, :, -1], n.tails.times),
)
ADAM = Statement[Table](
    source="Beyond: Adam",
    says="Adam from α = 1e-8 learns the products in the order of Algorithm 1",
    inside=lambda n: _tested(n.adam),
    residual=lambda n: disorder(n.adam.passed[:, :, 0], n.adam.times),
)

register(
    ORDERS,
    title="§6: exponential tails, Adam",
    statements=[TAILS, ADAM],
)
