"""The loop over gears: one path in stretches, each by the method that it needs, until it ends.

A **gear** is how a stretch is followed: coordinates, clock, solver, controller, and the rules that end it. A problem
(one for each model family) has a few of them, and chooses the next one after each stretch. The path keeps one
ledger of log t, lengths and steps, and one budget. A study follows many paths by the same functions, with a queue of
lanes for each gear (`jaxflow.limits.many`).
"""

import abc
import enum
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, NamedTuple, ParamSpec, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxflow._core import RESULTS, Code, compiled_around, compiled_once, good, is_concrete, strongly_typed
from jaxflow._core.linalg import ROUNDED
from jaxflow._core.trees import tree_norm, tree_scale, tree_where
from jaxflow.flow import Drive, Lane
from jaxflow.limits.stages import Count, Rest, minimum_near, stationarity
from jaxflow.risk import EmpiricalRisk
from jaxflow.trajectory import Point, Regime, Trajectory

P = ParamSpec("P")
R = TypeVar("R")

COUNTS = ("num_steps", "num_accepted_steps", "num_rejected_steps", "num_failed_solves")


class End(enum.IntEnum):
    """What stands for a gear.

    - `ended`: the path has come to its end. `rests`: a minimum of the loss was found there.
    - `doubt`: pushes cancel, and it has to be seen whether a minimum is there; `doubt - k` stands for the gear k that
      follows if not.
    """

    ended = -1
    rests = -2
    doubt = -3


class Way(eqx.Module):
    """A path under way.

    - `path`: from the start to where it is now; its result is that of the last stretch.
    - `gear`: the next one, or what stands for one. `lost`: how many stretches were dropped or ended where pushes
      cancel and no minimum is.
    - `steps`, `stretches` `(gears,)`: of each gear, those of dropped stretches included.
    - `error`: of a minimum that was found; the model at the path's end is then there.
    """

    path: Trajectory
    gear: Int[Array, ""]
    lost: Int[Array, ""]
    steps: Int[Array, " gears"]
    stretches: Int[Array, " gears"]
    error: Float[Array, ""]

    @property
    def rest(self) -> Rest:
        """What was found at the end of a path that was looked at."""
        return Rest(self.gear == End.rests, self.path.final.model, self.error)


class Shift(NamedTuple):
    """What follows a stretch: the next gear, or what stands for one; and whether the stretch belongs to the path, or is
    dropped."""

    gear: Int[Array, ""]
    keep: Bool[Array, ""]


class Start(NamedTuple):
    """Where a stretch begins: an instance, where its path is now, how many stretches it has lost, the steps that are
    left, and whether the lane stands for a path that is elsewhere."""

    risk: EmpiricalRisk
    here: Point
    lost: Int[Array, ""]
    budget: Count
    idle: Bool[Array, ""] | bool = False

    @property
    def beyond(self) -> Float[Array, ""]:
        """Log of how much longer the weights are than those of the model that stands for them beyond a cap."""
        return _beyond(self.risk, self.here)

    @property
    def unit(self) -> Float[Array, ""]:
        """Of a logarithmic clock: the size of the weights, also where the path was longer and has come back."""
        here = self.here
        return jnp.exp(jnp.maximum(here.log_norm, jnp.log(ROUNDED) + here.log_arc_length) - self.beyond)

    def lane(self, drive: Drive, **how: Any) -> Lane:
        """A lane of `drive` from here, in coordinates and by a clock as `Drive.start` takes them."""
        return drive.start(self.risk, self.here.model, budget=self.budget, idle=self.idle, **how)


