"""`Study`: an experiment, the factors to vary, and how often."""

import itertools
from collections.abc import Mapping, Set
from typing import Any, SupportsIndex

from jaxflow._core import as_html, as_integer, as_path, as_plain, check_name, checked, require, shortened
from jaxflow.study.blocks import Computer, common_layout, filled_up, job_of
from jaxflow.study.executors import make_engine
from jaxflow.study.experiment import AbstractExperiment, as_experiment, check_factors
from jaxflow.study.files import StorePath, explained, only_writer, write_log
from jaxflow.study.keys import as_keys
from jaxflow.study.metadata import read_head
from jaxflow.study.pictures import plot
from jaxflow.study.plan import Plan, check_factor
from jaxflow.study.progress import progress_of
from jaxflow.study.reading import Status, open_results, status
from jaxflow.study.run import Run
from jaxflow.study.shapes import device_shapes
from jaxflow.study.store import Store

# Values of one factor.
MOST_VALUES = 10**6


class Study:
    """A Monte Carlo study: `trials` instances for each combination of the factors, each ending in one outcome.

    **Arguments:**

    - `experiment`: an `AbstractExperiment`, or a function `f(key, **factors) -> dict`.
    - `data_factors`: values by name. They determine the instance and are part of its key. `method_factors`: values by
      name. They are not part of the key, so that all methods are run on the same instances. Values are numbers,
      Booleans or strings; the axes of the results have the names and the order of the factors.
    - `trials`: instances in each cell; `seed`: of the study.
    - `block`: trials computed together, the width of every batch; by default 256 on a CPU, 4,096 on an accelerator.
      Results are equal bit by bit for equal blocks. A block is one chunk of the store; an interruption loses the blocks
      in progress.

    **Raises:** `ValueError` that names the argument: unknown factors (with the nearest name), factors without
    values, a value twice, no trials.

    **Example:**

    ```python
    study = jf.study.Study(jf.study.TokenSelection(), {"d": [2, 4]}, {"parametrization": ["W", "KQ"]}, trials=500)
    # study.run("selection.zarr"), and study.replay(d=4, parametrization="W", trial=17)
    ```
    """

    def __init__(
        self,
        experiment: Any,
        data_factors: Mapping[str, Any] | None = None,
        method_factors: Mapping[str, Any] | None = None,
        *,
        trials: SupportsIndex = 500,
        seed: SupportsIndex = 0,
        block: SupportsIndex | None = None,
    ):
        self.experiment: AbstractExperiment = as_experiment(experiment)
        name, path, settings = self.experiment.name(), self.experiment.import_path(), self.experiment.settings()
        data, method = _values("data_factors", data_factors), _values("method_factors", method_factors)
        check_factors(self.experiment, {**data, **method})
        self.plan = Plan(
            experiment={"name": name, "import": path, "settings": settings},
            data_factors=data,
            method_factors=method,
            trials=as_plain(trials),
            seed=as_plain(seed),
            block=device_shapes().block if block is None else as_plain(block),
        )
        if type(self.experiment).check_cell is not AbstractExperiment.check_cell:
            for index in itertools.product(*(range(count) for count in self.plan.cells)):
                self.experiment.check_cell(**self.plan.values_at(index))

    def __repr__(self) -> str:
        plan = self.plan
        factors = [f"{name} in {list(values)}" for name, values in (plan.data_factors | plan.method_factors).items()]
        cells = " x ".join(factors) or "one cell"
        how = f"{plan.trials} trials each, seed {plan.seed}, blocks of {plan.block}"
        return shortened(f"Study of {plan.experiment['name']}: {cells}, {how}")

    def _repr_html_(self) -> str:
        return as_html(repr(self))

    @checked()
    def run(
        self,
        store_path: StorePath,
        executor: Any = None,
        progress: bool = True,
        overwrite: bool = False,
        allow_mixed: bool = False,
    ) -> Any:
        """Computes the missing blocks of the store. If a run was interrupted at any moment, the same call resumes it.

        A store of the same study with fewer trials is extended: its instances stay the same to the bit, and only the
        others are computed.

        **Arguments:**

        - `store_path`: a folder, by custom ending in `.zarr`. Times and hosts go to `<store_path>.side`.
        - `executor`: None (one block at a time), `"devices"` (all local ones), `"dask"` (a cluster on this
          machine), `"tcp://host:port"` (a Dask scheduler), or any executor of `concurrent.futures`. The results
          do not depend on it.
        - `overwrite`: replace a study that the store holds.
        - `allow_mixed`: continue results of other versions or another kind of device; the store records it.

        **Returns:** an `xarray.Dataset`, read lazily from the store.

        **Raises:** `ValueError` for a store of another study or schema, or results that cannot be continued; `OSError`
        for a full disk; `Interrupted` after Ctrl-C. Committed blocks are kept in every case.
        """
        path = as_path("store_path", store_path)
        require(not path.is_file(), "store_path", f"{path} is a file, not a folder")
        where = path.absolute()  # an experiment may go to another folder meanwhile
        engine = make_engine(self.experiment, executor)
        bar = progress_of(progress)
        try:
            with only_writer(path):
                store = Store.prepare(
                    path,
                    self.plan,
                    self.experiment.definitions(),
                    device_kind=engine.device_kind(),
                    overwrite=overwrite,
                    allow_mixed=allow_mixed,
                )
                with explained(path):
                    write_log(where, {"event": "run", "executor": engine.description})
                Run(store, engine, bar)()
                lacking = store.finish()
                if lacking:
                    bar.say(
                        f"All blocks are there, but the study is not complete: its manifest lacks {', '.join(lacking)}"
                    )
        finally:
            bar.close()
            engine.close()
        return open_results(where)

    def status(self, store_path: StorePath) -> Status:
        """How much of the store of this study is complete. **Raises:** `ValueError` where it belongs to another
        study."""
        self._require_mine(store_path)
        return status(store_path)

    def plot(self, store_path: StorePath, kind: str = "bars", **how: Any) -> Any:
        """A figure of the store's percentages: `jaxflow.study.plot` of its results. **Raises:** as `status`, `plot`."""
        self._require_mine(store_path)
        with open_results(store_path) as results:
            return plot(results, kind, **how)

    def replay(self, *, trial: int, **factors: Any) -> Any:
        """One instance again, in full, from its name: by default its limit with trajectory.

        It is the same instance, followed alone. A block may follow it by another method: `TokenSelection` takes longer
        steps of a simpler method and saves no points of the path. Outcomes agree wherever both decide; one may decide
        what the other leaves `undecided` because its budget was spent or its gap stayed open. `recompute` gives the
        results of the store to the bit. Factors with a single value may be left out; values that the study does not
        hold are allowed.

        **Raises:** `ValueError` for unknown or missing factors, or a negative trial.
        """
        chosen, trial = self._instance(trial, factors)
        words = self.experiment.key_words(self.plan.seed, self.plan.data_values(chosen), [trial])
        return self.experiment.replay(as_keys(words[0]), **chosen)

    def recompute(self, *, trial: int, **factors: Any) -> dict[str, Any]:
        """The stored results of one instance again, by its name: the whole block is computed.

        On the same kind of device, with the same versions and flags, they are equal to the stored ones bit for bit.
        It takes as long as the block does.

        **Raises:** as `replay`.
        """
        chosen, trial = self._instance(trial, factors)
        first = trial - trial % self.plan.block
        computer = Computer(self.experiment)
        layout = common_layout(computer, self.plan) if self.experiment.padding() else None
        found = filled_up(computer(job_of(self.plan, self.experiment, chosen, first)), layout)
        return {name: values[trial - first] for name, values in found.arrays.items()}

    def _instance(self, trial: Any, factors: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
        """All factors of one instance, and its trial. **Raises:** `ValueError`."""
        trial = as_integer("trial", trial, 0)
        for name in factors:
            check_name("factors", name, self.plan.factors)
        chosen = {name: values[0] for name, values in self.plan.factors.items() if len(values) == 1}
        chosen |= {name: as_plain(value) for name, value in factors.items()}
        missing = [name for name in self.plan.factors if name not in chosen]
        require(not missing, "factors", f"give {', '.join(missing)} as well")
        for name, value in chosen.items():
            check_factor(name, (value,))
        self.experiment.check_cell(**chosen)
        return chosen, trial

    def _require_mine(self, store_path: StorePath) -> None:
        path = as_path("store_path", store_path)
        require(read_head(path).plan.same(self.plan), "store_path", f"{path} belongs to another study")


def _values(argument: str, factors: Mapping[str, Any] | None) -> dict[str, tuple]:
    factors = {} if factors is None else factors
    table = isinstance(factors, Mapping)
    require(table, argument, f"expected a table of names and lists of values, got {factors!r}")
    found = {}
    for name, values in factors.items():
        # The order of a set of strings differs from one process to the next, and with it the axis of the results.
        listed = not isinstance(values, str | bytes | Mapping | Set) and hasattr(values, "__iter__")
        listed = listed and getattr(values, "shape", (1,)) != ()
        require(listed, f"{argument}[{name!r}]", f"expected a list of values, got {values!r}")
        # One more than a study may have: an endless generator ends here.
        found[name] = tuple(as_plain(value) for value in itertools.islice(values, MOST_VALUES + 1))
        require(len(found[name]) <= MOST_VALUES, f"{argument}[{name!r}]", f"more than {MOST_VALUES:,} values")
    return found
