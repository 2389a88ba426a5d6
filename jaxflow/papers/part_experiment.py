"""A part of a dataset as an experiment of a study."""

import enum
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxflow._core import Code
from jaxflow.papers.table import stacked
from jaxflow.study import AbstractExperiment
from jaxflow.study.experiment import import_named

# Datasets by `Dataset.place`, entered as they are made: importing the papers makes all of theirs.
DATASETS: dict[str, Any] = {}


class Computed(enum.IntEnum):
    """How an instance of a part without an `outcome` of its own ended: nothing is claimed of it."""

    not_run = 0
    computed = 1
    failed = 9


class PartExperiment(AbstractExperiment):
    """A `Part` of the dataset at this place, as an experiment: strings alone, so that any process can make it."""

    where: str = eqx.field(static=True)
    part: str = eqx.field(static=True)
    scale: str = eqx.field(static=True)
    method: Any = None

    def setup(self, key: Any, cell: str) -> Any:
        raise TypeError(f"experiment: {self.name()} is a function of its key; it has no risk and no model")

    def summarize(self, limit: Any) -> dict[str, Any]:
        raise TypeError(f"experiment: {self.name()} is a function of its key; it has no limit to summarize")

    def block_function(self, factors: dict[str, Any], trial_width: int) -> Callable[[Any], dict[str, Any]]:
        part = self._found()[1]
        setting = part.settings(self.scale)[factors["cell"]]
        setting = jax.tree.map(lambda x: jnp.asarray(x) if isinstance(x, np.ndarray) else x, setting)
        # An accelerator steps all lanes at a time; how much it gains has not been measured.
        together = part.way == "together" or jax.default_backend() != "cpu"
        block = {
            "as a block": part.one,
            "on host": lambda keys, setting: stacked(part.one(key, setting) for key in keys),
        }.get(part.way, partial(_together if together else _in_turn, part.one))
        return lambda keys: _with_outcome(block(keys, setting).named)

    def replay(self, key: Any, **factors: Any) -> Any:
        part = self._found()[1]
        setting = part.settings(self.scale)[factors["cell"]]
        if part.way == "as a block":
            return jax.tree.map(lambda x: x[0], part.one(key[None], setting))
        return part.one(key, setting)

    def key_words(self, seed: int, data_factors: Mapping[str, Any], trials: Iterable[int]) -> np.ndarray:
        part = self._found()[1]
        if part.draw_from is None:
            return super().key_words(seed, data_factors, trials)
        cell = part.draw_from(seed, part.settings(self.scale)[data_factors["cell"]])
        keys = jax.vmap(partial(jax.random.fold_in, cell))(jnp.asarray(list(trials)))
        return np.asarray(jax.random.key_data(keys))

    def name(self) -> str:
        dataset, part = self._found()
        own = part.instances or self.part
        return f"{dataset.paper}.{own}" if "." in own else f"{dataset.paper}.{dataset.name}.{own}"

    def settings(self) -> dict[str, Any]:
        return {"where": self.where, "part": self.part, "scale": self.scale}

    def _found(self) -> tuple[Any, Any]:
        dataset = import_named(self.where) if ":" in self.where else DATASETS[self.where]
        return dataset, dataset.parts[self.part]


@eqx.filter_jit
def _together(one: Callable[..., Any], keys: Array, setting: Any) -> Any:
    return jax.vmap(lambda key: one(key, setting))(keys)


@eqx.filter_jit
def _in_turn(one: Callable[..., Any], keys: Array, setting: Any) -> Any:
    return jax.lax.map(lambda key: one(key, setting), keys)


def _with_outcome(results: dict[str, Any]) -> dict[str, Any]:
    """Results with an outcome: their own, or of `Computed` where they are `ok`."""
    if "outcome" in results:
        return results
    ok = np.asarray(results.get("ok", np.ones(len(next(iter(results.values()))), bool)))
    return results | {"outcome": Code(np.where(ok, Computed.computed, Computed.failed), Computed)}