class AbstractProblem(eqx.Module):
    """The gears of a model family, and when one follows another.

    Methods are written for one instance. `gear` is a number of Python, an index of `gears`; a path starts in the first.
    """

    saves: eqx.AbstractVar[int]
    # Whether a stretch may end in `doubt`.
    doubts: ClassVar[bool] = False

    @property
    @abc.abstractmethod
    def gears(self) -> tuple[str, ...]:
        """Their names."""

    @property
    def long(self) -> bool:
        """Whether the steps of a path cost more than compiling a faster program for them does."""
        return False

    @property
    def log_cap(self) -> Float[Array, ""] | None:
        """Log of the length at which a path that goes on from beyond a cap does so; None where gears have none."""
        return None

    @abc.abstractmethod
    def drive(self, gear: int, model: Any, max_steps: Count, again: Bool[Array, ""]) -> Drive:
        """What drives a stretch of a model of this class in a gear, with at most its share of all steps; `again`: after
        a stretch of the path was lost."""

    @abc.abstractmethod
    def lane(self, gear: int, drive: Drive, start: Start) -> Lane:
        """A lane at the start of the next stretch."""

    @abc.abstractmethod
    def shift(self, gear: int, risk: EmpiricalRisk, lost: Int[Array, ""], stretch: Trajectory) -> Shift:
        """What follows a stretch that has ended."""


def begin(problem: AbstractProblem, risk: EmpiricalRisk, model: Any) -> Way:
    """A path at its start, of length zero."""
    log_norm = jnp.log(tree_norm(eqx.filter(model, risk.filter(model))))
    # Of the types that later stretches have: another type is another program to compile.
    zero, nothing = jnp.zeros((), int), jnp.full((), -jnp.inf, log_norm.dtype)
    here = Point(model, nothing, nothing, nothing, log_norm, nothing, nothing, None, None, jnp.asarray(True))

    def first() -> Trajectory:
        drive = problem.drive(0, model, 1, jnp.asarray(False))
        return drive.trajectory(problem.lane(0, drive, Start(risk, here, zero, 1, True)))

    # The shapes of a path, and nothing that would have to be computed.
    shapes, fixed = eqx.partition(eqx.filter_eval_shape(first), lambda x: isinstance(x, jax.ShapeDtypeStruct))
    blank: Trajectory = eqx.combine(jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes), fixed)
    # It has no gradient yet, and no save point of a later gear is reached.
    final = replace(here, velocity=blank.final.velocity, multipliers=blank.final.multipliers)
    saved = jax.tree.map(lambda x: jnp.zeros((problem.saves, *x.shape), x.dtype) if eqx.is_array(x) else x, final)
    # A solver's own numbers end with its stretch.
    stats = {name: blank.stats[name] for name in COUNTS}
    path = replace(blank, final=final, saved=saved if problem.saves else None, stats=stats)
    steps = jnp.zeros(len(problem.gears), int)
    return Way(_counted(path, problem, steps), zero, zero, steps, steps, jnp.full_like(log_norm, jnp.inf))


def after(problem: AbstractProblem, gear: int, risk: EmpiricalRisk, way: Way, stretch: Trajectory, most: Count) -> Way:
    """The way after a stretch in a gear: joined to the path, or dropped, and the next gear."""
    following, keep = problem.shift(gear, risk, way.lost, stretch)
    # A stretch of no step is a turn of the loop all the same.
    steps = way.steps.at[gear].add(jnp.maximum(stretch.stats["num_steps"], 1))
    path = joined(risk, way.path, stretch, keep)
    spent = (following >= 0) & (jnp.sum(steps) >= most)
    exhausted: Any = RESULTS.max_steps_reached
    # A path that has come to its end has its result, wherever the budget ends.
    path = replace(path, result=RESULTS.where(spent, exhausted, path.result))
    if problem.log_cap is not None:
        model = _at_cap(risk, path.final, following, problem.log_cap)
        path = replace(path, final=replace(path.final, model=model))
    lost = way.lost + ~keep
    stretches = way.stretches.at[gear].add(1)
    return Way(
        _counted(path, problem, steps), jnp.where(spent, End.ended, following), lost, steps, stretches, way.error
    )


def follow(problem: AbstractProblem, risk: EmpiricalRisk, model: Any, max_steps: Count) -> Trajectory:
    """The path of one model to its end."""
    return go_on(problem, risk, begin(problem, risk, model), max_steps).path


