"""Theorem 4.1 (times, weights, sparsity), Lemmas 4.2 and C.5 to C.10 on small random instances."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxflow.data import LinearData
from jaxflow.flow import LogHadamard, RescaledTime, integrate
from jaxflow.losses import Squared
from jaxflow.models import DiagonalHead, DiagonalLinear, HadamardNetwork
from jaxflow.papers.boix2023.product_paths import ProductPath, algorithm_1, follow_products
from jaxflow.papers.boix2023.stage_parts import NAMES, NEAR, RHO, linear_path, linear_stages, measure_parts
from jaxflow.papers.experiment import Again, Dataset, Draw, Part, Statement, Table, common_rate, register
from jaxflow.risk import EmpiricalRisk
from jaxflow.study import subkey
from jaxflow.teachers import diagonal_head_task
from jaxflow.theory import StageResult

STAGES = 3
TRIALS = {"quick": 5, "paper": 40, "large": 1000}

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

# Of steps of the path, for the parts of a stage.
FINE = 8

# A product counts as nonnegligible from here on: half a product of order one is far above, e^(-1000) far below.
ACTIVE = 1e-3

# Two integrations whose steps have relative errors of 1e-6 and less, over some hundred of them.
DRIFT = 1e-8


def draw(key: Any, family: str) -> tuple[EmpiricalRisk, HadamardNetwork]:
    """A linear diagonal network of three products, or an attention head of four."""
    if family == "head":
        data, _ = diagonal_head_task(subkey(key, "data"), 8, 3, 2)
        return EmpiricalRisk(data, Squared()), HadamardNetwork.init(subkey(key, "start"), DiagonalHead(), 4)
    return linear_task(key, 6)


def linear_task(key: Any, samples: int) -> tuple[EmpiricalRisk, HadamardNetwork]:
    """Gaussian samples and targets, and a linear diagonal network of three products of size one."""
    X, y = (jax.random.normal(subkey(key, name), size) for name, size in (("X", (samples, 3)), ("y", (samples,))))
    return EmpiricalRisk(LinearData(X, y), Squared()), HadamardNetwork.init(subkey(key, "start"), DiagonalLinear(), 3)


def compare(risk: EmpiricalRisk, model: HadamardNetwork, most: int = STAGES) -> Table:
    """Algorithm 1 against the flow at every α.

    One instance, at each of a `LOG_ALPHAS` and k stages; NaN where there is no such stage, or it was not reached.

    `inside`: the stages are known, apart, and minima on their supports; `ok`: followed to the end;
    times `predicted` `(k,)` and `measured` `(a, k)`, `distance` of the products in the middle of the plateaus `(a, k)`;
    what `measure_parts` finds of both parts of a stage, `(a, k)` each;
    most products `entering` from one plateau to the next at the smallest α; `drift` of u² − v² (NaN: not integrated).
    """
    # One stage more than is measured: the last plateau ends where the next stage begins.
    stages = jax.device_get(algorithm_1(risk, model, max_stages=most + 1))
    results = np.asarray(stages.results.value)
    known = int(np.sum(results == StageResult.learned))
    count = min(known, most)
    predicted = np.full(most, np.nan)
    measured, distance, *more = np.full((2 + len(NAMES), len(LOG_ALPHAS), most), np.nan)
    parts: dict[str, np.ndarray] = dict(zip(NAMES, more, strict=True))
    nothing = Table(
        parts,
        inside=False,
        ok=True,
        predicted=predicted,
        measured=measured,
        distance=distance,
        entering=0,
        drift=np.nan,
    )
    if count == 0:
        return nothing
    # Algorithm 1 itself could not say what comes next: the instance says nothing about the theorem.
    decided = not np.isin(results, (StageResult.not_converged, StageResult.degenerate)).any()
    times, products = np.asarray(stages.times)[:count], np.asarray(stages.products)[:count]
    around = np.concatenate([[0.0], np.asarray(stages.times)[:known]])
    apart = bool(np.all(np.diff(around) > SEPARATED * around[1:]))
    inside = np.asarray(decided and apart and np.min(np.asarray(stages.curvatures)[:count]) > 0)
    predicted[:count] = times
    # Where nothing follows: half as long again as the last stage took.
    ends = np.append(around[2:], times[-1] + 0.5 * np.diff(around)[-1])[:count]
    there = np.zeros((0, products.shape[1]))
    coordinates, exponents = (np.asarray(x)[:count] for x in (stages.coordinates, stages.exponents))
    stage = Table(coordinates=coordinates, times=times, products=products, exponents=exponents)
    for step, log_alpha in enumerate(LOG_ALPHAS):
        path = follow_products(risk, model.scaled(log_alpha), log_alpha, float(ends[-1]), tolerance=TOLERANCE)
        if not path.reached(float(ends[-1])):
            return nothing.replace(inside=inside, ok=False)
        for k in range(count):
            coordinate = int(stages.coordinates[k])
            measured[step, k] = path.passes(coordinate, 0.5 * float(products[k, coordinate]), times[k])
        for name, values in _parts(path, stage).items():
            parts[name][step, :count] = values
        there = path.products_at(0.5 * (times + ends))
        distance[step, :count] = np.max(np.abs(there - products), axis=1)
    active = np.concatenate([np.zeros((1, products.shape[1]), bool), np.abs(there) > ACTIVE])
    entering = np.max(np.sum(active[1:] & ~active[:-1], axis=1))
    drift = np.asarray(_drift(risk, model, float(ends[-1])))
    return nothing.replace(inside=inside, entering=entering, drift=drift)


def _parts(path: ProductPath, stages: Table) -> dict[str, np.ndarray]:
    """On the path's steps, each divided by FINE: within a stage a step is one e-fold."""
    starts, shares = path.times[:-1, None], np.arange(FINE) / FINE
    times = np.append((starts + shares * np.diff(path.times)[:, None]).ravel(), path.times[-1])
    return measure_parts(times, path.log_sums_at(times), path.log_conserved, path.log_alpha, stages)


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


