"""Models that the library knows nothing of: their directions, points and KKT residuals, kinks, bad input."""

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.optimize import nnls

import jaxflow as jf
from benchmarks.printed_errors import Neuron, squared_hinge
from jaxflow.flow import HardMarginState
from jaxflow.limits.model_direction import Margins, kkt_point
from jaxflow.limits.model_facts import is_homogeneous
from jaxflow.study import TokenSelection
from tests.limits.models import Linear, Products, Saturating, TwoLayers, kkt_residual_of

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


@pytest.mark.slow
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


@pytest.mark.slow
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


class Softmax(eqx.Module):
    """Attention as a caller writes it."""

    W: jax.Array


@pytest.mark.slow
def test_softmax_in_a_callers_own_model_is_smooth() -> None:
    """Taken for a kink, its largest entry left explicit steps alone: 200,000 of them did not come to this rest, to
    which the library's own W goes as well. (At rtol 1e-6 of the path, 30 long, ends are 4e-4 apart.)"""
    risk, model = TokenSelection().setup(jax.random.key(90_109), n=5, T=5, d=2, parametrization="W")
    data: Any = risk.data

    def margins(own: Softmax) -> jax.Array:
        logits = jnp.einsum("itd,de,ie->it", data.tokens, own.W, data.queries)
        return data.labels * jnp.einsum("it,itd,d->i", jax.nn.softmax(logits), data.tokens, model.head.v)

    limit = jf.find_limit(jf.EmpiricalRisk.from_margins(margins, "logistic"), Softmax(model.W))
    known = jf.find_limit(risk, model)
    assert limit.outcome == known.outcome == "finite_stationary_point"
    assert limit.trajectory.stats["num_steps"] <= 500
    W = known.end
    assert jnp.linalg.norm(limit.end.module.W - W) <= limit.stationary.error * jnp.linalg.norm(W)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"data": (np.ones((4, 2)),)}, r"data: expected a pair \(inputs, labels\)"),
    ({"loss": lambda q: 1.0 + q}, "loss: expected a function of the margin"),
    ({"loss": lambda q: 1.0 / (1.0 + jnp.maximum(q, 0.0))}, "loss: MarginLoss neither falls exponentially"),
    ({"loss": 3}, "loss: expected a jaxflow loss, the name of one"),
    (
        {"loss": lambda r: r**2 / 2, "data": (np.eye(4)[:, :2], np.arange(4.0))},
        r"^loss: a function is a loss of the margin .*AbstractLoss, or use 'squared'",
    ),
    ({"model": 3.0}, "model: expected a callable"),
    ({"model": Linear(jnp.ones(3))}, r"^model: does not accept one input of shape \(2,\)"),
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


@pytest.mark.slow
def test_channels_to_infinity_are_no_points() -> None:
    """Where units saturate θ grows like powers of t, and gradients fall below 1e-10 of what they are the sum of. A
    Newton step was small there, and of ten such networks nine were said to end at a point; six of them do not."""
    find = eqx.filter_jit(lambda data, model: jf.find_limit(jf.EmpiricalRisk(data, "squared"), model, throw=False))
    slope = jax.jit(lambda data, model: jax.grad(lambda m: jf.EmpiricalRisk(data, "squared")(m))(model))
    ends = 0
    for seed in range(10):
        keys = jax.random.split(jax.random.key(seed), 4)
        data = jf.data.LinearData(jax.random.normal(keys[0], (25, 3)), 0.6 * jax.random.normal(keys[1], (25,)))
        limit = find(data, Saturating(jax.random.normal(keys[2], (4, 4)), 0.5 * jax.random.normal(keys[3], (4,))))
        if limit.outcome == "undecided":
            continue
        end, back = jax.flatten_util.ravel_pytree(limit.end.module)
        field = lambda _, x: -np.asarray(jax.flatten_util.ravel_pytree(slope(data, back(x)))[0])  # noqa: B023, E731
        later = solve_ivp(field, (0.0, 1e12), end, "Radau", rtol=1e-8, atol=1e-11).y[:, -1]
        assert np.linalg.norm(later - end) <= 1e-8 + 10.0 * limit.stationary.error * np.linalg.norm(end)
        ends += 1
    assert ends >= 3


class Squares(eqx.Module):
    """Units with ReLU squared: pieces that meet with one slope."""

    W: jax.Array
    a: jax.Array

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.a @ jax.nn.relu(self.W @ x) ** 2


