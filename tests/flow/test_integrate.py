"""The flow: one path in every clock and in all coordinates, far beyond floating point's own range."""

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxflow as jf
from jaxflow.flow import Drive, as_clock
from jaxflow.flow.solvers import as_solver
from tests.flow.instances import attention


@pytest.fixture(scope="module")
def reference():
    risk, model = attention()
    trajectory = jf.integrate(risk, model, clock=jf.LogTime(), until=8.0, solver="dopri8")
    return risk, model, trajectory


@pytest.mark.slow
@pytest.mark.parametrize(
    ("clock", "coordinates", "solver"),
    [
        ("log_time", "scores", None),
        ("physical_time", "scores", None),
        ("arc_length", "weights", None),
        ("log_arc_length", "scores", None),
        ("log_time", "weights", "Kvaerno5"),
        ("log_time", "weights", "KenCarp4"),
    ],
)
def test_every_clock_coordinates_and_solver_trace_the_same_path(clock, coordinates, solver, reference):
    risk, model, expected = reference
    final = expected.final
    until = {
        "log_time": 8.0,
        "physical_time": jnp.exp(8.0),
        "arc_length": jnp.exp(final.log_arc_length),
        "log_arc_length": final.log_arc_length,
    }[clock]
    # Methods at rtol 1e-8 over a path of length ~20 agree to 1e-6; implicit ones take many more steps to that.
    rtol, close = (1e-8, 1e-6) if solver is None else (1e-7, 1e-5)
    found = jf.integrate(
        risk, model, clock=clock, until=until, coordinates=coordinates, solver=solver,
        controller=diffrax.PIDController(rtol=rtol, atol=1e-2 * rtol),
    )  # fmt: skip
    assert jnp.max(jnp.abs(found.model.W - final.model.W)) <= close
    assert found.log_time == pytest.approx(8.0, abs=close)
    assert found.log_arc_length == pytest.approx(float(final.log_arc_length), abs=close)
    assert found.log_gradient_norm == pytest.approx(float(final.log_gradient_norm), abs=10 * close)


@pytest.mark.slow
def test_the_loss_clock_traces_the_same_path(reference):
    """It has no closed form on this path: points are compared where it has arrived."""
    risk, model, _ = reference
    trajectory = jf.integrate(
        risk, model, clock="loss_time", until=30.0, coordinates="scores", save_at=jnp.linspace(1.0, 30.0, 30)
    )
    along = jf.integrate(risk, model, clock="log_time", until=trajectory.final.log_time, solver="dopri8")
    # log t is integrated beside the state and follows it, without error control of its own.
    assert jnp.max(jnp.abs(trajectory.final.model.W - along.final.model.W)) <= 2e-5
    assert np.all(np.diff(np.asarray(trajectory.log_time)) > 0)


def test_velocity_direction_and_multipliers_of_the_final_point():
    risk, start = attention(jf.models.FactoredAttention)
    trajectory = jf.integrate(risk, start, clock="arc_length", until=5.0)
    scaled = risk.scaled_gradient(trajectory.model)
    assert jnp.allclose(trajectory.final.velocity.K, -scaled.gradient.K * jnp.exp(scaled.log_scale - scaled.log_norm))
    assert trajectory.final.velocity.head.v is None
    unit = sum(jnp.sum(x**2) for x in jax.tree.leaves(trajectory.direction))
    assert unit == pytest.approx(1.0, abs=1e-12)
    assert trajectory.log_multipliers.shape == (3, 4)
    assert str(trajectory.regime) == "exact"


@pytest.mark.slow
def test_stopping_rules_compose():
    risk, start = attention()

    def length(stop):
        path = jf.integrate(risk, start, clock="arc_length", until=100.0, stop=stop)
        return float(jnp.exp(path.final.log_arc_length))

    by_length, by_loss = jf.Budget(log_arc_length=float(np.log(10.0))), jf.LossExcess(-20.0)
    # The one rule holds from a length of 10 on, the other from one between 20 and 100.
    assert 10.0 <= length(by_length | by_loss) < 20.0
    assert 20.0 < length(by_length & by_loss) < 100.0


