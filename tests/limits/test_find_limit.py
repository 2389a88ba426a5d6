"""From an instance to a certified limit: the promises of the main job, of one instance and of a lane of a batch."""

import importlib
from decimal import Decimal, localcontext

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy.integrate import solve_ivp

import jaxflow as jf
from jaxflow.limits import find_limit
from jaxflow.margin import ProgramResult, attention_svm, solve_cvxpy

batches = importlib.import_module("batches")


def start(key, model, n, T, d):
    key_data, key_model = jax.random.split(key)
    data, head = jf.data.random_tokens(key_data, n, T, d)
    return jf.EmpiricalRisk(data, jf.losses.Logistic()), model.init(key_model, data, head)


def instances_of(model, n, T, d, count, seed):
    keys = jax.random.split(jax.random.key(seed), count)
    return jax.jit(jax.vmap(lambda key: start(key, model, n, T, d)))(keys)


def one_by_one(instances, count):
    """Limits by calls of their own: what is compiled for one shape serves all of them, here and in other files."""
    limits = [find_limit(*member(instances, i), throw=False) for i in range(count)]
    return jax.tree.map(lambda *x: jnp.stack(x), *limits)


def member(batch, index):
    """One of a batch of instances or limits. Compiling it alone would take longer than following all of them."""
    return jax.tree.map(lambda x: x[index], batch)


def one_minus_corr(a, b):
    a, b = (np.asarray(x).reshape(len(x), -1) for x in (a, b))
    a, b = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (a, b))
    return 0.5 * np.sum((a - b) ** 2, axis=1)


@pytest.fixture(scope="module")
def combined():
    instances = instances_of(jf.models.CombinedAttention, 6, 8, 10, 40, 0)
    return instances, one_by_one(instances, 40)


def test_every_limit_of_w_is_certified_by_the_flow_itself(combined):
    _, limits = combined
    assert np.all(np.asarray(limits.flow_certificate.duality_gap) <= 1e-8)
    assert np.all(np.asarray(limits.flow_certificate.feasibility) <= 1e-12)
    decided = (limits.outcome == "globally_optimal") | (limits.outcome == "locally_optimal")
    assert int(jnp.sum(decided)) == 40
    assert str(limits).startswith("40 limits: ")
    # Weights approach their direction like one over log t.
    exponents = np.asarray(limits.rate.exponent)
    assert np.all(np.isfinite(exponents)) and abs(np.median(exponents) - 1.0) < 0.05


@pytest.mark.slow
def test_the_limits_of_w_solve_the_frobenius_svm_of_an_independent_solver(combined):
    instances, limits = combined
    some = range(0, 40, 2)
    references = []
    for i in some:
        risk, _ = member(instances, i)
        solution = solve_cvxpy(attention_svm(risk.data, limits.selection[i], "frobenius"))
        assert bool(solution.result == ProgramResult.optimal)
        references.append(solution.primal)
    ours = np.asarray(limits.flow_direction)[list(some)]
    # Clarabel's own direction is good to about 1e-12; the flow's error is a square of its gap.
    assert np.max(one_minus_corr(ours, np.stack(references))) <= 1e-10
    assert np.max(one_minus_corr(limits.flow_direction, limits.program_solution.primal)) <= 1e-10


@pytest.fixture(scope="module")
def two_dimensional():
    """In one program (on a CPU no lane then waits for the slowest); a token of the last is NaN."""
    instances = instances_of(jf.models.CombinedAttention, 5, 5, 2, 31, 0)
    tokens = instances[0].data.tokens.at[-1, 0, 0, 0].set(jnp.nan)
    instances = eqx.tree_at(lambda x: x[0].data.tokens, instances, tokens)
    return instances, jax.jit(lambda pairs: jax.lax.map(lambda pair: find_limit(*pair, throw=False), pairs))(instances)


@pytest.mark.slow
def test_finite_stationary_points_are_recognised_and_are_minima(two_dimensional):
    instances, limits = member(two_dimensional, slice(30))
    outcome, stationarity = np.asarray(limits.outcome), np.asarray(limits.stationarity)
    finite = outcome == jf.Outcome.finite_stationary_point
    # About one in five: 12 of 60 in another sample. Binomial(30, 0.2) lies in [1, 13] with chance 0.998.
    assert 1 <= finite.sum() <= 13 and np.all(outcome != jf.Outcome.failed)
    assert np.all(np.asarray(limits.kind == "point") == finite)
    # The two populations are far apart, or the threshold between them would mean nothing.
    assert np.all(stationarity[finite] <= 1e-6)
    assert np.all(stationarity[~finite & (outcome != jf.Outcome.undecided)] >= 1e-5)
    assert np.all(np.isinf(np.asarray(limits.flow_certificate.duality_gap)[finite]))
    for index in np.flatnonzero(finite):
        gradient, hessian = derivatives(*member(instances, index), limits.end[index])
        assert np.linalg.eigvalsh(hessian)[0] > 0
        # Of the minimum the next step of Newton's tells, from so near.
        left = np.linalg.norm(np.linalg.solve(hessian, gradient)) / np.linalg.norm(limits.end[index])
        assert left <= limits.error[index] <= 1e-5
    assert np.all(np.isinf(limits.error[~finite]))


