"""Flows with kinks: closed forms that cross, slide and leave; descent with small steps; what is said where it fails."""

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy.optimize import brentq

import jaxflow as jf
from jaxflow.flow import Cause, Filippov, filippov
from jaxflow.flow.diagnosis import ADVICE


class Plane(eqx.Module):
    """A point (x, y)."""

    x: jax.Array
    y: jax.Array


def planar(model: Plane) -> jax.Array:
    """|x| − y − xy: ẋ = y − sign x, ẏ = 1 + x. On x = 0 the flow slides while |y| < 1, and y grows like the time."""
    return jnp.abs(model.x) - model.y - model.x * model.y


def side(x0: Any, y0: Any, sign: float, t: Any) -> tuple[Any, Any]:
    """The flow from (x0, y0) where sign x is `sign`: ẍ = 1 + x."""
    speed = y0 - sign
    return (
        (x0 + 1) * np.cosh(t) + speed * np.sinh(t) - 1,
        sign + (x0 + 1) * np.sinh(t) + speed * np.cosh(t),
    )


def arrival(x0: float, y0: float, sign: float, last: float) -> tuple[float, float]:
    """When x = 0 is first met, and y there."""
    met = brentq(lambda t: side(x0, y0, sign, t)[0], 0.0, last, xtol=1e-15)
    return met, side(x0, y0, sign, met)[1]


def planar_flow(x0: float, y0: float, until: float, solver: Any = None, **how: Any) -> jf.Trajectory:
    risk = jf.EmpiricalRisk.from_function(planar)
    model = Plane(jnp.asarray(x0), jnp.asarray(y0))
    return jf.integrate(risk, model, clock="physical_time", until=until, solver=solver or Filippov(), **how)


def test_a_flow_that_slides_and_leaves_ends_where_the_closed_form_does() -> None:
    x0, y0 = 0.3, -0.5
    met, height = arrival(x0, y0, 1.0, 0.5)
    assert -1 < height < 1
    left = met + 1.0 - height
    times = np.array([0.5 * met, met + 0.2, left - 1e-3, left + 0.5, left + 1.5])
    path = planar_flow(x0, y0, float(times[-1]), save_at=jnp.asarray(times))
    expected = [side(x0, y0, 1.0, times[0]), (0.0, height + 0.2), (0.0, 1.0 - 1e-3)]
    expected += [(np.cosh(t - left) - 1, 1 + np.sinh(t - left)) for t in times[3:]]
    # The tolerance of a step is 1e-8; the last stretch multiplies errors by e^1.5.
    np.testing.assert_allclose(np.stack([path.points.model.x, path.points.model.y], 1), expected, atol=2e-7)
    # Between steps: the interpolation of the sliding piece stays on the kink.
    np.testing.assert_allclose(path.points.model.x[1:3], 0.0, atol=1e-12)
    assert int(path.stats["num_met_kinks"]) == int(path.stats["num_left_kinks"]) == 1
    assert int(path.stats["num_crossed_kinks"]) == 0 and not path.stats["sliding"].any()
    assert int(path.stats["num_steps"]) < 100
    # From the other side, and faster, the kink is crossed.
    x0, y0 = -0.5, 1.0
    met, height = arrival(x0, y0, -1.0, 1.0)
    times = met + np.array([-0.2, 0.1, 0.2, 0.3, 0.5])
    path = planar_flow(x0, y0, float(times[-1]), save_at=jnp.asarray(times))
    expected = [side(x0, y0, -1.0, times[0])] + [side(0.0, height, 1.0, t - met) for t in times[1:]]
    np.testing.assert_allclose(np.stack([path.points.model.x, path.points.model.y], 1), expected, atol=2e-7)
    assert int(path.stats["num_crossed_kinks"]) == 1 and int(path.stats["num_met_kinks"]) == 0


@pytest.mark.slow
def test_a_kink_that_is_crossed_costs_no_order() -> None:
    x0, y0, until = -0.5, 1.0, 1.0
    met, height = arrival(x0, y0, -1.0, until)
    assert height > 1
    expected = np.array(side(0.0, height, 1.0, until - met))
    errors = []
    for steps in (4, 8, 16):
        path = planar_flow(x0, y0, until, dt0=until / steps, controller=diffrax.ConstantStepSize())
        assert int(path.stats["num_crossed_kinks"]) == 1 and int(path.stats["num_steps"]) == steps
        errors.append(np.abs(np.array([path.model.x, path.model.y]) - expected).max())
    # Order five, but for the place of the kink within a step.
    orders = np.log2(np.array(errors[:-1]) / np.array(errors[1:]))
    assert np.all(orders > 4.0), (errors, orders)


def network(loss: Any) -> tuple[jf.EmpiricalRisk, Any]:
    keys = jax.random.split(jax.random.key(4), 3)
    inputs = jax.random.normal(keys[0], (8, 2))
    # The kinks of two equal data are the same, met at the same time.
    inputs = inputs.at[7].set(inputs[0])
    # Labels at random: data that disagree hold each other on kinks.
    labels = jnp.where(jax.random.normal(keys[1], (8,)).at[7].set(1.0).at[0].set(1.0) > 0, 1.0, -1.0)
    return jf.EmpiricalRisk((inputs, labels), loss), eqx.nn.MLP(2, "scalar", 5, 1, jax.nn.relu, key=keys[2])


