"""Algorithm 1 with an exponential tail and weight decay: every stage has a limit then, and waiting times change."""

from collections.abc import Callable
from typing import Any, NamedTuple

import diffrax
import jax
import jax.numpy as jnp
import numpy as np

from jaxflow._core import linalg
from jaxflow.losses import Logistic
from jaxflow.models import ProductNetwork
from jaxflow.papers.boix2023.verify.outside import P, in_order, instance, order_evidence, passed, well_apart
from jaxflow.papers.checks import AbstractCheck, Row, register_check
from jaxflow.papers.registry import Data
from jaxflow.report import count_evidence
from jaxflow.study import wilson
from jaxflow.theory import StageResult, incremental_learning
from jaxflow.theory.incremental_limit import product_slopes

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


class Size(NamedTuple):
    """How many instances."""

    trials: int


SIZES = {"quick": Size(20), "paper": Size(400), "large": Size(5000)}


@register_check("boix2023", "decay", statements="§6: an exponential tail with weight decay")
class DecayCheck(AbstractCheck):
    """Linear diagonal networks of three products, nine points with random labels, λ a fifth of the largest slope."""

    def compute(self, scale: str, key: Any, say: Callable[[str], None]) -> Data:
        say(f"{SIZES[scale].trials} instances with the logistic loss and weight decay")
        return compute(SIZES[scale], key)

    def rows(self, data: Data) -> list[Row]:
        return [_order(data), _minimiser(data)]


def compute(size: Size, key: Any) -> Data:
    """By instance (and stage, and coordinate): what the generalised Algorithm 1 says, and what the flow does."""
    shape = (size.trials, STAGES)
    data: Data = {
        "results": np.zeros(shape, int),
        "times": np.full(shape, np.nan),
        "coordinates": np.full(shape, -1),
        "crossings": np.full(shape, np.nan),
        "distance": np.full(shape, np.nan),
        "excess": np.full(size.trials, np.nan),
        "failed": np.zeros(size.trials, bool),
    }
    for trial in range(size.trials):
        risk, model = instance(jax.random.fold_in(key, trial), Logistic())
        stages, decay, slopes = jax.device_get(_predict(risk, model))
        data["results"][trial] = np.asarray(stages.results.value)
        count = int(stages.count)
        products = np.asarray(stages.products)[:count]
        if np.any(data["results"][trial] == StageResult.finished):
            last = products[-1] if count else np.zeros(P)
            # The condition for a minimum of L + λ|a|₁ at this point.
            past = np.where(last == 0.0, np.abs(slopes) - decay, np.abs(slopes - decay * np.sign(last)))
            data["excess"][trial] = max(past.max(), 0.0) / (decay / SHARE)
        if count:
            _follow(data, trial, risk, model, decay, stages, products)
    return data


def _follow(data: Data, trial: int, risk: Any, model: Any, decay: Any, stages: Any, products: np.ndarray) -> None:
    count = len(products)
    times = np.asarray(stages.times)[:count]
    around = np.concatenate([[0.0], times])
    ends = np.append(times[1:], times[-1] + np.diff(around)[-1])
    data["times"][trial, :count] = times
    data["coordinates"][trial, :count] = np.asarray(stages.coordinates)[:count]
    readings = readings_of(times, float(ends[-1]))
    good, path = jax.device_get(flow_with_decay(risk, model.scaled(LOG_ALPHA), LOG_ALPHA, decay, jnp.asarray(readings)))
    data["failed"][trial] = not good
    if not good:
        return
    for k in range(count):
        i = int(stages.coordinates[k])
        found = crossings(readings, path[:, i], 0.5 * float(products[k, i]))
        if len(found):
            data["crossings"][trial, k] = found[np.argmin(np.abs(found - times[k]))]
        middle = int(np.argmin(np.abs(readings - 0.5 * (times[k] + ends[k]))))
        data["distance"][trial, k] = np.max(np.abs(path[middle] - products[k]))


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


def _order(data: Data) -> Row:
    learned = ~np.isnan(data["times"])
    count = learned.sum(axis=1)
    # A product that comes back would be looked for twice at one size: such an instance is counted apart.
    once = np.array([len(np.unique(c[:n])) == n for c, n in zip(data["coordinates"], count, strict=True)], bool)
    asked = (count >= 2) & once & well_apart(data["times"])
    tested = asked & ~data["failed"]
    good = in_order(data["crossings"], count)[tested]
    inside = learned & tested[:, None]
    relative = np.abs(data["crossings"] / data["times"] - 1.0)[inside]
    # A stage that the flow never passes is as far off as can be.
    relative = np.where(np.isnan(relative), np.inf, relative)
    near = data["distance"][inside] <= WEIGHTS
    low, high = wilson(int(good.sum()), int(tested.sum())) if tested.any() else (0.0, 1.0)
    few, back = int(np.sum(count < 2)), int(np.sum(~once))
    return Row(
        "Beyond: logistic loss with weight decay",
        "stages are passed by the flow of L + λ/2 (|u|² + |v|²) in the order of Algorithm 1 with g − λ for g",
        f"in order in {int(good.sum())} of {int(tested.sum())} ({float(low):.0%} to {float(high):.0%}, Wilson 95%); "
        f"{int(near.sum())} of {near.size} plateaus within {WEIGHTS:.0e} of the predicted products; apart are {few} of "
        f"{len(count)} with fewer than two stages, {back} in which a product comes back, {int(data['failed'].sum())} "
        "not integrated to the end, and those with stages too close",
        int(asked.sum()),
        int(len(count) - asked.sum()),
        float(relative.max(initial=0.0)) if tested.any() else float("inf"),
        "relative distance in time at e^(-1000)",
        order_evidence(in_order(data["crossings"], count)[asked], passed(data["crossings"], count)[asked]),
        {"in_order": int(good.sum()), "instances": int(tested.sum()), "plateaus": int(near.sum())},
    )


def _minimiser(data: Data) -> Row:
    total = len(data["results"])
    ended = ~np.isnan(data["excess"])
    stuck = np.any(data["results"] == StageResult.not_converged, axis=1)
    tied = np.any(data["results"] == StageResult.degenerate, axis=1)
    excess = data["excess"][ended]
    worst = float(excess.max(initial=0.0))
    good = excess <= MINIMISER
    rest = total - int((ended | stuck | tied).sum())
    return Row(
        "Beyond: where weight decay ends",
        "every stage has a limit, and the last one minimises L + λ|a|₁ over the products a",
        f"{int(good.sum())} of the {int(ended.sum())} that end do so at the minimiser; of {total} in all "
        f"{int(stuck.sum())} have a stage without a limit, {int(tied.sum())} two coordinates at once, {rest} are not "
        f"at the end after {data['results'].shape[1]} stages",
        total,
        0,
        worst if ended.any() else float("inf"),
        "slope past λ, relative to the largest at zero",
        # A path whose end is not known decides nothing.
        count_evidence(data["excess"] <= MINIMISER, decided=ended),
        {"minimisers": int(good.sum()), "instances": int(ended.sum()), "without_limit": int(stuck.sum())},
    )
