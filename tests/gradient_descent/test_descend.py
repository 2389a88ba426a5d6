"""Discrete descent: its steps, its time and length, its errors."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxflow import RESULTS, EmpiricalRisk, integrate, losses, models
from jaxflow.data import random_tokens
from jaxflow.gradient_descent import descend
from tests.limits.models import Linear

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


@jax.jit
def slope(values):
    return jax.grad(lambda v: loss(models.FactoredAttention(v["K"], v["Q"], HEAD)))(values)


def norm(arrays):
    return np.sqrt(sum(np.sum(np.asarray(a) ** 2) for a in jax.tree.leaves(arrays)))


def _names(trained):
    """Which of its arrays a trained model's are, for `optax.partition`."""
    return eqx.tree_at(lambda m: (m.K, m.Q), trained, ("K", "Q"))


# Without the constant in the norm, of which Optax's default is 1e-6.
UNIT = optax.chain(optax.normalize_by_update_norm(eps=0.0), optax.sgd(0.3))


def plain(g, _):
    return {k: 0.3 * x for k, x in g.items()}


def jointly(g, _):
    return {k: 0.3 * x / norm(g) for k, x in g.items()}


def separately(g, _, epsilon=0.0):
    return {k: 0.3 * x / (norm(x) + epsilon) for k, x in g.items()}


def pulled_back(g, values):
    return jointly({k: g[k] + 2 * 0.05 * values[k] for k in g}, values)


@pytest.mark.parametrize(
    ("move", "how"),
    [
        (plain, {"learning_rate": 0.3, "normalised": False}),
        (jointly, {"learning_rate": 0.3, "normalised": "jointly"}),
        (partial(separately, epsilon=0.01), {"learning_rate": 0.3, "normalised": "separately", "epsilon": 0.01}),
        (pulled_back, {"learning_rate": 0.3, "ridge": 0.05}),
        # By a transformation of what is normalised, and by one that normalises by itself.
        (jointly, {"optimizer": optax.sgd(0.3), "normalised": "jointly"}),
        (separately, {"optimizer": optax.sgd(0.3), "normalised": "separately"}),
        (jointly, {"optimizer": UNIT, "normalised": False}),
        (separately, {"optimizer": optax.partition(dict.fromkeys("KQ", UNIT), _names), "normalised": False}),
    ],
)
def test_steps_time_and_length_as_defined(move, how):
    """`move` gives the steps of K and Q from their gradients and values."""
    end = descend(RISK, FACTORED, steps=20, **how)
    values, lengths, slopes = {"K": FACTORED.K, "Q": FACTORED.Q}, [], []
    for _ in range(20):
        gradients = slope(values)
        moves = move(gradients, values)
        lengths.append(norm(moves))
        slopes.append(norm(gradients))
        values = {name: values[name] - moves[name] for name in values}
    # Of a small part that is normalised by itself a rounding is one of the whole step.
    close = 1e-10 if move is separately else RTOL
    for name, value in values.items():
        np.testing.assert_allclose(getattr(end.model, name), value, rtol=close, atol=0.1 * close)
    np.testing.assert_allclose(end.log_arc_length, np.log(np.sum(lengths)), rtol=close)
    if "ridge" not in how:
        np.testing.assert_allclose(end.log_time, np.log(np.sum(np.divide(lengths, slopes))), rtol=close)


@pytest.mark.parametrize("optimizer", [optax.adam(0.05), optax.polyak_sgd(max_learning_rate=1e9, f_min=0.1)])
def test_any_optimizer_of_optax(optimizer):
    """Also one that asks for the value: Polyak's steps are (L - L*)/‖g‖²."""
    end = descend(RISK, COMBINED, steps=3, optimizer=optimizer, normalised=False)
    more = optax.with_extra_args_support(optimizer)

    @jax.jit
    def step(W, memory):
        value, gradient = jax.value_and_grad(lambda W: loss(models.CombinedAttention(W, HEAD)))(W)
        updates, memory = more.update(gradient, memory, W, value=value)
        return optax.apply_updates(W, updates), memory

    W, memory = COMBINED.W, optimizer.init(COMBINED.W)
    for _ in range(3):
        W, memory = step(W, memory)
    np.testing.assert_allclose(end.model.W, W, rtol=RTOL, atol=RTOL)


def close(one, other):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=RTOL, atol=RTOL)