@pytest.mark.slow
def test_pieces_that_meet_smoothly_are_followed_implicitly() -> None:
    """Taken for kinks like those of ReLU, they left explicit steps alone, 200,000 of which did not arrive."""
    rng = np.random.default_rng(2)
    inputs, W, a = rng.normal(size=(12, 3)), rng.normal(size=(6, 3)), 0.5 * rng.normal(size=6)
    targets = np.sin(3.0 * inputs[:, 0]) + inputs[:, 1]
    limit = jf.find_limit(jf.EmpiricalRisk((inputs, targets), "squared"), Squares(jnp.asarray(W), jnp.asarray(a)))
    assert limit.outcome in ("limit_point", "finite_stationary_point")
    assert limit.trajectory.stats["num_steps"] <= 2000

    def velocity(_: float, theta: np.ndarray) -> np.ndarray:
        W, a = theta[:18].reshape(6, 3), theta[18:]
        units = np.maximum(inputs @ W.T, 0.0)
        miss = (units**2 @ a - targets) / len(targets)
        return -np.concatenate([((2.0 * miss[:, None] * units * a).T @ inputs).ravel(), miss @ units**2])

    plain = solve_ivp(velocity, (0.0, 1e7), np.concatenate([W.ravel(), a]), "Radau", rtol=1e-9, atol=1e-11)
    end, _ = jax.flatten_util.ravel_pytree(limit.end.module)
    assert plain.success
    assert np.linalg.norm(end - plain.y[:, -1]) <= limit.stationary.error * np.linalg.norm(end)


class Cubic(eqx.Module):
    """Homogeneous of degree three and smooth, so that its conditions have no kinks."""

    a: jax.Array
    w: jax.Array

    def __call__(self, x: jax.Array) -> jax.Array:
        return jnp.sum(self.a * (self.w @ x) ** 2)


@pytest.mark.slow
def test_a_network_ends_at_a_kkt_point() -> None:
    """Its multipliers are found again by SciPy from gradients of autodiff alone."""
    inputs = np.random.default_rng(1).normal(size=(8, 2))
    labels = np.sign(inputs[:, 0] * inputs[:, 1])
    model = Cubic(jnp.array([0.5, -0.4, 0.3]), 0.5 * jax.random.normal(jax.random.key(0), (3, 2)))
    limit = jf.find_limit(jf.EmpiricalRisk((inputs, labels), "logistic"), model)
    assert limit.outcome == "kkt_point" and "not necessarily optimal" in str(limit)
    psi, unravel = jax.flatten_util.ravel_pytree(limit.direction)

    def margins(theta: jax.Array) -> jax.Array:
        return labels * jax.vmap(unravel(theta))(jnp.asarray(inputs))

    q = margins(psi)
    active = np.asarray(q <= jnp.min(q) * (1 + 1e-5))
    _, residual = nnls(np.asarray(jax.jacobian(margins)(psi))[active].T, np.asarray(psi))
    assert float(jnp.min(q)) > 0 and residual <= 1e-5
    np.testing.assert_allclose(limit.margin, jnp.min(q), rtol=1e-9)
    # The same from the direction alone, and of the gradient flow's last point: its margins still differ by 1/log t.
    found = jf.limits.kkt_residual(limit_risk := jf.EmpiricalRisk((inputs, labels), "logistic"), limit.direction, model)
    assert float(found.residual) <= 1e-8 and float(found.complementarity) <= 1e-12
    np.testing.assert_allclose(found.multipliers, limit.kkt.multipliers, rtol=1e-6, atol=1e-9)
    last = jf.limits.kkt_residual(limit_risk, limit.trajectory.final.model)
    assert 1e-3 < float(last.residual) < 0.1 and 1e-4 < float(last.complementarity) < 0.1
    assert np.isinf(jf.limits.kkt_residual(limit_risk, model).residual)


