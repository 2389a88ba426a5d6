"""Limits under heads that are not linear: a user's own, mixtures of tokens, kinks; and layers in parallel."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxflow as jf
from jaxflow.limits import find_limit, find_limits
from jaxflow.margin import attention_svm, solve, solve_cvxpy

N, T, D = 3, 4, 4


def instance(key=0):
    return jf.data.random_tokens(jax.random.key(key), N, T, D)


@pytest.mark.slow
def test_a_users_head_has_a_certified_limit():
    """Nearly linear: selects one token, as Assumption E asks of a head that is not linear."""
    data, v = instance()
    risk, start = jf.EmpiricalRisk(data, "logistic"), jf.models.CombinedAttention.init(jax.random.key(1), data, v)

    def user(x):
        return jnp.dot(v, x) + 0.3 * jnp.tanh(jnp.dot(v, x))

    model = jf.models.CombinedAttention(start.W, user)
    limit = find_limit(risk, model)
    assert limit.flow_certificate.duality_gap <= 1e-8 and str(limit.head_state) == "smooth"
    assert jnp.all(jnp.sum(limit.selection, axis=-1) == 1)
    direction = solve(attention_svm(risk.data, limit.selection)).primal
    assert jnp.max(jnp.abs(limit.flow_direction - direction)) <= 1e-6 * jnp.max(jnp.abs(direction))
    linear_head = [a for a in limit.prediction.assumptions if "linear" in a.statement]
    assert len(linear_head) == 1 and not bool(linear_head[0].holds)
    # The head is still the user's.
    x = risk.data.tokens[0, 0]
    assert jnp.allclose(limit.trajectory.final.model.head(x), user(x), rtol=1e-15)


def concave(lam):
    """Lemma 6: one sequence of orthonormal tokens under a concave head."""
    tokens = jnp.eye(5)[None]
    head = jf.models.ConcaveHead(jnp.array([1.0, 0.9, 0.2, 0.0, -0.3]), lam)
    query = jnp.array([[0.6, 0.0, 0.8, 0.0, 0.0]])
    data = jf.data.TokenData(tokens, query, jnp.ones(1))
    return jf.EmpiricalRisk(data, jf.losses.Correlation()), jf.models.CombinedAttention(jnp.zeros((5, 5)), head)


# As far as a mixture can be resolved: the other margins go like 1/t, t = 1e8, to the power of their excess.
MIXED = 1e-3


@pytest.mark.slow
def test_a_mixture_of_two_tokens_is_a_limit_of_gen_svm():
    risk, model = concave(0.3)
    limit = find_limit(risk, model, gap=MIXED)
    # s* = Proj(γ/2λ) on two tokens: s₁ − s₂ = (γ₁ − γ₂)/2λ = 1/6.
    target = jnp.array([7 / 12, 5 / 12, 0, 0, 0])
    attention = limit.trajectory.final.model.attention(risk.data)[0]
    # What is masked has 1e-8 of attention left, each.
    assert jnp.max(jnp.abs(attention - target)) <= 2e-8
    np.testing.assert_array_equal(limit.selection[0], [True, True, False, False, False])
    assert bool(limit.kind == "direction") and str(limit.outcome) == "globally_optimal"
    assert limit.excess <= MIXED and limit.program_solution.certificate.duality_gap <= 1e-8
    # By hand: logits 2a, 2a, −3·... equal on the two, lower by one elsewhere, along the one query.
    expected = solve(attention_svm(risk.data, limit.selection)).primal
    assert jnp.allclose(expected @ risk.data.queries[0], jnp.array([0.6, 0.6, -0.4, -0.4, -0.4]), atol=1e-12)
    # By strong convexity ‖W − W*‖² <= 2·excess·‖W*‖², to leading order and up to equalities that hold to 1e-8.
    away = jnp.linalg.norm(limit.direction - expected)
    assert away <= (jnp.sqrt(2.1 * jnp.maximum(limit.excess, 0.0)) + 1e-6) * jnp.linalg.norm(expected)
    # The flow certifies itself as far as it can be resolved.
    assert limit.certificate.duality_gap <= limit.flow_certificate.duality_gap <= MIXED
    # The finite component sets the proportions.
    finite = limit.finite_component().primal
    attention = jf.models.CombinedAttention(finite, jnp.ones(5)).attention(risk.data)[0]
    assert float(attention[0] / attention[1]) == pytest.approx(7 / 5, rel=1e-7)
    # W(k) = W^fin + R W^mm: what is left of the weights beside the two is nothing (zero start, tokens orthonormal).
    W = limit.trajectory.final.model.combined_weights()
    unit = limit.direction / jnp.linalg.norm(limit.direction)
    rest, across = (part - jnp.sum(part * unit) * unit for part in (W, finite))
    assert jnp.linalg.norm(rest - across) <= 0.2 * jnp.linalg.norm(W) and jnp.linalg.norm(across) > 0.1


def test_one_selected_token_has_no_finite_component():
    # A gap is part of what is compiled: that of the mixture, to run its program.
    limit = find_limit(*concave(0.01), gap=MIXED)
    assert limit.selection.tolist() == [[True, False, False, False, False]]
    assert jnp.all(limit.finite_component().primal == 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tokens", "label", "W", "inner", "state", "outcome"),
    [
        # Label −1 wants |x_1| small: along its kink, where the two tokens balance, the mixture slides.
        ([[1.0, 0.2], [-0.8, 0.3]], -1.0, 0.3 * np.eye(2), [[1.0, 0.0], [-1.0, 0.0]], "on_kink", "undecided"),
        ([[0.2, 1.0], [-1.0, 0.0]], 1.0, np.zeros((2, 2)), [[1.0, 0.0]] * 2, "flat", "finite_stationary_point"),
    ],
)
def test_kinks_and_flat_parts_of_a_head_are_reported(tokens, label, W, inner, state, outcome):
    data = jf.data.TokenData(jnp.array([tokens]), jnp.array([[1.0, 0.0]]), jnp.array([label]))
    model = jf.models.CombinedAttention(jnp.asarray(W), jf.models.MLPHead(jnp.array(inner)))
    limit = find_limit(jf.EmpiricalRisk(data, jf.losses.Logistic()), model, max_steps=500, throw=False)
    assert str(limit.head_state) == state and str(limit.outcome) == outcome
    assert state.removeprefix("on_") in str(limit)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_heads_with_kinks_from_zero_claim_nothing_false(seed):
    """A certified direction is the optimum of its program; where the path slides on a kink, `print` reports it."""
    head = jf.models.MLPHead(jax.random.normal(jax.random.key(5), (8, 4)))
    data, _ = instance(seed)
    model = jf.models.CombinedAttention(jnp.zeros((4, 4)), head)
    limit = find_limit(jf.EmpiricalRisk(data, "logistic"), model, throw=False)
    if limit.outcome == "undecided":
        assert "kink" in str(limit)
        return
    assert limit.outcome in ("globally_optimal", "locally_optimal", "not_locally_optimal")
    best = solve_cvxpy(attention_svm(data, limit.selection)).certificate.primal_value
    np.testing.assert_allclose(jnp.linalg.norm(limit.direction), best, rtol=1e-6)


@pytest.mark.slow
def test_layers_in_parallel_have_a_certified_limit_each():
    # Their programs differ in size: both together are certified to 1e-8 where the first alone is at 3e-8.
    tokens, second, start = jax.random.split(jax.random.key(1016), 3)
    data, v = jf.data.random_tokens(tokens, 3, 3, 4)
    model = jf.models.MultiHeadAttention.init(start, data, [v, jax.random.normal(jax.random.fold_in(second, 0), (4,))])
    risk = jf.EmpiricalRisk(data, jf.losses.Logistic())
    limits = find_limits(risk, model)
    assert len(limits) == 2
    for limit in limits:
        assert limit.certificate.duality_gap <= limit.flow_certificate.duality_gap <= 1e-8
        assert limit.excess <= 1e-8 and limit.program_solution.certificate.duality_gap <= 1e-8
        assert str(limit.outcome) in ("globally_optimal", "locally_optimal")
        direction = solve(attention_svm(risk.data, limit.selection)).primal
        # A direction is as good as the root of its gap.
        assert jnp.linalg.norm(limit.flow_direction - direction) <= 2e-4 * jnp.linalg.norm(direction)
        assert "layers in parallel" in str(limit)
    # Each by its own head: other tokens.
    assert not jnp.array_equal(limits[0].selection, limits[1].selection)
    # All margins grow like log t: those of the two layers agree to a share of 1/log t.
    margins = [
        jnp.min(limit.prediction.program.margins(limit.trajectory.final.model.combined_weights())) for limit in limits
    ]
    assert float(margins[0] / margins[1]) == pytest.approx(1.0, abs=1e-2)


def test_layers_of_different_degrees_are_refused():
    data, v = instance()
    parts = [
        part.init(jax.random.key(0), data, v) for part in (jf.models.CombinedAttention, jf.models.FactoredAttention)
    ]
    mixed = jf.models.MultiHeadAttention(parts)
    assert mixed.degree is None
    risk = jf.EmpiricalRisk(data, jf.losses.Logistic())
    with pytest.raises(ValueError, match=r"^model: expected layers of one degree"):
        find_limits(risk, mixed)
    with pytest.raises(ValueError, match=r"^model: expected an attention model, got MultiHeadAttention"):
        find_limit(risk, mixed)
    trained = jf.EmpiricalRisk(data, jf.losses.Logistic(), trainable=jf.models.attention_and_head)
    with pytest.raises(ValueError, match=r"^trainable: "):
        find_limits(trained, jf.models.MultiHeadAttention(parts[:1]))


@pytest.mark.slow
@pytest.mark.parametrize("key", range(1000, 1003))
def test_scores_of_a_thousand_are_no_finite_point(key):
    """Attention of one sequence saturates to e^-300 while the others, fitted to e^-500, still choose: products of
    their two factors lie below floating point, and not one multiplier is zero."""
    tokens, second, _ = jax.random.split(jax.random.key(key), 3)
    data, _ = jf.data.random_tokens(tokens, 4, 4, 5)
    head = 1000.0 * jax.random.normal(jax.random.fold_in(second, 0), (5,))
    limit = find_limit(jf.EmpiricalRisk(data, "logistic"), jf.models.CombinedAttention(jnp.zeros((5, 5)), head))
    assert str(limit.outcome) in ("globally_optimal", "locally_optimal") and limit.excess <= 1e-8
