"""K and Q far out: multipliers carried past the exponent."""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxflow as jf
from jaxflow.flow import ArcLength, BackwardEuler, Factors, LogArcLength, MultiplierNewton
from jaxflow.flow.solvers import state_norm
from jaxflow.limits.self_certificate import flow_certifier
from jaxflow.trajectory import Regime


@pytest.fixture(scope="module")
def saturated():
    """An instance on its way out, with attention saturated."""
    data, head = jf.data.random_tokens(jax.random.key(0), 3, 4, 4, score_gap=0.1)
    risk = jf.EmpiricalRisk(data, "logistic")
    model = jf.models.FactoredAttention.init(jax.random.key(1), data, head)
    near = jf.integrate(risk, model, clock=ArcLength(timed=False), until=20.0, coordinates="factors")
    assert float(jnp.min(jnp.max(near.model.attention(risk.data), axis=-1))) > 0.99
    return risk, near.model


def out_to(risk, model, until, cap, method=None, rtol=1e-3):
    controller = diffrax.PIDController(rtol=rtol, atol=1e-2 * rtol, pcoeff=0.3, icoeff=0.4, norm=state_norm)
    return jf.integrate(
        risk, model, clock=LogArcLength(unit=20.0, cap=cap, timed=False), until=until, coordinates=Factors(),
        solver=MultiplierNewton() if method is None else MultiplierNewton(method), controller=controller, max_steps=500,
    )  # fmt: skip


@eqx.filter_jit
def own_gap(risk, path):
    final = path.final
    scaled = jf.ScaledGradient(final.log_scale, final.velocity, final.multipliers)
    return flow_certifier()(risk, final.model, final.velocity, scaled).duality_gap


@pytest.mark.slow
def test_ten_times_the_cap_is_a_hundredth_of_the_gap(saturated):
    """What the cap costs: margins keep a floor in proportion to cap^-2, and nothing else changes."""
    gaps = [float(own_gap(saturated[0], out_to(*saturated, 2000.0, cap))) for cap in (1e5, 1e6)]
    assert gaps[1] < 1e-9
    np.testing.assert_allclose(gaps[0] / gaps[1], 100.0, rtol=0.2)


@pytest.mark.slow
def test_one_stage_a_step_ends_at_the_same_direction(saturated):
    """The far stretch of studies: the path is followed to a tenth, its end certifies itself all the same."""
    risk, model = saturated
    five, one = (out_to(risk, model, 2000.0, 1e6, *how) for how in ((), (BackwardEuler(), 0.1)))
    assert own_gap(risk, one) < 1e-9
    direction, other = (path.final.model.combined_weights() for path in (one, five))
    direction, other = direction / jnp.linalg.norm(direction), other / jnp.linalg.norm(other)
    # The square root of two gaps of 1e-9.
    np.testing.assert_allclose(direction, other, atol=1e-4)


@pytest.mark.slow
def test_log_log_t_goes_on_where_log_t_overflows(saturated):
    path = out_to(*saturated, 2000.0, 1e6)
    further = out_to(*saturated, 3000.0, 1e6)
    assert int(path.regime) == Regime.limiting
    assert np.isinf(float(path.log_time))
    # log t grows like the square of the length.
    np.testing.assert_allclose(float(further.log_log_time) - float(path.log_log_time), 2000.0, rtol=1e-6)
