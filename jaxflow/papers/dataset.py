"""Numbers of an experiment: computed once, kept on disk part by part, and shared by all experiments that read them."""

import io
import json
import shutil
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Key

from jaxflow.papers.attempts import Took, timed, total
from jaxflow.papers.part_experiment import DATASETS, Computed, PartExperiment
from jaxflow.papers.table import Table
from jaxflow.study import OtherStudy, Study, TwoResults, trial_key
from jaxflow.study.blocks import crowded, device_kind, release_programs
from jaxflow.study.files import side_folder, write_file
from jaxflow.study.keys import as_keys
from jaxflow.study.manifest import manifest, mixed
from jaxflow.study.plan import Plan
from jaxflow.study.shapes import CPU, device_shapes

Say = Callable[[str], None]
# Arrays by part and field.
Raw = dict[str, dict[str, np.ndarray]]


class OtherNumbers(ValueError):
    """The folder contains numbers of an earlier run that differ from those that this run would compute.

    **Example:**

    ```python
    from jaxflow import papers

    try:
        papers.verify("tarzanagh2023", only=["cones"], out="cones")
    except papers.OtherNumbers as reason:  # the folder holds numbers of another version or device
        print(reason)
    ```
    """


@dataclass(frozen=True)
class Part:
    """Instances, each a function of its key, as a study: if it is killed, it can be resumed to the same bits.

    - `one(key, setting)`: a `Table` of one instance; in the numbers its columns have two more axes, cells and trials. A
      column `outcome` says how an instance ended; without it `ok` marks the instances that did not fail, and nothing is
      claimed about them.
    - `cells`: settings by name, pytrees, or a function of the scale that returns them; settings that differ only in
      their arrays share one compiled program. All cells have the same instances, or (`own_instances`) each its own.
    - `trials`: instances of a cell at each scale, or a function that gives them; `block`: how many are computed
      together, at most (on an accelerator more, where they are mapped: `jaxflow.study.shapes`).
    - `instances`: the part whose keys are used, by default this part itself; `dataset.part` of the same paper.
      `draw_from(seed, setting)`: instead, the key of a cell, into which the number of the instance is folded.
    - `way`: `"together"`, vmapped; `"in turn"`, compiled and on a CPU mapped one by one, so that no lane waits for the
      slowest; `"on host"`, called for one instance after the other; `"as a block"`, called with all keys of a block.

    **Example:**

    ```python
    from jaxflow.papers import Part, Table


    def one(key, scale):
        return Table(value=scale * jax.random.normal(key))


    part = Part(one, cells={"small": 0.1, "large": 10.0}, trials={"quick": 5, "paper": 50, "large": 500})
    assert part.settings("quick")["small"] == 0.1
    ```
    """

    one: Callable[[Key[Array, ""], Any], Any]
    cells: Mapping[str, Any] | Callable[[str], Mapping[str, Any]]
    trials: Mapping[str, int] | Callable[[str], int]
    block: int = 8
    instances: str = ""
    own_instances: bool = False
    draw_from: Callable[[int, Any], Any] | None = None
    way: Literal["together", "in turn", "on host", "as a block"] = "together"

    def settings(self, scale: str) -> Mapping[str, Any]:
        """The cells at a scale."""
        return self.cells(scale) if callable(self.cells) else self.cells

    def count(self, scale: str) -> int:
        """The instances of a cell at a scale."""
        return self.trials(scale) if callable(self.trials) else self.trials[scale]


@dataclass(frozen=True)
class Sweep:
    """Numbers that are computed and kept as a whole. Numbers that take longer than a minute are a `Part`.

    `compute(scale, key)` gives a `Table`. The key is made from the names of dataset and part; `draw_from` makes
    another value from the seed instead.

    **Example:**

    ```python
    from jaxflow.papers import Sweep, Table


    def compute(scale, key):
        m = {"quick": 5, "paper": 50, "large": 500}[scale]
        return Table(x=np.linspace(0.0, 1.0, m), drawn=jax.random.normal(key, (m,)))


    sweep = Sweep(compute)
    ```
    """

    compute: Callable[[str, Any], Any]
    draw_from: Callable[[int], Any] | None = None


@dataclass(frozen=True)
class Studies:
    """Studies by name at each scale and seed, of experiments whose instances have keys of their own.

    Each may be killed and goes on to the same bits, as a `Part` does. The columns are these results of theirs, `(cells,
    trials, ...)`, the cells of one study after those of another.
    """

    columns: tuple[str, ...]
    studies: Callable[[str, int], Mapping[str, Study]]