def go_on(problem: AbstractProblem, risk: EmpiricalRisk, way: Way, max_steps: Count) -> Way:
    """A path to its end. Of one concrete instance each gear is a program, compiled when the path first needs it."""
    if is_concrete(problem, risk, way, max_steps, jnp.zeros(())):
        # As an array: another budget compiles nothing.
        most: Any = np.asarray(max_steps)
        while (gear := int(way.gear)) not in (End.ended, End.rests):
            way = _looked_at(risk, way) if gear <= End.doubt else _stretch(problem, gear, risk, way, most)
        return way
    arrays, fixed = eqx.partition(way, eqx.is_array)

    def turn(arrays: Any) -> Any:
        # Every gear in its order, idle where another one is due: XLA compiles a choice of branches half as fast again.
        way = eqx.combine(arrays, fixed)
        for gear in range(len(problem.gears)):
            idle = way.gear != gear
            moved = _turned(problem, gear, risk, way, max_steps, idle)
            way = tree_where(~idle, moved, way)
        return eqx.filter(looked_at(risk, way) if problem.doubts else way, eqx.is_array)

    return eqx.combine(jax.lax.while_loop(lambda way: ~ended(way), turn, arrays), fixed)


def ended(way: Way) -> Bool[Array, "..."]:
    """Whether nothing follows."""
    return (way.gear == End.ended) | (way.gear == End.rests)


def looked_at(risk: EmpiricalRisk, way: Way) -> Way:
    """The way after it was seen whether a minimum is near a path that is in `doubt`: it ends there. Else it goes on
    while its gradient has digits."""
    here, doubt = way.path.final, way.gear <= End.doubt
    found, model, error = minimum_near(risk, here, doubt)
    following = jnp.where(stationarity(here) > ROUNDED, End.doubt - way.gear, End.ended)
    gear = jnp.where(doubt, jnp.where(found, End.rests, following), way.gear)
    path, error = replace(way.path, final=replace(here, model=model)), jnp.where(doubt, error, way.error)
    return replace(way, path=path, gear=gear, lost=way.lost + (doubt & ~found), error=error)


_looked_at = compiled_once(looked_at)


class Underway(NamedTuple):
    """What is followed (by one problem or several), and `known`: what the limit is concluded from beside it."""

    problems: tuple[AbstractProblem, ...]
    ways: tuple[Way, ...]
    risk: EmpiricalRisk
    max_steps: Count
    known: Any

    @property
    def path(self) -> Trajectory:
        """Of the last problem."""
        return self.ways[-1].path


def under_way(
    problems: tuple[AbstractProblem, ...], risk: EmpiricalRisk, model: Any, max_steps: Count, known: Any
) -> Underway:
    """Paths at their start."""
    return Underway(problems, tuple(begin(problem, risk, model) for problem in problems), risk, max_steps, known)


def _followed(one: Underway) -> Underway:
    ways = (go_on(p, one.risk, way, one.max_steps) for p, way in zip(one.problems, one.ways, strict=True))
    return one._replace(ways=tuple(ways))


def by_gears(
    begun: Callable[P, Underway], concluded: Callable[[Underway], R], long: Callable[..., bool] | None = None
) -> Callable[P, R]:
    """A function that follows an instance from where `begun` puts it, and concludes; compiled in full where `long`."""
    return compiled_around(begun, _followed, concluded, long)


def _turned(
    problem: AbstractProblem, gear: int, risk: EmpiricalRisk, way: Way, max_steps: Count, idle: Bool[Array, ""] | bool
) -> Way:
    """The way after a stretch in a gear."""
    here = way.path.final
    drive = problem.drive(gear, here.model, max_steps, way.lost > 0)
    lane = problem.lane(gear, drive, Start(risk, here, way.lost, max_steps - jnp.sum(way.steps), idle))
    return after(problem, gear, risk, way, drive.trajectory(drive.run(lane)), max_steps)


