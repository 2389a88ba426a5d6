"""Reading a store: lazily as a Dataset, and how far it has come."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jaxflow.study import layout, manifest
from jaxflow.study.files import read_file
from jaxflow.study.layout import CHECKSUMS, chunk_path
from jaxflow.study.plan import Plan
from jaxflow.study.results import CODES, names_of_codes
from jaxflow.study.store import digest, read_attributes, read_plan


def open_results(store_path: str | Path) -> Any:
    """The results as an `xarray.Dataset`; numbers are read when they are used.

    The axes are the factors and `trial`; instances that have not run yet have the outcome `not_run`. Plain
    `xarray.open_zarr` reads the same, with the checksums of the blocks beside it.

    **Raises:** `FileNotFoundError`; `ValueError` for what is no study, or has another schema.

    **Example:**

    ```python
    with jf.study.open_results("draws.zarr") as stored:
        print(dict(stored.sizes))
    ```
    """
    import xarray

    read_plan(Path(store_path))
    dataset = xarray.open_dataset(Path(store_path), engine="zarr", chunks=None)
    return dataset.drop_vars(CHECKSUMS, errors="ignore")


@dataclass(frozen=True)
class Status:
    """How far a store has come; `print` it.

    `counts` are by outcome, over instances in complete blocks. `complete` is True only where every block is
    there and the manifest lacks nothing; `damaged` blocks will be computed again by the next run.

    **Example:**

    ```python
    assert jf.study.status("draws.zarr").complete
    ```
    """

    path: Path
    plan: Plan
    blocks: int
    damaged: int
    counts: dict[str, int]
    lacking: tuple[str, ...]
    mixed: str

    @property
    def complete(self) -> bool:
        """Every block is there, undamaged, and it is known how they came to be."""
        return self.blocks == self.plan.block_count and not self.lacking

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
        if self.mixed:
            lines.append(f"mixed: {self.mixed}")
        if self.lacking:
            lines.append(f"not complete: the manifest lacks {', '.join(self.lacking)}")
        lines.append("complete" if self.complete else "not complete")
        return "\n".join(lines)


def status(store_path: str | Path, verify: bool = False) -> Status:
    """How far a store has come, while it is being written or afterwards.

    **Arguments:** `verify`: also hold every chunk to its checksum (reads the whole store).

    **Raises:** `FileNotFoundError`; `ValueError` for what is no study, or has another schema.

    **Example:**

    ```python
    print(jf.study.status("draws.zarr"))
    ```
    """
    path = Path(store_path)
    plan, attributes = read_plan(path), read_attributes(path)
    variables = layout.from_json(attributes["layout"]) if attributes.get("layout") else ()
    total = np.zeros(CODES, int)
    blocks = damaged = 0
    for index in plan.blocks() if variables else ():
        recorded = read_file(path / chunk_path(CHECKSUMS, index, 1))
        if recorded is None:
            continue
        outcome = read_file(path / chunk_path("outcome", index, 0)) or b""
        checked = variables if verify else [v for v in variables if v.name == "outcome"]
        good = all(
            digest(outcome if v.name == "outcome" else read_file(path / chunk_path(v.name, index, len(v.shape))))
            == recorded[at * layout.CHECKSUM_BYTES : (at + 1) * layout.CHECKSUM_BYTES]
            for at, v in enumerate(variables)
            if v in checked
        )
        damaged += not good
        blocks += good
        if good:
            codes = np.frombuffer(outcome, np.uint8)[: len(plan.trials_of(index))]
            total += np.bincount(codes, minlength=CODES)
    return Status(
        path=path,
        plan=plan,
        blocks=blocks,
        damaged=damaged,
        counts={name: int(total[code]) for code, name in names_of_codes(variables).items() if code},
        lacking=tuple(manifest.missing(json.loads(attributes.get("manifest") or "{}"))),
        mixed=str(attributes.get("mixed", "")),
    )
