"""Lanes against Diffrax's own loop, and lanes against themselves."""

from dataclasses import replace

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optimistix
import pytest

import jaxflow as jf
from jaxflow._core import RESULTS
from jaxflow.flow import Drive, StationaryPoint, Weights, run_queue
from jaxflow.flow.queue import counted_queue
from jaxflow.flow.solvers import state_norm
from tests.flow.instances import attention

WAYS = {
    "explicit": (jf.ArcLength(), 12.0, diffrax.Tsit5(), diffrax.PIDController(rtol=1e-6, atol=1e-8)),
    "implicit": (
        jf.LogArcLength(),
        float(np.log(200.0)),
        diffrax.Kvaerno5(root_finder=optimistix.Newton(rtol=1e-6, atol=1e-8, norm=state_norm)),
        diffrax.PIDController(rtol=1e-4, atol=1e-6, pcoeff=0.3, icoeff=0.4, norm=state_norm),
    ),
}


def instance():
    return attention(jf.models.FactoredAttention)


def leaves(tree):
    return [np.asarray(x) for x in jax.tree.leaves(eqx.filter(tree, eqx.is_array))]


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_lane_takes_the_steps_of_diffeqsolve(way):
    clock, until, solver, controller = WAYS[way]
    risk, model = instance()
    grid = jnp.linspace(0.0, until, 5)
    # `diffeqsolve` wraps its terms, and the choice of a first step then falls back to 0.01.
    how = {"clock": clock, "until": until, "save_at": grid, "dt0": 0.01}
    expected = jf.integrate(risk, model, solver=solver, controller=controller, throw=False, **how)
    drive = Drive(solver, controller)

    @eqx.filter_jit
    def drive_it(risk, model):
        lane = drive.start(risk, model, coordinates=Weights(), **how)
        return drive.trajectory(drive.run(lane))

    found = drive_it(risk, model)
    stats = {k: int(v) for k, v in found.stats.items()}
    # Diffrax's loop does not say which of the rejected steps were failures of the root finder.
    failed = stats.pop("num_failed_solves")
    assert stats == {k: int(expected.stats[k]) for k in stats}
    assert 0 <= failed <= (0 if way == "explicit" else stats["num_rejected_steps"])
    assert found.result == RESULTS.successful
    # Two programs round differently: ten digits over the whole path.
    for ours, theirs in zip(leaves((found.final, found.saved)), leaves((expected.final, expected.saved)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9)


@pytest.fixture(scope="module")
def batch():
    """Four instances as lanes of one width, and the compiled functions that start and drive them."""
    clock, until, solver, controller = WAYS["explicit"]
    drive = Drive(solver, controller, StationaryPoint(), max_steps=500)

    def start(key, until):
        risk, model = instance()
        data, head = jf.data.random_tokens(key, 3, 4, 3)
        return drive.start(
            jf.EmpiricalRisk(data, jf.losses.Logistic()), model, clock=clock, coordinates=Weights(), until=until
        )

    keys = jax.random.split(jax.random.key(5), 4)
    lanes = eqx.filter_jit(eqx.filter_vmap(start))(keys, jnp.array([6.0, 12.0, 9.0, 3.0]))
    # The budget is an argument, so that a part of a path and all of it are one program: two may round differently.
    budgeted = eqx.filter_vmap(lambda lane, n: replace(drive, max_steps=n).run(lane), in_axes=(eqx.if_array(0), None))
    compiled = eqx.filter_jit(budgeted)
    return drive, lanes, lambda lanes, steps=500: compiled(lanes, jnp.asarray(steps))


@pytest.mark.slow
def test_an_interrupted_lane_continues_exactly(batch):
    _, lanes, run = batch
    whole = run(lanes)
    for n in (1, 7):
        part = run(lanes, n)
        np.testing.assert_array_equal(part.num_steps, n)
        for a, b in zip(leaves(run(part)), leaves(whole), strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.fixture(scope="module")
def queues(batch):
    """Compiled queues of two lanes at a time, and of all of them."""
    drive, _, _ = batch
    return {width: eqx.filter_jit(lambda lanes, w=width: counted_queue(drive, lanes, width=w)) for width in (2, 4)}


@pytest.mark.slow
@pytest.mark.parametrize("width", [2, 4])
def test_a_device_steps_no_more_often_than_a_list_schedule(batch, queues, width):
    """Whoever is free takes the next of the list: at most the work over the width, and the longest lane (Graham 1966);
    where all lanes fit, not once more than the longest. Every lane comes home in its order."""
    _, lanes, run = batch
    (home, iterations), expected = queues[width](lanes), run(lanes)
    steps = np.asarray(home.num_steps)
    assert steps.max() <= int(iterations) <= steps.sum() / width + (1 - 1 / width) * steps.max()
    assert width < len(steps) or int(iterations) == steps.max()
    np.testing.assert_array_equal(steps, expected.num_steps)
    np.testing.assert_array_equal(home.s, lanes.end)
    # Another width rounds differently.
    for a, b in zip(leaves(home.state), leaves(expected.state), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


def test_idle_lanes_change_no_other(batch):
    """Idle lanes are returned as they were, and the others end at the same bits as if all had been driven."""
    drive, lanes, _ = batch
    queue_of_two = eqx.filter_jit(lambda lanes: run_queue(drive, lanes, width=2))
    idle = np.array([True, False, True, False])

    def queue(idle):
        return queue_of_two(eqx.tree_at(lambda lanes: lanes.stopped, lanes, lanes.stopped | idle))

    home, all_driven = queue(idle), queue(np.zeros(4, bool))
    np.testing.assert_array_equal(np.asarray(home.num_steps) == 0, idle)
    for a, b, start in zip(leaves(home.state), leaves(all_driven.state), leaves(lanes.state), strict=True):
        np.testing.assert_array_equal(a[~idle], b[~idle])
        np.testing.assert_array_equal(a[idle], start[idle])
    np.testing.assert_array_equal(queue(np.ones(4, bool)).num_steps, 0)
    with pytest.raises(ValueError, match="width"):
        run_queue(drive, lanes, width=0)


def test_idle_and_broken_lanes_take_no_step_and_a_spent_budget_is_a_result():
    clock, until, solver, controller = WAYS["explicit"]

    @eqx.filter_jit
    def run(risk, model, idle, max_steps):
        drive = Drive(solver, controller, max_steps=max_steps)
        lane = drive.run(drive.start(risk, model, clock=clock, coordinates=Weights(), until=until, idle=idle))
        return lane.num_steps, drive.trajectory(lane).result

    def alone(risk, model, idle=False, max_steps=500):
        return run(risk, model, jnp.asarray(idle), jnp.asarray(max_steps))

    risk, model = instance()
    assert int(alone(risk, model, idle=True)[0]) == 0
    bad = eqx.tree_at(lambda m: m.K, model, model.K.at[0, 0].set(jnp.nan))
    steps, result = alone(risk, bad)
    assert int(steps) == 0 and result == RESULTS.nonfinite_data
    steps, result = alone(risk, model, max_steps=3)
    assert int(steps) == 3 and result == RESULTS.max_steps_reached


@pytest.mark.slow
def test_a_path_from_next_to_a_rest_has_a_first_step():
    # In log time Diffrax's rule looks 1e4 ahead, where the field overflows: its step is zero, and so is the next.
    data = jf.data.LinearData(jnp.ones((1, 1)), jnp.ones(1))
    model = jf.models.DiagonalLinearNetwork((jnp.array([1.0 + 1e-8]), jnp.ones(1)))
    solver = diffrax.Kvaerno5(root_finder=optimistix.Newton(rtol=1e-8, atol=1e-8, norm=state_norm))
    drive = Drive(solver, diffrax.PIDController(rtol=1e-6, atol=1e-8), max_steps=200)
    risk = jf.EmpiricalRisk(data, "squared")
    lane = drive.run(drive.start(risk, model, clock=jf.LogTime(), coordinates=Weights(), until=20.0))
    assert lane.s == lane.end and drive.trajectory(lane).result == RESULTS.successful


@pytest.mark.slow
def test_lengths_far_below_the_unit_are_counted():
    # In units of one the rate of log(1 + length) is 1e8 at the start: no step resolved it, and a path of some millions
    # was said to be e^(8e58) long.
    risk, model = instance()
    path = jf.integrate(risk, model, clock=jf.LogArcLength(unit=1e8, timed=False), until=float(np.log(50.0)))
    np.testing.assert_allclose(path.log_arc_length, np.log(50.0), rtol=1e-6)


@pytest.mark.slow
def test_limiting_dynamics_agree_with_the_flow_where_both_exist():
    """Beyond the cap the direction goes on to the limit of the exact flow, which log t has not yet reached."""
    risk, model = instance()
    exact = jf.integrate(risk, model, clock=jf.LogArcLength(), until=float(np.log(1e4)))
    limiting = jf.integrate(risk, model, clock=jf.LogArcLength(cap=300.0), until=float(np.log(1e4)))
    assert exact.regime == "exact" and limiting.regime == "limiting"

    def direction(trajectory):
        W = trajectory.final.model.combined_weights()
        return W / jnp.linalg.norm(W)

    # The cap leaves a floor of about 1/cap^2 = 1e-5 in the margins.
    assert jnp.linalg.norm(direction(exact) - direction(limiting)) <= 1e-4
    assert limiting.log_norm == pytest.approx(float(exact.log_norm), abs=1e-3)
    # log t to leading order: both are of the order of 1e7.
    assert limiting.log_time == pytest.approx(float(exact.log_time), rel=1e-3)
    assert limiting.log_gradient_norm == pytest.approx(float(exact.log_gradient_norm), rel=1e-3)