FAMILIES = {family: family for family in ("linear", "head")}
FLOWS = Dataset(
    "boix2023", "stages", {"flows": Part(lambda *one: compare(*draw(*one)), FAMILIES, TRIALS, way="on host")}
)


def _orders(flows: Table, name: str = "measured", aim: bool = True) -> np.ndarray:
    """The order in 1/log(1/α), between the two smallest α, of the lateness of one of the times, or of another column
    that falls to zero; by stage `(2, b, k)`."""
    late = np.abs(getattr(flows, name) - (flows.predicted[:, :, None, :] if aim else 0.0))
    return np.log10(late[:, :, -2] / late[:, :, -1])


def _worst(flows: Table, values: np.ndarray) -> np.ndarray:
    """The largest over the stages of an instance; NaN where one of them is not known."""
    stages = ~np.isnan(flows.predicted)
    found = np.max(np.where(stages, values, -np.inf), axis=-1, initial=-np.inf)
    return np.where(flows.ok & stages.any(axis=-1), found, np.nan)


def falls(name: str, source: str, says: str, aim: bool = True) -> Statement[Table]:
    """What falls like 1/log(1/α)."""
    what = "in time" if aim else "of exponents"
    return Statement(
        source=source,
        says=says,
        of=lambda n: n.flows,
        inside=lambda flows: flows.inside,
        residual=lambda flows: _worst(flows, np.abs(_orders(flows, name, aim) - 1.0)),
        bound=(ORDER, f"|order of the distance {what} − 1|"),
        rate=lambda flows, known: common_rate(
            _orders(flows, name, aim)[flows.inside & flows.ok],
            1.0,
            bias=ORDER,
            law=f"distance {what} against log(1/α)",
        ),
        # A stage whose product is large takes long within itself: the order is seen at smaller α than these, unless the
        # distance does not fall.
        late=1.0,
    )


def _changes(flows: Table, name: str) -> np.ndarray:
    """Of what is to tend to a constant: the logarithm of the factor between the two smallest α, to base 10."""
    values = getattr(flows, name)
    return np.abs(np.log10(values[:, :, -1] / values[:, :, -2]))


def at_smallest(source: str, says: str, residual: Any, bound: tuple[float, str], late: float = -np.inf) -> Statement:
    """What small enough α have, by the worst stage at the smallest α, and by independent code for linear networks."""

    def again(flows: Table, draw: Draw, at: tuple[int, ...]) -> float:
        if at[0] != 0:
            return np.nan
        alone = linear_again(draw.instance("flows", at[1])[0])
        return float(_worst(alone, residual(alone))[0, 0])

    return Statement(
        source=source,
        says=says,
        of=lambda n: n.flows,
        inside=lambda flows: flows.inside,
        residual=lambda flows: _worst(flows, residual(flows)),
        bound=bound,
        late=late,
        # Both find times between steps.
        again=Again("LSODA and NNLS of SciPy (linear networks)", again, 0.05),
    )


