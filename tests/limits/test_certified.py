"""What "certified" means: the flow's direction against the program's optimum. Wrong predictions are contradicted."""

import functools
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxflow as jf
from jaxflow.limits import Staged, conclude
from jaxflow.limits.limit import when_of
from jaxflow.margin import attention_svm, max_margin, solve
from jaxflow.models import (
    CombinedAttention,
    DeepMatrixSensing,
    DiagonalAttention,
    DiagonalLinearNetwork,
    FactoredAttention,
)
from jaxflow.theory import prediction as predictions
from jaxflow.theory import register, rule_of
from tests.limits.models import Linear

THEOREM = "Somebody (2025), Theorem 0: so it is"


@pytest.fixture(autouse=True)
def rules(monkeypatch):
    """Rules registered in a test are forgotten after it."""
    monkeypatch.setattr(predictions, "_RULES", dict(predictions._RULES))


def of_norm(norm, stretch=1.0):
    """A rule: the program of the selected tokens in a given norm, with the first feature of every token stretched, as
    if by another inner product for W."""

    def rule(risk, model, selection):
        del model
        data = eqx.tree_at(lambda x: x.tokens, risk.data, risk.data.tokens.at[..., 0].multiply(stretch))
        return jf.theory.Prediction(attention_svm(data, selection, norm), THEOREM, ())

    return rule


def instance(kind, seed=0, T=3, d=6):
    """Few constraints in six dimensions: diagonal weights separate the tokens that any of the models selects."""
    key_data, key_model = jax.random.split(jax.random.key(seed))
    data, head = jf.data.random_tokens(key_data, 3, T, d)
    return jf.EmpiricalRisk(data, jf.losses.Logistic()), kind.init(key_model, data, head)


# What is not the program of a model: that of another norm, or with twice the first feature.
WRONG = [(CombinedAttention, "nuclear", 1.0), (FactoredAttention, "nuclear", 2.0), (DiagonalAttention, "l1", 2.0)]


@pytest.fixture(scope="module")
def followed():
    """The flow of each model, followed once; which program is predicted does not change it."""

    @functools.cache
    def follow(kind):
        risk, model = instance(kind)
        return risk, model, jf.find_limit(risk, model, max_steps=4096).trajectory

    return follow


@pytest.fixture(scope="module")
def close():
    """`conclude` by the program of a norm, compiled once for each model and norm; the stretch is an argument."""

    @functools.cache
    def compiled(kind, norm):
        @eqx.filter_jit
        def fresh(risk, model, path, stretch):
            register(kind)(of_norm(norm, stretch))
            return conclude(risk, model, path, 1e-8)

        return fresh

    return lambda kind, norm, *given, stretch=1.0: compiled(kind, norm)(*given, jnp.asarray(stretch))


@pytest.fixture(scope="module")
def concluded(followed, close):
    """The limit of each model's own flow by the program of a norm."""
    return lambda kind, norm, stretch=1.0: close(kind, norm, *followed(kind), stretch=stretch)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "norm", "stretch"), WRONG)
def test_a_wrong_prediction_is_contradicted(concluded, kind, norm, stretch):
    limit = concluded(kind, norm, stretch)
    # The program is solved, to rounding: that certifies it and not the flow.
    assert limit.program_solution.certificate.duality_gap <= 1e-9
    assert str(limit.outcome) == "prediction_contradicted"
    assert limit.excess > 1e-3
    text = str(limit)
    assert text.startswith("The prediction is contradicted") and "Theorem 0" in text
    for number in (limit.excess, limit.program_solution.certificate.duality_gap):
        assert f"{float(number):.1e}" in text
    # Where the flow goes is no less known for that, and it is not the program's answer.
    assert bool(limit.kind == "direction")


@pytest.mark.slow
def test_find_limit_heeds_a_rule_that_is_registered_later():
    """The same shapes, method and gap as before: what was compiled for the right rule does not answer again."""
    # In the shape of other modules, whose compiled program the first call then finds on disk.
    risk, model = instance(CombinedAttention, T=4, d=4)
    theirs = rule_of(model)
    assert str(jf.find_limit(risk, model).outcome) in ("globally_optimal", "locally_optimal")
    register(CombinedAttention)(of_norm("nuclear"))
    assert str(jf.find_limit(risk, model).outcome) == "prediction_contradicted"
    assert rule_of(model) is not theirs