@pytest.mark.slow
def test_kkt_residual_on_kinks() -> None:
    """Known by hand: two units, each orthogonal to the other's input, at an angle of 120 degrees: gates of 1/2."""
    inputs, labels = np.array([[1.0, 0.0], [-0.5, 0.75**0.5]]), np.array([1.0, 1.0])
    risk = jf.EmpiricalRisk((inputs, labels), "logistic")
    # With w = a lambda (x + x'/2) the conditions are a^2 = lambda and lambda^2 (1 - 1/4) = 1.
    weight = 0.75**-0.5
    known = TwoLayers(jnp.asarray(weight**1.5 * (inputs + inputs[::-1] / 2.0)), jnp.full(2, weight**0.5))
    found = jf.limits.kkt_residual(risk, known)
    assert float(found.residual) <= 1e-9
    np.testing.assert_allclose(found.multipliers, weight, rtol=1e-9)
    np.testing.assert_allclose(np.asarray(found.gates)[np.asarray(found.sliding)], 0.5, rtol=1e-9)
    assert found.sliding.sum() == 2
    # Beside the kinks the residual is that of one side, unless they count as met.
    beside = TwoLayers(known.W + 1e-9, known.A)
    assert jf.limits.kkt_residual(risk, beside).residual <= 1e-8
    assert jf.limits.kkt_residual(risk, beside, near=0.0).residual > 0.1
    # Unbalanced layers: min over s of |2 - s/2|^2 + |1/2 - 2 s|^2, over their size 17/4.
    off = TwoLayers(2.0 * known.W, 0.5 * known.A)
    np.testing.assert_allclose(jf.limits.kkt_residual(risk, off).residual, 15.0 / 17.0, rtol=1e-9)


def test_kkt_residual_of_attention() -> None:
    data, head = jf.data.random_tokens(jax.random.key(0), n=3, T=4, d=4)
    risk = jf.EmpiricalRisk(data, "logistic")
    solution = jf.margin.solve(jf.margin.attention_svm(data, np.eye(4, dtype=bool)[[2, 2, 3]]))
    found = jf.limits.kkt_residual(risk, jf.models.CombinedAttention(solution.primal, head))
    assert float(found.residual) <= 1e-9


def points_of(model: Any, loss: Any, inputs: Any, targets: Any, starts: Any, truth: Any) -> tuple[Any, Any]:
    """Limit points of a batch of instances, and their true errors."""

    def one(x: jax.Array, y: jax.Array, w: jax.Array) -> Any:
        return jf.find_limit(jf.EmpiricalRisk(jf.data.LinearData(x, y), loss), model(w))

    limits = jax.jit(jax.vmap(one))(jnp.asarray(inputs), jnp.asarray(targets), jnp.asarray(starts))
    assert set(limits.outcome.name) == {"limit_point"}
    return limits, np.linalg.norm(limits.end.module.w - truth, axis=1) / np.linalg.norm(truth, axis=1)


@pytest.mark.slow
def test_errors_of_neurons_cover_the_true_ones() -> None:
    """1,000 of 1,000 were covered; `print` calls them estimates. Roundings are in none of them."""
    rng = np.random.default_rng(5)
    inputs, truth = rng.normal(size=(20, 12, 3)), rng.normal(size=(20, 3))
    targets = np.tanh(np.einsum("cnd,cd->cn", inputs, truth))
    limits, true = points_of(Neuron, "squared", inputs, targets, truth + 0.5 * rng.normal(size=(20, 3)), truth)
    assert np.all(true <= limits.error + 1e-13)


@pytest.mark.slow
def test_errors_of_hinges_are_estimates() -> None:
    """997 of 1,000 were covered, and three are larger by a fifth: `print` may not call them bounds."""
    # On orthogonal data each margin rises to one by itself.
    rng = np.random.default_rng(6)
    frames = np.linalg.qr(rng.normal(size=(40, 4, 4)))[0][:, :3]
    inputs = frames * np.exp(0.3 * rng.normal(size=(40, 3, 1)))
    labels, starts = np.where(rng.random((40, 3)) < 0.5, 1.0, -1.0), rng.normal(size=(40, 4))
    # One of them by hand.
    inputs[0], labels[0], starts[0] = np.eye(4)[:3], 1.0, 0.0
    lacking = np.maximum(1.0 - labels * np.einsum("cnd,cd->cn", inputs, starts), 0.0) * labels
    truth = starts + np.einsum("cn,cnd->cd", lacking / np.sum(inputs**2, axis=2), inputs)
    limits, true = points_of(Linear, squared_hinge, inputs, labels, starts, truth)
    assert np.mean(true <= limits.error + 1e-13) >= 0.95 and np.all(true <= 2 * limits.error + 1e-13)
    text = str(jax.tree.map(lambda x: x[0], limits))
    assert "relative error about" in text and "at most" not in text
    assert np.linalg.norm(limits.end.module.w[0] - np.array([1.0, 1.0, 1.0, 0.0])) <= 1e-6