def derivatives(risk, model, W):
    def loss(row):
        return risk(eqx.tree_at(lambda m: m.W, model, row.reshape(W.shape)))

    return jax.grad(loss)(W.reshape(-1)), jax.hessian(loss)(W.reshape(-1))


def off_by(data, head, W, digits=150):
    """How far W is from the minimum, relative: Newton's method on numbers of so many digits."""
    exact = np.vectorize(Decimal, otypes=[object])
    exp = np.vectorize(Decimal.exp, otypes=[object])
    with localcontext(prec=digits):
        tokens, queries, labels, v, start = (exact(x) for x in (data.tokens, data.queries, data.labels, head.v, W))
        small, unit = Decimal(10) ** (-digits // 3), exact(np.eye(W.size))

        def gradient(w):
            total = 0
            for X, q, y in zip(tokens, queries, labels, strict=True):
                logits, scores = X @ (w.reshape(W.shape) @ q), y * (X @ v)
                weights = exp(logits - max(logits))
                weights = weights / sum(weights)
                output = weights @ scores
                total = total - np.outer((weights * (scores - output)) @ X, q) / (1 + output.exp())
            return total.reshape(-1)

        w = start.reshape(-1)
        for _ in range(5):
            here = gradient(w)
            rows = np.column_stack([*((gradient(w + small * e) - here) / small for e in unit), here])
            for k in range(W.size):
                pivot = k + np.argmax(abs(rows[k:, k]))
                rows[[k, pivot]] = rows[[pivot, k]]
                rows[k] = rows[k] / rows[k, k]
                for other in set(range(W.size)) - {k}:
                    rows[other] = rows[other] - rows[other, k] * rows[k]
            w = w - rows[:, -1]
        apart = (w - start.reshape(-1)).astype(float)
        assert np.linalg.norm(rows[:, -1].astype(float)) < 1e-20
        return np.linalg.norm(apart) / np.linalg.norm(w.astype(float))


@pytest.mark.slow
@pytest.mark.parametrize(("instance", "norm"), [(7, 711), (44, 1857)])
def test_the_point_of_w_and_of_its_factors_is_a_minimum_within_its_error(instance, norm):
    """The flows are left 1e-4 of it apart, and eigenvalues of the second Hessian are 1e-86 to 1e-82."""
    errors = {"CombinedAttention": 1e-6, "FactoredAttention": 1e-10}
    for name, error in errors.items():
        risk, model = member(instances_of(getattr(jf.models, name), 5, 5, 2, 60, 0), instance)
        limit = find_limit(risk, model)
        assert limit.outcome == "finite_stationary_point"
        np.testing.assert_allclose(np.linalg.norm(limit.point), norm, rtol=1e-3)
        assert off_by(risk.data, model.head, np.asarray(limit.point)) <= limit.error <= error


def plain_end(risk, model):
    """Where SciPy's Radau follows the flow in t to, as combined weights."""
    moving, fixed = eqx.partition(model, risk.filter(model))
    theta, there = ravel_pytree(moving)
    field = jax.jit(lambda x: -jax.grad(lambda x: risk(eqx.combine(there(x), fixed)))(x))
    slope = jax.jit(jax.jacfwd(field))

    def rests(t, x):
        return np.linalg.norm(field(x)) - 1e-12

    rests.terminal = True
    how = {"method": "Radau", "jac": lambda t, x: np.asarray(slope(x)), "events": rests, "rtol": 1e-9, "atol": 1e-11}
    path = solve_ivp(lambda t, x: np.asarray(field(x)), (0.0, 1e6), np.asarray(theta), **how)
    assert path.status == 1
    return eqx.combine(there(jnp.asarray(path.y[:, -1])), fixed).combined_weights()


def squared_hinge(q):
    return jnp.maximum(0.0, 1.0 - q) ** 2


# Model, loss, seed of data (and, a hundred more, of the start), and the largest error that may be said.
SETS = {
    "W": ("CombinedAttention", "squared", 5, 2e-6),
    "K, Q": ("FactoredAttention", "squared", 5, 2e-6),
    "squared hinge": ("CombinedAttention", squared_hinge, 1, 1e-4),
    "both labels": ("CombinedAttention", "logistic", 1, 2e-6),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", SETS)
def test_on_a_set_of_minima_the_error_is_that_of_the_path(what):
    """Squared errors that can be met, where multipliers vanish as the gradient does (20 of 20 were `undecided`); the
    edge of a flat tail, past which steps lead (an error of zero was said, and 1.4e-5 right); and every sequence three
    times, once with another label, under the logistic loss (2.7e-9 was said, and 1.1e-8 right)."""
    kind, loss, seed, error = SETS[what]
    data, head = jf.data.random_tokens(jax.random.key(seed), *((3, 4, 5) if what == "both labels" else (5, 5, 4)))
    if what == "both labels":
        tokens, queries, labels = (jnp.concatenate([x] * 3) for x in (data.tokens, data.queries, data.labels))
        data = jf.data.TokenData(tokens, queries, labels.at[6:].multiply(-1.0))
    risk = jf.EmpiricalRisk(data, loss)
    start = getattr(jf.models, kind).init(jax.random.key(100 + seed), data, 4.0 * head)
    limit = find_limit(risk, start)
    assert limit.outcome == "finite_stationary_point"
    end = plain_end(risk, start)
    size = np.linalg.norm(end)
    assert np.linalg.norm(limit.point - end) <= limit.error * size <= error * size


@pytest.mark.slow
@pytest.mark.parametrize("outcome", ["finite_stationary_point", "globally_optimal"])
def test_a_limit_alone_and_in_a_batch_with_a_lane_of_nan(two_dimensional, outcome):
    """What is NaN fails and disturbs no other."""
    instances, limits = two_dimensional
    assert limits.outcome[-1] == "failed"
    index = int(np.argmax(np.asarray(limits.outcome == outcome)))
    alone = find_limit(*member(instances, index), throw=False)
    assert alone.outcome == limits.outcome[index] == outcome
    if outcome == "finite_stationary_point":
        assert alone.direction is None and "finite stationary point" in str(alone)
        error = alone.error + limits.error[index]
        assert np.linalg.norm(alone.point - limits.end[index]) <= error * np.linalg.norm(alone.point)
    else:
        np.testing.assert_allclose(limits.flow_direction[index], alone.flow_direction, rtol=1e-4)


# Mixed lanes of `benchmarks/batches.py`, which has more cases. Limits are found in a loop over lanes on a CPU
# (`one_lane_at_a_time`), whatever the model: W stands for all of them. Lanes that go side by side are 64, more than XLA
# has threads for; the nuclear norm calls most of LAPACK.
# A limit that is certified to 1e-8 has a direction good to the root of that, and a program counts as solved to 1e-8,
# likewise. Paths at tolerances of 1e-8 differ by roundings that their steps do not amplify.
LANES = {"W": (10, 1e-4), "program, nuclear norm": (64, 1e-4), "integrate": (64, 1e-10)}


@pytest.mark.slow
@pytest.mark.parametrize("name", LANES)
def test_mixed_lanes_end_as_they_do_alone(name):
    case, (count, tolerance) = batches.CASES[name], LANES[name]
    instances = batches.lanes(case, count)
    flaws = [batches.FLAWS[k % len(batches.FLAWS)] for k in range(count)]
    batch = jax.jit(jax.vmap(case.answer))(*batches.stacked(instances))
    single = jax.jit(case.answer)
    differing, _, apart = batches.compare(batch, [single(*one) for one in instances])
    assert not differing, [flaws[k] for k in differing]
    assert apart <= tolerance
    # Ordinary lanes find something, what is NaN or infinite does not.
    decided = np.asarray(batch.decided)
    assert not np.any(decided[[flaw in ("NaN", "infinite") for flaw in flaws]])
    assert np.mean(decided[[flaw == "none" for flaw in flaws]]) >= 0.5


def small(model):
    return start(jax.random.key(0), model, 3, 4, 4)


@pytest.fixture(scope="module")
def factors():
    return one_by_one(instances_of(jf.models.FactoredAttention, 3, 4, 4, 12, 3), 12)


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["nuclear-norm", "l1-norm"])
def test_factors_are_certified_by_their_own_direction_and_say_so(norm, factors):
    limit = member(factors, 0) if norm == "nuclear-norm" else find_limit(*small(jf.models.DiagonalAttention))
    assert bool(limit.kind == "direction")
    assert limit.certificate.duality_gap <= limit.excess <= 1e-8
    assert bool(limit.flow_certificate.source == "flow")
    # The flow's own bound is weaker, still a bound, and never replaced. Beyond the exponent it is a good one.
    assert limit.certificate.duality_gap <= limit.flow_certificate.duality_gap <= 1e-6
    # e^-745 is the last number there is; the path ends where the direction is certified, wherever that is.
    assert bool(limit.trajectory.regime == "limiting") and limit.trajectory.final.log_time > 745
    assert float(limit.trajectory.final.log_scale) < -745
    assert limit.flow_certificate.dual_value <= limit.program_solution.certificate.primal_value * (1 + 1e-9)
    assert limit.flow_certificate.primal_value >= limit.program_solution.certificate.dual_value * (1 - 1e-9)
    assert limit.rate.exponent > 0 and 0 < limit.rate.predicted <= 1
    assert norm in str(limit) and "the flow's own gap" in str(limit) and "Sheen et al." in str(limit)


@pytest.mark.slow
def test_factors_certify_their_own_nuclear_limits(factors):
    """Not more than one instance in twelve is left open; what is left open is not called certified."""
    decided = np.asarray((factors.outcome == "globally_optimal") | (factors.outcome == "locally_optimal"))
    assert decided.sum() >= 11
    assert np.all(np.asarray(factors.excess)[decided] <= 1e-8)
    assert np.all(np.asarray(factors.outcome)[~decided] == jf.Outcome.undecided)
    assert np.all(np.asarray(factors.program_solution.certificate.duality_gap) <= 1e-8)


@pytest.mark.slow
def test_a_path_that_is_continued_from_a_checkpoint_has_the_same_end(tmp_path):
    risk, model = small(jf.models.CombinedAttention)
    limit = find_limit(risk, model)
    half = jf.integrate(risk, model, clock="log_time", until=3.0)
    eqx.tree_serialise_leaves(tmp_path / "model.eqx", half.model)
    loaded = eqx.tree_deserialise_leaves(tmp_path / "model.eqx", model)
    again = find_limit(risk, loaded)
    assert again.outcome == limit.outcome
    np.testing.assert_array_equal(again.selection, limit.selection)
    # Both are certified to 1e-8: within the root of twice that of one optimum.
    assert jnp.linalg.norm(again.direction - limit.direction) <= 3e-4 * jnp.linalg.norm(limit.direction)
    assert f"selects tokens ({', '.join(map(str, np.argmax(limit.selection, -1)))})" in str(limit)


def test_tied_tokens_are_refused_or_ambiguous():
    risk, model = small(jf.models.CombinedAttention)
    data = risk.data
    # Two tokens that differ where the head is zero: exactly one score, and no token comes twice.
    best = data.tokens[1, 0].at[3].set(0.0)
    tokens = data.tokens.at[1, 0].set(best).at[1, 2].set(best.at[3].set(0.5)).at[1, 1].set(-best)
    tied = jf.EmpiricalRisk(jf.data.TokenData(tokens, data.queries, data.labels), jf.losses.Logistic())
    model = jf.models.CombinedAttention(model.W, data.labels[1] * best)
    with pytest.raises(ValueError, match=r"ambiguous, optimal tokens are tied \(sequence \(1,\): tokens \[0, 2\]\)"):
        find_limit(tied, model)
    assert str(find_limit(tied, model, throw=False).outcome) == "ambiguous"


@pytest.mark.slow
def test_registered_models_and_their_programs():
    risk, model = small(jf.models.FactoredAttention)
    selection = jnp.zeros(3, int)
    prediction = jf.theory.predict(risk, model, selection)
    assert "Theorem" in prediction.theorem and all(bool(a.holds) for a in prediction.assumptions)
    combined = jf.models.CombinedAttention(model.combined_weights(), model.head)
    assert "Theorem 7" in jf.theory.predict(risk, combined, selection).theorem
    thin = jf.models.FactoredAttention(model.K[:, :2], model.Q[:, :2], model.head)
    assert jf.theory.predict(risk, thin, selection).program.norm == jf.margin.Nuclear(rank=2)
    with pytest.raises(ValueError, match=r"^model: no theorem is registered for int"):
        jf.theory.predict(risk, 3, selection)
    # The layers of matrix sensing are matrices: the direction of one datum is known of networks of vectors alone.
    sensing = jf.models.DeepMatrixSensing((0.3 * jnp.eye(2), 0.2 * jnp.eye(2)))
    with pytest.raises(ValueError, match="^model: no theorem names a program for DeepMatrixSensing"):
        find_limit(jf.EmpiricalRisk((jnp.array([[1.0, 0.5, 0.5, -1.0]]), jnp.ones(1)), "logistic"), sensing)
