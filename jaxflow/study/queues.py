"""A block of attention instances, followed in the gears of `find_limit`: a queue of lanes for each gear."""

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from jaxflow._core import compile_beside, compiled_often, require, tree_cast, tree_where
from jaxflow.data import TokenData
from jaxflow.flow import BackwardEuler, MultiplierNewton
from jaxflow.limits import Limit, conclude, find_limit
from jaxflow.limits.attention import AttentionGears, Gear, cap_of, coordinates_of
from jaxflow.limits.find import MAX_STEPS, check_arguments
from jaxflow.limits.many import begun_paths, follow_many, turned
from jaxflow.limits.method import checked_gap
from jaxflow.limits.path import End, Way
from jaxflow.limits.reduction import Reduction, reduced
from jaxflow.limits.stages import fitted_below, kept
from jaxflow.limits.units import Units, units_of
from jaxflow.models import AbstractAttention
from jaxflow.risk import EmpiricalRisk
from jaxflow.study.results import of_one_instance
from jaxflow.study.shapes import CPU, Shapes, device_shapes
from jaxflow.theory import rule_of

# The far stretch of a block, in less than half of the time of Kvaerno5 at 1e-3, to the same tokens (2,000 instances
# with d = 3, 5, 10, 20; two differed from the general implicit method, and Dopri8 at 1e-8 confirmed both).
FAR = MultiplierNewton(BackwardEuler(), change=1e-3, max_iterations=8)


class Instance(eqx.Module):
    """An instance as it is followed: `risk` and the start `model`.

    They may differ from those of `setup`, `whole`, in units (`jaxflow.limits.units`) and in dimensions
    (`jaxflow.limits.reduction`). The limit is that of `whole`.
    """

    risk: EmpiricalRisk
    model: Any
    units: Units | None = None
    small: Reduction | None = None
    whole: tuple[EmpiricalRisk, Any] | None = None

    @staticmethod
    def of(risk: EmpiricalRisk, model: Any) -> "Instance":
        """As `find_limit` follows it by default. **Raises:** as `find_limit`."""
        check_arguments(risk, model, AbstractAttention, None, None)
        small = reduced(risk, model, rule_of(model), shared=True)
        inside = (risk, model) if small is None else (small.risk, small.model)
        units = units_of(*inside)
        return Instance(*(inside if units is None else units.inward(*inside)), units, small, (risk, model))

    def limit(self, way: Way, gap: float) -> Limit:
        """The limit that a path points at; `rounds` of its statistics are explicit stretches."""
        stats = way.path.stats | {"rounds": way.stretches[Gear.explicit].astype(jnp.int32)}
        path = replace(way.path, stats=stats)
        if self.whole is None:
            return conclude(self.risk, self.model, path, gap, rest=way.rest)
        inside = self.whole if self.small is None else (self.small.risk, self.small.model)
        path = path if self.units is None else self.units.outward(path, inside[1])
        found = conclude(*inside, path, gap, rest=replace(way, path=path).rest)
        return found if self.small is None else self.small.lift(self.whole[0], found)


class Gears(eqx.Module):
    """The gears of an instance of a block: `gap` to certify, `rtol` of explicit and implicit steps, `far_rtol` of a
    first try by multipliers."""

    gap: float
    rtol: float = 1e-6
    far_rtol: float = 0.1

    def __call__(self, risk: EmpiricalRisk, model: Any) -> AttentionGears:
        cap = cap_of(model, self.gap)
        return AttentionGears(
            conserved=kept(model),
            gap=self.gap,
            cap=cap,
            far=cap,
            fitted=fitted_below(risk, model),
            path_rtol=self.rtol,
            # A method of order one: a tenth of that takes three times the steps, more than a stretch may.
            rtol=1e-3,
            quick_rtol=self.far_rtol,
            solver=FAR,
            direct=True,
        )


class _NothingSaved:
    """Stands for the save points, and for the rate that is fitted to them, of which a queue keeps none."""

    def __getattr__(self, name: str) -> Any:
        raise ReadsSaves(name)


class ReadsSaves(Exception):
    """A summary reads what a queue does not keep; `find_limit` keeps it."""


class Summary(eqx.Module):
    """The results of a limit, as an experiment summarizes it."""

    experiment: Any

    def __call__(self, limit: Limit) -> dict[str, Any]:
        return of_one_instance(self.experiment.name(), self.experiment.summarize(limit))