@partial(compiled_once, long=lambda problem, *_: problem.long)
def _stretch(problem: AbstractProblem, gear: int, risk: EmpiricalRisk, way: Way, max_steps: Count) -> Way:
    return strongly_typed(_turned(problem, gear, risk, way, max_steps, False))


def _counted(path: Trajectory, problem: AbstractProblem, steps: Int[Array, " gears"]) -> Trajectory:
    """The path with the steps of each gear among its numbers."""
    counted = {f"num_{name}_steps": steps[k] for k, name in enumerate(problem.gears)}
    return replace(path, stats=path.stats | counted)


def _beyond(risk: EmpiricalRisk, here: Point) -> Float[Array, ""]:
    beyond = here.log_norm - jnp.log(tree_norm(eqx.filter(here.model, risk.filter(here.model))))
    # Weights of zero are no longer than they are.
    return jnp.where(beyond > 0, beyond, 0.0)


def _at_cap(risk: EmpiricalRisk, here: Point, following: Int[Array, ""], log_cap: Float[Array, ""]) -> Any:
    """The model from which a path goes on: as long as the weights, and at most as the cap. A path that has come back
    from beyond it ends at a point, or leaves its tokens, at the length of the weights and not of what stands for them.
    """
    moving, fixed = eqx.partition(here.model, risk.filter(here.model))
    longer = jnp.clip(log_cap - jnp.log(tree_norm(moving)), 0.0, _beyond(risk, here))
    return eqx.combine(tree_scale(jnp.exp(jnp.where(following >= 0, longer, 0.0)), moving), fixed)


def joined(risk: EmpiricalRisk, first: Trajectory, second: Trajectory, keep: Bool[Array, ""]) -> Trajectory:
    """One path of two; where the second is not kept, the first, with the steps of both. Where the first has ended
    beyond a cap, the second is that of a smaller model, and so are its lengths and exponents."""
    start = first.final
    beyond, degree = _beyond(risk, start), getattr(start.model, "degree", 1)
    lengths = beyond * (degree if isinstance(degree, int) else 1)

    def shift(point: Point) -> Point:
        log_time = jnp.logaddexp(start.log_time, point.log_time * jnp.exp(lengths))
        # Where log t overflows, what was before does not count.
        log_log_time = jnp.where(jnp.isinf(log_time), point.log_log_time + lengths, jnp.log(jnp.maximum(log_time, 0.0)))
        log_scale = point.log_scale * jnp.exp(lengths)
        # Both may be minus infinity on a path that has no cap.
        steeper = jnp.where(lengths > 0, log_scale - point.log_scale + lengths - beyond, 0.0)
        return replace(
            point,
            log_time=log_time,
            log_log_time=log_log_time,
            log_arc_length=jnp.logaddexp(start.log_arc_length, point.log_arc_length + beyond),
            log_norm=point.log_norm + beyond,
            log_scale=log_scale,
            log_gradient_norm=point.log_gradient_norm + steeper,
        )

    saved = first.saved
    if saved is not None and second.saved is not None:
        # The points of the last stretch that has reached any.
        later = shift(second.saved)
        saved = tree_where(keep & jnp.any(later.reached), later, saved)
    stats = {name: first.stats[name] + second.stats[name] for name in COUNTS}
    # A path is as exact as the least exact of its stretches.
    regime = Code(jnp.where(keep, jnp.maximum(first.regime.value, second.regime.value), first.regime.value), Regime)
    final = tree_where(keep, shift(second.final), start)
    return Trajectory(final, saved, regime, RESULTS.where(keep, second.result, first.result), stats)


def out_of_steps(path: Trajectory) -> Bool[Array, ""]:
    """Whether a path ended because its budget did."""
    return (path.result == RESULTS.max_steps_reached) | (path.result == RESULTS.max_steps_rejected)


def broken(path: Trajectory) -> Bool[Array, ""]:
    """Whether a path ended otherwise than by a rule, at its end, or out of steps."""
    return ~(good(path.result) | out_of_steps(path))