def ravel(model: Any) -> jax.Array:
    return ravel_pytree(eqx.filter(model, eqx.is_array))[0]


def hinge(q: jax.Array) -> jax.Array:
    return jnp.maximum(1.0 - q, 0.0)


@pytest.mark.slow
def test_descent_tends_to_the_flow_like_its_steps() -> None:
    risk, model = network(hinge)
    until = 20.0
    path = jf.integrate(risk, model, clock="log_time", until=np.log(until), solver=Filippov())
    assert int(path.stats["num_met_kinks"]) > 0
    end = ravel(path.model)
    way = jnp.linalg.norm(end - ravel(model))
    apart = []
    for rate in (1e-2, 1e-4):
        descent = jf.descend(risk, model, steps=round(until / rate), learning_rate=rate, normalised=False)
        apart.append(float(jnp.linalg.norm(ravel(descent.model) - end) / way))
    # Slopes vary with where the last step to and fro stops.
    assert np.log10(apart[0] / apart[1]) / 2 == pytest.approx(1.0, abs=0.25), apart
    assert apart[1] < 1e-3


@pytest.mark.slow
def test_kinks_are_followed_by_default_and_the_time_is_right_in_any_clock() -> None:
    risk, model = network("logistic")
    until = jnp.log(20.0)
    expected = jf.integrate(risk, model, clock="log_time", until=until)
    assert int(expected.stats["num_met_kinks"]) > 0
    length = jnp.exp(expected.final.log_arc_length)
    path = jf.integrate(risk, model, clock="arc_length", until=length)
    # log t is integrated beside the state, without error control, and jumps in speed with the gradient.
    assert float(path.final.log_time) == pytest.approx(float(until), abs=1e-5)
    end, there = (ravel(p.model) for p in (path, expected))
    np.testing.assert_allclose(end, there, atol=1e-6)
    # On kinks the velocity is that of the slide: tangential, and of length one.
    velocity = ravel(path.final.velocity)
    assert float(jnp.linalg.norm(velocity)) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.slow
def test_a_flow_rests_where_kinks_take_every_direction() -> None:
    # |x| + |y| + |x + y| from a point of the plane: all three kinks meet at the origin.
    def cone(model: Plane) -> jax.Array:
        return jnp.abs(model.x) + jnp.abs(model.y) + 0.5 * jnp.abs(model.x + model.y)

    # The loss −q of the margin q = −cone.
    risk = jf.EmpiricalRisk.from_margins(lambda model: -cone(model)[None], "correlation")
    path = jf.integrate(risk, Plane(jnp.asarray(1.0), jnp.asarray(0.4)), clock="physical_time", until=5.0)
    np.testing.assert_allclose([path.model.x, path.model.y], 0.0, atol=1e-9)
    assert int(path.stats["sliding"].sum()) == 2 and int(path.stats["num_steps"]) < 100
    assert float(path.final.log_gradient_norm) == -np.inf


@pytest.mark.slow
def test_what_cannot_be_settled_ends_as_sliding_and_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    # No gates are ever found to be consistent.
    monkeypatch.setattr(filippov, "CONSISTENT", -2.0)
    solver = Filippov(pieces=7)
    path = planar_flow(0.3, -0.5, 1.0, solver, throw=False)
    assert bool(path.result == jf.RESULTS.sliding) and int(path.stats["num_steps"]) < 200
    met, _ = arrival(0.3, -0.5, 1.0, 0.5)
    np.testing.assert_allclose(jnp.exp(path.final.log_time), met, atol=1e-6)
    np.testing.assert_allclose(path.final.model.x, 0.0, atol=1e-6)
    with pytest.raises(RuntimeError, match="stays on kinks"):
        planar_flow(0.3, -0.5, 1.0, solver)


def test_a_spent_budget_names_its_cause() -> None:
    with pytest.raises(RuntimeError, match=r"slides along kinks; use solver=jaxflow.Filippov.*kinks 0 of 1"):
        planar_flow(0.3, -0.5, 1.0, "tsit5", max_steps=300)


def test_stiffness_and_interpolation_are_told_apart() -> None:
    inputs = jnp.diag(jnp.asarray([100.0, 1.0]))
    model = jf.models.DiagonalLinearNetwork((jnp.ones(2), jnp.ones(2)))
    how: Any = dict(clock="physical_time", throw=False, solver="tsit5", max_steps=50)

    def cause(targets: Any, until: float) -> str:
        risk = jf.EmpiricalRisk(jf.data.LinearData(inputs, jnp.asarray(targets)), "squared")
        path = jf.integrate(risk, model, until=until, **how)
        found = jf.diagnose(path, risk, clock="physical_time", until=until, solver="tsit5")
        assert str(found).startswith(ADVICE[Cause(int(found.cause))])
        assert bool(path.result == jf.RESULTS.max_steps_reached) == (found.cause.name != "interpolated")
        return found.cause.name

    # Rates of 1e4 and 1; the start meets the second targets exactly.
    assert cause([200.0, 2.0], 1e3) == "stiff"
    assert cause([100.0, 1.0], 1e3) == "interpolated"
    assert cause([200.0, 2.0], 1e-3) == "unknown"
