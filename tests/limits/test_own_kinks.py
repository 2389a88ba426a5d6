"""ReLU networks with more data than they fit: the flow slides along kinks, and comes to rest on some of them."""

from typing import Any

import jax
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


def row_of(model: Any) -> jax.Array:
    return jax.flatten_util.ravel_pytree(model)[0]


def test_the_end_is_where_plain_steps_across_kinks_come_to_rest() -> None:
    """In the second one a unit has come to rest at its kink where the gears change. Taken up on its other side it would
    wake up, and end 1e-3 away."""
    risks, starts = zip(*map(instance, (0, 2)), strict=True)
    inputs = jnp.stack([jnp.asarray(risk.data.inputs) for risk in risks])
    targets = jnp.stack([jnp.asarray(risk.data.targets) for risk in risks])

    def loss(theta: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
        W, a = theta[: 4 * UNITS].reshape(UNITS, 4), theta[4 * UNITS :]
        return 0.5 * jnp.mean((jax.nn.relu(x @ W.T) @ a - y) ** 2)

    slope = jax.vmap(jax.grad(loss))

    @jax.jit
    def plain(theta: jax.Array, h: float, steps: int) -> jax.Array:
        def step(_: Any, theta: jax.Array) -> jax.Array:
            k1 = slope(theta, inputs, targets)
            k2 = slope(theta - 0.5 * h * k1, inputs, targets)
            k3 = slope(theta - 0.5 * h * k2, inputs, targets)
            k4 = slope(theta - h * k3, inputs, targets)
            return theta - h / 6.0 * (k1 + 2.0 * k2 + 2.0 * k3 + k4)

        return jax.lax.fori_loop(0, steps, step, theta)

    begun = jnp.stack([row_of(start) for start in starts])
    ends = []
    for h in (8e-3, 4e-3):
        after = plain(begun, h, round(40.0 / h))
        ends.append(plain(after, 4.0 * h, round(2.5e4 / (4.0 * h))))
    for k, (risk, start) in enumerate(zip(risks, starts, strict=True)):
        limit = jf.find_limit(risk, start)
        end = row_of(limit.end.module)
        # Plain steps go to and fro across kinks by their own length: what halving it changes bounds what is left.
        apart = jnp.linalg.norm(ends[0][k] - ends[1][k])
        assert limit.outcome == "finite_stationary_point"
        assert limit.stationary.error <= 1e-5
        assert jnp.linalg.norm(end - ends[1][k]) <= 2.0 * apart <= 1e-3 * jnp.linalg.norm(end)


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
