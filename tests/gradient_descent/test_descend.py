"""Discrete descent: its steps, its time and length, its errors."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxflow import RESULTS, EmpiricalRisk, integrate, losses, models
from jaxflow.data import random_tokens
from jaxflow.gradient_descent import descend
from jaxflow.papers.tarzanagh2023.protocol import published_protocol

DATA, HEAD = random_tokens(jax.random.key(0), n=3, T=4, d=4)
RISK = EmpiricalRisk(DATA, losses.Logistic())
COMBINED = models.CombinedAttention.init(jax.random.key(1), DATA, HEAD)
FACTORED = models.FactoredAttention.init(jax.random.key(2), DATA, HEAD)

# Rounding of a few dozen steps of order one.
RTOL = 1e-12


def loss(model):
    """The risk in plain JAX."""
    logits = jnp.einsum("ntd,de,ne->nt", DATA.tokens, model.combined_weights(), DATA.queries)
    outputs = jnp.einsum("nt,ntd,d->n", jax.nn.softmax(logits, -1), DATA.tokens, HEAD)
    return jnp.mean(jax.nn.softplus(-DATA.labels * outputs))


def by_hand(model, names, steps, move):
    """Descent in plain JAX and Python: `move(gradients)` gives the steps of the named arrays."""
    values = {name: getattr(model, name) for name in names}
    lengths, slopes = [], []
    for _ in range(steps):
        gradients = jax.grad(lambda v: loss(type(model)(*v.values(), HEAD)))(values)
        moves = move(gradients, values)
        lengths.append(np.sqrt(sum(float(jnp.sum(m**2)) for m in moves.values())))
        slopes.append(np.sqrt(sum(float(jnp.sum(g**2)) for g in gradients.values())))
        values = {name: values[name] - moves[name] for name in names}
    return values, np.array(lengths), np.array(slopes)


def norm(arrays):
    return jnp.sqrt(sum(jnp.sum(a**2) for a in jax.tree.leaves(arrays)))


def plain(g, _):
    return {k: 0.3 * x for k, x in g.items()}


def jointly(g, _):
    return {k: 0.3 * x / norm(g) for k, x in g.items()}


def separately(g, _):
    return {k: 0.3 * x / (norm(x) + 0.01) for k, x in g.items()}


@pytest.mark.parametrize(
    ("move", "how"),
    [
        (plain, {"normalised": False}),
        (jointly, {"normalised": "jointly"}),
        (separately, {"normalised": "separately", "epsilon": 0.01}),
    ],
)
def test_steps_time_and_length_as_defined(move, how):
    end = descend(RISK, FACTORED, steps=20, learning_rate=0.3, **how)
    values, lengths, slopes = by_hand(FACTORED, ("K", "Q"), 20, move)
    for name, value in values.items():
        np.testing.assert_allclose(getattr(end.model, name), value, rtol=RTOL, atol=RTOL)
    np.testing.assert_allclose(end.log_arc_length, np.log(lengths.sum()), rtol=RTOL)
    np.testing.assert_allclose(end.log_time, np.log((lengths / slopes).sum()), rtol=RTOL)


def test_the_ridge_pulls_back():
    def move(g, values):
        pulled = {k: g[k] + 2 * 0.05 * values[k] for k in g}
        return {k: 0.3 * x / norm(pulled) for k, x in pulled.items()}

    end = descend(RISK, FACTORED, steps=20, learning_rate=0.3, ridge=0.05)
    values, _, _ = by_hand(FACTORED, ("K", "Q"), 20, move)
    for name, value in values.items():
        np.testing.assert_allclose(getattr(end.model, name), value, rtol=RTOL, atol=RTOL)


def test_any_optimizer_of_optax():
    end = descend(RISK, COMBINED, steps=20, optimizer=optax.adam(0.05), normalised=False)
    adam = optax.adam(0.05)
    W, memory = COMBINED.W, adam.init(COMBINED.W)
    for _ in range(20):
        gradient = jax.grad(lambda W: loss(models.CombinedAttention(W, HEAD)))(W)
        updates, memory = adam.update(gradient, memory, W)
        W = optax.apply_updates(W, updates)
    np.testing.assert_allclose(end.model.W, W, rtol=RTOL, atol=RTOL)


def close(one, other):
    for a, b in zip(jax.tree.leaves(one.final), jax.tree.leaves(other.final), strict=True):
        np.testing.assert_allclose(a, b, rtol=RTOL, atol=RTOL)


@pytest.mark.parametrize("normalised", [False, "jointly", "separately"])
def test_plain_and_normalised_descent_are_those_of_optax(normalised):
    own = descend(RISK, FACTORED, steps=20, learning_rate=0.3, normalised=normalised)
    close(descend(RISK, FACTORED, steps=20, optimizer=optax.sgd(0.3), normalised=normalised), own)


def test_a_transformation_that_normalises_by_itself_is_normalised_descent():
    # Without the constant in the norm, of which Optax's default is 1e-6.
    unit = optax.normalize_by_update_norm(eps=0.0)
    jointly = descend(RISK, FACTORED, steps=20, learning_rate=0.3, normalised="jointly")
    close(descend(RISK, FACTORED, steps=20, optimizer=optax.chain(unit, optax.sgd(0.3)), normalised=False), jointly)
    parts = optax.partition({name: optax.chain(unit, optax.sgd(0.3)) for name in "KQ"}, _names)
    separately = descend(RISK, FACTORED, steps=20, learning_rate=0.3, normalised="separately")
    close(descend(RISK, FACTORED, steps=20, optimizer=parts, normalised=False), separately)
    # Past the smallest number it has no direction left; on the logarithmic scale there is one.
    far = models.CombinedAttention(1e4 * COMBINED.W, HEAD)
    tiny = optax.chain(optax.normalize_by_update_norm(), optax.sgd(0.1))
    lost = descend(RISK, far, steps=5, optimizer=tiny, normalised=False)
    np.testing.assert_array_equal(lost.model.W, far.W)
    assert not np.array_equal(descend(RISK, far, steps=5, optimizer=optax.sgd(0.1)).model.W, far.W)


def _names(trained):
    """Which of its arrays a trained model's are, for `optax.partition`."""
    return eqx.tree_at(lambda m: (m.K, m.Q), trained, ("K", "Q"))


