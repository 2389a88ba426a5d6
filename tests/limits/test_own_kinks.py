"""ReLU networks with more data than they fit, and hinges: the flow slides along kinks, and may come to rest on them."""

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest

import jaxflow as jf
from tests.limits.models import TwoLayers

pytestmark = pytest.mark.slow
UNITS, DATA = 6, 20


def instance(seed: int) -> tuple[Any, TwoLayers]:
    rng = np.random.default_rng(seed)
    inputs, W, b, a = (rng.normal(size=shape) for shape in ((DATA, 3), (UNITS, 3), UNITS, UNITS))
    targets = np.sin(3.0 * inputs[:, 0]) + inputs[:, 1]
    inputs = np.concatenate([inputs, np.ones((DATA, 1))], axis=1)
    start = TwoLayers(jnp.asarray(np.concatenate([W, 0.1 * b[:, None]], axis=1)), jnp.asarray(0.5 * a))
    return jf.EmpiricalRisk((inputs, targets), "squared"), start


def hinge(q: jax.Array) -> jax.Array:
    return jnp.maximum(1.0 - q, 0.0)


def labelled(seed: int, units: int, data: int, loss: Any = hinge) -> tuple[Any, TwoLayers]:
    """Labels of which a quarter is turned to −1."""
    rng = np.random.default_rng(seed)
    inputs, W, b, a = (rng.normal(size=shape) for shape in ((data, 3), (units, 3), units, units))
    sides = np.sign(np.sin(3.0 * inputs[:, 0]) + inputs[:, 1])
    labels = np.where(rng.random(data) < 0.25, -1.0, 1.0) * sides
    inputs = np.concatenate([inputs, np.ones((data, 1))], axis=1)
    start = TwoLayers(jnp.asarray(np.concatenate([W, 0.1 * b[:, None]], axis=1)), jnp.asarray(0.5 * a))
    return jf.EmpiricalRisk((inputs, labels), loss), start


def row_of(model: Any) -> jax.Array:
    return jax.flatten_util.ravel_pytree(model)[0]


@partial(jax.jit, static_argnums=0)
def plain(slope: Any, theta: jax.Array, h: float, steps: int) -> jax.Array:
    """The end of Runge-Kutta steps of one length."""
    return jax.lax.fori_loop(0, steps, lambda _, theta: stepped(slope, theta, h), theta)


def stepped(slope: Any, theta: jax.Array, h: float) -> jax.Array:
    k1 = slope(theta)
    k2 = slope(theta - 0.5 * h * k1)
    k3 = slope(theta - 0.5 * h * k2)
    k4 = slope(theta - h * k3)
    return theta - h / 6.0 * (k1 + 2.0 * k2 + 2.0 * k3 + k4)


def test_the_end_is_where_plain_steps_across_kinks_come_to_rest() -> None:
    """A unit has come to rest at its kink where the gears change. Taken up on its other side it would wake up, and end
    1e-3 away."""
    risk, start = instance(2)
    inputs, targets = jnp.asarray(risk.data.inputs), jnp.asarray(risk.data.targets)

    def loss(theta: jax.Array) -> jax.Array:
        W, a = theta[: 4 * UNITS].reshape(UNITS, 4), theta[4 * UNITS :]
        return 0.5 * jnp.mean((jax.nn.relu(inputs @ W.T) @ a - targets) ** 2)

    slope, ends = jax.grad(loss), []
    for h in (1.6e-2, 8e-3):
        after = plain(slope, row_of(start), h, round(40.0 / h))
        ends.append(plain(slope, after, 4.0 * h, round(2.5e4 / (4.0 * h))))
    limit = jf.find_limit(risk, start)
    end = row_of(limit.end.module)
    # Plain steps go to and fro across kinks by their own length: what halving it changes bounds what is left.
    apart = jnp.linalg.norm(ends[0] - ends[1])
    assert limit.outcome == "finite_stationary_point"
    assert limit.stationary.error <= 1e-5
    assert jnp.linalg.norm(end - ends[1]) <= 2.0 * apart <= 1e-3 * jnp.linalg.norm(end)


def test_no_direction_leads_down_from_a_rest_on_kinks() -> None:
    """Explicit steps went to and fro across the kinks 200,000 times."""
    risk, start = instance(4)
    limit = jf.find_limit(risk, start)
    assert limit.outcome == "finite_stationary_point"
    assert limit.trajectory.stats["num_steps"] <= 5000
    inputs, targets = np.asarray(risk.data.inputs), np.asarray(risk.data.targets)

    def loss(theta: np.ndarray) -> np.ndarray:
        W, a = theta[: 4 * UNITS].reshape(UNITS, 4), theta[4 * UNITS :]
        return 0.5 * np.mean((np.maximum(inputs @ W.T, 0.0) @ a - targets) ** 2)

    end = np.asarray(row_of(limit.end.module))
    assert (np.abs(inputs @ end[: 4 * UNITS].reshape(UNITS, 4).T) < 1e-9).any()
    around = end + 1e-3 * np.random.default_rng(0).normal(size=(500, end.size))
    assert min(map(loss, around)) > loss(end)


