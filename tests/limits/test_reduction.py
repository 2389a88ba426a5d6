"""Instances in more dimensions than they span, or in fewer than the next size: the same limit, and what the flow
cannot move stays where it was."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxflow as jf
from jaxflow.limits import conclude
from jaxflow.limits.reduction import reduced
from jaxflow.models import CombinedAttention, FactoredAttention
from jaxflow.theory import rule_of

# Two sequences of three tokens span nine dimensions with their queries and the head.
N, T, D = 2, 3, 14
GAP = 1e-8


def instance(kind, d=D, positions=False, **how):
    data, head = jf.data.random_tokens(jax.random.key(4), N, T, d, score_gap=0.1)
    heads = jf.models.PositionHeads((head, head)) if positions else head
    return jf.EmpiricalRisk(data, "logistic"), kind.init(jax.random.key(5), data, heads, **how)


@pytest.mark.slow
def test_the_limit_is_that_of_all_dimensions():
    """Of K and Q. (W is reduced with half of the parts: see `test_a_point_holds_what_does_not_move`.)"""
    risk, model = instance(FactoredAttention)
    limit: Any = jf.find_limit(risk, model, gap=GAP)

    @eqx.filter_jit
    def all_dimensions(risk, model):
        return conclude(risk, model, jf.Staged().follow(risk, model, 4096, GAP), GAP)

    whole = all_dimensions(risk, model)
    assert limit.outcome == whole.outcome == jf.Outcome.globally_optimal
    np.testing.assert_array_equal(limit.selection, whole.selection)
    assert float(limit.flow_certificate.duality_gap) <= GAP
    ours, theirs = (x.flow_direction / jnp.linalg.norm(x.flow_direction) for x in (limit, whole))
    # Two directions within 1e-8 of one optimum are within its square root of each other.
    np.testing.assert_allclose(ours, theirs, atol=2e-4)
    ours, theirs = (x.trajectory.final.model.attention(risk.data) for x in (limit, whole))
    np.testing.assert_allclose(ours, theirs, atol=1e-6)
    # The way there is not kept: a matrix as large as K for each of eight points would cost more than the flow, 256 MB
    # at d = 1000. The rate was read off them.
    assert limit.trajectory.saved is None and whole.trajectory.saved is not None
    np.testing.assert_allclose(limit.rate.predicted, whole.rate.predicted, atol=1e-6)
    # What lies outside of the span does not move.
    small: Any = reduced(risk, model, rule_of(model))
    outside = jnp.eye(D) - small.basis @ small.basis.T
    for name in ("K", "Q"):
        start = getattr(model, name)
        moved = getattr(limit.trajectory.final.model, name) - start
        # Weights have grown by a factor of some 1e5: roundings of that size.
        assert float(jnp.max(jnp.abs(outside @ moved))) <= 1e-12 * float(jnp.max(jnp.abs(moved)))
        assert float(jnp.max(jnp.abs(outside @ start))) > 1e-3


@pytest.mark.slow
def test_filling_up_with_zeros_changes_nothing():
    """In d = 5 the flow is followed in 8 dimensions: every number of the limit is that of five, and has its shape."""
    risk, model = instance(FactoredAttention, 5)
    wide: Any = reduced(risk, model, rule_of(model), shared=True)
    assert wide is not None and wide.wider and wide.risk.data.tokens.shape == (N, T, 8)
    # Within a program an instance keeps its own dimensions.
    alone = eqx.filter_jit(lambda risk, model: jf.find_limit(risk, model, gap=GAP, throw=False))(risk, model)
    limit = jf.find_limit(risk, model, gap=GAP)
    assert limit.outcome == alone.outcome
    shapes = [jax.tree.map(jnp.shape, eqx.filter(x, eqx.is_inexact_array)) for x in (limit, alone)]
    assert shapes[0] == shapes[1]
    np.testing.assert_array_equal(limit.selection, alone.selection)
    # Zeros do not count in the error of a step.
    steps, others = (int(x.trajectory.stats["num_steps"]) for x in (limit, alone))
    assert abs(steps - others) <= 1
    np.testing.assert_allclose(limit.direction, alone.direction, atol=1e-6)
    saved, others = (jax.vmap(lambda m: m.combined_weights())(x.trajectory.saved.model) for x in (limit, alone))
    np.testing.assert_allclose(saved, others, rtol=1e-4, atol=1e-4 * float(jnp.max(jnp.abs(others))))
    np.testing.assert_allclose(limit.program_solution.primal, alone.program_solution.primal, atol=1e-7)
    # A slope through gaps of paths that differ as above.
    np.testing.assert_allclose(limit.rate.exponent, alone.rate.exponent, atol=0.02)


@pytest.mark.slow
def test_several_dimensions_share_what_is_compiled():
    """d = 5, 6 and 8 are followed by one program, those beyond the span of nine by another."""
    traced = []

    class Counted(jf.Staged):
        def problem(self, *args):
            traced.append(1)
            return super().problem(*args)

    for d in (5, 6, 8, 14, 21):
        jf.find_limit(*instance(CombinedAttention, d), gap=GAP, method=Counted())
    assert len(traced) == 2


def test_what_is_followed_in_its_own_dimensions():
    """Heads by position, and columns that constrain the rank."""
    for risk, model in (instance(CombinedAttention, positions=True), instance(FactoredAttention, 5, m=2)):
        assert reduced(risk, model, rule_of(model), shared=True) is None


@pytest.mark.slow
def test_a_point_holds_what_does_not_move():
    """One sequence with both labels: attention tends to where the output vanishes, and all of W0 outside stays."""
    risk, model = instance(CombinedAttention)
    data, head = risk.data, model.head.v
    scores = jnp.array([0.7, -0.5, 0.1])
    tokens = data.tokens[0] + jnp.outer(scores - data.tokens[0] @ head, head / (head @ head))
    twice = jf.data.TokenData(jnp.stack([tokens] * 2), jnp.stack([data.queries[0]] * 2), jnp.array([1.0, -1.0]))
    limit = jf.find_limit(jf.EmpiricalRisk(twice, jf.losses.Logistic()), model, gap=GAP)
    assert limit.outcome == jf.Outcome.finite_stationary_point
    final = limit.trajectory.final.model
    np.testing.assert_allclose(limit.point, final.combined_weights(), rtol=0, atol=1e-12)
    np.testing.assert_allclose(jnp.sum(final.attention(twice)[0] * scores), 0.0, atol=1e-6)