@dataclass(frozen=True)
class Dataset:
    """The numbers of an experiment: a `Table` of one table for each of its `parts`.

    Another process finds it by the names of paper and dataset once the papers are imported; one that is made elsewhere
    needs `where`, `module:NAME` of this object.

    **Example:**

    ```python
    from pathlib import Path
    from jaxflow.papers import Dataset, Sweep, Table


    def compute(scale, key):
        return Table(drawn=jax.random.normal(key, (5,)))


    dataset = Dataset("mine", "curves", {"curve": Sweep(compute)})
    raw = dataset.collect(Path("numbers-of-mine"), scale="quick", seed=0, say=print)
    print(dataset.typed(raw).curve.drawn)  # a second call reads what the first one kept
    ```
    """

    paper: str
    name: str
    parts: Mapping[str, Part | Sweep | Studies]
    where: str = ""

    def __post_init__(self) -> None:
        DATASETS[self.place] = self

    @property
    def place(self) -> str:
        """By which a process finds it."""
        return self.where or f"{self.paper}/{self.name}"

    def collect(
        self, folder: Path, *, scale: str, seed: int, say: Say, executor: Any = None, progress: bool = False
    ) -> Raw:
        """Arrays by part and field, `(cells, trials, ...)` for a `Part`: read from the `folder` where they exist, else
        computed and kept there. If a call was interrupted at any moment, the same call resumes it.

        **Arguments:** `executor`, `progress`: as `Study.run`.

        **Raises:** `OtherNumbers`; `Interrupted`, `OSError` as `Study.run`.
        """
        with timed(self._attempts(folder, scale, seed)):
            return self._collected(self._folder(folder, scale, seed), scale, seed, say, executor, progress)

    def _collected(self, folder: Path, scale: str, seed: int, say: Say, executor: Any, progress: bool) -> Raw:
        found: Raw = {}
        for name, part in self.parts.items():
            started, target = time.monotonic(), folder / name
            # The programs of all parts of a paper are more than one process can hold.
            if crowded():
                release_programs()
            try:
                if isinstance(part, Sweep):
                    found[name] = self._swept(name, part, target, scale, seed, say)
                else:
                    found[name] = self._studied(name, target, scale, seed, say, executor, progress)
            except (OtherStudy, TwoResults) as error:
                raise OtherNumbers(f"{error}. Here: --overwrite begins again, --out names another folder") from error
            say(f"{self.name}, {name}: {time.monotonic() - started:.0f} s")
        return found

    def typed(self, raw: Raw) -> Table:
        """The numbers, each column by its name."""
        return Table({name: Table(raw[name]) for name in self.parts})

    def took(self, folder: Path, *, scale: str, seed: int) -> Took:
        """How long all attempts at the numbers in the folder have taken so far."""
        return total(self._attempts(folder, scale, seed))

    def begin_again(self, folder: Path, *, scale: str, seed: int) -> None:
        """Removes the numbers of the folder."""
        mine = self._folder(folder, scale, seed)
        if mine.exists():
            shutil.rmtree(mine)

    def study(self, name: str, scale: str, seed: int) -> Study:
        """The study of a `Part`."""
        part = self.parts[name]
        assert isinstance(part, Part)
        cells = {"cell": list(part.settings(scale))}
        own = part.own_instances or part.draw_from is not None
        factors = {"data_factors": cells} if own else {"method_factors": cells}
        experiment = PartExperiment(where=self.place, part=name, scale=scale)
        trials = part.count(scale)
        mapped = part.way in ("together", "in turn")
        wide = part.block * (device_shapes().lanes // CPU.lanes if mapped else 1)
        # A block is filled up to its width: where there are fewer instances that would be work for nothing.
        block = min(wide, trials)
        return Study(experiment, **factors, trials=trials, seed=seed, block=block)

    def studies(self, name: str, scale: str, seed: int) -> Mapping[str, Study]:
        """Those of a part by name: the one of a `Part`, none of a `Sweep`."""
        part = self.parts[name]
        if isinstance(part, Studies):
            return part.studies(scale, seed)
        return {} if isinstance(part, Sweep) else {name: self.study(name, scale, seed)}

    def key(self, name: str, seed: int) -> Any:
        """What a `Sweep` draws from."""
        part = self.parts[name]
        assert isinstance(part, Sweep)
        return part.draw_from(seed) if part.draw_from else trial_key(seed, self._stream(name), {}, 0)

    def _stream(self, name: str) -> str:
        return f"{self.paper}.{self.name}.{name}"

    def _folder(self, folder: Path, scale: str, seed: int) -> Path:
        return folder / "numbers" / f"{scale}-seed{seed}" / self.name

    def _attempts(self, folder: Path, scale: str, seed: int) -> Path:
        return self._folder(folder, scale, seed) / "attempts"

    def _studied(
        self, name: str, target: Path, scale: str, seed: int, say: Say, executor: Any, progress: bool
    ) -> dict[str, np.ndarray]:
        tables: list[dict[str, np.ndarray]] = []
        for label, study in self.studies(name, scale, seed).items():
            say(f"{self.name}, {label}: {study.plan.trials} instances of each cell")
            store = target.with_suffix(".zarr") if label == name else target / f"{label}.zarr"
            store.parent.mkdir(parents=True, exist_ok=True)
            with study.run(store, executor, progress) as results:
                # An outcome that the part has not given itself is the study's, and no number of the experiment.
                meanings = results["outcome"].attrs["flag_meanings"].split()
                added = {"outcome"} if Computed.computed.name in meanings else set()
                columns = getattr(self.parts[name], "columns", [one for one in results.data_vars if one not in added])
                tables.append({str(field): _by_cell(results[field]) for field in columns})
        return {field: np.concatenate([table[field] for table in tables]) for field in tables[0]}

    def _swept(self, name: str, part: Sweep, target: Path, scale: str, seed: int, say: Say) -> dict[str, np.ndarray]:
        stream = self._stream(name)
        plan = Plan({"name": stream, "scale": scale, "import": self.place}, {}, {}, trials=1, seed=seed, block=1)
        now = json.loads(json.dumps(manifest(plan, device_kind())))
        file = target.with_suffix(".npz")
        if file.exists():
            arrays = load_arrays(file)
            before = json.loads(str(arrays.pop("manifest")))
            differing = mixed(before, now)
            if before["arguments"] != now["arguments"]:
                differing.append("another sweep")
            if differing:
                raise OtherStudy(f"numbers in {file} are others: {'; '.join(differing)}")
            return arrays
        say(f"{self.name}, {name}: computed as a whole")
        made = part.compute(scale, self.key(name, seed))
        arrays = {field: np.asarray(value) for field, value in made.named.items()}
        save_arrays(file, arrays | {"manifest": np.asarray(json.dumps(now))})
        return arrays


class Draw(NamedTuple):
    """Where numbers were drawn: their dataset, scale and seed. Every instance can be drawn again."""

    dataset: Dataset
    scale: str
    seed: int

    def key(self, part: str) -> Any:
        """What a `Sweep` draws from."""
        return self.dataset.key(part, self.seed)

    def instance(self, part: str, trial: int, cell: int = 0) -> tuple[Any, Any]:
        """The key and the setting of one instance of a `Part`."""
        study, given = self.dataset.study(part, self.scale, self.seed), self.dataset.parts[part]
        assert isinstance(given, Part)
        name, setting = list(given.settings(self.scale).items())[cell]
        words = study.experiment.key_words(self.seed, study.plan.data_values({"cell": name}), [trial])
        return as_keys(words[0]), setting


def arrays_of(setting: Table, *names: str) -> Table:
    """A setting with these columns, by default all, as arrays: settings that differ in them alone share one compiled
    program.

    NumPy arrays: JAX arrays made at import would fix the precision before the user has chosen one.
    """
    return setting.replace(**{name: jax.tree.map(np.asarray, setting.named[name]) for name in names or setting.named})


def checksum_key(name: str) -> Callable[[int], Any]:
    """`draw_from` of sweeps that share a key: the seed's, with the checksum of a name folded in."""

    def draw_from(seed: int) -> Any:
        return jax.random.fold_in(jax.random.key(seed), zlib.crc32(name.encode()))

    return draw_from


def swept(paper: str, name: str, parts: Mapping[str, Part] = {}, /, **computes: Callable[[str, Any], Any]) -> Dataset:
    """A dataset of `Sweep`s of these functions, which share the key made of its name, beside other `parts`."""
    draw_from = checksum_key(name)
    return Dataset(paper, name, {**parts, **{part: Sweep(compute, draw_from) for part, compute in computes.items()}})


def constants(sizes: Mapping[str, Any], *names: str) -> Sweep:
    """These fields of the size of a scale, as arrays: the grid of an experiment, beside its numbers."""
    return Sweep(lambda scale, key: Table({name: np.asarray(getattr(sizes[scale], name)) for name in names}))


def numpy_generator(key: Any) -> np.random.Generator:
    """For what NumPy draws."""
    return np.random.default_rng(int(jax.random.randint(key, (), 0, 2**31 - 1)))


def keys_of(key: Any, number: int, count: int) -> Any:
    """The keys of `count` instances, of one of several kinds that share a key."""
    return jax.random.split(jax.random.fold_in(key, number), count)


def save_arrays(file: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """An `.npz` file that appears whole or not at all, whatever was left of an earlier attempt."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # pyright: ignore[reportArgumentType]
    write_file(file, buffer.getvalue(), side_folder(file))
    # With what a killed process left half-written.
    shutil.rmtree(side_folder(file))


def load_arrays(file: Path) -> dict[str, np.ndarray]:
    """The arrays of an `.npz` file by name."""
    with np.load(file, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def _by_cell(results: Any) -> np.ndarray:
    """The factors in one axis."""
    return results.values.reshape(-1, *results.shape[results.dims.index("trial") :])