def test_traced_calls_agree_and_two_tolerances_that_disagree_are_undecided() -> None:
    risk, start = instance(4)
    alone = jf.find_limit(risk, start)
    traced = jax.jit(lambda start: jf.find_limit(risk, start, throw=False))(start)
    assert traced.outcome == alone.outcome
    apart = jnp.linalg.norm(row_of(traced.end.module) - row_of(alone.end.module))
    assert apart <= alone.stationary.error * jnp.linalg.norm(row_of(alone.end.module))
    # A tolerance at which the path turns off to another point: 46% away.
    rough = jf.find_limit(*instance(0), method=jf.ModelStaged(rtol=1e-2), throw=False)
    assert rough.outcome == "undecided" and rough.stationary.error > 1e-2


@pytest.mark.parametrize(
    ("seed", "units", "data", "until", "outcome"),
    [(0, 16, 8, 30.0, "limit_point"), (2, 16, 8, 30.0, "limit_point"), (1, 4, 24, 300.0, "finite_stationary_point")],
)
def test_hinges_of_relu_networks_end_where_plain_steps_do(
    seed: int, units: int, data: int, until: float, outcome: str
) -> None:
    """A datum at its margin on the kink of a unit: gates of loss and unit multiply, and their speeds are not affine.

    200,000 explicit steps did not come to an end. In the last one data of which no unit is active are left.
    """
    risk, start = labelled(seed, units, data)
    limit = jf.find_limit(risk, start)
    end = row_of(limit.end.module)
    assert limit.outcome == outcome
    assert limit.stationary.error <= 1e-6
    assert limit.trajectory.stats["num_steps"] <= 500
    inputs, labels = jnp.asarray(risk.data.inputs), jnp.asarray(risk.data.targets)

    def loss(theta: jax.Array) -> jax.Array:
        W, a = theta[: 4 * units].reshape(units, 4), theta[4 * units :]
        return jnp.mean(jnp.maximum(1.0 - labels * (jax.nn.relu(inputs @ W.T) @ a), 0.0))

    ends = [plain(jax.grad(loss), row_of(start), h, round(until / h)) for h in (1e-3, 5e-4)]
    apart = jnp.linalg.norm(ends[0] - ends[1])
    assert jnp.linalg.norm(end - ends[1]) <= 2.0 * apart <= 1e-3 * jnp.linalg.norm(end)


def test_a_direction_is_that_of_the_exact_flow() -> None:
    """Steps of 1e-3 across the kinks came to another KKT point, 0.29 away in direction."""
    risk, start = labelled(3, UNITS, DATA, "logistic")
    inputs, labels = jnp.asarray(risk.data.inputs), jnp.asarray(risk.data.targets)

    def log_loss(theta: jax.Array) -> jax.Array:
        W, a = theta[: 4 * UNITS].reshape(UNITS, 4), theta[4 * UNITS :]
        return jax.nn.logsumexp(jnp.log(jax.nn.softplus(-labels * (jax.nn.relu(inputs @ W.T) @ a))))

    def slope(theta: jax.Array) -> jax.Array:
        gradient = jax.grad(log_loss)(theta)
        return gradient / jnp.linalg.norm(gradient)

    @jax.jit
    def down_to(level: jax.Array, h: float) -> jax.Array:
        """The end of plain steps in arc length, where the loss is as small."""
        return jax.lax.while_loop(lambda x: log_loss(x) > level, lambda x: stepped(slope, x, h), row_of(start))

    limit = jf.find_limit(risk, start)
    assert limit.outcome == "kkt_point"
    end = row_of(limit.trajectory.final.model.module)
    ends = [down_to(log_loss(end), h) for h in (4e-3, 2e-3)]
    apart = jnp.linalg.norm(ends[0] - ends[1])
    assert jnp.linalg.norm(end - ends[1]) <= 2.0 * apart <= 1e-2 * jnp.linalg.norm(end)


@pytest.mark.parametrize("seed", [2, 3])
def test_overlapping_labels_lead_relu_networks_to_a_point(seed: int) -> None:
    """Explicit steps were used up on the kinks, and what was found there proved nothing."""
    risk, start = labelled(seed, 2, 30, "logistic")
    limit = jf.find_limit(risk, start)
    assert limit.outcome == "finite_stationary_point"
    assert limit.stationary.error <= 1e-4
    row, back = jax.flatten_util.ravel_pytree(limit.end)
    around = row[None] + 1e-2 * jax.random.normal(jax.random.key(0), (500, row.size))
    assert jnp.min(jax.vmap(lambda x: risk(back(x)))(around)) > risk(limit.end)


def test_margins_of_some_data_that_grow_for_ever_are_no_point() -> None:
    """One unit separates the data on its side; the loss falls to that of the others alone."""
    limit = jf.find_limit(*labelled(0, 2, 30, "logistic"), throw=False)
    assert limit.outcome == "undecided"


