"""Stiffness measured by an explicit method on its way."""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxflow as jf
from jaxflow.flow import Drive, Stiff
from jaxflow.flow.stability import at_stability_limit, estimates_stiffness, real_stability_interval, stability_share
from jaxflow.models import OwnModel


def test_the_real_stability_interval_is_that_of_the_literature():
    """Hairer and Wanner, Solving ODEs II, IV.2: 3.3 for Dopri5. Heun's method, of order two: 2."""
    assert real_stability_interval(diffrax.Dopri5) == pytest.approx(3.3, abs=0.02)
    assert real_stability_interval(diffrax.Heun) == pytest.approx(2.0, abs=0.01)
    assert real_stability_interval(diffrax.Tsit5) > 3.3


def test_only_methods_whose_last_stages_meet_estimate_anything():
    assert estimates_stiffness(diffrax.Tsit5()) and estimates_stiffness(diffrax.Dopri5())
    for solver in (diffrax.Bosh3(), diffrax.Euler(), diffrax.Kvaerno5(), jf.MultiplierNewton()):
        assert not estimates_stiffness(solver)
        assert not at_stability_limit(solver, {})


@pytest.mark.parametrize("rate", [0.1, 1.0, 40.0])
def test_the_estimate_is_the_rate_of_a_linear_field(rate):
    """Of y' = -λ y the two stages at the end of a step differ by hλ exactly."""
    solver, h = diffrax.Tsit5(), 0.05
    terms = diffrax.ODETerm(lambda t, y, args: -rate * y)
    y = jnp.array([1.0, -2.0])
    state = solver.init(terms, 0.0, h, y, None)
    *_, dense, _, _ = solver.step(terms, 0.0, h, y, None, state, made_jump=False)
    share = stability_share(solver, dense["k"])
    np.testing.assert_allclose(share * real_stability_interval(diffrax.Tsit5), h * rate, rtol=1e-9)


def test_a_stiff_path_is_stopped_and_no_other():
    """Near the minimum of a loss with curvatures of 1 and 1e4 explicit steps are limited by stability."""
    model = eqx.nn.Linear(2, "scalar", use_bias=False, key=jax.random.key(0))

    def follow(slope, until):
        risk = jf.EmpiricalRisk((jnp.diag(jnp.array([1.0, slope])), jnp.ones(2)), "squared")
        drive = Drive(diffrax.Tsit5(), diffrax.PIDController(rtol=1e-6, atol=1e-8), Stiff(), 1000)
        lane = drive.start(risk, OwnModel(model), clock=jf.LogTime(), coordinates=jf.Weights(), until=until)
        return drive.trajectory(drive.run(lane))

    stiff = follow(100.0, 8.0)
    assert stiff.result == jf.RESULTS.event_occurred and int(stiff.stats["num_steps"]) < 200
    assert follow(1.0, 1.0).result == jf.RESULTS.successful