@pytest.mark.slow
def test_the_certificate_of_w_is_of_the_flow(concluded):
    limit = concluded(CombinedAttention, "frobenius")
    own, theirs = limit.flow_certificate, limit.program_solution.certificate
    assert str(limit.outcome) in ("globally_optimal", "locally_optimal")
    assert limit.certificate.duality_gap <= limit.excess <= 1e-8
    assert limit.certificate.primal_value == own.primal_value
    assert limit.certificate.dual_value == jnp.maximum(own.dual_value, theirs.dual_value)
    assert bool(limit.certificate.source == ("program" if theirs.dual_value > own.dual_value else "flow"))
    assert limit.excess == own.primal_value / theirs.dual_value - 1.0
    assert limit.certificate.feasibility == own.feasibility
    # The direction has margin one and the norm that the certificate says: it is the flow's.
    program = limit.prediction.program
    assert abs(jnp.min(program.margins(limit.direction)) - 1.0) <= 1e-14
    assert abs(jnp.linalg.norm(limit.direction) / own.primal_value - 1.0) <= 1e-14
    assert jnp.array_equal(limit.direction, limit.flow_direction)
    # By strong convexity ‖W − W*‖² <= 2·excess·‖W*‖² (to leading order), the excess at most what was asked for.
    best = limit.program_solution.primal
    assert jnp.linalg.norm(limit.direction - best) <= jnp.sqrt(2.1 * 1e-8) * jnp.linalg.norm(best)
    text = str(limit)
    for number in (limit.excess, theirs.duality_gap, own.duality_gap):
        assert f"{float(number):.1e}" in text
    assert "excess over the optimum" in text and "the flow's own gap" in text
    # A direction off the diagonal has no value in a program on diagonal weights.
    other = concluded(CombinedAttention, "l1")
    assert jnp.isinf(other.excess) and bool(other.certificate.source == "none")


def with_final(path, **changes):
    return eqx.tree_at(lambda p: [getattr(p.final, name) for name in changes], path, list(changes.values()))


@pytest.mark.slow
def test_a_flow_that_still_moves_contradicts_nothing(followed, close):
    risk, model, path = followed(CombinedAttention)

    def outcome(path):
        return str(close(CombinedAttention, "nuclear", risk, model, path).outcome)

    assert outcome(path) == "prediction_contradicted"
    # Not far enough; and weights that lag behind the velocity by 1% of their size.
    assert outcome(with_final(path, log_arc_length=jnp.log(999.0))) == "undecided"
    W = path.final.model.W
    aside = 0.01 * jnp.linalg.norm(W) * jnp.ones(W.shape) / W.shape[0]
    lagging = eqx.tree_at(lambda p: p.final.model.W, path, W + aside)
    assert outcome(lagging) == "undecided"


def test_a_selection_that_is_not_locally_optimal_needs_the_flow_s_own_gap(followed, close):
    """Pulls away from a metastable selection count zero in the flow's own dual, which then does not close."""
    risk, model, path = followed(CombinedAttention)
    other = eqx.tree_at(lambda m: m.head.v, model, -model.head.v)
    ends = eqx.tree_at(lambda p: p.final.model.head.v, path, -model.head.v)

    def limit(path):
        return close(CombinedAttention, "frobenius", risk, other, path)

    # Another head, against which the same tokens are the worst: the direction is that of their program all the same.
    metastable = limit(with_final(ends, multipliers=-path.final.multipliers))
    assert str(metastable.selection_status) == "not_local" and metastable.excess <= 1e-8
    assert metastable.flow_certificate.duality_gap > 1e-8 and str(metastable.outcome) == "undecided"
    assert str(limit(ends).outcome) == "not_locally_optimal"


# Starts of instances on which a program's own certificate gave an answer that a longer run took back.
@pytest.mark.slow
def test_no_definite_outcome_changes_in_a_longer_run():
    starts = []
    for scale, seed in itertools.product((1e-8, 1.0, 1e4, 1e6), (4, 7)):
        key_data, key_start, _ = jax.random.split(jax.random.split(jax.random.key(7), 24)[seed], 3)
        data, head = jf.data.random_tokens(key_data, 3, 4, 3)
        model = CombinedAttention(scale * jax.random.normal(key_start, (3, 3)), head)
        starts.append((jf.EmpiricalRisk(data, jf.losses.Logistic()), model))

    def outcomes(method):
        limits = [jf.find_limit(*start, method=method, throw=False) for start in starts]
        return np.array([int(x.outcome) for x in limits]), np.stack([x.selection for x in limits])

    (soon, tokens), (late, later) = outcomes(Staged()), outcomes(Staged(far=1e9, horizon=1e13))
    open_ = int(jf.Outcome.undecided)
    # A budget that ran out takes nothing back.
    kept = (soon == open_) | (late == open_) | ((soon == late) & np.all(tokens == later, axis=(1, 2)))
    assert kept.all()
    # From starts of order one and below everything is decided, and decided at once.
    assert np.all(soon[:4] != open_)


@pytest.mark.slow
def test_small_factors_are_no_stationary_point(followed, close):
    """At K, Q of size 1e-8 the gradient is 1e-8 of its multipliers, and nothing has cancelled."""
    risk, model, path = followed(FactoredAttention)
    small = eqx.tree_at(lambda m: (m.K, m.Q), model, (1e-8 * model.K, 1e-8 * model.Q))
    start = jf.integrate(risk, small, clock="arc_length", until=1e-10)
    # The end of another path in place of its own: the program is then one that others run too.
    path = eqx.tree_at(lambda p: (p.final, p.regime, p.result), path, (start.final, start.regime, start.result))
    limit = close(FactoredAttention, "nuclear", risk, small, path)
    assert limit.stationarity <= 1e-6 and str(limit.outcome) == "undecided"


