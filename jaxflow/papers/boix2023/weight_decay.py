"""Algorithm 1 with an exponential tail and weight decay: every stage has a limit then, and waiting times change."""

from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np

from jaxflow._core import linalg
from jaxflow.losses import Logistic
from jaxflow.models import ProductNetwork
from jaxflow.papers.boix2023.beyond_assumptions import P, disorder, draw, well_apart
from jaxflow.papers.dataset import Dataset, Part
from jaxflow.papers.registry import register
from jaxflow.papers.statement import Statement
from jaxflow.papers.table import Table
from jaxflow.theory import StageResult, incremental_learning
from jaxflow.theory.incremental_limit import product_slopes

TRIALS = {"quick": 20, "paper": 400, "large": 5000}

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

# Middle of a plateau: what is not learned yet is exponentially small; left are the tolerance of the integration
# (1e-5 of the logarithm of a product) and what a slow direction still has to go.
WEIGHTS = 1e-3

# Slopes past λ off the support, relative to those at zero: rounding of sums over samples, and of the inner limit.
MINIMISER = 1e-9


def follow(key: Any, setting: None) -> Table:
    """What the generalised Algorithm 1 says, and what the flow does.

    One instance: `results`, `times` (NaN where there is none) and `coordinates` (−1) of the k = `STAGES` stages of
    Algorithm 1 with g − λ for g; when the flow `passed` half of each product, and its `distance` in the middle of the
    plateau; slopes past λ where it ends, relative to the largest at zero, `excess` (NaN: no end); whether the flow was
    followed, `ok`. Of its own shape: `passed`, `distance` `(k,)`.
    """
    risk, model = draw(key, Logistic())
    stages, decay, slopes = jax.device_get(_predict(risk, model))
    results, count = np.asarray(stages.results.value), int(stages.count)
    products, excess = np.asarray(stages.products)[:count], np.nan
    if np.any(results == StageResult.finished):
        last = products[-1] if count else np.zeros(P)
        # The condition for a minimum of L + λ|a|₁ at this point.
        past = np.where(last == 0.0, np.abs(slopes) - decay, np.abs(slopes - decay * np.sign(last)))
        excess = max(past.max(), 0.0) / (decay / SHARE)
    times, passed, distance = np.full((3, STAGES), np.nan)
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
            middle = int(np.argmin(np.abs(readings - 0.5 * (times[k] + ends[k]))))
            distance[k] = np.max(np.abs(path[middle] - products[k]))
    return Table(
        results=results,
        times=times,
        coordinates=coordinates,
        passed=passed,
        distance=distance,
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


def crossings(times: np.ndarray, products: np.ndarray, level: float) -> np.ndarray:
    """When a product passes `level` away from zero, the logarithm of its size taken straight between readings."""
    size = np.log(np.maximum(products * np.sign(level), np.finfo(float).tiny)) - np.log(abs(level))
    steps = np.flatnonzero((size[:-1] < 0) & (size[1:] >= 0))
    share = -size[steps] / (size[steps + 1] - size[steps])
    return times[steps] + share * (times[steps + 1] - times[steps])


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


# `flows` `(1, b)`: linear diagonal networks of three products, nine points with random labels, λ a fifth of the largest
# slope.
DECAY = Dataset(
    "boix2023",
    "decay",
    {"flows": Part(follow, {"logistic": None}, TRIALS, way="on host")},
    where=f"{__name__}:DECAY",
)


def _count(flows: Table) -> np.ndarray:
    return np.sum(~np.isnan(flows.times), axis=-1)


def _once(flows: Table) -> np.ndarray:
    """A product that comes back would be looked for twice at one size: such an instance is counted apart."""
    rows = [len(np.unique(row[row >= 0])) == np.sum(row >= 0) for row in flows.coordinates[0]]
    return np.asarray(rows, bool)[None]


def _asked(numbers: Table) -> np.ndarray:
    flows = numbers.flows
    return (_count(flows) >= 2) & _once(flows) & well_apart(flows.times)


def _order(numbers: Table) -> np.ndarray:
    return np.where(numbers.flows.ok, disorder(numbers.flows.passed, numbers.flows.times), np.nan)


IN_ORDER = Statement[Table](
    source="Beyond: logistic loss with weight decay",
    says="stages are passed by the flow of L + λ/2 (|u|² + |v|²) in the order of Algorithm 1 with g − λ for g",
    inside=_asked,
    residual=_order,
)
ENDS = Statement[Table](
    source="Beyond: where weight decay ends",
    says="every stage has a limit, and the last one minimises L + λ|a|₁ over the products a",
    # A path whose end is not known decides nothing.
    residual=lambda n: n.flows.excess,
    bound=MINIMISER,
    unit="slope past λ, relative to the largest at zero",
)

register(
    DECAY,
    title="§6: an exponential tail with weight decay",
    statements=[IN_ORDER, ENDS],
)
