"""Save points, dense output, derivatives and controllers: what a user of Diffrax expects of `integrate`."""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxflow as jf
from jaxflow.flow import as_clock, as_controller, as_solver
from tests.flow.instances import attention


@pytest.fixture(scope="module")
def problem():
    return attention()


@pytest.fixture(scope="module")
def steps(problem):
    return jf.integrate(*problem, clock="log_time", until=4.0, saveat=diffrax.SaveAt(t0=True, steps=True))


READINGS = jnp.asarray([1.0, 2.0, 3.0, 4.0])


@pytest.fixture(scope="module")
def saved(problem):
    return jf.integrate(*problem, clock="log_time", until=4.0, save_at=READINGS)


@pytest.mark.slow
def test_saveat_times_are_readings_of_the_clock(problem, saved):
    same = jf.integrate(*problem, clock="log_time", until=4.0, saveat=diffrax.SaveAt(ts=READINGS))
    # The same steps; the points are computed by another program.
    assert jnp.max(jnp.abs(same.saved.model.W - saved.saved.model.W)) <= 1e-14
    assert jnp.allclose(same.log_time, READINGS, atol=1e-9)


def test_every_step_is_kept_and_none_that_was_not_taken(problem, steps):
    assert len(steps) == 1 + int(steps.stats["num_accepted_steps"])
    assert bool(jnp.all(steps.points.reached)) and np.all(np.diff(np.asarray(steps.log_arc_length)) > 0)
    assert jnp.array_equal(steps[0].model.W, problem[1].W) and jnp.array_equal(steps[-1].model.W, steps.final.model.W)


def test_dense_output_meets_the_steps_and_the_path_in_between(problem, steps, saved):
    dense = jf.integrate(
        *problem, clock="log_time", until=4.0, saveat=diffrax.SaveAt(steps=True, dense=True), max_steps=200
    )
    at_steps = dense.at(dense.log_time[:-1])
    assert jnp.max(jnp.abs(at_steps.model.W - dense.points.model.W[:-1])) <= 1e-12
    # Tsit5's interpolant is of order 4; at rtol 1e-8 it was seen to err by 1e-7 between steps.
    assert jnp.max(jnp.abs(dense.at(READINGS).model.W - saved.points.model.W)) <= 1e-6
    assert bool(dense.at(4.0).reached)
    for past in (5.0, jnp.asarray([1.0, 5.0]), float("nan")):
        with pytest.raises(ValueError, match="reading: the integration went from -inf to 4, got "):
            dense.at(past)
    traced = jax.vmap(lambda reading: dense.at(reading))(jnp.asarray([4.0, 5.0]))
    assert traced.reached.tolist() == [True, False]
    assert np.isfinite(traced.model.W[0]).all() and np.isnan(traced.model.W[1]).all() and np.isnan(traced.log_norm[1])
    with pytest.raises(ValueError, match="dense: there is none"):
        steps.at(1.0)


@pytest.mark.slow
@pytest.mark.parametrize("adjoint", [diffrax.ForwardMode(), None])
def test_derivatives_by_every_adjoint_agree_with_differences(problem, adjoint):
    risk, model = problem

    def end(scale):
        start = eqx.tree_at(lambda m: m.W, model, scale * model.W)
        path = jf.integrate(risk, start, clock="log_time", until=2.0, adjoint=adjoint, max_steps=64)
        return jnp.sum(path.final.model.W)

    one = jnp.asarray(1.0)
    found = jax.grad(end)(one) if adjoint is None else jax.jvp(end, (one,), (one,))[1]
    h = 1e-3
    # Second-order differences of a flow that is integrated to 1e-8.
    assert abs(found - (end(1 + h) - end(1 - h)) / (2 * h)) <= 1e-5


@pytest.mark.slow
def test_any_controller_is_taken_as_it_is(problem, saved):
    clock = as_clock("log_time")
    end = clock.internal(jnp.asarray(4.0))
    grid = jnp.linspace(0.0, end, 61)
    pid = diffrax.PIDController(rtol=1e-8, atol=1e-10)
    for controller in (diffrax.StepTo(ts=grid), diffrax.ClipStepSizeController(pid, step_ts=grid[1:-1])):
        path = jf.integrate(*problem, clock=clock, until=4.0, controller=controller)
        # Sixty steps of a method of order five.
        assert jnp.max(jnp.abs(path.model.W - saved.final.model.W)) <= 1e-5
        assert int(path.stats["num_steps"]) >= 60


