"""`find_limit` on models that the library knows nothing of: directions, points, kinks, bad input."""

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import jaxflow as jf
from jaxflow.flow import HardMarginState
from jaxflow.limits.model_direction import Margins, kkt_point
from jaxflow.limits.model_facts import is_homogeneous
from tests.limits.models import Linear, Products, TwoLayers, kkt_residual_of

N, D, WIDTH = 6, 2, 8


def instance(key: Any) -> tuple[Any, Any, TwoLayers]:
    keys = jax.random.split(key, 4)
    inputs = jax.random.normal(keys[0], (N, D))
    labels = jnp.sign(inputs @ jax.random.normal(keys[1], (D,)))
    return inputs, labels, TwoLayers(jax.random.normal(keys[2], (WIDTH, D)), 0.5 * jax.random.normal(keys[3], (WIDTH,)))


@pytest.fixture(scope="module")
def batch() -> tuple[Any, Any, TwoLayers, jf.ModelLimit]:
    """Five instances in one program; the last cannot be fitted (one input with both labels)."""
    inputs, labels, models = jax.vmap(instance)(jax.random.split(jax.random.key(3), 5))
    inputs, labels = inputs.at[-1, 1].set(inputs[-1, 0]), labels.at[-1, 1].set(-labels[-1, 0])

    @jax.jit
    @jax.vmap
    def run(inputs, labels, model):
        risk = jf.EmpiricalRisk(jf.data.LinearData(inputs, labels), "logistic")
        return jf.find_limit(risk, model, max_steps=4_000)

    return inputs, labels, models, run(inputs, labels, models)


def test_every_instance_of_a_batch_has_its_own_outcome(batch) -> None:
    inputs, labels, _, limits = batch
    outcomes = [str(name) for name in limits.outcome.name]
    assert outcomes[:4] == ["kkt_point"] * 4 and outcomes[4] in ("undecided", "finite_stationary_point")
    assert "4 kkt_point" in str(limits)
    # Two: found, not declared.
    np.testing.assert_allclose(limits.degree, 2.0)
    for i in range(4):
        limit = jax.tree.map(lambda x, i=i: x[i], limits)
        residual = kkt_residual_of(inputs[i], np.asarray(labels[i])[:, None, None], limit)
        np.testing.assert_allclose(residual, limit.kkt_residual, rtol=0.1, atol=1e-12)


def test_a_relu_network_with_many_classes_ends_at_a_kkt_point_of_all_margins() -> None:
    keys = jax.random.split(jax.random.key(2), 4)
    inputs = jax.random.normal(keys[0], (N, D))
    labels = np.asarray(jnp.argmax(inputs @ jax.random.normal(keys[1], (D, 3)), axis=1))
    model = TwoLayers(jax.random.normal(keys[2], (6, D)), 0.5 * jax.random.normal(keys[3], (3, 6)))
    limit = jf.find_limit(jf.EmpiricalRisk((inputs, labels), "cross_entropy"), model)
    assert limit.outcome == "kkt_point" and np.sum(limit.kkt.multipliers > 0) > N // 2
    eye = np.eye(3)
    signs = np.stack([[eye[y] - eye[j] for j in range(3) if j != y] for y in labels])
    np.testing.assert_allclose(kkt_residual_of(inputs, signs, limit), limit.kkt_residual, rtol=0.1, atol=1e-12)


@pytest.mark.slow
def test_the_hard_margin_flow_goes_where_the_exact_flow_goes(batch) -> None:
    """Small steps of the exact flow, far beyond where it was left, pass along the same path: distances shrink."""
    inputs, labels, models, limits = batch
    risk = jf.EmpiricalRisk((inputs[0], labels[0]), "logistic")
    model = jax.tree.map(lambda x: x[0], models)
    fine = jf.integrate(
        risk,
        model,
        clock=jf.ArcLength(timed=False),
        until=1e5,
        solver="Bosh3",
        controller=diffrax.PIDController(rtol=1e-4, atol=1e-6),
        stop=jf.LossExcess(-400.0),
        max_steps=200_000,
        throw=False,
    )
    found = jax.tree.map(lambda x: x[0], limits.flow_direction.module)
    apart = np.concatenate([np.ravel(fine.direction.W - found.W), np.ravel(fine.direction.A - found.A)])
    assert np.linalg.norm(apart) < 0.9 * float(limits.turned[0])