# Linear networks


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Linear, DiagonalLinearNetwork])
def test_predictors_are_held_to_their_own_direction(kind):
    """A model of a user's own maximises the l2 margin, a diagonal network the l1 margin, whatever was predicted."""
    inputs, labels = jnp.array([[2.0, 1.0], [-3.0, -2.0]]), jnp.array([1.0, -1.0])
    right, wrong = ("l2", "l1") if kind is Linear else ("l1", "l2")
    model, found = kind(jnp.array([0.3, -0.1]) if kind is Linear else (jnp.ones(2), jnp.zeros(2))), {}
    for norm in (right, wrong):

        def rule(risk, model, selection, norm=norm):
            del model, selection
            return jf.theory.Prediction(max_margin(risk.data.inputs, risk.data.targets, norm), THEOREM, ())

        register(kind)(rule)
        found[norm] = jf.find_limit(jf.EmpiricalRisk((inputs, labels), "exponential"), model)
    assert str(found[right].outcome) == "globally_optimal" and found[right].excess <= 1e-8
    assert str(found[wrong].outcome) == "prediction_contradicted" and found[wrong].excess > 1e-3
    assert found[wrong].program_solution.certificate.duality_gap <= 1e-9
    best = solve(max_margin(inputs, labels, right)).primal
    for norm in (right, wrong):
        assert "Theorem 0" in str(found[norm]) and "excess over the optimum" in str(found[norm])
        direction = getattr(found[norm].direction, "w", found[norm].direction)
        # Exact to gaps of 1e-8, in l1 to their root.
        apart = direction / jnp.linalg.norm(direction) - best / jnp.linalg.norm(best)
        assert jnp.max(jnp.abs(apart)) <= (1e-7 if norm == "l2" else 1e-3)


def test_a_theorem_is_cited_where_it_applies_and_else_says_by_how_much_it_fails():
    key = jax.random.key(3)
    sensors = jax.random.normal(key, (3, 4, 4))
    basis = jnp.linalg.qr(sensors[0])[0]
    commuting = jnp.einsum("ij,nj,kj->nik", basis, jax.random.normal(key, (3, 4)), basis)

    def limit_of(sensors):
        data = jf.data.LinearData(sensors.reshape(3, 16), jnp.asarray([1.0, -0.5, 0.7]))
        model = DeepMatrixSensing.init(key, data, alpha=0.3)
        return jf.find_limit(jf.EmpiricalRisk(data, jf.losses.Squared()), model)

    holding, failing = limit_of(commuting), limit_of(sensors)
    assert str(holding.outcome) == str(failing.outcome) == "limit_point"
    assert bool(holding.prediction.applies) and not bool(failing.prediction.applies)
    assert "of the optimum" in str(holding) and "does not apply" not in str(holding)
    assert "Corollary 7 does not apply" in str(failing) and "of the optimum" not in str(failing)
    fact = next(a for a in failing.prediction.assumptions if not bool(a.holds))
    assert fact.statement in str(failing) and f"fails by {-float(fact.slack):.1e}" in str(failing)
    # The same program, without the condition that sensors commute, which is not met.
    theirs = predictions._RULES[DeepMatrixSensing]

    def careless(risk, model, selection):
        return jf.theory.Prediction(theirs(risk, model, selection).program, THEOREM, ())

    register(DeepMatrixSensing)(careless)
    wrong = limit_of(sensors)
    assert wrong.excess < -1e-6 and str(wrong.outcome) == "prediction_contradicted"
    assert "below the optimum" in str(wrong) and "within" not in str(wrong)


def test_what_overflows_is_said_on_another_scale(followed):
    _, _, path = followed(CombinedAttention)
    assert when_of(path) == f"log t = {float(path.final.log_time):.3g}"
    far = with_final(path, log_time=jnp.asarray(jnp.inf), log_log_time=jnp.asarray(2e6))
    assert when_of(far) == "log log t = 2e+06"


def quasi_separated(size: float):
    """A sequence with both labels, whose loss has its minimum at a finite point, and one in dimensions of its own that
    can be separated: its tokens, of this size, are pushed for ever."""
    tokens = np.zeros((3, 3, 6))
    draws = np.random.default_rng(0).normal(size=(2, 3, 2))
    tokens[:2, :, :2], tokens[2, :, 2:4] = draws[0], size * draws[1]
    tokens[:2, :, 4], tokens[2, :, 5] = [0.7, -0.5, 0.1], size * np.array([0.9, -0.3, -0.6])
    queries = np.eye(6)[[0, 0, 1]]
    data = jf.data.TokenData(jnp.asarray(tokens), jnp.asarray(queries), jnp.array([1.0, -1.0, 1.0]))
    start = 0.5 * jax.random.normal(jax.random.key(0), (6, 6))
    head = jnp.array([0.0, 0.0, 0.0, 0.0, 1.0, 1.0 / size])
    return jf.EmpiricalRisk(data, "logistic"), jf.models.CombinedAttention(start, head)


@pytest.mark.slow
def test_quasi_separated_attention_has_no_finite_end_in_any_unit():
    for size in (1.0, 1e-4, 1e-6, 1e-8):
        assert jf.find_limit(*quasi_separated(size), throw=False).kind != jf.limits.LimitKind.point, size
