"""Regularisation paths: the excess without cancellation, minima on spheres, Theorem 2's limits, cones."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxflow.data import TokenData, optimal_tokens, random_tokens
from jaxflow.losses import Correlation, Exponential, Logistic
from jaxflow.margin import attention_svm, solve
from jaxflow.models import CombinedAttention, ConcaveHead, FactoredAttention, token_scores
from jaxflow.papers.tarzanagh2023.verify.regularization_path import (
    PathStatus,
    SeparatingCone,
    cone_depth,
    log_excess,
    low_and_high,
    regularization_path,
)
from jaxflow.papers.tarzanagh2023.verify.sphere import minimize_on_sphere
from jaxflow.risk import EmpiricalRisk

# Minutes of flows and paths, of a paper alone.
pytestmark = pytest.mark.slow

N, T, D = 2, 3, 2


def best_of(data, head):
    return optimal_tokens(token_scores(data, head), data.visible)


def value_at(data, head, loss, selection):
    """L_α, term by term."""
    outputs = token_scores(data, head) * data.labels[..., None]
    chosen = jnp.sum(jnp.where(selection, outputs, 0.0), axis=-1)
    return jnp.mean(loss.value(chosen, data.labels))


@pytest.mark.parametrize("loss", [Logistic(), Exponential(), Correlation()], ids=lambda x: type(x).__name__)
@pytest.mark.parametrize("curvature", [0.0, 0.5])
def test_excess_is_the_difference_of_losses_where_that_is_resolved(loss, curvature):
    data, v = random_tokens(jax.random.key(1), 3, 4, 3)
    head = ConcaveHead(v, curvature)
    risk, model = EmpiricalRisk(data, loss), CombinedAttention(jax.random.normal(jax.random.key(2), (3, 3)), head)
    for seed in range(3):
        choice = jax.random.randint(jax.random.key(seed), (3,), 0, 4)
        selection = jax.nn.one_hot(choice, 4, dtype=bool)
        difference = risk(model) - value_at(data, head, loss, selection)
        found = log_excess(risk, model, selection)
        # Gauss's rule is exact to rounding here; both sides carry a few roundings.
        if difference > 0:
            assert jnp.exp(found) == pytest.approx(float(difference), rel=1e-12, abs=1e-14)
        else:
            assert jnp.isnan(found)


def test_excess_far_out_is_that_of_the_nearest_token():
    """One sequence, two tokens: L − L_α = −ℓ'(γ_α)(γ_α − γ_2)e^−margin, in logarithms at any margin."""
    data = TokenData([[[1.0, 0.0], [-1.0, 0.0]]], [[1.0, 0.0]], [1.0])
    risk, selection = EmpiricalRisk(data, Logistic()), jnp.array([[True, False]])
    model = CombinedAttention(jnp.array([[2000.0, 0.0], [0.0, 0.0]]), jnp.array([0.5, 0.0]))
    expected = -4000.0 + jnp.log(jax.nn.sigmoid(-0.5) * 1.0)
    assert log_excess(risk, model, selection) == pytest.approx(float(expected), rel=1e-14)
    slope = jax.grad(lambda W: log_excess(risk, CombinedAttention(W, jnp.array([0.5, 0.0])), selection))(model.W)
    assert jnp.allclose(slope, jnp.array([[-2.0, 0.0], [0.0, 0.0]]), atol=1e-14)


def test_excess_of_several_outputs_is_the_mean_of_theirs():
    data, v = random_tokens(jax.random.key(3), 2, 4, 3)
    queries = jax.random.normal(jax.random.key(4), (2, 2, 3))
    together = TokenData(data.tokens, queries, jnp.ones((2, 2)))
    selection = best_of(together, v)
    model = CombinedAttention.init(jax.random.key(5), data, v)
    parts = [
        log_excess(
            EmpiricalRisk(TokenData(data.tokens, queries[:, k], jnp.ones(2)), Logistic()), model, selection[:, k]
        )
        for k in range(2)
    ]
    whole = log_excess(EmpiricalRisk(together, Logistic()), model, selection)
    assert jnp.exp(whole) == pytest.approx(float(jnp.mean(jnp.exp(jnp.stack(parts)))), rel=1e-13)


def test_the_least_eigenvector_is_found_on_the_sphere():
    root = jax.random.normal(jax.random.key(0), (4, 4))
    A = root @ root.T - 3.0 * jnp.eye(4)
    found = minimize_on_sphere(lambda u: 0.5 * u @ A @ u, jax.random.normal(jax.random.key(1), (4,)))
    values = jnp.linalg.eigvalsh(A)
    assert values[0] < 0 and found.value == pytest.approx(0.5 * float(values[0]), rel=1e-12)
    assert found.residual <= 1e-9 and found.multiplier > 0


