"""Every kind of limit draws itself."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxflow as jf


def drawn(figure):
    return figure.axes[0], figure.axes[1], figure.get_suptitle()


def test_attention():
    data, head = jf.data.random_tokens(jax.random.key(0), 3, 4, 3)
    model = jf.models.CombinedAttention.init(jax.random.key(1), data, head)
    limit = jf.find_limit(jf.EmpiricalRisk(data, "logistic"), model)
    way, shown, title = drawn(limit.plot())
    assert title == limit.outcome.name.replace("_", " ")
    assert np.array_equal(np.asarray(shown.images[0].get_array()), limit.direction)
    kept = np.isfinite(np.asarray(limit.rate.gaps))
    assert len(way.lines[0].get_ydata()) == kept.sum() > 2


@pytest.mark.slow
def test_linear_network_beside_its_program():
    data = jf.data.LinearData(jnp.asarray([[1.0, 0.5], [2.0, -1.0]]), jnp.ones(2))
    network = jf.models.DiagonalLinearNetwork((jnp.ones(2), jnp.ones(2)))
    limit = jf.find_limit(jf.EmpiricalRisk(data, "exponential"), network)
    _, shown, _ = drawn(limit.plot())
    # The flow's coefficients under the stems' markers, then the program's.
    assert any(np.array_equal(line.get_ydata(), limit.flow_direction) for line in shown.lines)
    assert any(np.array_equal(line.get_ydata(), limit.program_solution.primal) for line in shown.lines)


def test_a_batch_is_refused():
    data, head = jf.data.random_tokens(jax.random.key(0), 3, 4, 3)
    model = jf.models.CombinedAttention.init(jax.random.key(1), data, head)
    limit = jf.find_limit(jf.EmpiricalRisk(data, "logistic"), model)
    batch = jax.tree.map(lambda x: jnp.stack([x, x]) if eqx.is_array(x) else x, limit)
    with pytest.raises(ValueError, match="plot: one limit is wanted"):
        batch.plot()
