"""Programs solved by two solvers: agreement, disagreement and failure."""

from typing import Any

import jax
import numpy as np
import pytest

from jaxflow.data import TokenData
from jaxflow.margin import ProgramResult, attention_svm, max_margin
from jaxflow.papers import cross_check
from tests.papers.recorded import entry_of


@pytest.mark.slow
def test_both_solvers_agree_on_a_program_and_on_one_without_a_solution() -> None:
    program = max_margin(np.eye(2), np.array([1.0, -1.0]), "l1")
    # The least l1 norm at margin one is two; CVXPY is certified to 1e-6.
    assert cross_check.compare(program).apart <= cross_check.VALUE
    # Two equal tokens: no matrix tells them apart.
    data = TokenData(np.ones((1, 2, 2)), np.ones((1, 2)), np.ones(1))
    assert cross_check.compare(attention_svm(data, np.array([0]))).apart == 0.0


@pytest.mark.parametrize(("result", "apart"), [(ProgramResult.infeasible, np.inf), (ProgramResult.failed, np.nan)])
def test_a_solver_that_disagrees_or_fails_is_told_apart(
    monkeypatch: pytest.MonkeyPatch, result: ProgramResult, apart: float
) -> None:
    program = max_margin(np.eye(2), np.array([1.0, -1.0]), "l2")
    ours = cross_check.solve(program)

    monkeypatch.setattr(cross_check, "solve_cvxpy", lambda _: ours)
    assert cross_check.compare(program).apart == 0.0
    monkeypatch.setattr(cross_check, "solve_cvxpy", lambda _: Other(result))
    np.testing.assert_equal(float(cross_check.compare(program).apart), apart)


class Other:
    """An answer that is a verdict alone."""

    def __init__(self, result: ProgramResult):
        self.result = result


@pytest.mark.parametrize(
    ("paper", "kinds"),
    [
        pytest.param("sheen2024", (0, -1), marks=pytest.mark.slow),
        pytest.param("tarzanagh2023", (0, -1), marks=pytest.mark.slow),
        # One of them after a random transform.
        ("yun2021", (0, 3, -1)),
    ],
)
def test_every_kind_of_program_is_one_that_cvxpy_can_state(paper: str, kinds: tuple[int, ...]) -> None:
    """A settings table without a draw that fails: one instance of these kinds."""
    part: Any = entry_of(paper, "programs").dataset.parts["programs"]
    settings = list(part.cells.values())
    for kind in kinds:
        assert part.one(jax.random.key(3), settings[kind]).apart <= cross_check.VALUE
