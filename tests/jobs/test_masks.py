"""What stands under a mask changes no outcome, no token and no number."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxflow as jf

MODELS = {
    "W": jf.models.CombinedAttention,
    "KQ": jf.models.FactoredAttention,
    "diagonal": jf.models.DiagonalAttention,
}
N, T, D = 3, 4, 4


@pytest.mark.parametrize("size", [0.0, 1.0, 1e9, 1e200, np.nan])
@pytest.mark.parametrize("name", ["W", "KQ"])
def test_padding_of_any_size(name: str, size: float) -> None:
    """The first visible token is what hidden ones are replaced by: padding by copies of it is the same instance. Zeros
    were taken for a token that stands twice, and large padding for the size of the data."""
    data, head = jf.data.random_tokens(jax.random.key(0), n=N, T=T - 1, d=D)
    model = MODELS[name].init(jax.random.key(1), data, head)
    plain = jf.find_limit(jf.EmpiricalRisk(data, "logistic"), model)
    junk = size * jax.random.normal(jax.random.key(2), (N, 1, D))
    mask = jnp.ones((N, T), bool).at[:, -1].set(False)
    padded = jf.data.TokenData(jnp.concatenate([data.tokens, junk], 1), data.queries, data.labels, mask)
    limit = jf.find_limit(jf.EmpiricalRisk(padded, "logistic"), model)
    assert limit.outcome == plain.outcome and plain.outcome in ("globally_optimal", "locally_optimal")
    np.testing.assert_array_equal(limit.selection[:, :-1], plain.selection)
    # Both are within 1e-8 of the optimum, and apart by twice the root of twice that at most.
    np.testing.assert_allclose(limit.direction, plain.direction, atol=3e-4 * float(jnp.linalg.norm(plain.direction)))


def instance(key: jax.Array, kind: Any) -> tuple[Any, Any, Any]:
    """Two instances that differ under their mask alone, in sizes from 1e-3 to 1e9, and a start."""
    keys = jax.random.split(key, 6)
    data, head = jf.data.random_tokens(keys[0], n=N, T=T, d=D)
    model = kind.init(keys[1], data, head)
    shown = jax.random.bernoulli(keys[2], 0.6, (N, T)).at[:, 0].set(True)
    shown = jax.vmap(jax.random.permutation)(jax.random.split(keys[3], N), shown)
    size = 10.0 ** jax.random.uniform(keys[4], (N, T, 1), minval=-3.0, maxval=9.0)
    junk = size * jax.random.normal(keys[5], (N, T, D))

    def hiding(hidden: Any) -> Any:
        tokens = jnp.where(shown[..., None], data.tokens, hidden)
        return jf.data.TokenData(tokens, data.queries, data.labels, shown)

    return hiding(0.0), hiding(junk), model


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_masked_variants(name: str) -> None:
    for seed in range(5):
        zeros, junk, model = instance(jax.random.fold_in(jax.random.key(9), seed), MODELS[name])
        one, other = (jf.find_limit(jf.EmpiricalRisk(d, "logistic"), model, throw=False) for d in (zeros, junk))
        assert one.outcome == other.outcome
        np.testing.assert_array_equal(one.selection, other.selection)
        for pair in (
            (one.flow_direction, other.flow_direction),
            (one.excess, other.excess),
            (one.flow_certificate.duality_gap, other.flow_certificate.duality_gap),
            (one.stationarity, other.stationarity),
            (one.trajectory.final.log_time, other.trajectory.final.log_time),
            (one.trajectory.final.log_arc_length, other.trajectory.final.log_arc_length),
        ):
            # Gaps are themselves differences that are small beside one.
            np.testing.assert_allclose(*pair, rtol=1e-9, atol=1e-12)
