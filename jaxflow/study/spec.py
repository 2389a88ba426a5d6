"""A study from a file: TOML that names an experiment and lists factors."""

import tomllib
from collections.abc import Callable, Mapping

from jaxflow._core import as_path, check_name, require
from jaxflow.study.experiment import make_experiment
from jaxflow.study.files import StorePath
from jaxflow.study.metadata import read_head
from jaxflow.study.plan import Plan
from jaxflow.study.study import Study

# Names that need no module.
BUILT_IN = {"TokenSelection": "jaxflow.study.token_selection:TokenSelection"}

ENTRIES = ("experiment", "settings", "data_factors", "method_factors", "trials", "seed", "block")


def read_spec(path: StorePath) -> Study:
    """The study that a file describes.

    ```toml
    experiment = "TokenSelection"     # or "package.module:Class", or "package.module:function"
    trials = 500
    seed = 0
    block = 256

    [settings]                        # fields of the experiment
    [data_factors]
    d = [2, 4, 10]
    [method_factors]
    parametrization = ["W", "KQ"]
    ```

    **Raises:** `FileNotFoundError`; `ValueError` for a file that is not TOML, unknown entries (with the nearest name),
    an experiment that cannot be imported, and as `Study`.

    **Example:**

    ```python
    from pathlib import Path

    Path("spec.toml").write_text('experiment = "TokenSelection"')
    jf.study.read_spec("spec.toml")
    ```
    """
    source = as_path("spec", path)
    require(not source.is_dir(), "spec", f"{source} is a folder")
    if not source.exists():
        raise FileNotFoundError(f"spec: there is no file {source}; give the TOML file of a study")
    try:
        entries = tomllib.loads(source.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"spec: {source} is no TOML: {error}") from error
    for name in entries:
        check_name("spec", name, ENTRIES)
    require("experiment" in entries, "spec", "it names no experiment")
    named = str(entries["experiment"])
    if ":" not in named:
        check_name("experiment", named, BUILT_IN)
    for name in ("settings", "data_factors", "method_factors"):
        require(isinstance(entries.get(name, {}), Mapping), name, "expected a table of names")
    experiment = make_experiment(BUILT_IN.get(named, named), entries.get("settings", {}))
    numbers = {name: entries[name] for name in ("trials", "seed", "block") if name in entries}
    for name, value in numbers.items():
        require(type(value) is int, name, f"expected an integer, got {value!r}")
    return Study(experiment, entries.get("data_factors"), entries.get("method_factors"), **numbers)


def study_of_store(path: StorePath, announce: Callable[[str], None] | None = None) -> Study:
    """The study of a store, made again from the attributes of the store.

    The experiment is imported by the name in the store: check that name first in a store from another person. No other
    code named in a store is ever run.

    **Arguments:** `announce`: called with the name before it is imported.

    **Raises:** `ValueError` where the experiment cannot be made from an import path and settings: then run the script
    that began the study again.

    **Example:**

    ```python
    try:
        jf.study.study_of_store("draws.zarr")
    except ValueError as reason:  # this experiment is not an importable function
        print(reason)
    ```
    """
    plan: Plan = read_head(as_path("store_path", path)).plan
    told = plan.experiment
    again = "run the script again that began it"
    module, _, name = told["import"].partition(":")
    require(module != "__main__" and "<" not in name, "experiment", f"{told['import']} cannot be imported; {again}")
    if announce is not None:
        announce(told["import"])
    study = Study(
        make_experiment(told["import"], told["settings"]),
        plan.data_factors,
        plan.method_factors,
        trials=plan.trials,
        seed=plan.seed,
        block=plan.block,
    )
    require(
        study.plan.same(plan), "experiment", f"{told['import']} has changed, or has settings no file can hold; {again}"
    )
    return study