class Queues(eqx.Module):
    """How a block of an `experiment` is followed: `draw` makes an `Instance` of a key.

    `gears`: what is certified, and tolerances. `shapes`: lanes of a queue and so on. `scout`: `"double"`, or `"single"`
    for explicit stretches in single precision. `max_steps` of an instance. `method`: follow every instance by
    `find_limit` with this instead.
    """

    experiment: Any
    draw: Callable[[Key[Array, ""]], Instance]
    gears: Gears
    shapes: Shapes
    scout: str = "double"
    max_steps: int = MAX_STEPS
    method: Any = None

    @staticmethod
    def of(experiment: Any, factors: dict[str, Any]) -> "Queues | None":
        """The queues of an experiment's own instances; None where they are no attention with a linear head on
        `TokenData`, all of whose weights are trained."""

        def known(key: Any) -> None:
            risk, model = experiment.setup(key, **factors)
            tokens = isinstance(risk, EmpiricalRisk) and isinstance(getattr(risk, "data", None), TokenData)
            one = isinstance(model, AbstractAttention)
            found.append(tokens and one and coordinates_of(risk, model) is not None)

        found: list[bool] = []
        jax.eval_shape(known, jax.random.key(0))
        if not found[0]:
            return None
        gap = checked_gap(None, jnp.result_type(float))

        def draw(key: Any) -> Instance:
            return Instance.of(*experiment.setup(key, **factors))

        return Queues(experiment, draw, Gears(gap), device_shapes())


def block_in_queues(queues: Queues | None, trial_width: int) -> "Block | None":
    """The function of `trial_width` keys; None where there are no queues, or where a summary reads the rate or save
    points, of which queues keep none."""
    if queues is None:
        return None
    block = Block(queues, trial_width)
    try:
        block.eval_shape(jax.eval_shape(lambda: jax.random.split(jax.random.key(0), trial_width)))
    except ReadsSaves:
        return None
    return block


