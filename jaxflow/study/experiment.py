"""An experiment: how an instance is made, how its limit is found, and what is kept of it."""

import abc
import dataclasses
import functools
import importlib
import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Key

from jaxflow._core import as_plain, check_name, require
from jaxflow.limits import find_limit
from jaxflow.study.keys import key_data
from jaxflow.study.queues import Queues, block_in_queues
from jaxflow.study.results import of_one_instance


class AbstractExperiment(eqx.Module):
    """What a study repeats. An experiment is written for one instance; the engine batches the instances, stores and
    counts them.

    A subclass defines `setup` and `summarize`; the other methods are hooks with a default. Its fields are settings:
    they are recorded with the results and are the same for every cell. A field `method` is the method of `find_limit`.

    **Example:**

    ```python
    class Starts(jf.study.AbstractExperiment):
        def setup(self, key, d=2):
            start = jf.models.DiagonalLinearNetwork((jnp.ones(d), jnp.ones(d)))
            inputs = jnp.eye(d) + 0.1 * jax.random.normal(key, (d, d))
            return jf.EmpiricalRisk(jf.data.LinearData(inputs, jnp.ones(d)), "exponential"), start

        def summarize(self, limit):
            return {"outcome": limit.outcome, "excess": limit.excess}


    jf.study.Study(Starts(), {"d": [2]}, trials=4)
    ```
    """

    @abc.abstractmethod
    def setup(self, key: Key[Array, ""], **factors: Any) -> tuple[Any, Any]:
        """The risk and the model of one instance. Its keyword arguments are the factors a study may vary."""

    @abc.abstractmethod
    def summarize(self, limit: Any) -> dict[str, Any]:
        """What is kept of a limit: scalars or small arrays, and `outcome` among them.

        Names, shapes and dtypes must be the same in every cell. A `Code` is stored with its names. `outcome` is one of
        `Outcome`, or a `Code` of an enumeration of the experiment's own (0 is `not_run`, 9 `failed`).
        """

    def block_function(self, factors: dict[str, Any], trial_width: int) -> Callable[[Any], dict[str, Any]]:
        """The function of `trial_width` keys `(B,)` that gives the results `(B, ...)` of one cell.

        By default attention with a linear head on `TokenData` is followed in the gears of `find_limit`, each with a
        queue of lanes, if `method` is None and `replay` is not overridden. No points are saved on the way there: where
        `summarize` reads `limit.rate` or `limit.trajectory.saved`, and for any other model, it is `summarize` of
        `find_limit` of `setup`, vmapped and compiled, and every lane pays for the slowest. (In a queue log t is known
        to leading order.) A function with an `eval_shape`, such as one of `jax.jit`, is asked for the shapes of all
        cells before anything is computed.
        """

        def one(key: Any) -> dict[str, Any]:
            return of_one_instance(self.name(), self.summarize(self.replay(key, **factors)))

        return block_in_queues(self.queues(factors), trial_width) or jax.jit(jax.vmap(one))

    def queues(self, factors: dict[str, Any]) -> Queues | None:
        """A hook: how blocks of a cell are followed in queues, None where they are not."""
        own_way = getattr(self, "method", None) is not None or type(self).replay is not AbstractExperiment.replay
        return None if own_way else Queues.of(self, factors)

    def replay(self, key: Key[Array, ""], **factors: Any) -> Any:
        """One instance again, in full: by default its limit with trajectory."""
        risk, model = self.setup(key, **factors)
        return find_limit(risk, model, method=getattr(self, "method", None), throw=False)

    def check_cell(self, **factors: Any) -> None:
        """A hook: raises `ValueError` for factors that no instance can have. A study asks for each of its cells when
        it is made, not when it comes to them."""
        return None

    def name(self) -> str:
        """The name from which the keys are hashed. Two experiments with the same name draw the same instances."""
        return type(self).__name__

    def key_words(self, seed: int, data_factors: Mapping[str, Any], trials: Iterable[int]) -> np.ndarray:
        """The keys of instances as words `(trials, 2)`: by default hashed from names. Another rule must also depend on
        names only, and must not change the key of a trial when more trials are added."""
        return key_data(seed, self.name(), data_factors, trials)

    def signature(self) -> inspect.Signature:
        """The signature that gives the names of the factors: a key, then keyword arguments."""
        return inspect.signature(self.setup)

    def claims_outcome(self) -> bool:
        """Whether `outcome` must be among the results. Without one the engine claims nothing: it records `failed`
        where a real result is NaN and `undecided` elsewhere."""
        return True

    def import_path(self) -> str:
        """`module:name`, from which another process makes this experiment with its settings."""
        return f"{type(self).__module__}:{type(self).__qualname__}"

    def settings(self) -> dict[str, Any]:
        """The fields by name for JSON; values that JSON cannot represent by their `repr`."""
        return {field.name: _for_json(getattr(self, field.name)) for field in dataclasses.fields(self)}

    def padding(self) -> dict[str, int]:
        """A hook: the integer results whose arrays have more entries in some cells than in others, by name, with the
        number that fills up the smaller ones. A study stores them in the size of its largest cell."""
        return {}

    def definitions(self) -> dict[str, str]:
        """A sentence for each result, stored beside it as `long_name`."""
        return {}


