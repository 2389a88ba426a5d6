"""Figures and checks of yun2021: starts, bounds, structure and transforms."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxflow.data import LinearData
from jaxflow.models import decomposition_of
from jaxflow.papers.table import Table
from jaxflow.papers.yun2021 import limit_directions, loss_bounds
from jaxflow.papers.yun2021.closed_forms import point_limit
from jaxflow.papers.yun2021.starts import NETWORKS, start_at
from jaxflow.theory import layer_gap
from tests.papers.recorded import entry_of, letters


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("d", [2, 5])
def test_starts_have_the_prescribed_coefficients_and_satisfy_theorem_5(network: str, d: int) -> None:
    x, z = jnp.linspace(1.0, 2.0, d), jnp.cos(jnp.arange(d) * 1.7)
    start = start_at(network, x, z, 0.3)
    np.testing.assert_allclose(start.linear_coefficients(), 0.09 * z, atol=1e-14)
    assert float(point_limit(start, x, jnp.asarray(1.0)).slack) > 0


@pytest.fixture(scope="module")
def bounds() -> Table:
    keys = jax.random.split(jax.random.key(0), 4)

    def many(one: Any) -> Any:
        found = jax.jit(lambda keys: jax.lax.map(one, keys))(keys)
        return jax.tree.map(lambda x: np.asarray(x)[None], found)

    regressions = [many(lambda key, name=name: loss_bounds.regress(key, name)) for name in loss_bounds.REGRESSIONS]
    squared = jax.tree.map(lambda *x: np.concatenate(x), *regressions)
    parts = {"separable": loss_bounds.classify, "datum": loss_bounds.datum, "stuck": loss_bounds.stuck}
    found = {name: many(lambda key, one=one: one(key, None)) for name, one in parts.items()}
    return Table(found, squared=squared)


def test_the_bound_of_d_1_wants_the_loss_at_the_start(bounds: Table) -> None:
    rows = corrected, printed, *_ = entry_of("yun2021", "bounds").find(bounds)[0]
    verdicts = letters(rows)
    # From few starts is the loss of one data point above the bound as it is printed.
    assert verdicts[:5] + verdicts[6] == "HCHHHH" and corrected.evidence.inside > 0
    assert "as printed" in printed.says


def test_a_random_transform_decomposes_and_satisfies_theorem_2() -> None:
    data = LinearData(jnp.ones((2, 3)), jnp.ones(2))
    network = limit_directions.network_of("transformed", jax.random.key(1), data)
    found = decomposition_of(network)
    assert found.transform.shape == (4, 3)
    np.testing.assert_allclose(found.tensor(), network.data_tensor, atol=1e-12)
    rho = found.singular_coefficients((network.layers[0], jnp.ones(6)))
    assert float(layer_gap(found.transformed(network.layers))) > 0 and rho.shape == (4,)
