"""`reproduce tarzanagh2023 conjecture`: §5.2, by solving the program of every choice of tokens."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxflow._core import Outcome, SelectionStatus
from jaxflow.gradient_descent import descend
from jaxflow.limits import conclude
from jaxflow.margin import AssumptionStatus, enumerate_selections
from jaxflow.papers.experiment import Dataset, Mask, Statement, Studies, Table, constants, register
from jaxflow.papers.tarzanagh2023.percent import SelectionAnd, interval
from jaxflow.plots import draw_percentage_curves
from jaxflow.study import Study, TokenSelection, settled_selections

# `trials` instances for each d, `block` at a time; `steps` of normalised gradient descent.
SIZE = Table(trials=200, d=(10, 20, 40, 60, 100, 150, 200), steps=2000, n=5, T=5, block=50)
SIZES = {
    "quick": SIZE.replace(trials=12, d=(10, 100)),
    "paper": SIZE,
    "large": SIZE.replace(trials=5000, d=(10, 20, 40, 60, 80, 100, 150, 200)),
}
# What is decided of an instance by enumeration, as `AssumptionStatus`.
ASSUMPTIONS = ("B1", "D", "support", "unique")
# Besides, codes of `Outcome`: of the flow (`outcome`) and of `descent`, which ends long before its direction is
# certified, by the selection it has settled on.
COLUMNS = (*ASSUMPTIONS, "outcome", "descent")


def reached(numbers: Table, way: str = "outcome") -> Mask:
    """The instances that the flow, or descent, takes to the optimal tokens."""
    return getattr(numbers.instances, way) == Outcome.globally_optimal


def met(numbers: Table, name: str) -> Mask:
    """The instances that are known to satisfy a condition."""
    if name == "B1 and D":
        return met(numbers, "B1") & met(numbers, "D")
    return getattr(numbers.instances, name) == AssumptionStatus.holds


def beside(steps: int, factors: dict[str, Any]) -> Callable[[Any], dict[str, Any]]:
    """Descent of `steps` and every choice, of the instances of these keys."""
    experiment = TokenSelection()
    draw = jax.jit(jax.vmap(partial(experiment.in_span, factors)))

    def block(keys: Any) -> dict[str, Any]:
        # In coordinates of the span: one compiled program for all d.
        risks, models = draw(keys)
        descent = settled_selections(*_descend(steps, experiment.gap, risks, models))
        return {"descent": descent, **_enumerate(len(keys), risks, models)}

    return block


@partial(jax.jit, static_argnums=(0, 1))
def _descend(steps: int, gap: float, risks: Any, models: Any) -> tuple[Any, Any]:
    def one(risk: Any, model: Any) -> Any:
        end = descend(risk, model, steps=steps, normalised="jointly", throw=False)
        limit = conclude(risk, model, end, gap)
        return limit.settled_outcome.value, limit.selection_status.value

    return jax.vmap(one)(risks, models)


def _enumerate(total: int, risks: Any, models: Any) -> dict[str, np.ndarray]:
    rows = []
    for i in range(total):
        risk, model = jax.tree.map(lambda x, i=i: x[i], (risks, models))
        every = enumerate_selections(risk.data, model.head)
        count, unsure = int(every.locally_optimal.sum()), int(jnp.sum(every.status == SelectionStatus.ambiguous))
        statuses = (every.assumption_B1, every.assumption_D, every.all_optimal_support, unique(count, unsure))
        rows.append([int(status) for status in statuses])
    return dict(zip(ASSUMPTIONS, np.transpose(rows), strict=True))


def unique(count: int, ambiguous: int) -> AssumptionStatus:
    """Whether opt is the only locally-optimal choice (it is always one, where its program has a solution)."""
    if count != 1:
        return AssumptionStatus.violated
    return AssumptionStatus.undecided if ambiguous else AssumptionStatus.holds


def _studies(scale: str, seed: int) -> Mapping[str, Study]:
    size = SIZES[scale]
    experiment = SelectionAnd(more=f"{__name__}:beside", more_settings=(size.steps,))
    factors = {"n": [size.n], "T": [size.T], "d": list(size.d), "score_gap": [0.0]}
    block = min(size.block, size.trials)
    study = Study(experiment, factors, {"parametrization": ["W"]}, trials=size.trials, seed=seed, block=block)
    return {"all": study}


# `grid`: the values of `d` `(k,)`, the `n` and `T` of all.
CONJECTURE = Dataset(
    "tarzanagh2023", "conjecture", {"grid": constants(SIZES, "d", "n", "T"), "instances": Studies(COLUMNS, _studies)}
)

# A path that was not followed to its end is no counterexample.
AGAINST = (Outcome.locally_optimal, Outcome.finite_stationary_point)


def _converges(source: str, says: str, name: str) -> Statement[Table]:
    return Statement(
        source=source,
        says=says,
        inside=lambda n: met(n, name),
        residual=lambda n: np.where(reached(n), 0.0, np.where(np.isin(n.instances.outcome, AGAINST), 1.0, np.nan)),
    )


def _implies(first: str, second: str, says: str) -> Statement[Table]:
    def residual(numbers: Table) -> np.ndarray:
        status = getattr(numbers.instances, second)
        return np.where(status == AssumptionStatus.undecided, np.nan, status == AssumptionStatus.violated)

    return Statement(source="Section 5.2", says=says, inside=lambda n: met(n, first), residual=residual)


STATEMENTS: list[Statement[Table]] = [
    _converges(
        "Section 5.2, conjecture",
        "Suppose opt are the unique optimal indices and Assumptions B.1 and D hold. Then, for almost all datasets, GD "
        "converges to W^mm in direction.",
        "B1 and D",
    ),
    _converges(
        "Section 5.2",
        "When the globally-optimal direction is the only locally-optimal one, it is the only viable one to converge "
        "to (weaker than Assumption D).",
        "unique",
    ),
    Statement(
        source="Section 5.2, on Figure 5",
        says="Assumption B.1 occurs less frequently than global convergence.",
        residual=lambda n: met(n, "B1").sum(1) > reached(n).sum(1),
    ),
    _implies(
        "support", "D", "A stronger condition that implies Assumption D: all optimal indices are support vectors."
    ),
    _implies("D", "unique", "Assumption D guarantees that W^mm is the only viable direction to converge."),
]


def _notes(numbers: Table) -> list[str]:
    unsure = {name: int((getattr(numbers.instances, name) == AssumptionStatus.undecided).sum()) for name in ASSUMPTIONS}
    return [
        f"Undecided, because a margin lies within 1e-6 of one or a program is inaccurate: {unsure}. They count as not "
        "met.",
        "Descent is counted by the tokens that it has settled on, not by a certificate of its direction.",
        "Infeasible choices have no support indices; Assumption D is read over feasible ones.",
    ]


def draw(numbers: Table) -> Any:
    """Shares of all instances against d: of global convergence solid, of the conditions dashed."""
    followed = {
        "flow converges globally": reached(numbers),
        "normalised descent, 2,000 steps": reached(numbers, "descent"),
    }
    conditions = {
        "opt is the only locally-optimal choice": met(numbers, "unique"),
        "Assumption D": met(numbers, "D"),
        "all optimal tokens are support, always": met(numbers, "support"),
        "Assumption B.1": met(numbers, "B1"),
        "Assumptions B.1 and D": met(numbers, "B1 and D"),
    }
    curves = followed | conditions
    shares = [interval(met.sum(1), np.full(len(met), met.shape[1])) for met in curves.values()]
    percentage, low, high = (np.stack([share[i] for share in shares])[None] for i in range(3))
    return draw_percentage_curves(
        {
            "x": numbers.grid.d,
            "x_label": "$d$",
            "panels": [f"$n={int(numbers.grid.n)}$, $T={int(numbers.grid.T)}$"],
            "curves": list(curves),
            "percentage": percentage,
            "low": low,
            "high": high,
            "y_label": "% of all instances",
            "dashed": [name in conditions for name in curves],
        }
    )


# n = T = 5, everything uniform on the unit sphere, no score gap; for each instance all T^n = 3125 programs are solved
# and Definition 2 is decided for each. Beside the assumptions stand two weaker or stronger conditions: only opt is
# locally optimal ("unique"), and for every other choice all optimal tokens are support ("support", named in §5.2 as a
# condition that can be verified by probabilistic tools). The values of d are ours.
register(
    CONJECTURE,
    title="The conjecture of section 5.2, where its assumptions hold: every choice of tokens enumerated",
    statements=STATEMENTS,
    notes=_notes,
    draw=draw,
)
