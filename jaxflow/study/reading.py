"""Reading a store: its results as a lazy Dataset, and how much of it is complete."""

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jaxflow._core.checks import as_boolean, as_path
from jaxflow.study import manifest
from jaxflow.study.files import StorePath, read_file
from jaxflow.study.layout import CHECKSUMS, Encoder, chunk_path
from jaxflow.study.metadata import Head, read_document, read_head
from jaxflow.study.plan import Plan
from jaxflow.study.results import CODES, names_of_codes
from jaxflow.study.store import as_written, counted, is_intact, recorded


def open_results(store_path: StorePath) -> Any:
    """The results as an `xarray.Dataset`; numbers are read when they are used.

    The axes are the factors and `trial`; instances that have not run yet have the outcome `not_run`. Every chunk is
    compared with its checksum when it is read, and nothing that the store names is imported. Plain `xarray.open_zarr`
    reads the same numbers and the checksums of the blocks, but counts a missing chunk as not run.

    **Raises:** `FileNotFoundError`; `ValueError` for a store that is not a study, has another schema or is damaged;
    also later, when a damaged chunk is read.

    **Example:**

    ```python
    with jf.study.open_results("draws.zarr") as stored:
        print(dict(stored.sizes))
    ```
    """
    import xarray

    path = as_path("store_path", store_path)
    store = _zarr_store(path.absolute(), read_head(path))
    dataset = xarray.open_dataset(store, engine="zarr", chunks=None, consolidated=True, zarr_format=3)
    return dataset.drop_vars(CHECKSUMS, errors="ignore")


def _zarr_store(path: Path, head: Head) -> Any:
    """A read-only Zarr store: metadata and coordinates from `head`, chunks compared with their checksums.

    Metadata and coordinates are computed from the study, not read from files. No file can therefore give Zarr a codec,
    a type or a path, and a damaged coordinate changes nothing.
    """
    from zarr.buffer import default_buffer_prototype
    from zarr.storage import MemoryStore

    class Checked(MemoryStore):
        async def get(self, key: str, prototype: Any = None, byte_range: Any = None) -> Any:
            known = await super().get(key, prototype, byte_range)
            if known is not None or "/c/" not in key:
                return known
            data = await asyncio.to_thread(_chunk, path, head, key)
            return None if data is None else kind.from_bytes(data)

    pieces = Encoder(head.plan, head.definitions).group(head.attributes, head.variables)
    kind = default_buffer_prototype().buffer
    return Checked({name: kind.from_bytes(data) for name, data in pieces.items()}, read_only=True)


def _chunk(path: Path, head: Head, key: str) -> bytes | None:
    """The chunk that Zarr calls `key`, None where its block has not run or `key` is no chunk of a result.

    **Raises:** `ValueError` for one that is not what was written.
    """
    name, _, place = key.partition("/c/")
    plan, variables = head.plan, head.variables or ()
    variable = next((v for v in variables if v.name == name), None)
    if variable is None:
        return None
    index = tuple(int(part) for part in place.split("/"))[: len(plan.cells) + 1]
    data = read_file(path / chunk_path(name, index, len(variable.shape)))
    if not as_written(data, name, recorded(path, variables, index)):
        trials, how = plan.trials_of(index), "is missing" if data is None else "does not match its checksum"
        raise ValueError(
            f"store: {name} of trials {trials.start} to {trials.stop - 1} at {plan.values_at(index)} {how} in {path}; "
            "run the study again, which computes that block again and no other"
        )
    return data


@dataclass(frozen=True)
class Status:
    """How much of a store is complete; `print` it.

    `counts` are by outcome, over instances in complete blocks. `complete` is True only if no block is missing and the
    manifest is complete. The next run computes `damaged` blocks again, and writes `damaged_files`, which contain no
    results, again.
    """

    path: Path
    plan: Plan
    blocks: int
    damaged: int
    counts: dict[str, int]
    lacking: tuple[str, ...]
    mixed: str
    damaged_files: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether every block is there and undamaged, and the manifest tells how they were computed."""
        return self.blocks == self.plan.block_count and not self.lacking and not self.damaged_files

    def __str__(self) -> str:
        plan = self.plan
        done = sum(self.counts.values())
        lines = [
            f"{self.path}: {plan.experiment['name']}, seed {plan.seed}",
            f"factors: {', '.join(f'{name} ({len(values)})' for name, values in plan.factors.items()) or 'none'}; "
            f"{plan.trials} trials each, blocks of {plan.block}",
            f"{done:,} of {plan.instance_count:,} instances, {self.blocks} of {plan.block_count} blocks",
        ]
        if done:
            lines.append(", ".join(f"{count} {name}" for name, count in self.counts.items() if count))
        if self.damaged:
            lines.append(f"{self.damaged} blocks are damaged; the next run computes them again")
        if self.damaged_files:
            lines.append(f"damaged: {', '.join(self.damaged_files)}; the next run writes them again")
        if self.mixed:
            lines.append(f"mixed: {self.mixed}")
        if self.lacking:
            lines.append(f"not complete: the manifest lacks {', '.join(self.lacking)}")
        lines.append("complete" if self.complete else "not complete")
        return "\n".join(lines)


def status(store_path: StorePath, verify: bool = False) -> Status:
    """How much of a store is complete, while it is being written or afterwards.

    **Arguments:** `verify`: also compare every chunk with its checksum (reads the whole store).

    **Raises:** `FileNotFoundError`; `ValueError` for a store that is not a study, or has another schema.

    **Example:**

    ```python
    print(jf.study.status("draws.zarr"))
    ```
    """
    path, verify = as_path("store_path", store_path), as_boolean("verify", verify)
    head = read_head(path)
    plan, attributes, variables = head.plan, head.attributes, head.variables or ()
    total = np.zeros(CODES, int)
    blocks = damaged = 0
    for index in plan.blocks() if variables else ():
        good = is_intact(path, variables, index, None if verify else "outcome")
        if good:
            blocks += 1
            total += counted(path, plan, [index])
        damaged += good is False
    return Status(
        path=path,
        plan=plan,
        blocks=blocks,
        damaged=damaged,
        counts={name: int(total[code]) for code, name in names_of_codes(variables).items() if code},
        lacking=tuple(manifest.missing(json.loads(attributes.get("manifest") or "{}"))),
        mixed=str(attributes.get("mixed", "")),
        damaged_files=_damaged_files(path, head) if verify else (),
    )


def _damaged_files(path: Path, head: Head) -> tuple[str, ...]:
    """Metadata of arrays and coordinates that are not what they have to be. Plain Zarr reads them."""
    found = []
    known = read_document(path)["consolidated_metadata"]["metadata"]
    for name, data in Encoder(head.plan, head.definitions).group(head.attributes, head.variables).items():
        stored, (folder, _, file) = read_file(path / name), name.rpartition("/")
        if file != "zarr.json":
            found += [name] * (stored != data)
        elif folder:
            # By meaning: another version of Zarr may write it in other words.
            found += [name] * (_parsed(stored) != known.get(folder))
    return tuple(found)


def _parsed(data: bytes | None) -> Any:
    try:
        return json.loads(data or b"")
    except ValueError:
        return None