def test_a_norm_of_the_callers_own_is_not_replaced():
    def norm(x):
        return jnp.max(jnp.abs(x[0].W))

    pid = diffrax.PIDController(rtol=1e-4, atol=1e-6, norm=norm)
    assert as_controller(pid, as_solver("kvaerno5", as_clock("log_arc_length"))) is pid


def test_a_trajectory_is_indexed_and_sliced(saved):
    assert len(saved) == 4 and float(saved[1].log_time) == float(saved.log_time[1])
    part = saved[1:3]
    assert len(part) == 2 and jnp.array_equal(part.log_norm, saved.log_norm[1:3])
    assert [float(point.log_time) for point in saved] == [float(x) for x in saved.log_time]
    with pytest.raises(IndexError):
        saved[4]


@pytest.mark.slow
def test_a_batch_is_indexed_by_its_members(problem, saved):
    risk, model = problem
    scales = jnp.asarray([1.0, 2.0])

    def run(scale):
        start = eqx.tree_at(lambda m: m.W, model, scale * model.W)
        return jf.integrate(risk, start, clock="log_time", until=4.0, save_at=READINGS)

    both = jax.vmap(run)(scales)
    assert len(both) == 2 and len(both[0]) == 4 and "2 trajectories" in str(both)
    assert jnp.max(jnp.abs(both[0].final.model.W - saved.final.model.W)) <= 1e-9
    assert both.to_xarray()["W"].dims == ("member", "save", "W_0", "W_1")
    with pytest.raises(ValueError, match="plot: one trajectory"):
        both.plot()


def test_a_trajectory_without_save_points_says_so(problem, capfd):
    # A meter of Diffrax may be given.
    end = jf.integrate(*problem, clock="log_time", until=2.0, progress=diffrax.TextProgressMeter(minimum_increase=0.5))
    assert "100" in capfd.readouterr().out
    assert bool(end) and end.to_xarray()["W"].dims == ("W_0", "W_1")
    for refused in (lambda: len(end), lambda: end[0]):
        with pytest.raises(TypeError, match="pass save_at to integrate"):
            refused()
    with pytest.raises(ValueError, match="pass save_at to integrate"):
        end.plot()


def test_printing_a_trajectory_shows_numbers(saved, steps):
    text = str(saved)
    assert text == repr(saved) and "exact flow: successful after" in text and "f64[" not in text
    for reading in (READINGS[0], READINGS[-1]):
        assert f"{float(reading):.6g}" in text
    # A header, the line above it, three save points at most, and the end.
    assert len(str(steps).splitlines()) == len(text.splitlines()) == 6


def test_a_trajectory_as_a_dataset_and_as_a_drawing(saved):
    table = saved.to_xarray()
    assert table.sizes["save"] == 4 and np.allclose(table["log_time"], READINGS)
    assert np.array_equal(table["W"].isel(save=2), saved[2].model.W)
    assert table.attrs["regime"] == "exact" and "multipliers" in table
    drawn = [line.get_ydata() for axis in saved.plot().axes for line in axis.lines]
    assert len(drawn) == 3 and np.allclose(drawn[0], saved.log_norm)
    assert np.allclose(drawn[1], saved.log_gradient_norm)


@pytest.mark.slow
def test_a_model_that_holds_functions_has_a_path():
    keys = jax.random.split(jax.random.key(0), 3)
    inputs = jax.random.normal(keys[0], (6, 2))
    labels = jnp.sign(inputs @ jax.random.normal(keys[1], (2,)))
    network = eqx.nn.MLP(2, "scalar", width_size=4, depth=1, activation=jnp.tanh, key=keys[2])
    risk = jf.EmpiricalRisk((inputs, labels), "logistic")
    path = jf.integrate(risk, network, clock="log_time", until=1.0, save_at=jnp.array([0.0, 1.0]))
    assert jnp.allclose(jax.vmap(path[1].model)(inputs), jax.vmap(path.final.model)(inputs), atol=1e-12)
    assert len(path.plot().axes) == 3 and path.to_xarray().sizes["save"] == 2
