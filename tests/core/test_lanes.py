"""A loop over the lanes of a batch on CPU is the function it is made of, and no lane waits for another."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxflow._core import one_lane_at_a_time


class Pair(eqx.Module):
    x: jax.Array
    name: str = eqx.field(static=True)


@one_lane_at_a_time
def _halved(pair, least, power: int):
    """How often x is halved until it is below `least`, and what else an answer may hold."""
    assert isinstance(power, int)  # numbers of Python are fixed in the program

    def body(carry):
        return carry[0] / 2.0, carry[1] + 1

    x, count = jax.lax.while_loop(lambda carry: carry[0] > least, body, (pair.x, jnp.asarray(0)))
    return Pair(x**power, pair.name), {"count": count, "text": pair.name, "nothing": None}


XS = jnp.array([1.0, 100.0, jnp.nan, 0.1])
COUNTS = [0, 7, 0, 0]  # 100 / 2^7 < 1; NaN is above nothing


def _counts(found):
    pair, rest = found
    assert pair.name == rest["text"] == "fixed" and rest["nothing"] is None
    return np.asarray(rest["count"]).tolist()


def test_every_lane_is_its_own_and_structures_are_kept():
    alone = [_halved(Pair(x, "fixed"), 1.0, 2) for x in XS]
    assert [int(rest["count"]) for _, rest in alone] == COUNTS
    for run in (lambda f: jax.vmap(f)(XS), lambda f: jax.jit(jax.vmap(f))(XS), lambda f: jax.lax.map(f, XS)):
        found = run(lambda x: _halved(Pair(x, "fixed"), 1.0, 2)[1]["count"])
        assert np.asarray(found).tolist() == COUNTS
    # An argument of NumPy that all lanes share.
    found = eqx.filter_vmap(lambda x: _halved(Pair(x, "fixed"), np.asarray(1.0), 2))(XS)
    assert _counts(found) == COUNTS
    np.testing.assert_array_equal(found[0].x, jnp.stack([pair.x for pair, _ in alone]))


def test_batches_of_batches_and_of_another_argument():
    least = jnp.array([1.0, 10.0])
    found = jax.jit(jax.vmap(jax.vmap(lambda x, y: _halved(Pair(x, "a"), y, 1)[0].x, (0, None)), (None, 0)))(XS, least)
    expected = [[_halved(Pair(x, "a"), y, 1)[0].x for x in XS] for y in least]
    np.testing.assert_array_equal(found, np.asarray(expected))


def test_derivatives_pass_forwards():
    one = lambda x: _halved(Pair(x, "a"), 1.0, 2)[0].x  # noqa: E731
    _, slopes = jax.jvp(jax.vmap(one), (XS[:2],), (jnp.ones(2),))
    # d(x/2^k)² = 2x/4^k.
    np.testing.assert_allclose(slopes, [2.0, 200.0 / 4.0**7], rtol=1e-15)


@pytest.mark.parametrize(("platform", "loops"), [("cpu", True), ("cuda", False)])
def test_the_loop_over_lanes_is_there_on_cpu_alone(platform, loops):
    run = jax.jit(jax.vmap(lambda x: _halved(Pair(x, "a"), 1.0, 2)[0].x))
    text = run.trace(XS).lower(lowering_platforms=(platform,)).as_text()
    # The function's own loop, and the one over lanes.
    assert text.count("stablehlo.while") == (2 if loops else 1)
