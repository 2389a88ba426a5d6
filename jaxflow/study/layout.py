"""How a study looks as a Zarr group (format 3): metadata and chunks as bytes, computed in memory.

Writing the bytes is the business of `store`, which alone knows files.
"""

import json
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxflow._core import require
from jaxflow.study.plan import Plan
from jaxflow.study.results import Variable, fill_value

CHECKSUMS = "block_checksum"

# The first bytes of SHA-256 that are kept of each chunk.
CHECKSUM_BYTES = 8

Pieces = dict[str, bytes]


class Encoder:
    """Metadata and chunks of one study. Chunks are uncompressed and end in their CRC-32C.

    Uncompressed, because the same numbers must give the same bytes whatever the version of a compressor is, and
    the mantissas of results do not compress. With the CRC, plain Zarr too refuses a damaged chunk.
    """

    def __init__(self, plan: Plan, definitions: dict[str, str]):
        self.plan = plan
        self.definitions = definitions
        self._pieces: dict[str, Any] = {}
        self._arrays: dict[str, Any] = {}

    def group(self, attributes: dict[str, Any], variables: Sequence[Variable] | None) -> Pieces:
        """All metadata, the group's own last, and the coordinates; without results while `variables` is unknown."""
        import zarr
        from zarr.storage import MemoryStore

        self._pieces = {}
        store = MemoryStore(self._pieces)
        group = zarr.create_group(store, attributes=attributes, zarr_format=3)
        for name, values in {**self.plan.factors, "trial": range(self.plan.trials)}.items():
            self._coordinate(group, name, values)
        coordinates = {name: piece.to_bytes() for name, piece in self._pieces.items()}
        self._arrays = {v.name: self._result(group, v) for v in variables or ()}
        if variables:
            self._arrays[CHECKSUMS] = self._checksums(group, [v.name for v in variables])
        with warnings.catch_warnings():
            # It says that other implementations may not read consolidated metadata; they find the rest.
            warnings.simplefilter("ignore")
            zarr.consolidate_metadata(store)
        found = {name: piece.to_bytes() for name, piece in self._pieces.items()}
        top = _canonical_json(found.pop("zarr.json"))
        coordinates.pop("zarr.json")
        for name in coordinates:
            self._pieces.pop(name)
        return {**found, "zarr.json": top}

    def chunk(self, name: str, index: Sequence[int], values: np.ndarray) -> tuple[str, bytes]:
        """Path and bytes of the chunk that holds one block of a result (without its padding)."""
        array = self._arrays[name]
        first = index[-1] * self.plan.block
        array[(*index[:-1], slice(first, first + len(values)))] = values
        return self._take(chunk_path(name, index, values.ndim - 1))

    def checksums(self, index: Sequence[int], sums: bytes) -> tuple[str, bytes]:
        """Path and bytes of the chunk whose presence says that a block is complete."""
        self._arrays[CHECKSUMS][tuple(index)] = np.frombuffer(sums, "<u8")
        return self._take(chunk_path(CHECKSUMS, index, 1))

    def _take(self, path: str) -> tuple[str, bytes]:
        return path, self._pieces.pop(path).to_bytes()

    def _coordinate(self, group: Any, name: str, values: Sequence[Any]) -> None:
        array = np.asarray(values)
        dtype: Any = str if array.dtype.kind == "U" else array.dtype
        held = group.create_array(
            name, shape=array.shape, chunks=array.shape, dtype=dtype, dimension_names=(name,), **_PLAIN
        )
        # Strings of variable length: those of fixed width are no part of the specification.
        held[:] = array.astype(object) if dtype is str else array

    def _result(self, group: Any, variable: Variable) -> Any:
        from zarr.codecs import Crc32cCodec

        plan, name = self.plan, variable.name
        require(name not in plan.factors, "results", f"{name!r} is the name of a factor as well")
        attributes: dict[str, Any] = {}
        if name in self.definitions:
            attributes["long_name"] = self.definitions[name]
        if variable.meanings:
            attributes["flag_values"] = list(variable.meanings.values())
            attributes["flag_meanings"] = " ".join(variable.meanings)
        return group.create_array(
            name,
            shape=(*plan.cells, plan.trials, *variable.shape),
            chunks=(*(1 for _ in plan.cells), plan.block, *variable.shape),
            dtype=np.dtype(variable.dtype),
            fill_value=fill_value(variable),
            dimension_names=(*plan.factors, "trial", *(f"{name}_{axis}" for axis in range(len(variable.shape)))),
            attributes=attributes,
            **{**_PLAIN, "compressors": [Crc32cCodec()]},
        )

    def _checksums(self, group: Any, names: list[str]) -> Any:
        plan = self.plan
        return group.create_array(
            CHECKSUMS,
            shape=(*plan.cells, plan.blocks_a_cell, len(names)),
            chunks=(*(1 for _ in plan.cells), 1, len(names)),
            dtype="uint64",
            fill_value=0,
            dimension_names=(*plan.factors, "block", "checked"),
            attributes={
                "long_name": "first 8 bytes (little-endian) of SHA-256 of the chunk of each result; 0: not committed",
                "checked": names,
            },
            **_PLAIN,
        )


_PLAIN: dict[str, Any] = {"compressors": None, "filters": None, "config": {"write_empty_chunks": True}}


def chunk_path(name: str, index: Sequence[int], trailing: int) -> str:
    """Where Zarr looks for the chunk of a block; `trailing` axes of a result are in one piece."""
    return "/".join([name, "c", *map(str, index), *("0" for _ in range(trailing))])


def is_intact(chunk: bytes) -> bool:
    """Whether the bytes of a result's chunk agree with the CRC-32C that they end in."""
    import google_crc32c  # what Zarr itself computes it by

    return google_crc32c.value(chunk[:-4]) == int.from_bytes(chunk[-4:], "little")


def as_json(variables: Sequence[Variable]) -> str:
    """The layout of the results as a string."""
    return json.dumps([[v.name, v.dtype, list(v.shape), v.meanings] for v in variables])


def from_json(text: str) -> tuple[Variable, ...]:
    """The inverse of `as_json`."""
    return tuple(Variable(name, dtype, tuple(shape), meanings) for name, dtype, shape, meanings in json.loads(text))


def _canonical_json(data: bytes) -> bytes:
    """With sorted keys: the order in which metadata were collected is no part of the result."""
    return json.dumps(json.loads(data), sort_keys=True, indent=1, allow_nan=True).encode() + b"\n"
