"""The hard-margin flow of many weights: steps by products against those by a matrix, and a limit of such a model."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxflow as jf
from jaxflow.flow import hard_margin_flow, hard_margin_step
from tests.limits.models import TwoLayers, kkt_residual_of

N, D, WIDTH = 8, 3, 10


def network(seed, activation=jax.nn.relu, n=N, d=D, width=WIDTH):
    """Margins of a network of two layers, and a start whose own labels they are of: it fits them."""
    keys = jax.random.split(jax.random.key(seed), 2)
    inputs = jax.random.normal(keys[0], (n, d))
    start = jax.random.normal(keys[1], (width * (d + 1),))

    def outputs(theta):
        return activation(inputs @ theta[: width * d].reshape(width, d).T) @ theta[width * d :]

    labels = jnp.sign(outputs(start))
    return (lambda theta: labels * outputs(theta)), start


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_products_and_a_matrix_lead_to_one_limit(monkeypatch, seed) -> None:
    margins, start = network(seed)
    found = []
    # By a matrix; by products, with short vectors where few kinks slide, and with long ones throughout.
    for dense, few in ((500, 8), (0, 8), (0, 1)):
        monkeypatch.setattr(hard_margin_step, "DENSE", dense)
        monkeypatch.setattr(hard_margin_step, "FEW", few)
        path = hard_margin_flow(margins, start, jnp.asarray(2.0), present=jnp.ones(N, bool), target=1e-9)
        assert bool(path.converged) and float(path.residual) <= 1e-9
        found.append(path)
    one, *others = (np.asarray(path.state.weights / jnp.linalg.norm(path.state.weights)) for path in found)
    for other, path in zip(others, found[1:], strict=True):
        # Step sizes, and with these the ends, differ by no more than the errors of the paths.
        assert np.linalg.norm(one - other) <= float(found[0].error + path.error) + 1e-8
        np.testing.assert_allclose(found[0].error, path.error, rtol=0.5)


@pytest.mark.slow
@pytest.mark.parametrize("kinks", [False, True])
def test_the_error_of_a_path_is_the_one_that_it_estimates(kinks) -> None:
    """Beside the path at a thousandth of the tolerance, to one e-fold of the norm and to three."""
    margins, start = network(1) if kinks else network(1, lambda hidden: hidden * jnp.abs(hidden))
    degree = jnp.asarray(2.0 if kinks else 3.0)

    @partial(jax.jit, static_argnums=0)
    def end(tolerance, until):
        path = hard_margin_flow(
            margins, start, degree, present=jnp.ones(N, bool), target=1e-12, tolerance=tolerance, until=until
        )
        return path.state.weights / jnp.linalg.norm(path.state.weights), path.error, path.log_growth, path.steps

    for until in (1.0, 3.0):
        (coarse, error, grown, few), (fine, _, _, many) = (end(t, until) for t in (1e-3, 1e-6))
        np.testing.assert_allclose(grown, until, rtol=1e-11)
        # Of third order: a thousandth of the tolerance takes at most ten times the steps, and those of the start.
        assert 2 * few <= many <= 20 * few
        assert 1e-6 < np.linalg.norm(coarse - fine) <= 3.0 * error


@pytest.mark.slow
def test_a_network_of_many_weights_ends_at_a_kkt_point() -> None:
    """Of 510 weights, for which no matrix is made; and progress on the way."""
    keys = jax.random.split(jax.random.key(0), 4)
    inputs = jax.random.normal(keys[0], (10, 16))
    labels = np.sign(inputs @ jax.random.normal(keys[1], (16,)))
    model = TwoLayers(0.2 * jax.random.normal(keys[2], (30, 16)), 0.1 * jax.random.normal(keys[3], (30,)))
    assert sum(x.size for x in jax.tree.leaves(model)) > hard_margin_step.DENSE
    lines: list[str] = []
    limit = jf.find_limit(jf.EmpiricalRisk((inputs, labels), "logistic"), model, progress=lines.append)
    assert limit.outcome == "kkt_point" and any("hard-margin flow: " in line for line in lines)
    kkt_residual_of(inputs, labels[:, None, None], limit)


@pytest.mark.slow
def test_a_unit_that_fades_out_does_not_come_back_on_the_other_side() -> None:
    """Where the formula's base of a weight may change its sign, these paths end at other KKT points, 0.38 to 0.54
    away, until the tolerance is 1e-5 or less."""

    @partial(jax.jit, static_argnums=1)
    def end(seed, tolerance):
        margins, start = network(seed, n=14, d=4, width=12)
        path = hard_margin_flow(
            margins, start, jnp.asarray(2.0), present=jnp.ones(14, bool), target=1e-9, tolerance=tolerance
        )
        return path.state.weights / jnp.linalg.norm(path.state.weights), path.error, path.converged

    for seed in (12, 14, 15):
        (coarse, error, _), (fine, *_) = found = [end(seed, tolerance) for tolerance in (1e-4, 1e-6)]
        assert all(converged for *_, converged in found)
        assert jnp.linalg.norm(coarse - fine) <= error <= 0.02