class Symmetric(jf.models.AbstractOwnAttention):
    """W = U Uᵀ."""

    U: jax.Array

    def combined_weights(self):
        return self.U @ self.U.T


def test_attention_needs_nothing_but_its_weights() -> None:
    data, head = jf.data.random_tokens(jax.random.key(0), n=3, T=3, d=3)
    model = Symmetric(head, 0.3 * jax.random.normal(jax.random.key(1), (3, 3)))
    limit = jf.find_limit(jf.EmpiricalRisk(data, "logistic"), model)
    assert str(limit.outcome) == "kkt_point" and float(limit.degree) == 2.0
    assert limit.selection is not None and np.all(np.sum(limit.selection, axis=-1) == 1)
    assert float(limit.kkt_residual) <= 1e-8
    # Only U moves, and the direction says so.
    assert limit.direction.head.v is None and limit.direction.U.shape == (3, 3)
    assert "not necessarily optimal" in str(limit)


@pytest.mark.slow
def test_what_is_not_homogeneous_is_said_to_be_open(batch) -> None:
    inputs, labels = batch[0][0], batch[1][0]
    model = eqx.nn.MLP(D, "scalar", WIDTH, 1, activation=jnp.tanh, key=jax.random.key(5))
    limit = jf.find_limit(jf.EmpiricalRisk((inputs, labels), "logistic"), model, max_steps=3_000)
    assert str(limit.outcome) == "undecided" and limit.direction is None and limit.point is None
    assert not is_homogeneous(limit.homogeneity)
    assert "not homogeneous of degree" in str(limit) and "no theorem on the limit" in str(limit)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"data": (np.ones((4, 2)),)}, r"data: expected a pair \(inputs, labels\)"),
    ({"loss": lambda q: 1.0 + q}, "loss: expected a function of the margin"),
    ({"loss": lambda q: 1.0 / (1.0 + jnp.maximum(q, 0.0))}, "loss: MarginLoss neither falls exponentially"),
    ({"loss": 3}, "loss: expected a jaxflow loss, the name of one"),
    ({"model": 3.0}, "model: expected a callable"),
    ({"model": lambda x: x}, r"model: expected an output of shape \(\) for one input"),
    ({"method": jf.LinearStaged()}, "method: expected ModelStaged"),
]


@pytest.mark.parametrize(("wrong", "message"), BAD, ids=[str(i) for i in range(len(BAD))])
def test_bad_input_names_the_argument(wrong: dict[str, Any], message: str) -> None:
    good = {"data": (np.eye(4)[:, :2] + 1.0, np.ones(4)), "loss": "logistic", "model": Linear(jnp.ones(2))}
    given: dict[str, Any] = good | wrong
    with pytest.raises(ValueError, match=message):
        risk = jf.EmpiricalRisk(given.pop("data"), given.pop("loss"))
        jf.find_limit(risk, given.pop("model"), **given)
    with pytest.raises(ValueError, match="risk: from_function hides the margins"):
        jf.find_limit(jf.EmpiricalRisk.from_function(lambda m: jnp.exp(-m.w[0])), Linear(jnp.ones(2)))


