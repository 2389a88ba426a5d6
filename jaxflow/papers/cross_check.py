"""Programs of each paper solved again by other means: CVXPY, which hands them to Clarabel.

They are those of the first instances (a tenth or more) that diagonal flows and limit directions are held to, and those
of random tokens for Tarzanagh et al. (2023).
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxflow.data import LinearData, optimal_tokens, random_tokens
from jaxflow.margin import ProgramResult, attention_svm, max_margin, minimum_norm, solve, solve_cvxpy
from jaxflow.models import token_scores
from jaxflow.papers.experiment import Dataset, Part, Statement, Table, register
from jaxflow.papers.sheen2024 import diagonal_flows
from jaxflow.papers.yun2021.flows import normal_data, separable
from jaxflow.papers.yun2021.limit_directions import SIZES as DIRECTIONS
from jaxflow.papers.yun2021.limit_directions import network_of
from jaxflow.study import subkey

# What CVXPY's answers are certified to before they are believed.
VALUE = 1e-6
# Instances of each kind.
TRIALS = {"quick": 3, "paper": 10, "large": 100}
ALIKE = (ProgramResult.optimal, ProgramResult.infeasible)


def compare(program: Any) -> Table:
    """Both answers to one program.

    Of one program: the difference of both optimal values, relative to ours; 0 where both say that there is no solution,
    infinite where one of them does, NaN where one of them fails.
    """
    ours, theirs = solve(program), solve_cvxpy(program)
    known = [next((kind for kind in ALIKE if one.result == kind), None) for one in (ours, theirs)]
    if None in known:
        return Table(apart=np.asarray(np.nan))
    if known[0] != known[1]:
        return Table(apart=np.asarray(np.inf))
    values = [float(one.certificate.primal_value) for one in (ours, theirs)]
    apart = abs(values[1] / values[0] - 1.0) if known[0] == ProgramResult.optimal else 0.0
    return Table(apart=np.asarray(apart))


# `programs` `(k, b)`: of every kind.
def checked(paper: str, kinds: dict[str, Any], draw: Callable[[Any, Any], Any], instances: str) -> None:
    """Enters the programs `draw(key, setting)` of a paper, on the keys of the part `instances`."""

    def one(key: Any, setting: Any) -> Table:
        return compare(draw(key, setting))

    def agrees(row: int, name: str) -> Statement[Table]:
        return Statement(
            source="Programs",
            says=f"{name}: the optimal value is that of CVXPY (Clarabel)",
            residual=lambda n: n.programs.apart[row],
            bound=(VALUE, "relative difference of the optimal values"),
        )

    parts = {"programs": Part(one, kinds, TRIALS, instances=instances, way="on host")}
    register(
        Dataset(paper, "programs", parts),
        title="programs against CVXPY",
        statements=[agrees(row, name) for row, name in enumerate(kinds)],
    )


def _diagonal(key: Any, setting: tuple[str, Table]) -> Any:
    """The programs that diagonal flows are compared with, and those of other norms on the same data."""
    norm, instances = setting
    data, head, _ = diagonal_flows.draw(instances, key)
    return attention_svm(data, optimal_tokens(token_scores(data, head), data.visible), norm)


def _tokens(key: Any, setting: tuple[str, int, int, int]) -> Any:
    """Random tokens, one of them selected in every sequence."""
    norm, n, T, d = setting
    data, _ = random_tokens(subkey(key, "data"), n, T, d)
    return attention_svm(data, jax.random.randint(subkey(key, "selection"), (n,), 0, T), norm)


def _linear(key: Any, setting: tuple[str, str]) -> Any:
    """The programs that limit directions are compared with, and those of regression on as many data."""
    task, norm = setting
    n, d = DIRECTIONS["paper"]
    if task == "regression":
        return minimum_norm(*normal_data(subkey(key, "data"), n, d), norm)
    X, y = separable(subkey(key, "data"), n, d)
    transform: Any = {"dft": "dft"}.get(task)
    if task == "transformed":
        transform = network_of(task, subkey(key, "start"), LinearData(X, y)).decomposition.transform
    return max_margin(X, y, norm, transform)


SETTING = diagonal_flows.FLOWS[next(iter(diagonal_flows.FLOWS))]
NORMS = ("frobenius", "nuclear", "l1")
checked(
    "sheen2024",
    {f"attention, {norm}": (norm, SETTING) for norm in NORMS},
    _diagonal,
    "diagonal-flows.flows",
)
checked(
    "tarzanagh2023",
    {f"attention, {norm}, d = {d}": (norm, 3, 4, d) for norm in NORMS[:2] for d in (4, 12)},
    _tokens,
    "programs.programs",
)
checked(
    "yun2021",
    {
        "max-margin, l2": ("plain", "l2"),
        "max-margin, l1": ("plain", "l1"),
        "max-margin, l1 in the Fourier domain": ("dft", "l1"),
        "max-margin, l1 after a random S": ("transformed", "l1"),
        "minimum norm, l1": ("regression", "l1"),
        "minimum norm, l2": ("regression", "l2"),
    },
    _linear,
    "directions.limits",
)