class Block:
    """A function of keys `(B,)` that gives results `(B, ...)`, and what they look like before they are computed."""

    def __init__(self, queues: Queues, trial_width: int):
        single = queues.scout == "single"
        require(jnp.result_type(float) == jnp.float64 or not single, "scout", "single needs jax_enable_x64")
        self.queues = queues
        self._draw = compiled_often(eqx.filter_vmap(queues.draw))
        # Cells of one experiment share what is compiled, unless its fields cannot be compared.
        summarize = Summary(queues.experiment)
        self._summarize = summarize if _hashable(summarize) else lambda limit: summarize(limit)
        # Arrays of another length may round differently: how a block is divided depends on nothing but its size.
        parts = max(1, min(queues.shapes.parts, trial_width // queues.shapes.lanes))
        self._size = -(-trial_width // parts)
        self._met = False

    def __call__(self, keys: Any) -> dict[str, Any]:
        (device,) = keys.devices()
        home = jax.local_devices(backend="cpu")[0] if self.queues.scout == "single" else device
        size = self._size
        pieces = [keys[np.arange(first, first + size) % len(keys)] for first in range(0, len(keys), size)]

        def part(keys: Any) -> dict[str, Any]:
            with jax.default_device(home):
                return self._follow(self._draw(jax.device_put(keys, home)), device)

        # What is not compiled yet would be compiled by each thread.
        workers = min(len(pieces), os.cpu_count() or 1) if self._met and home.platform == "cpu" else 1
        with ThreadPoolExecutor(workers, thread_name_prefix="part") as threads:
            found = list(threads.map(part, pieces))
        self._met = True
        return jax.tree.map(lambda *tables: np.concatenate(tables)[: len(keys)], *found)

    def eval_shape(self, keys: Any) -> dict[str, Any]:
        """Shapes of the results, a leading axis before them. **Raises:** `ReadsSaves`."""

        def look(keys: Any) -> Any:
            one = self._draw(keys[: self._size])
            if self.queues.method is not None:
                return self._with_method(one)
            ways = begun_paths(self.queues.gears, one.risk, one.model)
            return self._closed(*_take(self._rows(self._size)[0], (one, ways)))

        return eqx.filter_eval_shape(look, keys)

    def _follow(self, instances: Instance, device: Any) -> dict[str, Any]:
        """Results of instances that have been drawn, as NumPy arrays; in single precision they are scouted on
        `device`. The first time what comes last is compiled beside what comes first."""
        queues, risks, models = self.queues, instances.risk, instances.model
        if queues.method is not None:
            return jax.tree.map(np.asarray, self._with_method(instances))

        begun = begun_paths(queues.gears, risks, models)
        compilations = {} if self._met else self._ahead(instances, begun)

        def turn(gear: int, again: bool, risks: Any, models: Any, ways: Way) -> Way:
            if gear in compilations:
                wait([compilations[gear]])
            if queues.scout == "single" and gear == Gear.explicit:
                return self._scouted(again, risks, models, ways, device)
            return self._turned(gear, again, risks, models, ways)

        ways = follow_many(risks, models, begun, turn)
        wait(compilations.values())
        return self._conclude(instances, ways)

    def _ahead(self, instances: Instance, begun: Way) -> dict[int, Future[Any]]:
        """Compilations of the gears and of the conclusion, begun in the order in which they are needed."""
        some = _take(self._rows(self._size)[0], (instances, begun))
        # Scouts are in single precision.
        gears = [gear for gear in Gear if gear != Gear.explicit or self.queues.scout == "double"]
        begun_with = instances.risk, instances.model, begun
        ahead: dict[int, Future[Any]] = {
            gear: compile_beside(turned, *self._stretch(gear, False, *begun_with)) for gear in gears
        }
        ahead[End.ended] = compile_beside(_close, self._summarize, self.queues.gears.gap, *some)
        return ahead

    def _stretch(self, gear: int, again: bool, risks: Any, models: Any, ways: Way) -> tuple[Any, ...]:
        """The arguments of `turned`."""
        queues = self.queues
        lanes = CPU.lanes if queues.scout == "single" and gear != Gear.explicit else queues.shapes.lanes
        most = jnp.asarray(queues.max_steps)
        return queues.gears, gear, jnp.asarray(again), risks, models, ways, most, lanes

    def _turned(self, gear: int, again: bool, risks: Any, models: Any, ways: Way) -> Way:
        return turned(*self._stretch(gear, again, risks, models, ways))

    def _scouted(self, again: bool, risks: Any, models: Any, ways: Way, device: Any) -> Way:
        """Explicit stretches in single precision; those that it gives no selection go again in double."""
        (home,) = ways.gear.devices()
        moved = tree_cast((risks, models, ways), jnp.float32, jnp.int32, device)
        with jax.enable_x64(False), jax.default_device(device):
            found = self._turned(Gear.explicit, again, *moved)
        found = tree_cast(found, jnp.float64, jnp.int64, home)
        open_ = (ways.gear == Gear.explicit) & (found.gear != Gear.multipliers)
        found = _chosen(~open_, found, ways)
        return self._turned(Gear.explicit, again, risks, models, found) if bool(jnp.any(open_)) else found

    def _with_method(self, instances: Instance) -> dict[str, Any]:
        queues = self.queues
        return _one_by_one(self._summarize, queues.gears.gap, queues.method, queues.shapes.lanes, instances)

    def _conclude(self, instances: Instance, ways: Way) -> dict[str, Any]:
        """Outcomes in groups of one size: a batch of programs takes as long as its slowest member."""
        groups = [self._closed(*_take(some, (instances, ways))) for some in self._rows(self._size)]

        def joined(*parts: Any) -> np.ndarray:
            return np.concatenate([np.asarray(part) for part in parts])[: self._size]

        return jax.tree.map(joined, *groups)

    def _closed(self, instances: Instance, ways: Way) -> dict[str, Any]:
        return _close(self._summarize, self.queues.gears.gap, instances, ways)

    def _rows(self, number: int) -> list[np.ndarray]:
        """Instances in groups of one size, the last one filled up."""
        rows, size = np.arange(number), min(self.queues.shapes.programs, number)
        return [np.resize(rows[first : first + size], size) for first in range(0, number, size)]


@compiled_often
def _close(summarize: Callable[[Limit], dict[str, Any]], gap: float, instances: Instance, ways: Way) -> dict[str, Any]:
    def close(instance: Instance, way: Way) -> dict[str, Any]:
        limit, nothing = instance.limit(way, gap), _NothingSaved()

        def kept_nowhere(limit: Limit) -> tuple[Any, Any]:
            return limit.rate, limit.trajectory.saved

        return summarize(eqx.tree_at(kept_nowhere, limit, (nothing, nothing), is_leaf=lambda x: x is None))

    return eqx.filter_vmap(close)(instances, ways)


@compiled_often
def _one_by_one(summarize: Any, gap: float, method: Any, width: int, instances: Instance) -> dict[str, Any]:
    """Another method than the gears of a block, `width` instances at a time."""

    def one(instance: Any) -> dict[str, Any]:
        return summarize(find_limit(instance.risk, instance.model, method=method, gap=gap, throw=False))

    arrays, static = eqx.partition(instances, eqx.is_array)
    return jax.lax.map(lambda x: one(eqx.combine(x, static)), arrays, batch_size=width)


def _hashable(value: Any) -> bool:
    leaves, tree = jax.tree.flatten(value)
    try:
        hash((*leaves, tree))
    except TypeError:
        return False
    return True


_chosen = compiled_often(tree_where)


@compiled_often
def _take(rows: Any, tree: Any) -> Any:
    return jax.tree.map(lambda x: x[rows] if eqx.is_array(x) else x, tree)
