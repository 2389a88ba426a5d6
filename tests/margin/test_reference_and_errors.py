"""Agreement with Clarabel, strict status mapping, and bad input."""

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxflow.data import TokenData, optimal_tokens, random_tokens
from jaxflow.margin import (
    attention_svm,
    certify,
    enumerate_selections,
    max_margin,
    minimum_norm,
    solve,
    solve_cvxpy,
)
from jaxflow.models import token_scores


def instance(seed: int = 0, n: int = 4, T: int = 4, d: int = 10):
    data, head = random_tokens(jax.random.key(seed), n, T, d)
    return data, optimal_tokens(token_scores(data, head), data.visible), head


def with_sets(norm: str):
    data, selection, _ = instance()
    return attention_svm(data, selection.at[0].set(jnp.array([True, True, False, False])), norm)


RNG = np.random.default_rng(0)
X, Y, S = RNG.normal(size=(5, 9)), RNG.choice([-1.0, 1.0], 5), RNG.normal(size=(11, 9))
# Sets of tokens add equalities to what a single token asks for.
PROGRAMS = {
    "frobenius": lambda: with_sets("frobenius"),
    "nuclear": lambda: with_sets("nuclear"),
    "l1": lambda: attention_svm(*instance()[:2], "l1"),
    "interpolation, l2": lambda: minimum_norm(X, Y, "l2", S),
    "complex l1": lambda: max_margin(X, Y, "l1", "dft"),
    "complex interpolation, l1": lambda: minimum_norm(X, Y, "l1", "dft"),
}


@pytest.mark.parametrize(
    "name", [*list(PROGRAMS)[:4], *(pytest.param(name, marks=pytest.mark.slow) for name in list(PROGRAMS)[4:])]
)
def test_agrees_with_clarabel(name: str) -> None:
    program = PROGRAMS[name]()
    ours, theirs = solve(program), solve_cvxpy(program)
    assert ours.result == theirs.result == "optimal"
    value = float(ours.certificate.primal_value)
    np.testing.assert_allclose(theirs.certificate.primal_value, value, rtol=1e-6)
    # Each dual certifies the other's primal.
    assert abs(float(certify(program, ours.primal, theirs.dual).duality_gap)) < 1e-6
    assert abs(float(certify(program, theirs.primal, ours.dual).duality_gap)) < 1e-6


def test_infeasible_agrees_with_clarabel() -> None:
    for seed in range(6):
        data, selection, _ = instance(seed, d=2)
        tokens, queries = (jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, 8)]) for x in (data.tokens, data.queries))
        program = attention_svm(TokenData(tokens, queries, data.labels), selection)
        assert solve(program).result == solve_cvxpy(program).result


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ("optimal_inaccurate", "inaccurate"),
        ("infeasible_inaccurate", "failed"),
        ("user_limit", "budget_spent"),
        ("unbounded", "failed"),
    ],
)
def test_statuses_are_mapped_strictly(monkeypatch: pytest.MonkeyPatch, status: str, expected: str) -> None:
    data, selection, _ = instance()
    program = attention_svm(data, selection)
    monkeypatch.setattr(cp.Problem, "status", property(lambda self: status))
    if expected == "failed":
        monkeypatch.setattr(cp.Variable, "value", property(lambda self: None, lambda self, value: None))
    assert solve_cvxpy(program).result == expected


def test_a_solver_error_is_a_result(monkeypatch: pytest.MonkeyPatch) -> None:

    def broken(*args, **kwargs):
        raise cp.SolverError("no")

    monkeypatch.setattr(cp.Problem, "solve", broken)
    data, selection, _ = instance()
    assert solve_cvxpy(attention_svm(data, selection)).result == "failed"


def masked(row: list[bool]):
    """The instance where the third query sees no more than `row`."""
    data, selection, _ = instance()
    mask = np.ones((4, 4), bool)
    mask[2] = row
    return attention_svm(TokenData(data.tokens, data.queries, data.labels, mask), selection)


DATA, SELECTION, _ = instance()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: attention_svm(DATA, SELECTION, "nuklear"), "norm: unknown name 'nuklear'; did you mean 'nuclear'"),
        (lambda: attention_svm(DATA, SELECTION.at[1].set(False)), r"selection: no token is selected for query \(1,\)"),
        (lambda: attention_svm(DATA, np.array([0, 1, 2, 4])), "selection: token .4. is out of range for T = 4"),
        (lambda: attention_svm(DATA, SELECTION[:2]), "selection: expected a mask of shape"),
        (lambda: masked([False] * 4), r"mask: every token is hidden from query \(2,\)"),
        (lambda: masked(~np.asarray(SELECTION)[2]), "selection: the mask hides the selected token"),
        (lambda: max_margin([[1.0, 2.0]], [1.0], transform=np.eye(3)), "transform: expected a matrix S"),
        (lambda: minimum_norm([[1.0, 2.0]], [1.0], "nuclear"), "norm: the nuclear norm needs a matrix"),
        (lambda: enumerate_selections(*random_tokens(jax.random.key(0), 12, 12, 3)), "data: .* selections; at most"),
        (
            lambda: jax.jit(lambda data: solve_cvxpy(attention_svm(data, SELECTION)))(DATA),
            "program: solve_cvxpy runs outside jit",
        ),
    ],
)
def test_what_no_annotation_says_is_named(build, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        build()