def test_an_opaque_loss_reports_underflow():
    risk = jf.EmpiricalRisk.from_function(lambda w: jnp.exp(-w[0]))
    with pytest.raises(RuntimeError, match="from_margins"):
        jf.integrate(risk, jnp.zeros(1), clock="arc_length", until=1e4)
    trajectory = jf.integrate(risk, jnp.zeros(1), clock="arc_length", until=1e4, throw=False)
    assert bool(trajectory.result == jf.RESULTS.gradient_underflow)
    with pytest.raises(RuntimeError, match="no valid final model"):
        _ = trajectory.model
    assert 700 < trajectory.final.model[0] < 720


def test_an_exactly_stationary_start_goes_nowhere():
    risk, start = attention(jf.models.FactoredAttention)
    zero = jax.tree.map(lambda x, moves: 0 * x if moves else x, start, risk.filter(start))
    trajectory = jf.integrate(risk, zero, clock="arc_length", until=10.0)
    assert jnp.all(trajectory.model.K == 0) and trajectory.final.log_gradient_norm == -jnp.inf


def test_implicit_solvers_get_a_root_finder_that_works():
    clock = as_clock("log_time")
    for solver in ("Kvaerno5", diffrax.Kvaerno5()):
        assert not isinstance(as_solver(solver, clock).root_finder, diffrax.VeryChord)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["integrate", "lane"])
def test_a_trial_step_that_overflows_is_shortened_and_the_flow_goes_on(way):
    # Of 16 instances 3 were stuck (as lanes 8): this is one of them both ways. Its fifth step at these tolerances
    # (its third as a lane, whose first step is another) leads to where the field is infinite.
    key_data, key_model = jax.random.split(jax.random.split(jax.random.key(0), 64)[1])
    data, head = jf.data.random_tokens(key_data, 6, 8, 10)
    risk = jf.EmpiricalRisk(data, "logistic")
    start = jf.models.FactoredAttention.init(key_model, data, head)
    controller = diffrax.PIDController(rtol=1e-3, atol=1e-3)
    how = {"clock": jf.LogTime(), "until": 10.0}
    if way == "integrate":
        path = jf.integrate(risk, start, solver="Tsit5", controller=controller, max_steps=200, throw=False, **how)
    else:
        drive = Drive(diffrax.Tsit5(), controller, max_steps=200)
        run = jax.jit(lambda *at: drive.trajectory(drive.run(drive.start(*at, coordinates=jf.Weights(), **how))))
        path = run(risk, start)
    # 13 accepted steps and 6 rejected ones; where the step had become NaN the budget of 200 was spent.
    assert bool(path.result == jf.RESULTS.successful) and path.log_time == pytest.approx(10.0)
    assert path.stats["num_rejected_steps"] < path.stats["num_accepted_steps"]


# log t at an arc length of 1/2, by plain Dormand and Prince of order 8 in t at a relative tolerance of 1e-12.
ALPHA, ESCAPE = 1e-12, 3.883101304111834


@pytest.mark.slow
def test_log_t_of_an_escape_needs_a_tolerance_below_the_start():
    """Weights of size alpha leave zero: what is said of it at `ArcLength`."""
    data = jf.data.LinearData(jnp.array([[1.0, 0.3], [0.2, 1.0]]), jnp.array([1.0, 0.5]))
    risk = jf.EmpiricalRisk(data, "squared")
    model = jf.models.DiagonalLinearNetwork.init(jax.random.key(0), data, alpha=ALPHA)

    def log_time(controller):
        path = jf.integrate(risk, model, clock=jf.ArcLength(), until=0.5, solver="kvaerno5", controller=controller)
        return float(path.final.log_time)

    # The controller keeps log t to a few times its rtol, by default too.
    fine = diffrax.PIDController(rtol=1e-4, atol=1e-4 * ALPHA, pcoeff=0.3, icoeff=0.4)
    assert abs(log_time(fine) - ESCAPE) <= 2e-3
    assert abs(log_time(None) - ESCAPE) <= 2e-3
    # It matters: here the first 1e-6 of the weights count for nothing.
    coarse = diffrax.PIDController(rtol=1e-4, atol=1e-6, pcoeff=0.3, icoeff=0.4)
    assert abs(log_time(coarse) - ESCAPE) > 0.1
