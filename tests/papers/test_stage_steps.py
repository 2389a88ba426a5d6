"""Steps from stage to stage: where they end, what they save, and that the path is the one of a much finer method."""

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import optimistix
import pytest

import jaxflow as jf
from jaxflow.flow.solvers import state_norm
from jaxflow.models import DiagonalLinear, HadamardNetwork
from jaxflow.papers.boix2023.product_paths import StageSteps, follow_products, stage_controller, stage_solver

LOG_ALPHA = -10_000.0
LOG_CONSERVED = np.array([-20_000.0, -20_000.0, -20_000.0])
WAY = 100.0 - 0.5 * np.log(100.0 / 1e-4)


@pytest.mark.parametrize(
    ("before", "after", "reach", "end"),
    [
        # 100 units from the first stage of two, less log(100/1e-4)/2; no error is seen.
        ([-200.0, -300.0, -9000.0], [-100.0, -210.0, -9000.0], 1.0, 100.0 + WAY),
        # A solver that looks further than a step ends needs a shorter one.
        ([-200.0, -300.0, -9000.0], [-100.0, -210.0, -9000.0], 1.25, 100.0 + WAY / 1.25),
        # The mirror image, log(u - v) rising: the same.
        ([-19_800.0, -9000.0, -9000.0], [-19_900.0, -9000.0, -9000.0], 1.0, 100.0 + WAY),
        # Nearly there: half of the way.
        ([-14.0, -9000.0, -9000.0], [-4.0, -9000.0, -9000.0], 1.0, 120.0),
        # Learned and settling, or falling: the inner controller takes ten times the step.
        ([-0.5, -50.0, -9000.0], [-0.499, -60.0, -9000.0], 1.0, 1100.0),
    ],
)
def test_where_a_step_ends(before, after, reach, end):
    inner = diffrax.PIDController(rtol=1e-8, atol=1e-4, norm=state_norm)
    steps = StageSteps(inner, jnp.asarray(LOG_CONSERVED), reach)
    y0, y1, error = [(jnp.asarray(x),) for x in (before, after, [0.0, 0.0, 0.0])]
    term = diffrax.ODETerm(lambda t, y, args: y)
    _, state = steps.init(term, 0.0, 1e9, y0, 100.0, None, diffrax.Tsit5().func, 5)
    found = steps.adapt_step_size(jnp.asarray(0.0), jnp.asarray(100.0), y0, y1, None, error, 5, state)
    # Without an error the inner controller takes ten times the step.
    assert bool(found[0]) and float(found[1]) == 100.0 and float(found[2]) == pytest.approx(end)


def test_a_rejected_step_is_left_to_the_inner_controller():
    steps = stage_controller(stage_solver(), jnp.asarray(LOG_CONSERVED))
    y0, y1 = (jnp.full(3, -200.0),), (jnp.full(3, -4.0),)
    term = diffrax.ODETerm(lambda t, y, args: y)
    _, state = steps.init(term, 0.0, 1e9, y0, 100.0, None, diffrax.Tsit5().func, 5)
    rejected = (jnp.asarray(0.0), jnp.asarray(100.0), y0, y1, None, (jnp.full(3, 1.0),), 5, state)
    assert not bool(steps.adapt_step_size(*rejected)[0])
    assert jnp.array_equal(steps.adapt_step_size(*rejected)[2], steps.inner.adapt_step_size(*rejected)[2])


def test_reach_is_the_largest_node_of_a_method():
    assert stage_controller(diffrax.Kvaerno5(), jnp.zeros(1)).reach == pytest.approx(1.2303, abs=1e-4)
    assert stage_controller(stage_solver(), jnp.zeros(1)).reach == 1.0


def single() -> tuple[jf.EmpiricalRisk, HadamardNetwork]:
    """One product that is learned to be one."""
    risk = jf.EmpiricalRisk(jf.data.LinearData([[1.0]], [1.0]), jf.losses.Squared())
    return risk, HadamardNetwork(DiagonalLinear(), [1.0], [0.5]).scaled(LOG_ALPHA)


@pytest.mark.slow
def test_an_implicit_solver_by_its_name_goes_from_stage_to_stage():
    risk, model = single()
    path = follow_products(risk, model, LOG_ALPHA, 3.0, solver="Kvaerno5")
    # Of the logarithm: a step's tolerance of 2e-4, and it is forgotten at the end.
    assert path.products[-1, 0] == pytest.approx(1.0, abs=1e-8)
    assert path.trajectory.stats["num_rejected_steps"] <= 0.1 * len(path.times)


def test_a_controller_without_tolerances_is_named():
    risk, model = single()
    with pytest.raises(ValueError, match="^controller: .* ConstantStepSize has none"):
        follow_products(risk, model, LOG_ALPHA, 3.0, solver="Kvaerno5", controller=diffrax.ConstantStepSize())


@pytest.mark.slow
def test_the_path_is_that_of_a_finer_method_in_fewer_steps():
    """Diagonal network on a Gram matrix with interactions; three stages at α = e^(−10000)."""
    gram, pull = np.array([[2.0, 0.3, -0.2], [0.3, 1.0, 0.1], [-0.2, 0.1, 0.5]]), np.array([1.0, -0.6, 0.3])
    inputs = np.sqrt(3) * np.linalg.cholesky(gram).T
    risk = jf.EmpiricalRisk(jf.data.LinearData(inputs, np.linalg.solve(inputs.T, 3 * pull)), jf.losses.Squared())
    model = HadamardNetwork.init(jax.random.key(0), DiagonalLinear(), 3).scaled(LOG_ALPHA)
    path = follow_products(risk, model, LOG_ALPHA, 8.0)
    chord = optimistix.Chord(rtol=1e-12, atol=1e-8)
    fine = follow_products(
        risk, model, LOG_ALPHA, 8.0, solver=diffrax.KenCarp5(root_finder=chord),
        controller=diffrax.PIDController(rtol=1e-12, atol=1e-8, pcoeff=0.3, icoeff=0.4, norm=state_norm),
    )  # fmt: skip
    plain = follow_products(
        risk, model, LOG_ALPHA, 8.0, solver=stage_solver(),
        controller=diffrax.PIDController(rtol=1e-8, atol=1e-4, pcoeff=0.3, icoeff=0.4, norm=state_norm),
    )  # fmt: skip
    last = np.asarray(fine.products[-1])
    assert np.all(np.abs(last) > 0.1)
    assert np.allclose(path.products[-1], last, atol=1e-9)
    for i, product in enumerate(last):
        # A hundredth of an e-fold in units of log(1/α): the cubic over the step of about one in which it happens.
        assert path.crossings(i, 0.5 * product) == pytest.approx(fine.crossings(i, 0.5 * product), abs=1e-6)
    # At the steps themselves there is no cubic: 2e-4 of the logarithm in each of the few steps that are remembered.
    assert np.max(np.abs(fine.log_sums_at(path.times) - path.log_sums)) <= 1e-3
    rejected = [int(p.trajectory.stats["num_rejected_steps"]) for p in (path, plain)]
    assert rejected[0] <= 0.5 * rejected[1]
    assert len(path.times) <= len(plain.times)
