"""Algorithm 1 outside its assumptions: exponential tails, Adam instead of the gradient flow, and weight decay.

With weight decay every stage has a limit, and waiting times change.
"""

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxflow._core import linalg
from jaxflow.data import LinearData
from jaxflow.losses import Logistic, Squared
from jaxflow.models import DiagonalLinear, HadamardNetwork, ProductNetwork
from jaxflow.papers.boix2023.product_paths import algorithm_1, follow_products
from jaxflow.papers.boix2023.stage_parts import crossings
from jaxflow.papers.experiment import Dataset, Part, Statement, Table, register
from jaxflow.risk import EmpiricalRisk
from jaxflow.study import subkey
from jaxflow.theory import StageResult, incremental_learning
from jaxflow.theory.incremental_limit import product_slopes

P = 3
TRIALS = {"quick": 4, "paper": 40, "large": 1000}
# Steps of Adam and its rate, from products of 1e-16.
STEPS, RATE, ADAM_START = 4000, 1e-3, float(np.log(1e-8))

# A product is learned when it first has half of its size on the plateau, or in the least squares solution.
HALF = 0.5
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
    stages, count = first_stages(risk, model)
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
    stages, count = first_stages(risk, model)
    first, passed = stages.coordinates[:count], np.full((1, P), np.nan)
    path = np.asarray(adam_products(risk, model.scaled(ADAM_START)))[:, first]
    passed[0, :count] = learned(path, stages.products[np.arange(count), first])
    return _learned(stages, count, passed)


def learned(path: np.ndarray, aims: np.ndarray) -> np.ndarray:
    """The first step at which each product of a path `(steps, p)` has half of its aim; NaN where it never has."""
    there = path * np.sign(aims) >= HALF * np.abs(aims)
    return np.where(there.any(axis=0), np.argmax(there, axis=0), np.nan)


def first_stages(risk: Any, model: Any) -> tuple[Any, int]:
    """The stages, and how many of the first ones have coordinates of their own."""
    stages = jax.tree.map(np.asarray, jax.device_get(algorithm_1(risk, model, max_stages=P)))
    coordinates = stages.coordinates[: int(stages.count)].tolist()
    fresh = [coordinate not in coordinates[:k] for k, coordinate in enumerate(coordinates)]
    return stages, fresh.index(False) if False in fresh else len(fresh)


def _learned(stages: Any, count: int, passed: np.ndarray) -> Table:
    """The first `count` stages of Algorithm 1, in which no product comes twice, at `times` (NaN filled up); when half
    of each product is `passed`, by the flow at a scales (in rescaled time) or by Adam (in steps), NaN where never."""
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


