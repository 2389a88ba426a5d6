"""Diagonal attention in few dimensions: paths that an explicit method alone does not bring to their end."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxflow as jf
from jaxflow.models import DiagonalAttention
from tests.referee import attention
from tests.referee.returns import follow_back

# Keys of instances that took all of 4,096 explicit steps, but for the last, which stops in passing (see below).
NEAR_REST = (78, 81, 144)
STIFF = (24, 34, 140)
SETTLED_REST = (35, 42)
# Shape, seed, number of instances and index of one that comes back.
BACK = ((3, 3, 4), 3953384102, 360, 61)
FAR_SEED, WALL_SEED = 309660825, 3225061616
# Number of instances, index, tokens when multipliers take over, and at the end.
LEFT_FAR_OUT = [
    (120, 63, [5, 6, 3, 4, 2, 5], [7, 6, 3, 4, 2, 5]),
    (120, 89, [6, 7, 2, 0, 6, 1], [6, 1, 2, 0, 6, 1]),
    (360, 94, [7, 1, 4, 5, 0, 1], [7, 1, 4, 7, 0, 1]),
]


def instance(key: int) -> tuple[jf.EmpiricalRisk, DiagonalAttention]:
    data, head = jf.data.random_tokens(jax.random.key(key), 5, 5, 4)
    return jf.EmpiricalRisk(data, "logistic"), DiagonalAttention.init(jax.random.key(key + 10_000), data, head)


@functools.cache
def limits() -> dict[int, jf.Limit]:
    find = jax.jit(lambda risk, model: jf.find_limit(risk, model, throw=False))
    return {key: find(*instance(key)) for key in (*NEAR_REST, *STIFF, *SETTLED_REST)}


def derivatives(risk: jf.EmpiricalRisk, model: DiagonalAttention, beta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Gradient and Hessian of the loss as a function of k∘q, on a common scale."""
    data: Any = risk.data
    v = np.asarray(model.head.v)
    scores = np.asarray(data.labels)[:, None] * (np.asarray(data.tokens) @ v)
    rows = np.asarray(data.tokens) * np.asarray(data.queries)[:, None]
    logits = rows @ beta
    top = np.argmax(logits, axis=1)[:, None]
    if np.sort(np.exp(logits - logits.max(axis=1, keepdims=True)), axis=1)[:, -2].max() > 1e-6:

        def gradient(b: jax.Array) -> jax.Array:
            return jax.grad(lambda b: risk(DiagonalAttention(b, jnp.ones(4), model.head)))(b)

        return np.asarray(gradient(jnp.asarray(beta))), np.asarray(jax.jacfwd(gradient)(jnp.asarray(beta)))
    # All attention is on single tokens: to leading order Σ c_k exp(-a_k) with margins a, which autodiff would lose.
    best = np.take_along_axis(scores, top, 1)
    rows = np.take_along_axis(rows, top[..., None], 1) - rows
    margins = rows @ beta
    margins[margins == 0] = np.inf
    pushes = (best - scores) / (1 + np.exp(best)) * np.exp(margins.min() - margins)
    return -np.einsum("nt,ntd->d", pushes, rows), np.einsum("nt,ntd,nte->de", pushes, rows, rows)


@pytest.mark.slow
@pytest.mark.parametrize("key", (*NEAR_REST, *SETTLED_REST))
def test_a_rest_is_found_and_is_a_minimum(key: int) -> None:
    """Steps at the limit of stability move the weights by their tolerance, and hid that the gradient vanishes; where
    attention is settled on single tokens a path once stopped at a gradient that cancels to 1e-6, and claimed nothing.
    """
    limit, (risk, model) = limits()[key], instance(key)
    assert limit.outcome == jf.Outcome.finite_stationary_point
    assert key in SETTLED_REST or limit.trajectory.stats["num_steps"] < 4096
    slope, curvature = derivatives(risk, model, np.diagonal(limit.flow_direction))
    values = np.linalg.eigvalsh(curvature)
    assert values[0] > 1e-9 * values[-1]
    # Newton's step to the minimum moves no logit by more than a hundredth: it is the minimum of this valley.
    step = np.linalg.solve(curvature, slope)
    data: Any = risk.data
    assert np.max(np.abs(np.einsum("ntd,nd,d->nt", data.tokens, data.queries, step))) < 1e-2


