"""What a step costs, where that can be counted: exponentials, steps, the form of the state; and measured stiffness."""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optimistix
import pytest
from jax.extend.core import jaxprs_in_params

import jaxflow as jf
from jaxflow._core import RESULTS
from jaxflow.flow import Drive, Stiff
from jaxflow.flow.solvers import sees_one_vector, state_norm
from jaxflow.flow.stability import at_stability_limit, estimates_stiffness, real_stability_interval, stability_share
from jaxflow.models import CombinedAttention, FactoredAttention, OwnModel
from tests.flow.instances import attention

N, T = 3, 7


def instance(kind):
    return attention(kind, N, T, d=4)


def operations(jaxpr):
    """Every operation of a program and of the programs in it, with the shape of its first result."""
    for equation in jaxpr.eqns:
        yield equation.primitive.name, equation.outvars[0].aval.shape
        for inner in jaxprs_in_params(equation.params):
            yield from operations(inner)


@pytest.mark.parametrize("kind", [CombinedAttention, FactoredAttention])
def test_a_gradient_takes_one_exponential_a_token_and_no_pairs_of_tokens(kind):
    risk, model = instance(kind)
    found = list(operations(jax.make_jaxpr(lambda m: risk.scaled_gradient(m).gradient)(model).jaxpr))
    assert sum(name == "exp" and shape == (N, T) for name, shape in found) == 1
    assert not any(shape[:3] == (N, T, T) for _, shape in found)


def looked_at(norm):
    """The same norm as another function: the state is then left in its structure."""
    return lambda tree: norm(tree)


@pytest.mark.slow
def test_one_vector_takes_the_steps_of_a_structured_state():
    risk, model = instance(FactoredAttention)
    grid = jnp.linspace(0.5, 3.0, 4)

    def follow(norm):
        controller = diffrax.PIDController(rtol=1e-7, atol=1e-9, norm=norm)
        return jf.integrate(risk, model, clock="log_time", until=3.0, controller=controller, save_at=grid)

    one, other = follow(state_norm), follow(looked_at(state_norm))
    assert int(one.stats["num_steps"]) == int(other.stats["num_steps"])
    # Two programs round differently, and the controller carries it on: far below the tolerance of the steps.
    for ours, theirs in zip(jax.tree.leaves(one.points), jax.tree.leaves(other.points), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-11)


def test_only_methods_that_see_no_structure_get_a_flat_state():
    state = {"K": jnp.ones((2, 3))}
    mixed = {"K": jnp.ones(2), "Q": jnp.ones(2, jnp.float32)}
    explicit, known = diffrax.Tsit5(), diffrax.PIDController(rtol=1e-6, atol=1e-6)
    own = diffrax.PIDController(rtol=1e-6, atol=1e-6, norm=looked_at(optimistix.rms_norm))
    by_part = diffrax.PIDController(rtol=1e-6, atol=({"K": 1e-6}, None, 1e-3))
    for how in ((explicit, known, state), (explicit, diffrax.ConstantStepSize(), state)):
        assert sees_one_vector(*how)
    for how in (
        (diffrax.Kvaerno5(), known, state),
        (explicit, own, state),
        (explicit, by_part, state),
        (explicit, known, mixed),
    ):
        assert not sees_one_vector(*how)


def test_an_instance_without_a_field_ends_long_before_its_budget():
    """Its gradient's norm overflows, every step is rejected, and a batch would wait for all of a hundred thousand."""
    risk, model = instance(CombinedAttention)
    huge = eqx.tree_at(lambda r: r.source.data.tokens, risk, 1e150 * risk.data.tokens)
    # Attention is uniform there: nothing is as small as the tokens are large.
    model = eqx.tree_at(lambda m: m.W, model, jnp.zeros_like(model.W))
    path = jf.integrate(huge, model, clock="log_time", until=2.0, throw=False)
    assert path.result == RESULTS.dt_min_reached
    # Powers of a fifth down to the smallest normal number: 308 / log10(5) = 441, and a few to begin with.
    assert int(path.stats["num_steps"]) < 460


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


@pytest.mark.slow
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
