"""K and Q far out: multipliers carried past the exponent."""

import functools

import diffrax
import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

import jaxflow as jf
from jaxflow.flow import ArcLength, BackwardEuler, Factors, LogArcLength, MultiplierNewton
from jaxflow.flow.solvers import state_norm
from jaxflow.limits.self_certificate import flow_certifier
from jaxflow.trajectory import Regime
from tests.flow.instances import attention

# Five stages a step, and one.
FIVE, ONE = MultiplierNewton(), MultiplierNewton(BackwardEuler())


def to_rtol(rtol):
    return diffrax.PIDController(rtol=rtol, atol=1e-2 * rtol, pcoeff=0.3, icoeff=0.4, norm=state_norm)


@pytest.fixture(scope="module")
def out_to():
    """The path of an instance with saturated attention, to a log length and with a cap."""
    risk, start = attention(jf.models.FactoredAttention, d=4, score_gap=0.1)
    near = jf.integrate(risk, start, clock=ArcLength(timed=False), until=20.0, coordinates="factors").model
    assert float(jnp.min(jnp.max(near.attention(risk.data), axis=-1))) > 0.99

    @functools.cache
    def follow(until, cap, solver=FIVE, rtol=1e-3):
        return risk, jf.integrate(
            risk, near, clock=LogArcLength(unit=20.0, cap=cap, timed=False), until=until, coordinates=Factors(),
            solver=solver, controller=to_rtol(rtol), max_steps=500,
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
def test_one_stage_a_step_ends_at_the_same_direction(out_to):
    """The far stretch of studies: the path is followed to a tenth, its end certifies itself all the same."""
    one = out_to(2000.0, 1e6, ONE, 0.1)
    assert own_gap(*one) < 1e-9
    direction, other = (path.final.model.combined_weights() for _, path in (one, out_to(2000.0, 1e6)))
    direction, other = direction / jnp.linalg.norm(direction), other / jnp.linalg.norm(other)
    # The square root of two gaps of 1e-9.
    np.testing.assert_allclose(direction, other, atol=1e-4)


@pytest.mark.slow
def test_log_log_t_goes_on_where_log_t_overflows(out_to):
    path, further = (out_to(until, 1e6)[1] for until in (2000.0, 3000.0))
    assert int(path.regime) == Regime.limiting
    assert np.isinf(float(path.log_time))
    # log t grows like the square of the length.
    np.testing.assert_allclose(float(further.log_log_time) - float(path.log_log_time), 2000.0, rtol=1e-6)