def test_a_minimum_inside_of_the_ball_is_not_one_of_the_sphere():
    found = minimize_on_sphere(lambda u: jnp.sum((u - jnp.array([0.3, 0.0])) ** 2), jnp.array([0.6, 0.8]))
    assert jnp.allclose(found.point, jnp.array([1.0, 0.0]), atol=1e-8)
    assert found.multiplier < 0 and found.residual == pytest.approx(1.0)


@pytest.fixture(scope="module")
def instance():
    """An instance, its programs, and paths of W and of (K, Q) from every choice of tokens."""
    data, v = random_tokens(jax.random.key(8), N, T, D)
    risk, best = EmpiricalRisk(data, Logistic()), best_of(data, v)
    radii = 2.0 ** jnp.arange(0, 15)
    choices = jnp.stack(jnp.meshgrid(jnp.arange(T), jnp.arange(T), indexing="ij"), -1).reshape(-1, N)
    pushes = jax.vmap(
        lambda choice: jnp.einsum("ntd,ne->de", data.tokens[jnp.arange(N), choice][:, None] - data.tokens, data.queries)
    )(choices)

    @jax.jit
    def both(pushes):
        combined = [CombinedAttention(W, v) for W in pushes]
        U, S, Vt = jnp.linalg.svd(pushes)
        root = jnp.sqrt(S)[:, None, :]
        factored = [FactoredAttention(K, Q, v) for K, Q in zip(U * root, jnp.swapaxes(Vt, 1, 2) * root, strict=True)]
        return (
            regularization_path(risk, combined, radii, reference=best),
            regularization_path(risk, factored, jnp.sqrt(2.0 * radii), reference=best),
        )

    programs = [solve(attention_svm(data, best, norm)) for norm in ("frobenius", "nuclear")]
    return data, v, radii, both(pushes), programs


@pytest.mark.parametrize(("which", "norm"), [(0, "fro"), (1, "nuc")], ids=["W", "KQ"])
def test_paths_tend_to_the_program_like_one_over_R(instance, which, norm):
    _, _, radii, paths, programs = instance
    path, program = paths[which], programs[which]
    assert jnp.all(path.found)
    W = jax.vmap(lambda model: model.combined_weights())(path.path)
    # Of products it is the nuclear norm that is bounded (Lemma 15); stationary to 1e-9 of the gradient.
    assert jnp.allclose(jnp.linalg.norm(W, norm, axis=(1, 2)) / radii, 1.0, atol=1e-7)
    aim = program.primal / jnp.linalg.norm(program.primal)
    distance = jnp.linalg.norm(W / jnp.linalg.norm(W, axis=(1, 2), keepdims=True) - aim[None], axis=(1, 2))
    assert distance[-1] < 1e-3
    # The leading term is c/R, the next c' log(R)/R² at most.
    slope = jnp.log2(distance[-1] / distance[-4]) / 3.0
    assert float(slope) == pytest.approx(-1.0, abs=0.02)
    # e^−1000 and less lies between the values of different directions out here.
    assert path.objective[path.best[-1], -1] < -745.0


def test_points_of_paths_are_stationary_over_the_ball(instance):
    data, v, radii, paths, _ = instance
    path = paths[0]
    for k in (3, 8, 13):
        W = path.path.W[k]
        scaled = EmpiricalRisk(data, Logistic()).scaled_gradient(CombinedAttention(W, v))
        cosine = -jnp.sum(scaled.gradient.W * W) / (jnp.linalg.norm(scaled.gradient.W) * jnp.linalg.norm(W))
        assert cosine == pytest.approx(1.0, abs=1e-11)
        assert jnp.linalg.norm(W) == pytest.approx(float(radii[k]), rel=1e-12)


def test_the_least_path_is_no_higher_than_any_other_point(instance):
    data, v, radii, paths, _ = instance
    path, risk = paths[0], EmpiricalRisk(data, Logistic())
    for k in range(0, 6):
        random = jax.random.normal(jax.random.key(k), (2000, D, D))
        size = jnp.sqrt(jnp.sum(random**2, axis=(1, 2), keepdims=True))
        inside = random / size * radii[k] * jax.random.uniform(jax.random.key(99), (2000, 1, 1))
        least = jnp.min(jax.vmap(lambda W: risk(CombinedAttention(W, v)))(inside))
        assert risk(CombinedAttention(path.path.W[k], v)) <= least + 1e-12


