"""Which margin an optimiser maximises: each falls towards the optimum of its own norm, and not towards the others."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxflow as jf

STEPS = 4000
# Steps c/sqrt(k): normalised updates stay at a distance of the step from where they turn.


def schedule(k):
    return 0.3 / jnp.sqrt(k + 1.0)


OPTIMIZERS = {
    "l2": optax.sgd(schedule),
    "linf": optax.sign_sgd(schedule),
    "spectral": optax.contrib.muon(schedule, ns_coeffs=(1.5, -0.5, 0.0), ns_steps=20, beta=0.0, nesterov=False),
}


def matrices(seed):
    """Six matrices 3 x 4 with labels: always separable."""
    rng = np.random.default_rng(seed)
    inputs, labels = jnp.asarray(rng.normal(size=(6, 3, 4))), jnp.asarray(rng.choice([-1.0, 1.0], 6))
    return jf.EmpiricalRisk.from_margins(lambda V: labels * jnp.tensordot(inputs, V, 2), "exponential")


@pytest.mark.slow
@pytest.mark.parametrize("own", OPTIMIZERS)
def test_each_optimiser_falls_towards_its_own_optimum(own):
    names = ("l2", "linf", "spectral", "nuclear")
    for seed in range(2):
        risk = matrices(seed)
        path = jf.descend(
            risk, jnp.zeros((3, 4)), steps=STEPS, optimizer=OPTIMIZERS[own], save_at=jnp.array([STEPS // 20, STEPS])
        )
        found = jf.limits.compare(path, risk)
        assert found.norms == names and np.all(found.result.value == 1)
        at = names.index(own)
        before, after = np.asarray(found.excess).T
        others = np.delete(after, at)
        assert -1e-9 < after[at] < 0.5 * before[at] and after[at] < 0.02
        assert others.min() > 3 * after[at]


def test_a_vector_and_its_excess():
    inputs, labels = np.array([[2.0, 0.0], [0.0, -1.0]]), np.array([1.0, -1.0])
    risk = jf.EmpiricalRisk((inputs, labels), "logistic")
    network = jf.models.DeepLinearNetwork((jnp.eye(2), jnp.array([1.0, 2.0])))
    found = jf.limits.compare(network, risk)
    # Margins 2 b_1 >= 1 and b_2 >= 1 at b = (1/2, 1); the network has b = (1, 2) with margin two.
    np.testing.assert_allclose(found.optimum, [np.sqrt(1.25), 1.0, 1.5], rtol=1e-9)
    np.testing.assert_allclose(found.excess[:, 0], 0.0, atol=1e-9)
    assert str(found).splitlines()[1].split() == ["log", "t", "l2", "linf", "l1"]
    wrong = jf.limits.compare(jf.models.DeepLinearNetwork((jnp.eye(2), jnp.array([1.0, -2.0]))), risk)
    assert np.all(np.isposinf(wrong.excess))


@pytest.mark.slow
def test_many_classes_have_the_program_of_their_limit():
    rng = np.random.default_rng(0)
    data = jnp.asarray(rng.normal(size=(5, 6))), jnp.asarray(rng.integers(0, 3, 5))
    start = eqx.nn.Linear(6, 3, use_bias=False, key=jax.random.key(0))
    risk = jf.EmpiricalRisk(data, "cross_entropy")
    limit = jf.find_limit(risk, start)
    found = jf.limits.compare(limit.direction, risk)
    assert found.norms == ("l2", "linf", "spectral", "nuclear") and np.all(found.result.value == 1)
    assert abs(found.excess[0, 0]) < 1e-8 and found.excess[1:].min() > 1e-4
    inputs, classes = (np.asarray(part) for part in data)
    pairs = [(i, j) for i in range(5) for j in range(3) if j != classes[i]]
    rows = np.stack([np.outer(np.eye(3)[classes[i]] - np.eye(3)[j], inputs[i]) for i, j in pairs])
    for norm, optimum in zip(found.norms, found.optimum, strict=True):
        theirs = jf.margin.solve_cvxpy(jf.margin.max_margin(rows, np.ones(len(rows)), norm))
        np.testing.assert_allclose(optimum, theirs.certificate.primal_value, rtol=1e-7)


@pytest.mark.slow
def test_attention_is_compared_in_the_tokens_at_its_end():
    data, head = jf.data.random_tokens(jax.random.key(3), 3, 3, 4)
    risk, start = jf.EmpiricalRisk(data, "logistic"), jf.models.CombinedAttention(jnp.zeros((4, 4)), head)
    limit = jf.find_limit(risk, start)
    program = jf.margin.attention_svm(data, limit.selection, "spectral")
    found = jf.limits.compare(limit.trajectory, risk)
    least = jf.margin.solve(program).certificate.dual_value
    np.testing.assert_allclose(found.optimum[2], least, rtol=1e-8)
    # W/ρ is within some inverse of its length of the limit, which is the optimum in the Frobenius norm alone.
    assert 0.0 < found.excess[0, -1] < 1e-4 and found.excess[1:, -1].min() > 1e-2
    # At zero all tokens have the same attention, and there is no margin.
    assert np.all(np.isposinf(jf.limits.compare(start, risk).excess))


@pytest.mark.parametrize(
    ("margins", "weights", "norms", "message"),
    [
        (None, jnp.ones((3, 4)), ["l3"], "norms: unknown name 'l3'"),
        (None, jnp.ones((3, 4)), [], "norms: expected a list of norms"),
        (lambda w: w**2, jnp.ones(2), ["l2"], "path: expected outputs that are linear"),
        (lambda w: 2 * w, jnp.ones(2), ["nuclear"], "norms: the nuclear norm needs a matrix"),
        (lambda w: w[0] + w[1], (jnp.ones(2), jnp.ones(2)), None, "path: expected a model that trains one array"),
    ],
)
def test_bad_input_is_named(margins, weights, norms, message):
    risk = jf.EmpiricalRisk.from_margins(margins, "exponential") if margins else matrices(0)
    with pytest.raises(ValueError, match=message):
        jf.limits.compare(weights, risk, norms)


@pytest.mark.slow
def test_a_batch_by_vmap_and_a_plot_of_a_curve_for_each_norm():
    risk = matrices(0)
    path = jf.descend(risk, jnp.zeros((3, 4)), steps=20, save_at=jnp.array([5, 20]))
    found = jf.limits.compare(path, risk)
    batch = jax.vmap(lambda V: jf.limits.compare(V, risk, ["l2"]))(path.saved.model)
    np.testing.assert_allclose(batch.excess[:, 0, 0], found.excess[0], rtol=1e-9)
    (axis,) = found.plot().axes
    assert [line.get_label() for line in axis.lines] == ["l2", "linf", "spectral", "nuclear"]
