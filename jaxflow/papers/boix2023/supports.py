"""How supports change: the flow itself from tiny starts, and Algorithm 1 on many random linear networks at once."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxflow.papers.boix2023.product_paths import ProductPath, algorithm_1, follow_products
from jaxflow.papers.boix2023.small_instances import linear_task
from jaxflow.papers.boix2023.stage_parts import linear_stages
from jaxflow.papers.experiment import BELOW_ZERO, Again, Dataset, Draw, Part, Statement, Table, register
from jaxflow.theory import StageResult, incremental_learning
from jaxflow.theory.incremental_limit import product_slopes

SAMPLES = 4
# Instances of Algorithm 1, and of these how many that the flow is followed on.
TRIALS = {"quick": 200, "paper": 5000, "large": 200_000}
FOLLOWED = {"quick": 6, "paper": 60, "large": 1000}

# A path may go through a support more than once; twelve stages end almost all of them.
STAGES = 12

# The flow is followed at both; its own time is log(1/α) times the rescaled one.
LOG_ALPHAS = (-1000.0, -10_000.0)

# A product counts as learned from here on: products of order one are far above, e^(-1000) far below.
ACTIVE = 1e-3

# Between two stages passes a share of log(1/α), ten times more of the flow's own time at the second α; what happens
# within one stage takes the same time at both. From APART on two products entered in two stages, up to ONE in one.
APART, ONE = 3.0, 1.5

# Rounding of exponents that are exactly 0 or 2.
AT_END = 1e-9

# Nor have they entered one after the other unless as many e-folds of a product lie between them. The first one takes
# log(1/α) of them to enter.
FOLDS = 10.0

# Of the logarithms of weights; times of entry are compared between two integrations.
TOLERANCE = 1e-6

# Past the last stage of Algorithm 1 the flow is followed for this share of the time more: something may follow.
HORIZON = 1.5


def predict(key: Any, setting: None) -> Table:
    """Algorithm 1.

    On one instance, by its k = `STAGES` stages: `results`, `times` `(k,)`; which of p products are on the `support`,
    their `exponents` b and `slopes` g there, `(k, p)`.
    """
    risk, model = linear_task(key, SAMPLES)
    stages = incremental_learning(risk, model, max_stages=STAGES)
    slopes = jax.vmap(product_slopes(risk, model.h))(stages.products)
    support = stages.products != 0.0
    return Table(
        results=stages.results.value,
        times=stages.times,
        support=support,
        exponents=stages.exponents,
        slopes=jnp.where(support, 0.0, slopes),
    )


def follow(key: Any, setting: None) -> Table:
    """The flow at both scales.

    Which products entered the support of a flow at each of a `LOG_ALPHAS`, and when, in order; k = `STAGES`.

    `coordinates` (−1 where there is none), `times` (rescaled, NaN); `inside`: Algorithm 1 goes to its end with
    Assumptions 4.3 and 4.4 met; `ok`: the integrations reached their ends.
    """
    risk, model = linear_task(key, SAMPLES)
    stages = jax.device_get(algorithm_1(risk, model, max_stages=STAGES))
    count = int(np.sum(stages.results.value == StageResult.learned))
    ended = bool(np.any(stages.results.value == StageResult.finished)) and count > 0
    slacks = (stages.gaps, stages.curvatures, stages.leaving)
    inside = np.asarray(ended and all(np.all(np.asarray(slack)[:count] > 0) for slack in slacks))
    shape = (len(LOG_ALPHAS), STAGES)
    coordinates, times, ok = np.full(shape, -1), np.full(shape, np.nan), True
    for row, log_alpha in enumerate(LOG_ALPHAS if inside else ()):
        until = HORIZON * float(stages.times[count - 1])
        path = follow_products(risk, model.scaled(log_alpha), log_alpha, until, tolerance=TOLERANCE)
        ok &= path.reached(until)
        order = entries_of(path)[:STAGES]
        coordinates[row, : len(order)] = [coordinate for _, coordinate in order]
        times[row, : len(order)] = [time for time, _ in order]
    return Table(coordinates=coordinates, times=times, inside=inside, ok=np.asarray(ok))


def entries_of(path: ProductPath) -> list[tuple[float, int]]:
    """Time and coordinate of every product that passes ±`ACTIVE` away from zero, in order."""
    return sorted(
        (float(time), i)
        for i in range(path.log_sums.shape[1])
        for level in (ACTIVE, -ACTIVE)
        for time in path.crossings(i, level)
    )


def together(flows: Table) -> np.ndarray:
    """By flow: 0 where no two products enter in one stage, 1 where two do, NaN where that is not known.

    Of two neighbours in order it is told by how much longer they take at the smaller α, in the flow's own time.
    """
    first, second = flows.times[..., 0, :], flows.times[..., 1, :]
    lengths = np.asarray(LOG_ALPHAS)
    growth = (lengths[1] / lengths[0]) * np.diff(second, axis=-1) / np.diff(first, axis=-1)
    folds = -lengths[1] * np.diff(second, axis=-1) / second[..., :1]
    pairs = ~np.isnan(second[..., 1:])
    same = np.all(flows.coordinates[..., 0, :] == flows.coordinates[..., 1, :], axis=-1) & flows.ok
    apart = np.all(~pairs | ((growth >= APART) & (folds >= FOLDS)), axis=-1)
    one = np.any(pairs & (growth <= ONE), axis=-1)
    return np.where(same & apart, 0.0, np.where(same & one, 1.0, np.nan))


SUPPORTS = Dataset(
    "boix2023",
    "supports",
    {
        "algorithm": Part(predict, {"linear": None}, TRIALS, block=100),
        "flows": Part(follow, {"linear": None}, FOLLOWED, instances="algorithm", way="on host"),
    },
)


def _leaving(numbers: Table) -> np.ndarray:
    """By instance the most coordinates that leave in a learned stage of Algorithm 1."""
    learned, support = numbers.algorithm.results[0] == StageResult.learned, numbers.algorithm.support[0]
    before = np.concatenate([np.zeros_like(support[:, :1]), support[:, :-1]], axis=1)
    return 1.0 * np.max(np.sum(before & ~support, axis=-1) * learned, axis=1)


def left_behind(
    learned: np.ndarray, times: np.ndarray, support: np.ndarray, exponents: np.ndarray, slopes: np.ndarray
) -> np.ndarray:
    r"""Lemma D.4 by instance: the largest $(1-b_i^k)\,g_i(\theta^k)$ of coordinates off the support with $b_i^k$ at 0
    or 2, one for those that were not in it one stage before, and minus the least $\Delta_k$; NaN of none.

    **Arguments:** k stages: `learned`, `times` `(…, k)`, and the columns of `predict` `(…, k, p)`.
    """
    before = np.concatenate([np.zeros_like(support[..., :1, :]), support[..., :-1, :]], axis=-2)
    at_end = learned[..., None] & ~support & (np.abs(exponents - 1.0) > 1.0 - AT_END)
    wrong = np.where(before, (1.0 - exponents) * slopes, 1.0)
    waits = np.where(learned, np.diff(np.where(learned, times, 0.0), axis=-1, prepend=0.0), np.inf)
    largest = np.max(np.where(at_end, wrong, -np.min(waits, axis=-1)[..., None, None]), axis=(-2, -1))
    return np.where(np.any(at_end, axis=(-2, -1)), largest, np.nan)


def _left_behind(numbers: Table) -> np.ndarray:
    found = numbers.algorithm
    learned = found.results == StageResult.learned
    return left_behind(learned, found.times, found.support, found.exponents, found.slopes)[0]


def _left_behind_again(numbers: Table, draw: Draw, at: tuple[int, ...]) -> float:
    data: Any = linear_task(draw.instance("algorithm", at[0])[0], SAMPLES)[0].data
    stages = linear_stages(np.asarray(data.inputs), np.asarray(data.targets), STAGES)
    learned = np.ones(len(stages.times), bool)
    return float(left_behind(learned, stages.times, stages.products != 0.0, stages.exponents, stages.slopes))


GROWS = Statement[Table](
    source="Theorem 4.1 (supports)",
    says="supp(θ^{k+1}) has at most one coordinate that supp(θ^k) has not: along the flow, no two products pass "
    f"{ACTIVE:g} in one stage, told by the time between them at α = e^(-1000) and e^(-10000)",
    inside=lambda n: n.flows.inside,
    residual=lambda n: together(n.flows),
)
LEAVES = Statement[Table](
    source="Appendix A (departures)",
    says="no coordinate ever leaves the support (said of the toy task; here of random linear networks)",
    residual=_leaving,
    # Said of the toy task alone: what other tasks do neither proves nor refutes it.
    beyond=True,
)
LEFT = Statement[Table](
    source="Lemma D.4",
    says="where b_i^k is 0 or 2 off the support, i was on it one stage before, and g_i(θ^k) has the sign that keeps it "
    "off; and every Δ_k(i_k) > 0 (instances of which a coordinate leaves)",
    inside=lambda n: ~np.isnan(_left_behind(n)),
    residual=_left_behind,
    bound=(BELOW_ZERO, "the largest of (1 − b) g, and of −Δ"),
    again=Again("Algorithm 1 by NNLS of SciPy", _left_behind_again, 1e-6),
)

register(
    SUPPORTS,
    title="Theorem 4.1, Lemma D.4: supports along the flow and in Algorithm 1",
    statements=[GROWS, LEAVES, LEFT],
)
