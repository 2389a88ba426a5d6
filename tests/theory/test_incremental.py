"""Algorithm 1 against closed forms, an example in which a coordinate leaves, and the flow itself."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxflow as jf
from jaxflow.models import DiagonalLinear, HadamardNetwork
from jaxflow.papers.boix2023.product_paths import follow_products
from jaxflow.papers.boix2023.toy import stage_slacks
from jaxflow.theory import StageResult, incremental_learning

# A quadratic risk ½ aᵀGa − rᵀa in which a coordinate leaves and comes back with the other sign.
GRAM = np.array([[5.91, -0.39, -2.77], [-0.39, 0.16, 0.43], [-2.77, 0.43, 3.19]])
PULL = np.array([0.7, 0.8, 1.2])


def quadratic(gram, pull):
    """A risk of a linear network with this Gram matrix and gradient at zero."""
    n = len(pull)
    inputs = np.sqrt(n) * np.linalg.cholesky(gram).T
    return jf.EmpiricalRisk(jf.data.LinearData(inputs, np.linalg.solve(inputs.T, n * pull)), jf.losses.Squared())


# Without interaction: ½ Σ G_i a_i² − r_i a_i.
APART = np.array([2.0, 3.0, 0.5]), np.array([0.7, -0.9, 0.15])
# Gram matrix, pull and weight decay; one program predicts them all.
INSTANCES = {
    "leaving": (GRAM, PULL, 0.0),
    "tied": (np.eye(3), [1.0, 1.0, 0.5], 0.0),
    "plain": (np.diag([1.0, 2.0, 4.0]), [1.0, -0.5, 0.25], 0.0),
    "apart": (np.diag(APART[0]), APART[1], 0.2),
    "penalised": (GRAM, PULL, 0.05),
    "nothing": (GRAM, PULL, 1.3),
}


@pytest.fixture(scope="module")
def predicted():
    model = HadamardNetwork.init(jax.random.key(0), DiagonalLinear(), 3)
    risks = [quadratic(gram, np.asarray(pull)) for gram, pull, _ in INSTANCES.values()]
    decays = jnp.asarray([decay for *_, decay in INSTANCES.values()])
    batch = jax.jit(jax.vmap(lambda risk, decay: incremental_learning(risk, model, max_stages=6, decay=decay)))(
        jax.tree.map(lambda *x: jnp.stack(x), *risks), decays
    )
    return {name: jax.tree.map(lambda x, i=i: x[i], batch) for i, name in enumerate(INSTANCES)}


@pytest.fixture(scope="module")
def stages(predicted):
    return predicted["leaving"]


@pytest.mark.slow
def test_supports_of_the_example(stages):
    supports = [set(np.flatnonzero(row)) for row in np.asarray(stages.support)[:4]]
    assert supports == [{2}, {0, 2}, {0, 1}, {0, 1, 2}]
    assert list(stages.results.name) == ["learned"] * 4 + ["finished", "not_run"] and int(stages.count) == 4


@pytest.mark.slow
def test_limits_are_least_squares_on_the_support_to_rounding(stages):
    for row, support in zip(np.asarray(stages.products)[:4], np.asarray(stages.support)[:4], strict=True):
        expected = np.zeros(3)
        expected[support] = np.linalg.solve(GRAM[np.ix_(support, support)], PULL[support])
        # Rounding times the condition of G (77).
        assert np.max(np.abs(row - expected)) <= 1e-13 * np.max(np.abs(expected)) * 77
    assert np.all(np.asarray(stages.residuals)[:4] <= 1e-14)


def test_times_exponents_and_assumptions_by_hand(stages):
    # Stage 1: the largest gradient at zero, T_1 = 1/|g|, and the others' b = 1 - |g_i| T_1 (equations (10) and (12)).
    assert float(stages.times[0]) == pytest.approx(1 / 1.2, rel=1e-14)
    assert np.allclose(stages.exponents[0], [1 - 0.7 / 1.2, 1 - 0.8 / 1.2, 0.0], atol=1e-14)
    assert float(stages.gaps[0]) == pytest.approx(1 / 0.8 - 1 / 1.2, rel=1e-13)
    # A single coordinate a = r/G has curvature 4 a G.
    assert float(stages.curvatures[0]) == pytest.approx(4 * 1.2, rel=1e-12)
    # Coordinate 2 leaves at the third stage: b stays at 0, g < 0, and it returns after 2/|g| as a negative product.
    assert float(stages.leaving[2]) > 0 and np.all(np.isinf(np.asarray(stages.leaving)[[0, 1, 3]]))
    wait = float(stages.times[3] - stages.times[2])
    assert wait == pytest.approx(2 / float(stages.leaving[2]), rel=1e-10)
    assert stages.products[3, 2] < 0 and stages.exponents[3, 2] == 2.0


def test_piecewise_constant_prediction(stages):
    assert jnp.all(stages.weights_at(0.5) == 0.0)
    assert jnp.all(stages.weights_at(1.2) == stages.products[1])
    assert jnp.all(stages.weights_at(1e9) == stages.products[3])


def test_assumptions_are_measured(stages):
    model = HadamardNetwork.init(jax.random.key(0), DiagonalLinear(), 3, log_scale=-10_000.0)
    found = stage_slacks(stages, model)
    assert len(found) == 4 and all(slack > 0 for slack in found)
    assert float(found[1]) == float(np.min(stages.gaps[:4]))
    assert float(found[2]) == float(stages.leaving[2])
    balanced = HadamardNetwork(DiagonalLinear(), jnp.ones(3), jnp.array([0.5, 1.0, 0.5]))
    assert stage_slacks(stages, balanced)[0] == 0


def test_the_flow_passes_the_stages_of_the_example(stages):
    log_alpha, risk = -10_000.0, quadratic(GRAM, PULL)
    start = HadamardNetwork.init(jax.random.key(0), DiagonalLinear(), 3)
    path = follow_products(risk, start.scaled(log_alpha), log_alpha, 75.0)
    times, products = np.asarray(stages.times)[:4], np.asarray(stages.products)[:4]
    for k, coordinate in enumerate(np.asarray(stages.coordinates)[:4]):
        half = path.crossings(int(coordinate), 0.5 * float(products[k, coordinate]))
        # The rate is 1/log(1/α), with a constant of order ten at these stages.
        assert np.min(np.abs(half / times[k] - 1)) <= 2e-3
        end = times[k + 1] if k < 3 else 75.0
        assert np.max(np.abs(path.products_at(0.5 * (times[k] + end))[0] - products[k])) <= 1e-6


def test_equal_pulls_tie_and_others_are_learned_one_after_the_other(predicted):
    tied, plain = predicted["tied"], predicted["plain"]
    # Assumption 4.3.
    assert int(tied.results.value[0]) == StageResult.degenerate and int(tied.count) == 0
    assert int(plain.count) == 3
    assert np.allclose(plain.times[:3], [1.0, 2.0, 4.0], rtol=1e-12)
    assert np.allclose(plain.products[2], [1.0, -0.25, 0.0625], rtol=1e-12)
    assert np.allclose(plain.exponents[2], [0.0, 2.0, 0.0])


@pytest.mark.slow
def test_finite_start_predicts_better_than_its_limit():
    log_alpha = -100.0
    gram, pull = np.eye(2), np.array([1.0, 0.4])
    risk = quadratic(gram, pull)
    model = HadamardNetwork(DiagonalLinear(), [20.0, 20.0], [10.0, 10.0]).scaled(log_alpha)
    path = follow_products(risk, model, log_alpha, 4.0)
    measured = [path.crossings(i, 0.5 * pull[i])[0] for i in range(2)]
    stages = jax.jit(lambda r: incremental_learning(r, model, max_stages=2, log_alpha=log_alpha))(risk)
    error = np.abs(np.asarray(stages.times) - measured)
    # What is left is log(2)/100: half of a product of one is passed that much after w = 1. In the limit, 1/|g|.
    assert np.all(error < 0.5 * np.abs(1.0 / pull - measured)) and error[0] <= 0.01


def test_weight_decay_without_interaction_in_closed_form(predicted):
    # Slopes stay r_i until learned, so a_i = soft(r_i, λ)/G_i at time 1/(|r_i| − λ).
    stages, (gram, pull), decay = predicted["apart"], APART, 0.2
    assert list(stages.results.name)[:3] == ["learned", "learned", "finished"]
    assert list(np.asarray(stages.coordinates)[:2]) == [1, 0]
    # Rounding of a Cholesky factor and its inverse.
    assert np.allclose(stages.times[:2], [1 / 0.7, 1 / 0.5], rtol=1e-13)
    assert np.allclose(stages.products[1], np.sign(pull) * np.maximum(np.abs(pull) - decay, 0.0) / gram, atol=1e-13)
    # b of what is never learned falls behind: its weights decay. A negative product has b̃ = 0, b = 2 + 2λT.
    time = 1 / 0.5
    assert np.allclose(stages.exponents[1], [0.0, 2 + 2 * decay * time, 1 - (0.15 - decay) * time], atol=1e-13)


def test_weight_decay_ends_at_the_minimiser_with_the_l1_penalty(predicted):
    # The example in which a coordinate leaves, with a penalty: KKT conditions at the last stage.
    stages, decay = predicted["penalised"], 0.05
    count = int(stages.count)
    assert stages.results.name[count] == "finished" and count >= 2
    last = np.asarray(stages.products)[count - 1]
    slopes, on = PULL - GRAM @ last, last != 0.0
    # Rounding times the condition of G (77).
    assert np.max(np.abs(slopes[on] - decay * np.sign(last[on]))) <= 1e-13
    assert np.all(np.abs(slopes[~on]) <= decay)
    # Beyond the largest slope nothing is learned at all.
    assert int(predicted["nothing"].count) == 0
