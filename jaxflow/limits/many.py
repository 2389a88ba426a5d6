"""Many paths at once: a queue of lanes for each gear, in which a path that shifts goes on.

What one path does in one program (`jaxflow.limits.path.follow`) is taken apart here into a program for each gear, which
is compiled when the first path needs it. The host reads which gears are needed, and nothing else.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from jaxflow._core import compiled_often, tree_where
from jaxflow.flow import run_queue
from jaxflow.limits.path import AbstractProblem, End, Start, Way, after, begin, looked_at
from jaxflow.limits.stages import Count
from jaxflow.risk import EmpiricalRisk

# The problem of an instance, from its risk and its start.
Maker = Callable[[EmpiricalRisk, Any], AbstractProblem]
Turn = Callable[[int, bool, EmpiricalRisk, Any, Way], Way]


def follow_many(risks: EmpiricalRisk, starts: Any, begun: Way, turn: Turn) -> Way:
    """Paths to their ends. `begun`: by `begun_paths`; `turn`: one stretch of all paths in a gear that have lost a
    stretch, or of those that have lost none, such as `turned`.

    Every array has a leading axis. An answer depends on nothing but the instance and the width of the queue.
    """
    ways = begun
    while True:
        gears, lost = np.asarray(ways.gear), np.asarray(ways.lost)
        if (gears <= End.doubt).any():
            ways = looked_at_all(risks, ways)
            continue
        waiting = sorted({(int(g), bool(k > 0)) for g, k in zip(gears, lost, strict=True) if g >= 0})
        if not waiting:
            return ways
        # The first gear goes first: most paths begin there, and come to the later ones together.
        ways = turn(*waiting[0], risks, starts, ways)


@compiled_often
def begun_paths(make: Maker, risks: EmpiricalRisk, starts: Any) -> Way:
    """Paths at their starts."""
    return eqx.filter_vmap(lambda risk, model: begin(make(risk, model), risk, model))(risks, starts)


@compiled_often
def looked_at_all(risks: EmpiricalRisk, ways: Way) -> Way:
    """Paths after those in `doubt` were looked at."""
    return eqx.filter_vmap(looked_at)(risks, ways)


@compiled_often
def turned(
    make: Maker,
    gear: int,
    again: Bool[Array, ""],
    risks: EmpiricalRisk,
    starts: Any,
    ways: Way,
    max_steps: Count,
    width: int,
) -> Way:
    """A stretch in a gear of every path that is in it, `width` at a time; `again`: of the paths that have lost a
    stretch before, or of the others; `max_steps` is the budget of each path."""

    def member(tree: Any) -> Any:
        return jax.tree.map(lambda x: x[0] if eqx.is_array(x) else x, tree)

    # What drives a gear is the same for all.
    drive = make(member(risks), member(starts)).drive(gear, member(starts), max_steps, again)
    idle = (ways.gear != gear) | ((ways.lost > 0) != again)

    def lane(risk: Any, start: Any, way: Way, idle: Any) -> Any:
        begun = Start(risk, way.path.final, way.lost, max_steps - jnp.sum(way.steps), idle)
        return make(risk, start).lane(gear, drive, begun)

    lanes = run_queue(drive, eqx.filter_vmap(lane)(risks, starts, ways, idle), width=width)

    def end(risk: Any, start: Any, way: Way, lane: Any) -> Way:
        return after(make(risk, start), gear, risk, way, drive.trajectory(lane), max_steps)

    return tree_where(~idle, eqx.filter_vmap(end)(risks, starts, ways, lanes), ways)
