"""`reproduce tarzanagh2023 conjecture`: §5.2, by solving the program of every choice of tokens."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxflow._core import Outcome, SelectionStatus
from jaxflow.gradient_descent import descend
from jaxflow.limits import conclude
from jaxflow.margin import AssumptionStatus, enumerate_selections
from jaxflow.papers.registry import AbstractFigure, Data, register_figure
from jaxflow.papers.tarzanagh2023.conjecture_claims import claims_of, curves_of
from jaxflow.plots import draw_percentage_curves
from jaxflow.study import TokenSelection, settled_selections


class Size(NamedTuple):
    """`trials` instances for each d; `steps` of normalised gradient descent."""

    trials: int
    d: tuple[int, ...]
    steps: int = 2000
    n: int = 5
    T: int = 5


SIZES = {
    "quick": Size(12, (10, 100)),
    "paper": Size(200, (10, 20, 40, 60, 100, 150, 200)),
    "large": Size(5000, (10, 20, 40, 60, 80, 100, 150, 200)),
}

# What is decided of an instance by enumeration, as `AssumptionStatus`.
ASSUMPTIONS = ("B1", "D", "support", "unique")


@register_figure(
    "tarzanagh2023",
    "conjecture",
    title="The conjecture of section 5.2, where its assumptions hold: every choice of tokens enumerated",
    run_times={
        "quick": "12 instances at 2 values of d, half a minute",
        "paper": "200 instances at 7 values of d, fifteen minutes of processor time",
        "large": "5,000 instances at 8 values of d, some hours",
    },
)
class Conjecture(AbstractFigure):
    r"""§5.2 of Tarzanagh et al. (2023): under Assumptions B.1 and D, W converges to $W^{mm}$ in direction.

    n = T = 5, everything uniform on the unit sphere, no score gap; for each instance all $T^n=3125$ programs are
    solved and Definition 2 is decided for each. Beside the assumptions stand two weaker or stronger conditions: only
    opt is locally optimal ("unique"), and for every other choice all optimal tokens are support ("support", named
    in §5.2 as a condition that can be verified by probabilistic tools). The values of d are ours.
    """

    def compute(self, scale: str, seed: int, say: Callable[[str], None]) -> Data:
        return compute(SIZES[scale], seed, say)

    def draw(self, data: Data) -> Any:
        return draw_percentage_curves(curves_of(data))

    def claims(self, data: Data) -> tuple[list[Any], list[str]]:
        return claims_of(data)


def compute(size: Size, seed: int, say: Callable[[str], None]) -> Data:
    """Arrays `(k, trials)`: codes of `AssumptionStatus` by name, `flow` and `descent` codes of `Outcome` (of descent,
    which ends long before its direction is certified, by the selection it has settled on), and `locally_optimal`, how
    many choices are."""
    experiment = TokenSelection()
    key = jax.random.fold_in(jax.random.key(seed), 52)
    rows: dict[str, list[np.ndarray]] = {}
    for d in size.d:
        factors = {"n": size.n, "T": size.T, "d": d, "score_gap": 0.0, "parametrization": "W"}
        keys = jax.random.split(jax.random.fold_in(key, d), size.trials)
        found = {
            "flow": np.asarray(experiment.block_function(factors, size.trials)(keys)["outcome"]),
            "descent": _descend(experiment, factors, size.steps, keys),
            **_enumerate(experiment, factors, keys),
        }
        for name, values in found.items():
            rows.setdefault(name, []).append(values)
        both = (found["B1"] == AssumptionStatus.holds) & (found["D"] == AssumptionStatus.holds)
        reached = found["flow"] == Outcome.globally_optimal
        say(f"d={d}: flow global on {reached.sum()} of {size.trials}, B.1 and D on {both.sum()}")
    table = {name: np.stack(values) for name, values in rows.items()}
    return {"d": np.array(size.d), "n": np.asarray(size.n), "T": np.asarray(size.T), "seed": np.asarray(seed), **table}


def _descend(experiment: TokenSelection, factors: dict[str, Any], steps: int, keys: Any) -> np.ndarray:
    """Outcomes of normalised descent, in coordinates of the span: one compiled program for all d."""

    def one(risk: Any, model: Any) -> Any:
        end = descend(risk, model, steps=steps, normalised="jointly", throw=False)
        limit = conclude(risk, model, end, experiment.gap)
        return limit.settled_outcome.value, limit.selection_status.value

    return settled_selections(*_over_instances(jax.vmap(one), experiment, factors, keys))


def _over_instances(function: Any, experiment: TokenSelection, factors: dict[str, Any], keys: Any) -> Any:
    return jax.jit(lambda keys: function(*jax.vmap(partial(experiment.in_span, factors))(keys)))(keys)


def _enumerate(experiment: TokenSelection, factors: dict[str, Any], keys: Any) -> dict[str, np.ndarray]:
    risks, models = jax.jit(jax.vmap(partial(experiment.in_span, factors)))(keys)
    out: dict[str, list[int]] = {name: [] for name in (*ASSUMPTIONS, "locally_optimal")}
    for i in range(len(keys)):
        risk, model = jax.tree.map(lambda x, i=i: x[i], (risks, models))
        every = enumerate_selections(risk.data, model.head)
        count, unsure = int(every.locally_optimal.sum()), int(jnp.sum(every.status == SelectionStatus.ambiguous))
        statuses = (every.assumption_B1, every.assumption_D, every.all_optimal_support, unique(count, unsure))
        for name, status in zip(ASSUMPTIONS, statuses, strict=True):
            out[name].append(int(status))
        out["locally_optimal"].append(count)
    return {name: np.asarray(values) for name, values in out.items()}


def unique(count: int, ambiguous: int) -> AssumptionStatus:
    """Whether opt is the only locally-optimal choice (it is always one, where its program has a solution)."""
    if count != 1:
        return AssumptionStatus.violated
    return AssumptionStatus.undecided if ambiguous else AssumptionStatus.holds