@pytest.mark.parametrize("size", [1e-11, 1e-13])
def test_a_slope_of_small_inputs_is_no_rest(size: float) -> None:
    """The flow goes on until the margins are there, at a time of the inverse square: it was said to rest."""
    risk, start = labelled(0, 16, 8)
    inputs = size * np.asarray(risk.data.inputs)
    limit = jf.find_limit(jf.EmpiricalRisk((inputs, risk.data.targets), risk.loss), start, throw=False)
    assert limit.outcome == "undecided"


class ThreeLayers(eqx.Module):
    W: jax.Array
    b: jax.Array
    V: jax.Array
    a: jax.Array

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.a @ jax.nn.relu(self.V @ jax.nn.relu(self.W @ x + self.b))


def test_kinks_of_two_layers_that_multiply_are_met_as_one() -> None:
    """A path wound around the corner of two kinks, which attract together and are crossed alone, until its steps were
    spent. (Plain steps of 8e-3, 4e-3 and 2e-3 to t = 20,000 come to rest 5.2e-5, 2.5e-5 and 1.3e-5 away.)"""
    rng = np.random.default_rng(2)
    inputs, W, b, a = (rng.normal(size=shape) for shape in ((16, 3), (4, 3), 4, 4))
    targets = np.sin(3.0 * inputs[:, 0]) + inputs[:, 1]
    start = ThreeLayers(*map(jnp.asarray, (W, 0.1 * b, rng.normal(size=(4, 4)) / 2.0, 0.5 * a)))
    limit = jf.find_limit(jf.EmpiricalRisk((inputs, targets), "squared"), start)
    assert limit.outcome == "finite_stationary_point"
    assert limit.stationary.error <= 1e-5
    assert limit.trajectory.stats["num_steps"] <= 3000
    end = limit.end.module

    def loss(theta: Any) -> jax.Array:
        return 0.5 * jnp.mean((jax.vmap(theta)(inputs) - targets) ** 2)

    row, back = jax.flatten_util.ravel_pytree(end)
    around = row[None] + 1e-4 * jax.random.normal(jax.random.key(0), (500, row.size))
    assert jnp.min(jax.vmap(lambda x: loss(back(x)))(around)) > loss(end)


def waking(size: float, share: float) -> tuple[Any, TwoLayers]:
    """Two units, of which the second one is `size` times as large, and is worth `share` of the targets."""
    inputs = np.concatenate([np.random.default_rng(0).normal(size=(12, 2)), np.ones((12, 1))], axis=1)
    W, a = np.array([[1.0, 0.3, 0.2], [-0.8, 0.5, 0.4]]), np.array([0.7, 0.6])
    targets = np.maximum(inputs @ W[0], 0.0) + share * np.maximum(inputs @ W[1], 0.0)
    W[1], a[1] = size * W[1], size * a[1]
    return jf.EmpiricalRisk((inputs, targets), "squared"), TwoLayers(jnp.asarray(W), jnp.asarray(a))


@pytest.mark.parametrize("size", [1e-14, 1e-30])
def test_a_unit_of_any_size_is_not_on_its_kinks(size: float) -> None:
    """Taken to be on all of its kinks, the second unit would stay inactive, and the end be a saddle."""
    risk, start = waking(1e-9, 0.3)
    inputs, targets = jnp.asarray(risk.data.inputs), jnp.asarray(risk.data.targets)

    def loss(theta: jax.Array) -> jax.Array:
        return 0.5 * jnp.mean((jax.nn.relu(inputs @ theta[:6].reshape(2, 3).T) @ theta[6:] - targets) ** 2)

    end = plain(jax.grad(loss), row_of(start), 5e-2, 40_000)
    limit = jf.find_limit(*waking(size, 0.3))
    assert limit.outcome == "limit_point"
    # Of a unit that small the way out of the saddle is one, whatever its size.
    assert jnp.linalg.norm(row_of(limit.end.module) - end) <= 1e-6 * jnp.linalg.norm(end)


def test_a_saddle_that_a_unit_is_too_small_to_have_left_is_no_end() -> None:
    """The other unit is at rest before this one moves any output: where it would go on is a direction down."""
    assert jf.find_limit(*waking(1e-200, 0.03), throw=False).outcome == "undecided"
    # A unit of zero never moves.
    assert jf.find_limit(*waking(0.0, 0.03)).outcome == "finite_stationary_point"


class Written(eqx.Module):
    """Two layers of a ReLU that is written in some way."""

    W: jax.Array
    a: jax.Array
    relu: Any = eqx.field(static=True)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.a @ self.relu(self.W @ x)


def test_directions_know_no_way_of_writing_a_kink() -> None:
    """The sides of an absolute value are twice its switch apart, those of a minimum minus once. Taken for a ReLU's they
    led the hard-margin flow nowhere."""
    ways = [jax.nn.relu, lambda z: 0.5 * (z + jnp.abs(z)), lambda z: -jnp.minimum(-z, 0.0)]
    risk, start = labelled(4, 5, 10, "logistic")
    found = [jf.find_limit(risk, Written(start.W, start.A, relu)) for relu in ways]
    for limit in found:
        assert limit.outcome == "kkt_point"
        assert limit.kkt.sliding.sum() == 6
        assert jnp.linalg.norm(row_of(limit.flow_direction) - row_of(found[0].flow_direction)) <= 1e-9
