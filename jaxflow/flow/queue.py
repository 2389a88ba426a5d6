"""A queue of lanes at constant width: a lane that has ended is replaced by the next."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from jaxflow._core import checked, tree_where
from jaxflow.flow.drive import Drive, Lane, changing


@checked(least={"width": 1})
def run_queue(drive: Drive, lanes: Lane, *, width: int) -> Lane:
    """Drives a batch of lanes to their ends, `width` of them at a time.

    Under a plain `vmap` all lanes wait for the slowest (measured: median 123 steps, maximum 1,231). Here a lane
    that has ended is replaced by the next of the queue. The width never changes, so that a lane's answer does not
    depend on its neighbours, bit by bit. Idle lanes are never driven.

    **Arguments:** `lanes`: started by `jax.vmap` of `drive.start`, a leading axis of B on every array; `width`:
    lanes that are driven at a time (at most B are used).

    **Returns:** the lanes at their ends, in the order in which they came.
    """
    return counted_queue(drive, lanes, width=width)[0]


def counted_queue(drive: Drive, lanes: Lane, *, width: int) -> tuple[Lane, Int[Array, ""]]:
    """As `run_queue`, and how many times the device stepped a pool of `width` lanes: the cost on a device that needs
    the same time for one lane and for all of them."""
    # What never changes along a path (the problem: tokens, bases) is not carried from step to step.
    marks = jax.tree.map(eqx.is_array, changing(lanes))
    moves = eqx.tree_at(changing, jax.tree.map(lambda _: False, lanes), marks, is_leaf=lambda x: x is None)
    arrays, static = eqx.partition(lanes, eqx.is_array)
    moving, fixed = eqx.partition(arrays, moves)
    width = min(width, lanes.s.shape[0])

    def running(pool: Any, problems: Any) -> Any:
        return jax.vmap(lambda lane, problem: drive.running(eqx.combine(lane, problem, static)))(pool, problems)

    def step(lane: Any, problem: Any) -> Any:
        return eqx.filter(drive.step(eqx.combine(lane, problem, static)), moves)

    def advance(pool: Any, problems: Any) -> Any:
        def body(carry: Any) -> Any:
            count, pool = carry
            going = running(pool, problems)
            # All lanes of the pool take a step, and an implicit one may take many iterations, for which the others
            # would wait. A place without a running lane takes a step of length zero.
            ends = jnp.where(going, pool.s_next, pool.s)
            moved = jax.vmap(step)(eqx.tree_at(lambda lane: lane.s_next, pool, ends), problems)
            return count + 1, tree_where(going, moved, pool)

        begun = jnp.sum(running(pool, problems))

        def some(carry: Any) -> Any:
            # A replacement costs as much as some steps do: not before a lane has ended.
            left = jnp.sum(running(carry[1], problems))
            return (left > 0) & (left == begun)

        return jax.lax.while_loop(some, body, (0, pool))

    # Jobs are rows in this order: first those with a step to take, of which there are `total`.
    waiting = running(moving, fixed)
    order, total = jnp.argsort(~waiting, stable=True), jnp.sum(waiting)

    def lanes_of(jobs: Any) -> Any:
        rows = order[jnp.minimum(jobs, order.size - 1)]
        return jax.tree.map(lambda x: x[rows], (moving, fixed))

    def turn(carry: Any) -> Any:
        pool, problems, jobs, following, done, iterations = carry
        count, pool = advance(pool, problems)
        # A place is free once the result of its lane has been stored; jobs beyond the last are dropped.
        ended = ~running(pool, problems) & (jobs < total)
        where = jnp.where(ended, order[jnp.minimum(jobs, order.size - 1)], order.size)
        done = jax.tree.map(lambda out, lane: out.at[where].set(lane, mode="drop"), done, pool)
        job = following + jnp.cumsum(ended) - 1
        jobs = jnp.where(ended, jnp.minimum(job, total), jobs)
        pool, problems = tree_where(ended & (jobs < total), lanes_of(jobs), (pool, problems))
        return pool, problems, jobs, jnp.minimum(following + jnp.sum(ended), total), done, iterations + count

    first = lanes_of(jnp.arange(width))
    carry = (*first, jnp.arange(width), jnp.asarray(width), moving, jnp.asarray(0))
    *_, done, iterations = jax.lax.while_loop(lambda c: jnp.any(c[2] < total), turn, carry)
    return eqx.combine(done, fixed, static), iterations