class FunctionExperiment(AbstractExperiment):
    """An opaque function `f(key, **factors) -> dict` of scalars or small arrays, vmapped, with or without `outcome`.

    The study counts its result `outcome`: numbers of `Outcome`, or a `Code` of an enumeration of your own.
    """

    function: Callable[..., Any] = eqx.field(static=True)
    label: str = eqx.field(static=True)

    def __init__(self, function: Callable[..., Any], name: str | None = None):
        require(callable(function), "experiment", f"expected an experiment or a function, got {function!r}")
        named = name is None or isinstance(name, str) and name.isprintable()
        require(named, "name", f"expected a name in printable characters, got {name!r}")
        self.function = function
        self.label = name or getattr(function, "__name__", type(function).__name__)

    def setup(self, key: Key[Array, ""], **factors: Any) -> tuple[Any, Any]:
        raise TypeError(f"experiment: {self.label} is a function; it has no risk and no model")

    def summarize(self, limit: Any) -> dict[str, Any]:
        raise TypeError(f"experiment: {self.label} is a function; it has no limit to summarize")

    def block_function(self, factors: dict[str, Any], trial_width: int) -> Callable[[Any], dict[str, Any]]:
        return jax.jit(jax.vmap(lambda key: of_one_instance(self.label, self.function(key, **factors))))

    def replay(self, key: Key[Array, ""], **factors: Any) -> Any:
        return self.function(key, **factors)

    def name(self) -> str:
        return self.label

    def claims_outcome(self) -> bool:
        return False

    def signature(self) -> inspect.Signature:
        return inspect.signature(self.function)

    def import_path(self) -> str:
        return f"{self.function.__module__}:{getattr(self.function, '__qualname__', self.label)}"

    def settings(self) -> dict[str, Any]:
        # Two of `functools.partial` differ in nothing else.
        bound = {name: getattr(self.function, name, None) for name in ("args", "keywords")}
        partial = isinstance(self.function, functools.partial)
        return {"name": self.label} | ({name: _for_json(value) for name, value in bound.items()} if partial else {})


def as_experiment(experiment: Any) -> AbstractExperiment:
    """An experiment as it is; a function wrapped. **Raises:** `ValueError` for anything else."""
    if isinstance(experiment, AbstractExperiment):
        return experiment
    require(
        callable(experiment) and not isinstance(experiment, type),
        "experiment",
        f"expected an experiment (an instance, not its class) or a function, got {experiment!r}",
    )
    return FunctionExperiment(experiment)


def check_factors(experiment: AbstractExperiment, given: Mapping[str, Any]) -> None:
    """**Raises:** `ValueError` for an unknown factor (with the nearest known name), or a missing one."""
    try:
        parameters = list(experiment.signature().parameters.values())
    except (TypeError, ValueError) as error:
        raise ValueError(f"experiment: the arguments of {experiment.name()} cannot be read ({error})") from error
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD, _REST)
    takes = bool(parameters) and parameters[0].kind in positional
    require(takes, "experiment", f"{experiment.name()} takes no key; its first argument is the key of an instance")
    key, *parameters = parameters
    clash = key.name in given and key.kind is not _REST
    require(not clash, "factors", f"{key.name!r} is what {experiment.name()} calls its key")
    named = [p for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        for name in given:
            check_name("factors", name, [p.name for p in named])
    missing = [p.name for p in named if p.default is p.empty and p.name not in given]
    require(not missing, "factors", f"{experiment.name()} needs {', '.join(missing)} as well")


_REST = inspect.Parameter.VAR_POSITIONAL


def import_named(path: str) -> Any:
    """The object that `module:name` names. **Raises:** `ValueError` where there is none."""
    module, _, name = path.partition(":")
    named = bool(name) and all(part.isidentifier() for part in [*module.split("."), *name.split(".")])
    require(named, "experiment", f"expected module:name, got {path!r}")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"experiment: cannot import {path}: {error}") from error
    return found


def make_experiment(path: str, settings: Mapping[str, Any]) -> AbstractExperiment:
    """The experiment at an import path, a class or a function, with its settings."""
    found = import_named(path)
    if isinstance(found, type) and issubclass(found, AbstractExperiment):
        try:
            return found(**settings)
        except TypeError as error:
            raise ValueError(f"settings: {error}") from error
    if isinstance(found, AbstractExperiment):
        require(not settings, "settings", f"{path} is an instance already and takes none")
        return found
    require(callable(found) and not isinstance(found, type), "experiment", f"{path} is no experiment: {found!r}")
    return FunctionExperiment(found, **settings)


def _for_json(value: Any) -> Any:
    try:
        # As a store gives it back: a tuple is a list there.
        return json.loads(json.dumps(value, allow_nan=False, default=as_plain))
    except (TypeError, ValueError):
        return repr(value)
