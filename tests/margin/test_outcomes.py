"""Infeasible, degenerate, NaN and unconstrained programs; batches; certificates of arbitrary points."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxflow import margin
from jaxflow.data import TokenData
from tests.margin.instances import NORMS, SOLVED, attention, batch, lane, single

SCHATTEN = margin.Schatten(1.5), margin.Schatten(3)
LONG = ("nuclear", "spectral", "linf", margin.Lp(1.5), margin.Lp(3), *SCHATTEN)


@pytest.mark.parametrize("norm", ["frobenius", "l1", *(pytest.param(norm, marks=pytest.mark.slow) for norm in LONG)])
@pytest.mark.parametrize("build", [margin.max_margin, margin.minimum_norm])
def test_infeasible_programs_carry_a_checked_proof(build: Any, norm: Any) -> None:
    """Of twelve data in four dimensions."""
    rng = np.random.default_rng(0)
    program = build(rng.normal(size=(12, 2, 2)), rng.choice([-1.0, 1.0], 12), norm)
    solution = margin.solve(program)
    assert solution.result == "infeasible" and not np.asarray(solution.primal).any()
    # Of equations that contradict each other Clarabel finds no ray in all norms.
    assert not program.conic or norm in SCHATTEN or margin.solve_cvxpy(program).result == "infeasible"
    ray = np.asarray(solution.dual)
    assert (ray >= 0).all() or build is margin.minimum_norm
    np.testing.assert_allclose(np.abs(ray).sum(), 1.0, rtol=1e-12)
    # Σλ A = 0 by hand, and by `certify` from nothing but the ray.
    assert np.abs(np.asarray(program.adjoint(solution.dual))).max() < 1e-13
    certificate = margin.certify(program, jnp.zeros_like(program.primal_zero), ray)
    assert certificate.proves_infeasible and np.isposinf(certificate.duality_gap)


@pytest.mark.slow
@pytest.mark.parametrize("norm", NORMS)
def test_a_bad_lane_leaves_its_batch_alone(norm: str) -> None:
    data, selection = batch(1)
    tokens = data.tokens.at[1, 2, 1, 3].set(jnp.nan)
    # An infeasible lane: token 1 of sequence 0 equals the selected one.
    chosen = jnp.argmax(selection[2, 0])
    tokens = tokens.at[2, 0].set(jnp.broadcast_to(tokens[2, 0, chosen], tokens[2, 0].shape))
    programs = attention(norm, TokenData(tokens, data.queries, data.labels), selection)
    solution = SOLVED(programs)
    assert list(solution.result.name[1:3]) == ["failed", "infeasible"]
    assert np.isposinf(solution.certificate.duality_gap[1]) and solution.certificate.proves_infeasible[2]
    assert not np.any(solution.certificate.proves_infeasible[3:])
    for leaf in jax.tree.leaves(solution):
        assert not np.isnan(np.asarray(leaf)).any()
    for at in (0, 3, 7):
        np.testing.assert_allclose(solution.primal[at], margin.solve(lane(programs, at)).primal, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("norm", NORMS)
def test_no_constraint_at_all(norm: str) -> None:
    """One visible token each is legitimate: the zero matrix is optimal."""
    data, selection = single(2)
    data = TokenData(data.tokens, data.queries, data.labels, mask=selection)
    solution = margin.solve(margin.attention_svm(data, selection, norm))
    assert solution.result == "optimal"
    assert solution.certificate.duality_gap == 0 and solution.certificate.primal_value == 0
    assert not np.asarray(solution.primal).any()


def test_budget_spent_is_said() -> None:
    assert margin.solve(margin.attention_svm(*single(3), "nuclear"), max_steps=2).result == "budget_spent"


@functools.cache
def solved(norm: str) -> tuple[margin.AttentionProgram, margin.Solution]:
    program = margin.attention_svm(*single(4), norm)
    solution = margin.solve(program)
    assert solution.result == "optimal"
    return program, solution


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), log_scale=st.floats(-100, 100), norm=st.sampled_from(NORMS))
def test_any_pair_brackets_the_optimum(seed: int, log_scale: float, norm: str) -> None:
    """Whatever direction and weights come in, the bounds hold, at any scale, and nothing is NaN."""
    program, solution = solved(norm)
    rng = np.random.default_rng(seed)
    scale = np.exp(log_scale)
    primal = scale * (solution.primal + 0.1 * rng.normal(size=solution.primal.shape))
    dual = np.maximum(solution.dual + 0.05 * rng.normal(size=(4, 4)), 0) / scale
    certificate = margin.certify(program, primal, dual, source="flow")
    best = float(solution.certificate.primal_value)
    assert float(certificate.primal_value) >= best * (1 - 1e-12)
    assert float(certificate.dual_value) <= best * (1 + 1e-12)
    assert certificate.duality_gap >= -1e-12
    assert certificate.source == "flow"
    assert not any(np.isnan(np.asarray(leaf)).any() for leaf in jax.tree.leaves(certificate))


@pytest.mark.parametrize("norm", NORMS)
def test_without_a_dual_point_the_program_is_solved_for_one(norm: str) -> None:
    program, solution = solved(norm)
    alone, beside = (
        margin.certify(program, 3.0 * solution.primal),
        margin.certify(program, solution.primal, solution.dual),
    )
    assert alone.duality_gap == pytest.approx(float(beside.duality_gap), abs=1e-14)
    off = margin.certify(program, solution.primal + 0.01)
    assert off.duality_gap > 1e-6 and off.dual_value == alone.dual_value


@pytest.mark.parametrize("norm", NORMS)
def test_useless_points_give_an_infinite_gap(norm: str) -> None:
    program, _ = solved(norm)
    zero, one = program.primal_zero, jnp.ones((4, 4))
    for primal, dual in ((zero, one), (zero + 1, 0 * one), (zero + jnp.nan, one), (zero + 1, one * jnp.nan)):
        certificate = margin.certify(program, primal, dual)
        assert np.isposinf(certificate.duality_gap)
        assert not any(np.isnan(np.asarray(leaf)).any() for leaf in jax.tree.leaves(certificate))


@pytest.mark.slow
def test_lp_is_honest_about_being_stationary() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(4, 8)), rng.choice([-1.0, 1.0], 4)
    program = margin.max_margin(X, y, margin.Lp(2 / 3), "dft")
    solution = margin.solve(program, starts=4)
    assert solution.result == "stationary"
    assert solution.certificate.stationarity < 1e-8
    assert solution.certificate.duality_gap > 1e-3  # the ℓ1 bound is not tight, and is not claimed to be
    # KKT by hand: where ρ ≠ 0, A*λ is a multiple of |ρ|^(p-1) e^(i arg ρ).
    rho, pull = np.asarray(solution.primal), np.asarray(program.adjoint(solution.dual))
    on = np.abs(rho) > 1e-8
    ratio = pull[on] / (rho[on] / np.abs(rho[on]) * np.abs(rho[on]) ** (-1 / 3))
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-6)
    assert on.sum() < 8


@pytest.mark.slow
def test_rank_bound() -> None:
    data, selection = single(0)
    convex = margin.solve(margin.attention_svm(data, selection, "nuclear"))
    rank = int((np.linalg.svd(convex.primal, compute_uv=False) > 1e-8).sum())
    assert rank == 3
    same = margin.solve(margin.attention_svm(data, selection, margin.Nuclear(rank)), starts=2)
    assert same.result == "optimal"
    np.testing.assert_allclose(same.certificate.primal_value, convex.certificate.primal_value, rtol=1e-10)
    lower = margin.solve(margin.attention_svm(data, selection, margin.Nuclear(rank - 1)), starts=2)
    assert lower.result == "stationary"
    assert lower.certificate.primal_value > convex.certificate.primal_value * (1 + 1e-6)
    assert (np.linalg.svd(lower.primal, compute_uv=False) > 1e-8).sum() == rank - 1
