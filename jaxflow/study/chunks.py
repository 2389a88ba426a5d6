"""Chunks as Zarr asks for them: each held to its checksum when it is read, and nothing else is taken from the disk."""

import asyncio
from pathlib import Path
from typing import Any

from jaxflow.study import layout
from jaxflow.study.files import read_file
from jaxflow.study.layout import CHECKSUM_BYTES, CHECKSUMS, Encoder, chunk_path
from jaxflow.study.metadata import Head
from jaxflow.study.plan import Index
from jaxflow.study.store import digest


class Chunks:
    """The chunks of the results of a store. **Raises:** `ValueError` for one that is not what was written."""

    def __init__(self, path: Path, head: Head):
        self.path = path
        self.head = head
        self.variables = {v.name: (at, v) for at, v in enumerate(head.variables or ())}

    def __call__(self, key: str) -> bytes | None:
        """The chunk that Zarr calls `key`, None where its block has not run or `key` is no chunk of a result."""
        name, _, place = key.partition("/c/")
        if name not in self.variables:
            return None
        at, variable = self.variables[name]
        index = tuple(int(part) for part in place.split("/"))[: len(self.head.plan.cells) + 1]
        data = read_file(self.path / chunk_path(name, index, len(variable.shape)))
        recorded = read_file(self.path / chunk_path(CHECKSUMS, index, 1)) or b""
        if len(recorded) == CHECKSUM_BYTES * len(self.variables):
            known = recorded[at * CHECKSUM_BYTES : (at + 1) * CHECKSUM_BYTES]
            if digest(data) != known:
                raise self._damaged(name, index, "is missing" if data is None else "does not match its checksum")
        elif data is not None and not layout.is_intact(data):
            # A block under way, or one that is open again since the study has grown.
            raise self._damaged(name, index, "does not match its checksum")
        return data

    def _damaged(self, name: str, index: Index, how: str) -> ValueError:
        plan = self.head.plan
        trials = plan.trials_of(index)
        return ValueError(
            f"store: {name} of trials {trials.start} to {trials.stop - 1} at {plan.values_at(index)} {how} in "
            f"{self.path}; run the study again, which computes that block again and no other"
        )


def zarr_store(path: Path, head: Head) -> Any:
    """A store of Zarr, to be read, of what `jaxflow` knows of `head` and of chunks that are held to their checksums.

    Metadata and coordinates are made anew from the study. So no file can name a codec, a type or a path to Zarr, and a
    damaged coordinate changes nothing.
    """
    from zarr.buffer import default_buffer_prototype
    from zarr.storage import MemoryStore

    chunks = Chunks(path.absolute(), head)

    class Checked(MemoryStore):
        async def get(self, key: str, prototype: Any = None, byte_range: Any = None) -> Any:
            known = await super().get(key, prototype, byte_range)
            if known is not None or "/c/" not in key:
                return known
            data = await asyncio.to_thread(chunks, key)
            return None if data is None else kind.from_bytes(data)

    pieces = Encoder(head.plan, head.definitions).group(head.attributes, head.variables)
    kind = default_buffer_prototype().buffer
    return Checked({name: kind.from_bytes(data) for name, data in pieces.items()}, read_only=True)