@pytest.mark.slow
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
    close(whole[1], descend(RISK, COMBINED, steps=7).final)
    close(whole[2], whole.final)
    assert int(whole.stats["num_steps"]) == 30


def test_normalised_steps_go_on_where_the_gradient_has_underflowed():
    far = models.CombinedAttention(1e4 * COMBINED.W, HEAD)
    end = descend(RISK, far, steps=100)
    assert end.log_gradient_norm < -800
    # A hundred steps of 0.1.
    np.testing.assert_allclose(end.log_arc_length, np.log(10.0), rtol=RTOL)
    assert float(jnp.linalg.norm(end.model.W - far.W)) > 1
    assert end.log_time > 800
    # A transformation that normalises by itself has no direction left there.
    tiny = optax.chain(optax.normalize_by_update_norm(), optax.sgd(0.1))
    lost = descend(RISK, far, steps=5, optimizer=tiny, normalised=False)
    np.testing.assert_array_equal(lost.model.W, far.W)


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


def test_a_step_meets_its_part_of_the_data_and_an_epoch_all_of_it():
    inputs, labels = jax.random.normal(jax.random.key(3), (6, 2)), jnp.array([1.0, -1.0, 1.0, 1.0, -1.0, -1.0])
    risk = EmpiricalRisk((inputs, labels), "logistic")
    key, w, met = jax.random.key(7), np.zeros(2), []
    path = descend(
        risk,
        Linear(jnp.zeros(2)),
        steps=6,
        learning_rate=0.3,
        normalised=False,
        batch=2,
        key=key,
        save_at=jnp.arange(7),
    )
    for step in range(6):
        epoch, place = divmod(step, 3)
        chosen = np.asarray(jax.random.permutation(jax.random.fold_in(key, epoch), 6))[2 * place : 2 * place + 2]
        met += chosen.tolist()
        rows = np.asarray(labels)[chosen, None] * np.asarray(inputs)[chosen]
        w = w + 0.3 * np.mean(rows / (1.0 + np.exp(rows @ w))[:, None], axis=0)
        np.testing.assert_allclose(path[step + 1].model.w, w, rtol=RTOL)
    assert sorted(met[:6]) == sorted(met[6:]) == list(range(6)) and met[:6] != met[6:]
    # What is printed of a point is of all data.
    np.testing.assert_allclose(path.final.log_gradient_norm, risk.scaled_gradient(path.model).log_norm, rtol=RTOL)


@pytest.mark.parametrize("normalised", [False, "jointly"])
def test_a_batch_of_all_data_is_no_batch(normalised):
    how = {"steps": 5, "learning_rate": 0.2, "normalised": normalised}
    whole, parts = (descend(RISK, COMBINED, **how, **more) for more in ({}, {"batch": 3, "key": jax.random.key(0)}))
    close((parts.model, parts.final.log_time), (whole.model, whole.final.log_time))


def test_of_a_sum_the_gradient_of_a_batch_is_scaled_up():
    how = {"steps": 1, "normalised": False, "batch": 1, "key": jax.random.key(2)}
    total = EmpiricalRisk(DATA, "logistic", reduction="sum")
    summed = descend(total, COMBINED, learning_rate=0.1, **how)
    close(summed.model, descend(RISK, COMBINED, learning_rate=0.3, **how).model)


HIDDEN = EmpiricalRisk.from_function(lambda model: jnp.sum(model.W**2))


@pytest.mark.parametrize(
    ("risk", "how", "sentence"),
    [
        (RISK, {"batch": 2}, "key: a batch and the key"),
        (RISK, {"key": jax.random.key(0)}, "key: a batch and the key"),
        (RISK, {"batch": 4, "key": jax.random.key(0)}, "batch: expected at most all 3 data"),
        (RISK, {"batch": 0, "key": jax.random.key(0)}, "batch: expected"),
        (HIDDEN, {"batch": 1, "key": jax.random.key(0), "normalised": False}, "batch: the data of this risk"),
        (RISK, {"optimizer": optax.sgd(0.1), "learning_rate": 0.1}, "learning_rate: an optimizer brings its own"),
    ],
)
def test_what_cannot_be_drawn_or_followed_is_named(risk, how, sentence):
    with pytest.raises(ValueError, match=f"^{sentence}"):
        descend(risk, COMBINED, steps=1, **how)
