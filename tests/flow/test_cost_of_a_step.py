"""What a step costs, where that can be counted: exponentials, field evaluations, steps; and the form of the state."""

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
from jaxflow.flow.solvers import sees_one_vector, state_norm
from jaxflow.models import CombinedAttention, FactoredAttention

SIZES = {"n": 3, "T": 7, "d": 4}


def instance(kind, seed=0):
    data, head = jf.data.random_tokens(jax.random.key(seed), **SIZES)
    return jf.EmpiricalRisk(data, "logistic"), kind.init(jax.random.key(seed + 100), data, head)


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
    tokens = (SIZES["n"], SIZES["T"])
    assert sum(name == "exp" and shape == tokens for name, shape in found) == 1
    assert not any(shape[:3] == (*tokens, SIZES["T"]) for _, shape in found)


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
