"""Sheen et al. (2024): both parametrisations, the integral identity, alignment and the exact limit, on flows."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxflow._core import RESULTS
from jaxflow.data import TokenData, optimal_tokens
from jaxflow.losses import Exponential
from jaxflow.margin import attention_svm, certify, max_margin, solve
from jaxflow.models import FactoredAttention, token_scores
from jaxflow.papers.sheen2024 import diagonal as diagonals
from jaxflow.papers.sheen2024 import frame as frames
from jaxflow.papers.sheen2024.accumulated import accumulate
from jaxflow.papers.sheen2024.instances import equal_score_tokens, paired_tokens
from jaxflow.papers.sheen2024.separability import score_gap_needed
from jaxflow.papers.table import Table
from jaxflow.risk import EmpiricalRisk

TIMES = jnp.asarray([-2.0, 1.0, 4.0, 10.0, 30.0, 1e3, 1e5, 1e6])


@pytest.fixture(scope="module")
def diagonal() -> tuple[TokenData, Any, Any, Table]:
    """A flow from entries of different sizes, which start in either factor: (5)."""
    n, T, d = 3, 4, 4
    data, head = equal_score_tokens(jax.random.key(5), n, T, d, 1.1 * score_gap_needed(n, T), 0.0, 0.1)
    omega = jnp.asarray([1.0, 0.5, 0.8, 1.2])
    xi, _ = diagonals.unbalanced_start(omega, head, jnp.asarray([True, False, True, False]))
    assert jnp.all(xi.k * xi.q == 0)
    assert jnp.allclose(xi.k**2 + xi.q**2, 2 * omega**2, rtol=1e-15)
    path = accumulate(EmpiricalRisk(data, Exponential()), xi, TIMES)
    assert bool(path.result == RESULTS.successful)
    return data, xi, omega, path


@pytest.mark.slow
def test_19_is_an_identity_along_the_path(diagonal: Any) -> None:
    data, xi, omega, path = diagonal
    best = optimal_tokens(token_scores(data, xi.head), data.visible)
    beta = path.models.k * path.models.q
    program = attention_svm(data, best, "l1")
    formed = jax.vmap(lambda pushes: diagonals.integral_form(program, omega, pushes))(path.pushes)
    assert float(jnp.max(jnp.abs(beta - formed) / jnp.max(jnp.abs(beta), axis=1, keepdims=True))) < 1e-6


@pytest.mark.slow
def test_averaged_multipliers_follow_their_law(diagonal: Any) -> None:
    data, xi, omega, path = diagonal
    best = optimal_tokens(token_scores(data, xi.head), data.visible)
    program = attention_svm(data, best, "l1")
    optimum = solve(program).primal
    beta = path.models.k[-1] * path.models.q[-1]
    found = diagonals.averaged_residuals(program, omega, beta, path.pushes[-1], optimum)
    # (Bλ)_j = arcsinh(β_j/ω²)/ln μ: exact by (19), whose error is divided by ln μ = 14.
    log_mu = jnp.log(jnp.min(program.margins(beta)))
    exact = jnp.abs(jnp.arcsinh(jnp.abs(beta) / omega**2) / log_mu - 1.0)
    support = jnp.abs(optimum) > 1e-7 * jnp.max(jnp.abs(optimum))
    assert float(found.stationarity) >= float(jnp.max(jnp.where(support, exact, 0.0))) - 1e-6
    assert float(found.log_margin) == pytest.approx(float(log_mu))
    before = diagonals.averaged_residuals(program, omega, jnp.zeros(4), path.pushes[0], optimum)
    assert np.isnan(float(before.stationarity))


@pytest.fixture(scope="module")
def paired() -> tuple[TokenData, Any, Any]:
    n, T, d = 2, 3, 4
    gap = 1.5 * score_gap_needed(n, T)
    data, head, index = paired_tokens(jax.random.key(4), n, T, d, gap, outside=True)
    return data, head, jax.nn.one_hot(index, T, dtype=bool)


@pytest.mark.slow
def test_alignment_and_the_exact_limit_along_the_flow(paired: Any) -> None:
    data, head, best = paired
    frame = frames.alignment_frame(data, best)
    V, _ = jnp.linalg.qr(jax.random.normal(jax.random.key(1), (4, 4)))
    half = jnp.asarray([0.4, 0.0, 0.4, 0.0])
    K, Q = frames.aligned_start(frame, half, 0.4 - half, V)
    assert float(frames.alignment_error(frame, K, Q, V)) < 1e-15
    path = accumulate(
        EmpiricalRisk(data, Exponential()), FactoredAttention(K, Q, head), TIMES, integrals=False, rtol=1e-6
    )
    assert bool(path.result == RESULTS.successful)
    errors = jax.vmap(lambda m: frames.alignment_error(frame, m.K, m.Q, V))(path.models)
    assert float(jnp.max(errors)) < 1e-10
    last, gradient = jax.tree.map(lambda x: x[-1], (path.models, path.gradients.gradient))
    velocity = -(gradient.K @ last.Q.T + last.K @ gradient.Q.T)
    exact, value = frames.aligned_limit(data, best)
    found = velocity / jnp.min(attention_svm(data, best, "nuclear").margins(velocity))
    # Margins of both sequences grow alike up to 1/(log t)^2; the rest is the step's error.
    assert float(jnp.sum(jnp.linalg.svd(found, compute_uv=False))) == pytest.approx(float(value), rel=1e-8)
    assert float(jnp.linalg.norm(found - exact)) < 1e-7
    # Columns that no sequence has stay zero.
    beta = frames.singular_entries(frame, last.combined_weights())
    assert float(jnp.max(jnp.abs(beta[2:]))) < 1e-6 * float(beta[0])


def test_the_exact_limit_is_the_certified_solution_of_42_lifted_and_not_the_only_one(paired: Any) -> None:
    data, _, best = paired
    frame = frames.alignment_frame(data, best)
    assert jnp.allclose(frame.keys.T @ frame.keys, jnp.eye(4), atol=1e-14)
    small = solve(frames.reduced_program(data, best))
    W, weights, residual = frames.lift(data, best, frame, small.primal, small.dual)
    assert float(residual) < 1e-13
    assert bool(jnp.all(weights[best] == 0))
    program = attention_svm(data, best, "nuclear")
    assert abs(float(certify(program, W, weights).duality_gap)) < 1e-9
    exact, value = frames.aligned_limit(data, best)
    assert jnp.allclose(W, exact, atol=1e-9)
    assert float(jnp.min(program.margins(exact))) == pytest.approx(1.0, rel=1e-13)
    frame = frames.alignment_frame(data, best)
    sizes = frames.singular_entries(frame, exact)[:2]
    # A symmetric block keeps trace and margins: another optimum, far away.
    block = 0.5 * jnp.sqrt(sizes[0] * sizes[1]) * jnp.asarray([[0.0, 1.0], [1.0, 0.0]])
    other = exact + frame.keys[:, :2] @ block @ frame.queries[:, :2].T
    for optimum in (exact, other):
        assert float(certify(program, optimum, weights).primal_value) == pytest.approx(float(value), rel=1e-9)
    assert float(jnp.linalg.norm(other - exact)) > 0.1


def test_a_flow_at_its_limiting_face() -> None:
    rows = jnp.array([[1.0, 0.5, 0.2], [2.0, 0, 0], [0.3, 1, 0], [0.1, 0.1, 0]])
    program, dual = max_margin(rows, jnp.ones(4), "l1"), jnp.array([3.0, 0.0, 1.0, 0.0])
    # Margins of β: 7, 8; 6.2 and 0.9, which is the least and without a multiplier.
    assert float(diagonals.behind_face(program, dual, jnp.array([4.0, 5.0, 2.5]))) == pytest.approx(7.0 / 0.9 - 1.0)