def test_small_steps_follow_the_flow():
    # Euler's method: an error of order one in η, measured as a halving.
    flow = integrate(RISK, COMBINED, clock="physical_time", until=8.0)

    def error(eta):
        end = descend(RISK, COMBINED, steps=round(8.0 / eta), learning_rate=eta, normalised=False)
        np.testing.assert_allclose(end.log_time, np.log(8.0), rtol=1e-10)
        return float(jnp.linalg.norm(end.model.W - flow.model.W))

    # The next order changes the ratio by a share of about η of it.
    assert error(0.1) / error(0.05) == pytest.approx(2.0, abs=0.1)


def test_save_points_lie_on_the_path():
    whole = descend(RISK, COMBINED, steps=30, save_at=jnp.array([0, 7, 30]))
    np.testing.assert_array_equal(whole.saved.model.W[0], COMBINED.W)
    assert whole.saved.log_time[0] == -jnp.inf and bool(jnp.all(whole.saved.reached))
    part = descend(RISK, COMBINED, steps=7)
    for points, index, end in ((whole.saved, 1, part.final), (whole.saved, 2, whole.final)):
        for a, b in zip(jax.tree.leaves(points), jax.tree.leaves(end), strict=True):
            np.testing.assert_allclose(a[index], b, rtol=RTOL, atol=RTOL)
    assert int(whole.stats["num_steps"]) == 30


def test_normalised_steps_go_on_where_the_gradient_has_underflowed():
    far = models.CombinedAttention(1e4 * COMBINED.W, HEAD)
    end = descend(RISK, far, steps=100)
    assert end.log_gradient_norm < -800
    # A hundred steps of 0.1.
    np.testing.assert_allclose(end.log_arc_length, np.log(10.0), rtol=RTOL)
    assert float(jnp.linalg.norm(end.model.W - far.W)) > 1
    assert end.log_time > 800


def test_batch_equals_loop_and_bad_lanes_stay_alone():
    keys = jax.random.split(jax.random.key(3), 3)
    Ws = jax.vmap(lambda k: models.CombinedAttention.init(k, DATA, HEAD).W)(keys).at[1, 0, 0].set(jnp.nan)

    def run(W):
        return descend(RISK, models.CombinedAttention(W, HEAD), steps=10, throw=False)

    batch = jax.jit(jax.vmap(run))(Ws)
    good = np.asarray(batch.result == RESULTS.successful)
    assert good.tolist() == [True, False, True]
    assert bool((batch.result == RESULTS.nonfinite_data)[1])
    for lane in (0, 2):
        np.testing.assert_allclose(batch.final.model.W[lane], run(Ws[lane]).final.model.W, rtol=RTOL, atol=RTOL)


def test_divergence_is_a_result():
    # f = θ² on one parameter, a step of ten: |θ| grows nineteenfold a step and overflows after 241.
    risk = EmpiricalRisk.from_margins(lambda model: jnp.reshape(-jnp.sum(model["x"] ** 2), (1,)), losses.Correlation())
    model = {"x": jnp.ones(1)}
    end = descend(risk, model, steps=400, learning_rate=10.0, normalised=False, throw=False)
    assert end.result == RESULTS.nonlinear_divergence
    with pytest.raises(RuntimeError, match="diverge"):
        descend(risk, model, steps=400, learning_rate=10.0, normalised=False)


def test_a_zero_gradient_moves_nothing():
    risk = EmpiricalRisk.from_margins(lambda model: jnp.reshape(jnp.sum(model["x"] ** 2), (1,)), losses.Exponential())
    model = {"x": jnp.zeros(2)}
    end = descend(risk, model, steps=5)
    np.testing.assert_array_equal(end.final.model["x"], 0)
    assert end.log_time == -jnp.inf and end.log_arc_length == -jnp.inf
    waited = descend(risk, model, steps=5, learning_rate=0.5, normalised=False)
    np.testing.assert_allclose(waited.log_time, np.log(2.5), rtol=RTOL)


def test_protocol():
    assert published_protocol(COMBINED)["ridge"] == 0
    assert published_protocol(FACTORED) == {
        "steps": 2000,
        "learning_rate": 0.1,
        "normalised": "separately",
        "epsilon": np.finfo(np.float64).eps,
        "ridge": np.finfo(np.float64).eps,
    }


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"steps": -1}, "steps: expected a number from 0"),
        ({"normalised": "both"}, "normalised: expected one of"),
        ({"epsilon": -1.0}, "epsilon: expected at least 0"),
        ({"ridge": -1.0}, "ridge: expected at least 0"),
        ({"learning_rate": 0.0}, "learning_rate: expected a positive number"),
        ({"optimizer": optax.sgd(0.1), "learning_rate": 0.1}, "learning_rate: an optimizer brings its own"),
        ({"save_at": jnp.array([3, 2])}, "save_at: numbers of steps must increase"),
        ({"save_at": jnp.array([3, 9])}, "save_at: expected within 0 and 5"),
        ({"save_at": jnp.array([0.5])}, "save_at: expected whole numbers"),
    ],
)
def test_errors_name_the_argument(how, message):
    with pytest.raises(ValueError, match=message):
        descend(RISK, COMBINED, **{"steps": 5} | how)