def test_margins_of_ones_own_and_some_parameters_alone() -> None:
    """`from_margins`, and a pytree of Booleans that holds one of the weights."""
    risk = jf.EmpiricalRisk.from_margins(
        lambda m: jnp.stack([m.w[0] * m.b[0], m.w[0] * m.b[0] + m.w[1]]), "logistic", trainable=_Pair(w=True, b=False)
    )
    limit = jf.find_limit(risk, _Pair(jnp.array([0.1, 0.2]), jnp.array([2.0])))
    # Linear in what is trained: its direction is optimal, not only stationary.
    assert str(limit.outcome) == "globally_optimal" and limit.direction.b is None
    # The first margin is 2 w_0, the second is larger as long as w_1 > 0: w goes along the first axis.
    np.testing.assert_allclose(limit.direction.w, [1.0, 0.0], atol=1e-6)


class _Pair(eqx.Module):
    w: Any
    b: Any


def test_a_start_at_zero_and_a_wrong_degree_are_told_apart():
    inputs = jnp.asarray([[1.0, 0.3], [-0.8, 0.5]])
    risk = jf.EmpiricalRisk((inputs, jnp.asarray([1.0, -1.0])), "logistic")
    zero = jf.find_limit(risk, Products(jnp.zeros(2), jnp.zeros(2)))
    # A saddle, where the flow stays: the model is homogeneous, and no minimum is near.
    assert zero.outcome == "undecided" and is_homogeneous(zero.homogeneity)
    wrong = jf.find_limit(risk, Products(jnp.ones(2), 0.5 * jnp.ones(2)), method=jf.ModelStaged(degree=3.0))
    assert wrong.outcome == "undecided" and "not homogeneous of degree 3" in str(wrong)


def test_a_multiplier_above_the_smallest_margin_counts() -> None:
    """However a point is scaled: its largest margin is 1, and the smallest is below."""
    margins = Margins(lambda w: w**2, jnp.ones(2, bool), None)
    point = HardMarginState(jnp.asarray([0.999, 1.0]), jnp.asarray([0.0, 2.0]), jnp.zeros(0), jnp.zeros(0, bool))
    np.testing.assert_allclose(kkt_point(margins, point).complementarity, 0.999**-2 - 1.0, rtol=1e-12)


class Gram(eqx.Module):
    """A matrix times its transpose, as a predictor of matrices in one row."""

    U: Any

    def __call__(self, x):
        return jnp.vdot(x, self.U @ self.U.T)


@pytest.mark.parametrize("seed", [1, 5])
def test_a_matrix_times_its_transpose_is_followed_along_its_valley(seed: int) -> None:
    # Small entries of the start change the fitted ones late, at log t of 20: there rates have roundings of t times
    # those of the gradient. (Of six such starts four were `undecided`, after some 2,000 failed solves.)
    rng = np.random.default_rng(seed)
    left, drawn = rng.normal(size=(6, 2)), np.tril(rng.random((6, 6)) < 0.7)
    known, matrix = drawn | drawn.T, left @ left.T
    rows, targets = np.diag(known.ravel().astype(float)), np.where(known, matrix, 0.0).ravel()
    start = 1e-2 * rng.normal(size=(6, 6))
    limit = jf.find_limit(jf.EmpiricalRisk((rows, targets), "squared"), Gram(jnp.asarray(start)))
    assert limit.outcome == "limit_point" and limit.direction is None and limit.stationary.error < 1e-3
    # Of rank two: as many dimensions as there are such matrices, or more.
    assert limit.stationary.eigenvalue > 0 and limit.stationary.rank >= 2 * 6 - 1
    assert "interpolates" in str(limit) and "smallest eigenvalue" in str(limit)
    assert limit.trajectory.stats["num_failed_solves"] < 100

    def slope(log_t, u):
        U = u.reshape(6, 6)
        return -np.exp(log_t) * 2.0 / 36 * (np.where(known, U @ U.T - matrix, 0.0) @ U).ravel()

    plain = solve_ivp(slope, (-20.0, 20.0), start.ravel(), "Radau", rtol=1e-7, atol=1e-9)
    U = plain.y[:, -1].reshape(6, 6)
    ours = np.asarray(limit.end.module.U)
    np.testing.assert_allclose(ours @ ours.T, U @ U.T, atol=2e-3)
