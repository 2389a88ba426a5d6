"""K and Q in the spaces that the flow keeps, and multipliers carried past the exponent."""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxflow as jf
from jaxflow.data import TokenData
from jaxflow.flow import ArcLength, BackwardEuler, Factors, LogArcLength, MultiplierNewton
from jaxflow.flow.solvers import state_norm
from jaxflow.limits.self_certificate import flow_certifier
from jaxflow.trajectory import Regime

# n, T, d, m: token differences span 4 dimensions, queries 2, rows 6 of 7 columns.
SIZE = (2, 3, 9, 7)


def instance(n, T, d, m, queries=None):
    data, head = jf.data.random_tokens(jax.random.key(0), n, T, d, score_gap=0.1)
    if queries is not None:
        asked = jax.random.normal(jax.random.key(2), (n, queries, d))
        labels = jnp.where(jnp.arange(queries) % 2 == 0, 1.0, -1.0)[None, :] * data.labels[:, None]
        data = TokenData(data.tokens, asked, labels)
    model = jf.models.FactoredAttention.init(jax.random.key(1), data, head, m=m)
    return jf.EmpiricalRisk(data, jf.losses.Logistic()), model


@pytest.mark.slow
@pytest.mark.parametrize(("size", "queries"), [(SIZE, None), (SIZE, 2), ((4, 4, 3, 3), None)])
def test_the_field_is_that_of_the_weights(size, queries):
    """At the start, and at another state in the context of the start: so both trace one path."""
    risk, model = instance(*size, queries=queries)
    coordinates = Factors()
    state, context = coordinates.encode(risk, model)
    n, T, d, m = size
    rows = min(d, n * (T - 1)), min(d, n * (queries or 1))
    columns = min(m, sum(rows))
    assert [x.shape for x in state] == [(rows[0], columns), (rows[1], columns)]
    back = coordinates.decode(context, state)
    np.testing.assert_allclose(back.K, model.K, atol=1e-14)
    np.testing.assert_allclose(back.Q, model.Q, atol=1e-14)

    @eqx.filter_jit
    def both(risk, context, state):
        ours = coordinates.field(context, state)
        # The gradient pushed forward, not only its norm.
        there, pushed = eqx.filter_jvp(lambda x: coordinates.decode(context, x), (state,), (ours.gradient,))
        return ours, risk.scaled_gradient(there), pushed

    for at in (state, type(state)(jnp.sin(3 * x) for x in state)):
        ours, theirs, pushed = both(risk, context, at)
        np.testing.assert_allclose(float(ours.log_scale), float(theirs.log_scale), rtol=1e-12)
        np.testing.assert_allclose(ours.multipliers, theirs.multipliers, atol=1e-14)
        # A sum of some fifty products each.
        np.testing.assert_allclose(pushed.K, theirs.gradient.K, atol=1e-13)
        np.testing.assert_allclose(pushed.Q, theirs.gradient.Q, atol=1e-13)


@pytest.fixture(scope="module")
def saturated():
    """An instance on its way out, with attention saturated."""
    risk, model = instance(3, 4, 4, 4)
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
