"""What "certified" means: the flow's direction against the program's optimum. Wrong predictions are contradicted."""

import itertools
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxflow as jf
from jaxflow.limits import LinearStaged, Staged, conclude
from jaxflow.limits.limit import when_of
from jaxflow.limits.linear import conclude_direction
from jaxflow.limits.stages import at_rest
from jaxflow.margin import attention_svm, max_margin
from jaxflow.models import (
    AbstractAttention,
    CombinedAttention,
    DeepMatrixSensing,
    DiagonalAttention,
    DiagonalLinearNetwork,
    FactoredAttention,
)
from jaxflow.models.base import mark_trainable
from jaxflow.theory import prediction as predictions
from jaxflow.theory import register, rule_of


class Doubled(AbstractAttention):
    """A model of a user's own, W = 2 U^T: the flow of U is that of W in another time."""

    U: jax.Array
    head: jf.models.LinearHead
    degree: ClassVar[int] = 1

    def logits(self, data):
        return jnp.einsum("ntd,nd->nt", data.tokens, data.queries @ (2.0 * self.U))

    def combined_weights(self):
        return 2.0 * self.U.T

    def trainable(self):
        return mark_trainable(self, ("U",))

    def check(self, data):
        del data


@pytest.fixture(autouse=True)
def rules(monkeypatch):
    """Rules registered in a test are forgotten after it."""
    monkeypatch.setattr(predictions, "_RULES", dict(predictions._RULES))


def of_norm(norm, stretch=1.0):
    """A rule: the program of the selected tokens in a given norm, of data stretched first."""

    def rule(risk, model, selection):
        del model
        data = stretched(risk.data, stretch)
        return jf.theory.Prediction(attention_svm(data, selection, norm), "Somebody (2025), Theorem 0: so it is", ())

    return rule


def stretched(data, factor):
    """The first feature of every token larger, as if by another inner product for W."""
    return eqx.tree_at(lambda x: x.tokens, data, data.tokens.at[..., 0].multiply(factor))


def instance(kind, seed=0, T=3, d=6):
    """Few constraints in six dimensions: diagonal weights separate the tokens that any of the models selects."""
    key_data, key_model = jax.random.split(jax.random.key(seed))
    data, head = jf.data.random_tokens(key_data, 3, T, d)
    if kind is Doubled:
        W = CombinedAttention.init(key_model, data, head)
        return jf.EmpiricalRisk(data, jf.losses.Logistic()), Doubled(0.5 * W.W.T, W.head)
    return jf.EmpiricalRisk(data, jf.losses.Logistic()), kind.init(key_model, data, head)


# Linear in the weights: followed as W is, whatever the class.
METHODS = {Doubled: Staged(near=50.0, far=1e5, horizon=1e9, cap=float("inf"))}
# In the weights themselves, for want of score coordinates, the velocity is good to some 1e-7.
GAPS = {Doubled: 1e-6}
# The norm of the program of each model, and what is not its program: another norm, or twice the first feature.
RIGHT = {CombinedAttention: "frobenius", FactoredAttention: "nuclear", DiagonalAttention: "l1", Doubled: "frobenius"}
WRONG = [
    (CombinedAttention, "nuclear", 1.0),
    (FactoredAttention, "nuclear", 2.0),
    (DiagonalAttention, "l1", 2.0),
    (Doubled, "frobenius", 2.0),
]


@pytest.fixture(scope="module")
def followed():
    """The flow of each model, followed once; which program is predicted does not change it."""
    found = {}

    def follow(kind):
        if kind not in found:
            risk, model = instance(kind)
            if kind in METHODS:
                path = METHODS[kind].follow(risk, model, 4096)
            else:
                path = jf.find_limit(risk, model, max_steps=4096).trajectory
            found[kind] = risk, model, path
        return found[kind]

    return follow


@pytest.fixture(scope="module")
def close():
    """`conclude` by the program of a norm, compiled once for each model and norm; the stretch is an argument."""
    compiled = {}

    def conclusion(kind, norm, risk, model, path, stretch=1.0):
        @eqx.filter_jit
        def fresh(risk, model, path, stretch):
            register(kind)(of_norm(norm, stretch))
            return conclude(risk, model, path, GAPS.get(kind, 1e-8))

        return compiled.setdefault((kind, norm), fresh)(risk, model, path, jnp.asarray(stretch))

    return conclusion


@pytest.fixture(scope="module")
def concluded(followed, close):
    """The limit of each model's own flow by the program of a norm."""
    return lambda kind, norm, stretch=1.0: close(kind, norm, *followed(kind), stretch)


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
    assert f"{float(limit.excess):.1e}" in text
    assert f"{float(limit.program_solution.certificate.duality_gap):.1e}" in text
    # Where the flow goes is no less known for that, and it is not the program's answer.
    assert bool(limit.kind == "direction")


@pytest.mark.parametrize(
    "kind", [kind if kind is CombinedAttention else pytest.param(kind, marks=pytest.mark.slow) for kind in RIGHT]
)
def test_the_right_prediction_is_certified(concluded, kind):
    limit = concluded(kind, RIGHT[kind])
    assert str(limit.outcome) in ("globally_optimal", "locally_optimal")
    assert limit.certificate.duality_gap <= limit.excess <= GAPS.get(kind, 1e-8)


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


def test_the_certificate_of_w_is_of_the_flow(concluded):
    limit = concluded(CombinedAttention, "frobenius")
    own, theirs = limit.flow_certificate, limit.program_solution.certificate
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


def test_a_direction_off_the_diagonal_has_no_value_in_a_program_on_diagonal_weights(concluded):
    limit = concluded(CombinedAttention, "l1")
    assert jnp.isinf(limit.excess) and bool(limit.certificate.source == "none")


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


