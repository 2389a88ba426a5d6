"""Token selection, and more of the same instances."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
from jaxtyping import Array, Key

from jaxflow.study import AbstractExperiment, TokenSelection
from jaxflow.study.experiment import import_named


class SelectionAnd(AbstractExperiment):
    """`TokenSelection` and more of the same instances: a second pass over the same keys, so that the outcomes are those
    of `TokenSelection` alone.

    `more` is `module:name` of a function of `more_settings` and the factors; it gives a function of the keys of a block
    `(b,)`, with further results by name.
    """

    more: str = eqx.field(static=True)
    more_settings: tuple[int, ...] = eqx.field(static=True, default=())
    selection: TokenSelection = eqx.field(default_factory=TokenSelection)
    method: Any = None

    def setup(self, key: Key[Array, ""], **factors: Any) -> tuple[Any, Any]:
        return self.selection.setup(key, **factors)

    def summarize(self, limit: Any) -> dict[str, Any]:
        return self.selection.summarize(limit)

    def replay(self, key: Key[Array, ""], **factors: Any) -> Any:
        return self.selection.replay(key, **factors)

    def name(self) -> str:
        return self.selection.name()

    def signature(self) -> Any:
        return self.selection.signature()

    def definitions(self) -> dict[str, str]:
        return self.selection.definitions()

    def block_function(self, factors: dict[str, Any], trial_width: int) -> Callable[[Any], dict[str, Any]]:
        select = self.selection.block_function(factors, trial_width)
        more = import_named(self.more)(*self.more_settings, factors)
        return lambda keys: {**select(keys), **more(keys)}