def test_a_column_that_was_zero_comes_back_where_the_minimum_has_a_larger_rank():
    """At R = 16 the minimum has rank one, and that of large R rank two: searches from the former stayed in a saddle."""
    key_data, key_model = jax.random.split(jax.random.split(jax.random.key(0), 100)[43])
    data, head = random_tokens(key_data, 2, 3, 2)
    best = best_of(data, head)
    model = FactoredAttention.init(key_model, data, head, m=2)
    radii = jnp.sqrt(2.0 * 4.0 ** jnp.arange(6))
    path = jax.jit(lambda x: regularization_path(EmpiricalRisk(data, Logistic()), [x], radii, reference=best))(model)
    values = jax.vmap(lambda one: jnp.linalg.svd(one.combined_weights(), compute_uv=False))(path.path)
    share = values[:, 1] / values[:, 0]
    assert share[2] < 1e-12
    # A fiftieth of the solution of (Att-SVM*), as the program itself says.
    solution = jnp.linalg.svd(solve(attention_svm(data, best, "nuclear")).primal, compute_uv=False)
    # Distances fall like 1/R, which is a thousand.
    assert abs(share[-1] - solution[1] / solution[0]) < 1e-2 and solution[1] / solution[0] > 0.02


def test_a_start_on_other_tokens_says_so(instance):
    data, v, radii, _, _ = instance
    worst = jnp.argmin(token_scores(data, v), axis=-1)
    selection = jax.nn.one_hot(worst, T, dtype=bool)
    W = 50.0 * solve(attention_svm(data, selection, "frobenius")).primal
    path = regularization_path(
        EmpiricalRisk(data, Logistic()), [CombinedAttention(W, v)], jnp.array([1e4]), reference=best_of(data, v)
    )
    assert path.status == PathStatus.flat and not jnp.any(path.found)


def test_the_cone_is_that_of_equation_5():
    data, v = random_tokens(jax.random.key(11), 2, 4, 3)
    scores = token_scores(data, v)
    order = jnp.argsort(scores, axis=-1)
    # The second-best token: one above, two below.
    selection = jax.nn.one_hot(order[:, 2], 4, dtype=bool)
    low, high = low_and_high(scores, data.visible, selection)
    assert jnp.array_equal(jnp.sum(low, 1), jnp.array([2, 2])) and jnp.array_equal(jnp.sum(high, 1), jnp.array([1, 1]))
    model = CombinedAttention(jax.random.normal(jax.random.key(12), (3, 3)), v)
    logits = np.asarray(model.logits(data))
    depth, bar = cone_depth(model.logits(data), low, high)
    by_hand = min(max(logits[i, order[i, 0]], logits[i, order[i, 1]]) - logits[i, order[i, 3]] for i in range(2))
    assert depth == pytest.approx(by_hand, rel=1e-14)
    cone = SeparatingCone(data, bar, high, jnp.asarray(0.1))
    assert jnp.min(cone(model)) == pytest.approx(by_hand / float(jnp.linalg.norm(model.W)) - 0.1, rel=1e-12)
    best = best_of(data, v)
    assert jnp.isposinf(cone_depth(model.logits(data), *low_and_high(scores, data.visible, best))[0])
    bottom = jax.nn.one_hot(order[:, 0], 4, dtype=bool)
    assert jnp.isneginf(cone_depth(model.logits(data), *low_and_high(scores, data.visible, bottom))[0])


def test_a_constraint_is_kept():
    """The path of one pair of tokens would turn to e_1; a slack keeps it at 60 degrees."""
    data = TokenData([[[1.0, 0.0], [-1.0, 0.0]]], [[1.0, 0.0]], [1.0])
    v, best = jnp.array([0.5, 0.0]), jnp.array([[True, False]])

    def slack(model):
        return jnp.reshape(model.W[1, 0] / jnp.linalg.norm(model.W) - jnp.sqrt(3.0) / 2.0, (1,))

    @eqx.filter_jit
    def follow(start):
        return regularization_path(
            EmpiricalRisk(data, Logistic()), [start], jnp.array([10.0, 100.0]), reference=best, constraint=slack
        )

    start = CombinedAttention(jnp.array([[0.1, 0.0], [1.0, 0.0]]), v)
    path = follow(start)
    assert jnp.all(path.status.value == PathStatus.stationary.value)
    slacks = jax.vmap(slack)(path.path)[:, 0]
    assert jnp.all(slacks > 0) and slacks[1] < 1e-4
    W = path.path.W[1]
    # The barrier's multiplier is 1e-3/slack, against a gradient of 2·100 along the unit vector.
    assert W[0, 0] == pytest.approx(50.0, rel=1e-4)
    lost = follow(eqx.tree_at(lambda model: model.W, start, jnp.eye(2)))
    assert jnp.all(lost.status.value == PathStatus.outside.value)