# Seeds of instances on which a program's own certificate gave an answer that a longer run took back.
SCALES = (1e-8, 1.0, 1e4, 1e6)
SEEDS = (4, 7)


@pytest.mark.slow
def test_no_definite_outcome_changes_in_a_longer_run():
    keys = jax.random.split(jax.random.key(7), 24)[jnp.asarray(SEEDS)]
    starts = []
    for scale, key in itertools.product(SCALES, keys):
        key_data, key_start, _ = jax.random.split(key, 3)
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
    assert np.all(soon[: 2 * len(SEEDS)] != open_)


def test_small_factors_are_no_stationary_point(followed, close):
    """At K, Q of size 1e-8 the gradient is 1e-8 of its multipliers, and nothing has cancelled."""
    risk, model, path = followed(FactoredAttention)
    small = eqx.tree_at(lambda m: (m.K, m.Q), model, (1e-8 * model.K, 1e-8 * model.Q))
    start = jf.integrate(risk, small, clock="arc_length", until=1e-10)
    # The end of another path in place of its own: the program is then one that others run too.
    path = eqx.tree_at(lambda p: (p.final, p.regime, p.result), path, (start.final, start.regime, start.result))
    limit = close(FactoredAttention, "nuclear", risk, small, path)
    assert limit.stationarity <= 1e-6 and str(limit.outcome) == "undecided"


def test_weights_at_zero_are_at_rest_where_nothing_pushes():
    """Two equal tokens: no push at all, and weights of norm zero, which have no logarithm."""
    tokens = jnp.ones((1, 2, 3))
    risk = jf.EmpiricalRisk(jf.data.TokenData(tokens, jnp.ones((1, 3)), jnp.ones(1)), jf.losses.Logistic())
    model = CombinedAttention(jnp.zeros((3, 3)), jnp.ones(3))
    path = jf.integrate(risk, model, clock="log_time", until=1.0)
    assert bool(at_rest(path.final, 1)) and not bool(jnp.isfinite(path.final.log_norm))


# Linear networks


def separable(seed=0, n=4, d=6):
    key_x, key_y = jax.random.split(jax.random.key(seed))
    X = jax.random.normal(key_x, (n, d))
    y = jnp.sign(jax.random.normal(key_y, (n,)))
    return jf.EmpiricalRisk(jf.data.LinearData(X, y), jf.losses.Exponential())


@pytest.mark.slow
def test_linear_networks_are_held_to_their_own_direction():
    risk, right, wrong = separable(), "l1", "l2"
    model = DiagonalLinearNetwork.init(jax.random.key(1), risk.data, depth=2)
    path = LinearStaged().follow(risk, model, 4096)
    found = {}
    for norm in (right, wrong):

        def rule(risk, model, selection, norm=norm):
            del model, selection
            program = max_margin(risk.data.inputs, risk.data.targets, norm=norm)
            return jf.theory.Prediction(program, "Somebody (2025), Theorem 0: so it is", ())

        register(DiagonalLinearNetwork)(rule)
        found[norm] = eqx.filter_jit(lambda r, m, p: conclude_direction(r, m, p, 1e-8))(risk, model, path)
    assert str(found[wrong].outcome) == "prediction_contradicted" and found[wrong].excess > 1e-3
    assert str(found[wrong]).startswith("The prediction is contradicted")
    assert found[wrong].program_solution.certificate.duality_gap <= 1e-9
    assert str(found[right].outcome) == "globally_optimal" and found[right].excess <= 1e-8
    # Both limits are of one flow, and their directions are its own.
    a, b = (found[norm].direction / jnp.linalg.norm(found[norm].direction) for norm in (right, wrong))
    assert jnp.max(jnp.abs(a - b)) <= 1e-3


def sensing(commuting):
    key = jax.random.key(3)
    sensors = jax.random.normal(key, (3, 4, 4))
    if commuting:
        basis = jnp.linalg.qr(sensors[0])[0]
        sensors = jnp.einsum("ij,nj,kj->nik", basis, jax.random.normal(key, (3, 4)), basis)
    data = jf.data.LinearData(sensors.reshape(3, 16), jnp.asarray([1.0, -0.5, 0.7]))
    return jf.EmpiricalRisk(data, jf.losses.Squared()), DeepMatrixSensing.init(key, data, alpha=0.3)


def test_a_theorem_is_cited_where_it_applies_and_else_says_by_how_much_it_fails():
    holding, failing = (jf.find_limit(*sensing(commuting)) for commuting in (True, False))
    assert str(holding.outcome) == str(failing.outcome) == "limit_point"
    assert bool(holding.prediction.applies) and not bool(failing.prediction.applies)
    assert "of the optimum" in str(holding) and "does not apply" not in str(holding)
    assert "Corollary 7 does not apply" in str(failing) and "of the optimum" not in str(failing)
    fact = next(a for a in failing.prediction.assumptions if not bool(a.holds))
    assert fact.statement in str(failing) and f"fails by {-float(fact.slack):.1e}" in str(failing)


def test_an_interpolation_below_the_optimum_contradicts_its_program():
    """The sensors' program, with nobody to say that it is not about sensors that do not commute."""
    risk, model = sensing(commuting=False)
    theirs = rule_of(model)

    def careless(risk, model, selection):
        return jf.theory.Prediction(theirs(risk, model, selection).program, "Somebody (2025), Theorem 0: so it is", ())

    register(DeepMatrixSensing)(careless)
    limit = jf.find_limit(risk, model)
    assert limit.excess < -1e-6 and str(limit.outcome) == "prediction_contradicted"
    assert "below the optimum" in str(limit) and "within" not in str(limit)


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
