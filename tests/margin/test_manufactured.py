"""Programs made from a known primal-dual pair, recovered; adjoints; the linear programs of a paper."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxflow.data import TokenData
from jaxflow.margin import attention_svm, certify, max_margin, minimum_norm, solve
from tests.margin.instances import single


def manufactured(seed: int, n: int = 4, T: int = 4, d: int = 10):
    """Data whose program has a chosen solution W = Σ λ f z^T: constraints are rescaled to margin one."""
    rng = np.random.default_rng(seed)
    queries = rng.normal(size=(n, d))
    features = rng.normal(size=(n, T - 1, d))
    dual = np.where(rng.random((n, T - 1)) < 0.6, rng.uniform(0.5, 2.0, (n, T - 1)), 0.0)
    W = np.einsum("it,itd,ie->de", dual, features, queries)
    seen = np.einsum("itd,de,ie->it", features, W, queries)
    if not (dual > 0).any() or not (seen[dual > 0] > 0).all():
        return None
    # A constraint times c and its multiplier over c leave W unchanged.
    scale = np.where(dual > 0, 1.0 / seen, 1.0)
    features, dual = features * scale[..., None], dual / scale
    # Constraints without a multiplier get margins of two.
    pushed = np.einsum("de,ie->id", W, queries)
    seen = np.einsum("itd,id->it", features, pushed)
    move = (2.0 - seen)[..., None] * pushed[:, None] / (pushed**2).sum(-1)[:, None, None]
    features = np.where((dual > 0)[..., None], features, features + move)
    tokens = np.concatenate([np.zeros((n, 1, d)), -features], axis=1)
    return TokenData(tokens, queries, np.ones(n)), W, np.concatenate([np.zeros((n, 1)), dual], axis=1)


def test_frobenius_recovers_a_manufactured_pair() -> None:
    made = [case for case in (manufactured(seed) for seed in range(60)) if case is not None]
    assert len(made) >= 3
    for data, W, dual in made:
        solution = solve(attention_svm(data, np.zeros(4, int)))
        assert solution.result == "optimal"
        np.testing.assert_allclose(solution.primal, W, atol=1e-8)
        np.testing.assert_allclose(solution.dual, dual / np.linalg.norm(W), atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [1, 3])
def test_nuclear_recovers_a_manufactured_solution(rank: int) -> None:
    # M = U diag(1, ..., 1, 0.4, ...) V^T is a subgradient of ‖·‖_* at W = U diag(s, 0) V^T. With d queries Z and
    # f_k the columns of M Z^-1, M = Σ f_k z_k^T; dividing f_k by its margin makes that margin one and the
    # multiplier the old margin.
    rng = np.random.default_rng(rank)
    d = 6
    U, V = (np.linalg.qr(rng.normal(size=(d, d)))[0] for _ in range(2))
    M = U @ np.diag(np.where(np.arange(d) < rank, 1.0, 0.4)) @ V.T
    margins = np.zeros(d)
    while not (margins > 0).all():
        Z = rng.normal(size=(d, d))  # rows are queries
        features = M @ np.linalg.inv(Z)  # columns are f_k
        s = rng.uniform(1.0, 3.0, rank)
        W = U[:, :rank] @ np.diag(s) @ V[:, :rank].T
        margins = np.einsum("dk,de,ke->k", features, W, Z)
    features, dual = features / margins[None, :], margins
    tokens = np.stack([np.zeros((d, d)), -features.T], axis=1)
    program = attention_svm(TokenData(tokens, Z, np.ones(d)), np.zeros(d, int), "nuclear")
    # The pair is optimal: objective ‖W‖_* = Σ dual, ‖M‖ = 1.
    known = certify(program, W, np.stack([np.zeros(d), dual], axis=1))
    assert abs(known.duality_gap) < 1e-12
    solution = solve(program)
    assert solution.result == "optimal"
    np.testing.assert_allclose(solution.certificate.primal_value, s.sum(), rtol=1e-10)
    # Six equal margins determine W of rank at most 2 (r(r+1)/2 <= 6 holds to rank 3).
    np.testing.assert_allclose(solution.primal, W, atol=1e-8)


@pytest.mark.slow
def test_adjoint_is_the_adjoint() -> None:
    data, selection = single(3)
    selection = selection.at[0, :2].set(True)
    rng = np.random.default_rng(0)
    for norm, shape in (("frobenius", (10, 10)), ("l1", (10,))):
        program = attention_svm(data, selection, norm)
        primal = jnp.asarray(rng.normal(size=shape))
        dual = jnp.asarray(rng.normal(size=(4, 4)))
        used = program.active | program.equal
        left = jnp.sum(jnp.where(used, dual * program.values(primal), 0.0))
        np.testing.assert_allclose(left, jnp.sum(program.adjoint(jnp.where(used, dual, 0.0)) * primal), rtol=1e-12)


@pytest.mark.slow
def test_linear_programs_of_the_paper() -> None:
    """Section 6 of Yun et al. (2021): one datum [1 2], y = 1, and its classification twin."""
    X, y = [[1.0, 2.0]], [1.0]
    np.testing.assert_allclose(solve(minimum_norm(X, y, "l2")).primal, [0.2, 0.4], atol=1e-14)
    fourier = minimum_norm(X, y, "l1", transform="dft")
    np.testing.assert_allclose(fourier.coefficients(solve(fourier).primal), [1 / 3, 1 / 3], atol=1e-10)
    X, y = [[1.0, 2.0], [0.0, -3.0]], [1, -1]
    np.testing.assert_allclose(solve(max_margin(X, y, "l2")).primal, [0.2, 0.4], atol=1e-14)
    np.testing.assert_allclose(solve(max_margin(X, y, "l1")).primal, [0.0, 0.5], atol=1e-12)
