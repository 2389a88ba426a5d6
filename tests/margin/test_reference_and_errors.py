"""Agreement with Clarabel, strict status mapping, and bad input."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxflow.data import TokenData, optimal_tokens, random_tokens
from jaxflow.margin import (
    Lp,
    Nuclear,
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


def programs():
    data, selection, _ = instance()
    sets = selection.at[0].set(jnp.array([True, True, False, False]))
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(5, 9)), rng.choice([-1.0, 1.0], 5)
    yield from (attention_svm(data, selection, norm) for norm in ("frobenius", "nuclear", "l1"))
    yield from (attention_svm(data, sets, norm) for norm in ("frobenius", "nuclear"))
    yield max_margin(X, y, "l2", "dft")
    yield minimum_norm(X, y, "l2", rng.normal(size=(11, 9)))
    for transform in (None, "dft"):
        yield max_margin(X, y, "l1", transform)
        yield minimum_norm(X, y, "l1", transform)


@pytest.mark.parametrize(
    "index", [index if index % 2 == 0 else pytest.param(index, marks=pytest.mark.slow) for index in range(11)]
)
def test_agrees_with_clarabel(index: int) -> None:
    pytest.importorskip("cvxpy")
    program = list(programs())[index]
    ours, theirs = solve(program), solve_cvxpy(program)
    assert ours.result == theirs.result
    if ours.result == "infeasible":
        return
    assert ours.result == "optimal"
    value = float(ours.certificate.primal_value)
    np.testing.assert_allclose(theirs.certificate.primal_value, value, rtol=1e-6)
    # Each dual certifies the other's primal.
    assert abs(float(certify(program, ours.primal, theirs.dual).duality_gap)) < 1e-6
    assert abs(float(certify(program, theirs.primal, ours.dual).duality_gap)) < 1e-6


def test_infeasible_agrees_with_clarabel() -> None:
    pytest.importorskip("cvxpy")
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
    cp = pytest.importorskip("cvxpy")
    data, selection, _ = instance()
    program = attention_svm(data, selection)
    monkeypatch.setattr(cp.Problem, "status", property(lambda self: status))
    if expected == "failed":
        monkeypatch.setattr(cp.Variable, "value", property(lambda self: None, lambda self, value: None))
    assert solve_cvxpy(program).result == expected


def test_a_solver_error_is_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    cp = pytest.importorskip("cvxpy")

    def broken(*args, **kwargs):
        raise cp.SolverError("no")

    monkeypatch.setattr(cp.Problem, "solve", broken)
    data, selection, _ = instance()
    assert solve_cvxpy(attention_svm(data, selection)).result == "failed"


def test_bad_input_names_the_argument() -> None:
    data, selection, head = instance()
    with pytest.raises(ValueError, match=r"norm: unknown name 'nuklear'; did you mean 'nuclear'\?"):
        attention_svm(data, selection, "nuklear")
    with pytest.raises(ValueError, match=r"selection: no token is selected for query \(1,\)"):
        attention_svm(data, selection.at[1].set(False))
    with pytest.raises(ValueError, match="selection: token .4. is out of range for T = 4"):
        attention_svm(data, np.array([0, 1, 2, 4]))
    with pytest.raises(ValueError, match="selection: expected a mask of shape"):
        attention_svm(data, selection[:2])
    with pytest.raises(ValueError, match="selection: expected a Boolean mask"):
        attention_svm(data, np.array([0.5, 1, 2, 3]))
    mask = np.ones((4, 4), bool)
    mask[2] = False
    with pytest.raises(ValueError, match=r"mask: every token is hidden from query \(2,\)"):
        attention_svm(TokenData(data.tokens, data.queries, data.labels, mask), selection)
    mask[2] = ~np.asarray(selection)[2]
    with pytest.raises(ValueError, match="selection: the mask hides the selected token"):
        attention_svm(TokenData(data.tokens, data.queries, data.labels, mask), selection)
    with pytest.raises(ValueError, match="tokens: NaN"):
        attention_svm(TokenData(data.tokens.at[0, 0, 0].set(jnp.nan), data.queries, data.labels), selection)
    with pytest.raises(ValueError, match="rank: expected a positive integer"):
        Nuclear(0)
    with pytest.raises(ValueError, match=r"p: expected 0 < p < 1"):
        Lp(1.0)
    with pytest.raises(ValueError, match="norm: l_p"):
        attention_svm(data, selection, Lp(0.5))
    with pytest.raises(ValueError, match="primal: expected shape"):
        certify(attention_svm(data, selection), jnp.zeros(3), selection * 1.0)
    with pytest.raises(ValueError, match="source: unknown name 'flwo'; did you mean 'flow'"):
        certify(attention_svm(data, selection), jnp.zeros((10, 10)), selection * 1.0, source="flwo")
    with pytest.raises(ValueError, match="tolerance: expected a positive"):
        solve(attention_svm(data, selection), tolerance=0.0)
    with pytest.raises(ValueError, match="labels: expected two classes"):
        max_margin([[1.0, 2.0]], [2.0])
    with pytest.raises(ValueError, match="transform: unknown name 'fft'; did you mean 'dft'"):
        max_margin([[1.0, 2.0]], [1.0], transform="fft")
    with pytest.raises(ValueError, match="transform: expected a matrix S"):
        max_margin([[1.0, 2.0]], [1.0], transform=np.eye(3))
    with pytest.raises(ValueError, match="norm: the nuclear norm needs a matrix"):
        minimum_norm([[1.0, 2.0]], [1.0], "nuclear")
    with pytest.raises(ValueError, match="inputs: NaN"):
        max_margin([[np.nan, 2.0]], [1.0])
    with pytest.raises(ValueError, match="program: solve_cvxpy runs outside jit"):
        jax.jit(lambda tokens: solve_cvxpy(attention_svm(TokenData(tokens, data.queries, data.labels), selection)))(
            data.tokens
        )
    big, big_head = random_tokens(jax.random.key(0), 12, 12, 3)
    with pytest.raises(ValueError, match="data: .* selections; at most"):
        enumerate_selections(big, big_head)