@pytest.mark.slow
@pytest.mark.parametrize("key", STIFF)
def test_a_stiff_path_is_followed_to_its_certificate(key: int) -> None:
    """Logits of some queries are hundreds apart while others still decide, at margins of a thousandth."""
    limit = limits()[key]
    assert limit.kind == "direction" and limit.trajectory.stats["num_steps"] < 4096
    assert limit.flow_certificate.duality_gap <= 1e-8
    # CVXPY on the program of the selected tokens: the same norm at margin one.
    data: Any = instance(key)[0].data
    solution = jf.margin.solve_cvxpy(jf.margin.attention_svm(data, limit.selection, "l1"))
    np.testing.assert_allclose(limit.flow_certificate.primal_value, solution.certificate.primal_value, rtol=1e-6)


def drawn(shape: tuple[int, int, int], seed: int, count: int, index: int) -> tuple[attention.Tokens, tuple, jf.Limit]:
    """One of `count` instances of the referee, its start, and its limit."""
    rng = np.random.default_rng([0, seed])
    data = attention.ordinary(rng, count, *shape).take(index)
    theta = tuple(x[index] for x in attention.start(rng, "diagonal", count, shape[-1], 1.0))
    tokens, queries, labels, v = (jnp.asarray(x) for x in data)
    risk = jf.EmpiricalRisk(jf.data.TokenData(tokens, queries, labels), "logistic")
    return data, theta, jf.find_limit(risk, DiagonalAttention(*(jnp.asarray(x) for x in theta), v), throw=False)


@pytest.mark.slow
def test_a_path_that_comes_back_from_far_out_is_followed_to_its_point() -> None:
    """A token that pulls away takes over at a norm of e^10.6: the path turns around, and rests at e^3.3. A clock of the
    length of the path does not resolve that (250 steps and as many failed solves, and `undecided`)."""
    data, theta, limit = drawn(*BACK)
    assert limit.outcome == jf.Outcome.finite_stationary_point
    end = follow_back(data, theta)
    assert end.rests and end.furthest > 1e4
    # Radau's tolerance on the path decides where in a valley it comes to rest.
    np.testing.assert_allclose(np.diagonal(limit.flow_direction), end.beta, rtol=1e-5)
    assert np.exp(limit.trajectory.final.log_norm) < 1e-3 * end.furthest


@pytest.mark.slow
@pytest.mark.parametrize(("count", "index", "before", "after"), LEFT_FAR_OUT)
def test_far_out_one_token_is_left_at_a_time(count: int, index: int, before: list[int], after: list[int]) -> None:
    """At norms of e^44 to e^132, beyond the cap of exponents. Errors of explicit steps were relative to the size of the
    weights, and smaller halves of pairs were those of weights as large as the cap: several queries changed their tokens
    in one step, and the path ended at another limit, certified.
    """
    limit = drawn((6, 8, 10), FAR_SEED, count, index)[2]
    assert limit.outcome == jf.Outcome.locally_optimal
    assert limit.selection.argmax(-1).tolist() == after
    assert sum(x != y for x, y in zip(before, after, strict=True)) == 1


@pytest.mark.slow
def test_no_step_passes_over_the_change_of_a_token() -> None:
    """A step of length 6 went from one token of a query to another, between which the loss has a wall that is felt over
    a length of 0.01 alone: at tolerances down to 1e-7 the path ended at other tokens, certified."""
    data, theta, limit = drawn((3, 3, 2), WALL_SEED, 30, 7)
    beta = follow_back(data, theta, steps=300).beta
    logits = np.einsum("ntd,nd,d->nt", data.tokens, data.queries, beta)
    assert limit.outcome == jf.Outcome.globally_optimal
    assert limit.selection.argmax(-1).tolist() == logits.argmax(-1).tolist()