ORDERS = Dataset(
    "boix2023",
    "outside",
    {
        "tails": Part(follow_tail, {"logistic": None}, TRIALS, way="on host"),
        "adam": Part(follow_adam, {"squared": None}, TRIALS, instances="tails", way="on host"),
    },
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

register(ORDERS, title="§6: exponential tails, Adam", statements=[TAILS, ADAM])

DECAY_TRIALS = {"quick": 20, "paper": 400, "large": 5000}

LOG_ALPHA = -1000.0

# λ as a share of the largest gradient at zero: no coordinate is learned from 1 on, at 0 separable data have no limit.
SHARE = 0.2

# A coordinate may come and go; twice as many stages as products end almost all paths.
STAGES = 2 * P

# Readings of a path in rescaled time, the closer together the nearer to a predicted stage: a stage moves a product by
# a factor e in 1/1000 of a unit, and the next one may come after 1e5 units.
READINGS = 4001

# The two readings nearest to a stage are e^(-20) of the wait apart.
FOLDS = 20.0

# Slopes past λ off the support, relative to those at zero: rounding of sums over samples, and of the inner limit.
MINIMISER = 1e-9


def follow_decay(key: Any, setting: None) -> Table:
    """What the generalised Algorithm 1 says, and what the flow does.

    `times` (NaN where there is none) and `coordinates` (−1) of the k = `STAGES` stages of Algorithm 1 with g − λ for g;
    when the flow `passed` half of each product, `(k,)` each; slopes past λ where it ends, relative to the largest at
    zero, `excess` (NaN: no end); whether the flow was followed, `ok`.
    """
    risk, model = draw(key, Logistic())
    stages, decay, slopes = jax.device_get(_predict(risk, model))
    count = int(stages.count)
    products, excess = np.asarray(stages.products)[:count], np.nan
    if np.any(np.asarray(stages.results.value) == StageResult.finished):
        last = products[-1] if count else np.zeros(P)
        # The condition for a minimum of L + λ|a|₁ at this point.
        past = np.where(last == 0.0, np.abs(slopes) - decay, np.abs(slopes - decay * np.sign(last)))
        excess = max(past.max(), 0.0) / (decay / SHARE)
    times, passed = np.full((2, STAGES), np.nan)
    coordinates, ok = np.full(STAGES, -1), True
    if count:
        times[:count], coordinates[:count] = np.asarray(stages.times)[:count], np.asarray(stages.coordinates)[:count]
        around = np.concatenate([[0.0], times[:count]])
        ends = np.append(around[2:], around[-1] + np.diff(around)[-1])
        readings = readings_of(times[:count], float(ends[-1]))
        good, path = jax.device_get(
            flow_with_decay(risk, model.scaled(LOG_ALPHA), LOG_ALPHA, decay, jnp.asarray(readings))
        )
        ok = bool(good)
        for k in range(count if ok else 0):
            i = int(coordinates[k])
            found = crossings(readings, path[:, i], 0.5 * float(products[k, i]))
            if len(found):
                passed[k] = found[np.argmin(np.abs(found - times[k]))]
    return Table(
        times=times,
        coordinates=coordinates,
        passed=passed,
        excess=np.asarray(excess),
        ok=np.asarray(ok),
    )


def readings_of(times: np.ndarray, end: float) -> np.ndarray:
    """`READINGS` moments from 0 to `end`, as many between any two neighbouring stages, the closest at the stages."""
    marks = np.concatenate([[0.0], times, [end]])
    pieces = np.array_split(np.arange(READINGS - 1), len(marks) - 1)
    parts = [np.zeros(1)]
    for piece, start, stop in zip(pieces, marks[:-1], marks[1:], strict=True):
        shares = 1.0 / (1.0 + np.exp(-np.linspace(-FOLDS, FOLDS, len(piece) + 1)))
        shares = (shares - shares[0]) / (shares[-1] - shares[0])
        parts.append(start + (stop - start) * shares[1:])
    return np.concatenate(parts)


@jax.jit
def flow_with_decay(risk: Any, model: Any, log_alpha: Any, decay: Any, readings: Any) -> tuple[Any, Any]:
    r"""The flow of $L+\frac\lambda2(|u|^2+|v|^2)$ in rescaled time: $\dot\omega=\log(1/\alpha)\,(g-\lambda)$.

    In logarithms the decay is a constant, so that the risk stays what it is: its log-scaled gradient by the products
    is all that is asked of it. $\log(u+v)+\log(u-v)$, conserved without decay, falls at the rate 2λ exactly.

    **Returns:** whether the integration succeeded, and the products at the readings `(m, p)`.
    """
    unit = -jnp.asarray(log_alpha, float)
    logs = model.log_weights

    def products(time: Any, total: Any) -> Any:
        rest = logs.log_conserved - 2.0 * decay * unit * time - total
        return 0.25 * (jnp.exp(2.0 * total) - jnp.exp(2.0 * rest))

    def field(time: Any, total: Any, args: Any) -> Any:
        scaled = risk.scaled_gradient(ProductNetwork(model.h, products(time, total)))
        return unit * (-jnp.exp(scaled.log_scale) * scaled.gradient.products - decay)

    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(field),
        diffrax.Kvaerno5(root_finder=linalg.chord(rtol=1e-9, atol=1e-5)),
        0.0,
        readings[-1],
        None,
        logs.log_sum,
        saveat=diffrax.SaveAt(ts=readings),
        # Absolute in logarithms is relative in weights; relative to logarithms of a thousand it has to be as small.
        stepsize_controller=diffrax.PIDController(rtol=1e-9, atol=1e-5),
        max_steps=20_000,
        throw=False,
    )
    return solution.result == diffrax.RESULTS.successful, jax.vmap(products)(solution.ts, solution.ys)


@jax.jit
def _predict(risk: Any, model: Any) -> tuple[Any, Any, Any]:
    """The stages, λ, and the slopes where they end."""
    slopes = product_slopes(risk, model.h)
    decay = SHARE * jnp.max(jnp.abs(slopes(jnp.zeros(P))))
    stages = incremental_learning(risk, model, max_stages=STAGES, decay=decay)
    last = jnp.concatenate([jnp.zeros((1, P)), stages.products])[stages.count]
    return stages, decay, slopes(last)


DECAY = Dataset("boix2023", "decay", {"flows": Part(follow_decay, {"logistic": None}, DECAY_TRIALS, way="on host")})


def _asked(numbers: Table) -> np.ndarray:
    """Two stages at least, well apart. A product that comes back would be looked for twice at one size: such an
    instance is counted apart."""
    flows = numbers.flows
    once = [len(np.unique(row[row >= 0])) == np.sum(row >= 0) for row in flows.coordinates[0]]
    return (np.sum(~np.isnan(flows.times), axis=-1) >= 2) & np.asarray(once, bool)[None] & well_apart(flows.times)


IN_ORDER = Statement[Table](
    source="Beyond: logistic loss with weight decay",
    says="stages are passed by the flow of L + λ/2 (|u|² + |v|²) in the order of Algorithm 1 with g − λ for g",
    inside=_asked,
    residual=lambda n: np.where(n.flows.ok, disorder(n.flows.passed, n.flows.times), np.nan),
)
ENDS = Statement[Table](
    source="Beyond: where weight decay ends",
    says="every stage has a limit, and the last one minimises L + λ|a|₁ over the products a",
    # A path whose end is not known decides nothing.
    residual=lambda n: n.flows.excess,
    bound=(MINIMISER, "slope past λ, relative to the largest at zero"),
)

register(DECAY, title="§6: an exponential tail with weight decay", statements=[IN_ORDER, ENDS])
