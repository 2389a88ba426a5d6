"""K and Q far out: multipliers carried past the exponent."""

import functools

import diffrax
import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

import jaxflow as jf
from jaxflow.flow import ArcLength, Factors, LogArcLength, MultiplierNewton
from jaxflow.flow.solvers import state_norm
from jaxflow.limits.self_certificate import flow_certifier
from jaxflow.trajectory import Regime
from tests.flow.instances import attention


@pytest.fixture(scope="module")
def out_to():
    """The path of an instance with saturated attention, to a log length and with a cap."""
    risk, start = attention(jf.models.FactoredAttention, d=4, score_gap=0.1)
    near = jf.integrate(risk, start, clock=ArcLength(timed=False), until=20.0, coordinates="factors").model
    assert float(jnp.min(jnp.max(near.attention(risk.data), axis=-1))) > 0.99
    controller = diffrax.PIDController(rtol=1e-3, atol=1e-5, pcoeff=0.3, icoeff=0.4, norm=state_norm)

    @functools.cache
    def follow(until, cap):
        return risk, jf.integrate(
            risk, near, clock=LogArcLength(unit=20.0, cap=cap, timed=False), until=until, coordinates=Factors(),
            solver=MultiplierNewton(), controller=controller, max_steps=500,
        )  # fmt: skip

    return follow


@eqx.filter_jit
def own_gap(risk, path):
    final = path.final
    scaled = jf.ScaledGradient(final.log_scale, final.velocity, final.multipliers)
    return flow_certifier()(risk, final.model, final.velocity, scaled).duality_gap


@pytest.mark.slow
def test_ten_times_the_cap_is_a_hundredth_of_the_gap(out_to):
    """What the cap costs: margins keep a floor in proportion to cap^-2, and nothing else changes."""
    gaps = [float(own_gap(*out_to(2000.0, cap))) for cap in (1e5, 1e6)]
    assert gaps[1] < 1e-9
    np.testing.assert_allclose(gaps[0] / gaps[1], 100.0, rtol=0.2)


@pytest.mark.slow
def test_log_log_t_goes_on_where_log_t_overflows(out_to):
    path, further = (out_to(until, 1e6)[1] for until in (2000.0, 3000.0))
    assert int(path.regime) == Regime.limiting
    assert np.isinf(float(path.log_time))
    # log t grows like the square of the length.
    np.testing.assert_allclose(float(further.log_log_time) - float(path.log_log_time), 2000.0, rtol=1e-6)