def linear_again(key: Any) -> Table:
    """The columns `predicted`, `ok` and those of stages, of a linear network by SciPy alone: `(1, 1, …)`."""
    risk, model = draw(key, "linear")
    data: Any = risk.data
    X, y = np.asarray(data.inputs), np.asarray(data.targets)
    stages = linear_stages(X, y, STAGES)
    until = float(stages.times[-1] + 0.5 * np.diff(np.append(0.0, stages.times))[-1])
    found: dict[str, Any] = {name: np.full((1, 1, len(LOG_ALPHAS), len(stages.times)), np.nan) for name in NAMES}
    for step, log_alpha in enumerate(LOG_ALPHAS):
        logs = model.scaled(log_alpha).log_weights
        conserved = np.asarray(logs.log_conserved)
        times, log_sums = linear_path(X, y, np.asarray(logs.log_sum), conserved, log_alpha, until)
        for name, values in measure_parts(times, log_sums, conserved, log_alpha, stages).items():
            found[name][0, 0, step] = values
    return Table(found, predicted=stages.times[None, None], ok=np.ones((1, 1), bool))


TIMES = falls(
    "measured", "Theorem 4.1 (times)", "the flow passes half of the product of i_k at rescaled time T_{k+1} as α → 0"
)
LEMMAS = [
    at_smallest(
        "Lemma C.5",
        f"θ stays within 24ρ of θ^k until weights off the support have moved by 4ρ, ρ = {RHO:g}, at e^(-10000)",
        lambda flows: flows.stays[:, :, -1],
        (24.0, "distance in units of ρ"),
    ),
    falls("exponent", "Lemma C.6", "log_α w → b^{k+1} where part (A) ends, as (23) has it", aim=False),
    falls("opens", "Lemmas C.7 and C.9", "part (A), (26), ends at rescaled time T_{k+1} as α → 0"),
    at_smallest(
        "Lemma C.8",
        f"in part (A) no weight off the support moves by more than ε̄ = {NEAR:g}, but that of i_k, at e^(-10000)",
        lambda flows: flows.others[:, :, -1],
        (1.0, "motion in units of ε̄"),
    ),
    at_smallest(
        "Lemma C.9",
        "where part (A) ends u_{i_k} is between ρ and 3ρ, and v_{i_k} has the sign that stage k + 1 predicts",
        lambda flows: np.abs(flows.weight[:, :, -1] - 2.0),
        (1.0, "|± u/ρ − 2|"),
    ),
    at_smallest(
        "Lemma C.10",
        "part (B) takes a time O(1) of the flow: the same at e^(-1000) and e^(-10000)",
        lambda flows: _changes(flows, "length"),
        (ORDER, "|log₁₀ of the ratio of times|"),
        # A share of log(1/α) would be ten times as long.
        0.5,
    ),
    at_smallest(
        "Lemma C.10",
        "in part (B) w changes by a factor that does not depend on α: the same logarithm at e^(-1000) and e^(-10000)",
        lambda flows: _changes(flows, "factor"),
        (ORDER, "|log₁₀ of the ratio of logarithms|"),
        0.5,
    ),
]
PLATEAUS = Statement[Table](
    source="Theorem 4.1 (weights)",
    says="θ(t log(1/α)) → θ^k in the middle of every plateau",
    inside=lambda n: n.flows.inside,
    residual=lambda n: _worst(n.flows, n.flows.distance[:, :, -1]),
    bound=(WEIGHTS, "distance of the products at e^(-10000)"),
    # Products are of order one.
    late=1.0,
)
SPARSITY = Statement[Table](
    source="Theorem 4.1 (sparsity)",
    says="the support grows by at most one coordinate a stage",
    inside=lambda n: n.flows.inside,
    residual=lambda n: np.where(n.flows.ok, n.flows.entering, np.nan),
    bound=1.0,
)
CONSERVED = Statement[Table](
    source="Lemma 4.2",
    says="u² − v² is conserved: log(u + v) and log(u − v) integrated separately",
    residual=lambda n: n.flows.drift,
    bound=(DRIFT, "relative drift of log(u² − v²) at e^(-10000)"),
)

register(
    FLOWS,
    title="Theorem 4.1, Lemma 4.2, Lemmas C.5 to C.10",
    statements=[TIMES, PLATEAUS, SPARSITY, CONSERVED, *LEMMAS],
)
