"""How a study looks as a Zarr group (format 3): metadata and chunks as bytes, computed in memory.

Writing the bytes is the business of `store`, which alone knows files.
"""

import hashlib
import json
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxflow._core import require
from jaxflow.study.plan import MOST_INSTANCES, RESERVED, Plan
from jaxflow.study.results import CODES, DTYPES, Variable, fill_value

CHECKSUMS = "block_checksum"

# The attribute of the group with the checksum of everything else in its `zarr.json`.
SEAL = "metadata_checksum"

# The first bytes of SHA-256 that are kept of each chunk, as one number.
CHECKSUM_BYTES = np.dtype(np.uint64).itemsize

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

        plan, self._pieces = self.plan, {}
        store = MemoryStore(self._pieces)
        group = zarr.create_group(store, attributes=attributes, zarr_format=3)
        for name, values in {**plan.factors, "trial": range(plan.trials)}.items():
            array = np.asarray(values)
            # Strings of variable length: those of fixed width are no part of the specification.
            text = array.dtype.kind == "U"
            held = _array(group, name, array.shape, array.shape, str if text else array.dtype, (name,))
            held[:] = array.astype(object) if text else array
        self._arrays = {v.name: self._result(group, v) for v in variables or ()}
        if variables:
            names = [v.name for v in variables]
            told = "first 8 bytes (little-endian) of SHA-256 of the chunk of each result; 0: not committed"
            self._arrays[CHECKSUMS] = _array(
                group,
                CHECKSUMS,
                (*plan.cells, plan.blocks_a_cell, len(names)),
                (*(1 for _ in plan.cells), 1, len(names)),
                "uint64",
                (*plan.factors, "block", "checked"),
                own_checksum=False,
                fill_value=0,
                attributes={"long_name": told, "checked": names},
            )
        with warnings.catch_warnings():
            # It says that other implementations may not read consolidated metadata; they find the rest.
            warnings.simplefilter("ignore")
            zarr.consolidate_metadata(store)
        found = {name: piece.to_bytes() for name, piece in self._pieces.items()}
        # From here on it holds the chunk that is being encoded, and nothing else.
        self._pieces.clear()
        document = json.loads(found.pop("zarr.json"))
        document["attributes"][SEAL] = seal(document)
        # With sorted keys: the order in which metadata were collected is no part of the result.
        return {**found, "zarr.json": json.dumps(document, sort_keys=True, indent=1, allow_nan=True).encode() + b"\n"}

    def chunk(self, name: str, index: Sequence[int], values: np.ndarray) -> tuple[str, bytes]:
        """Path and bytes of the chunk that holds one block of a result (without its padding)."""
        array = self._arrays[name]
        first = index[-1] * self.plan.block
        array[(*index[:-1], slice(first, first + len(values)))] = values
        return self._take(chunk_path(name, index, values.ndim - 1))

    def checksums(self, index: Sequence[int], sums: bytes) -> tuple[str, bytes]:
        """Path and bytes of the chunk that marks a block as complete."""
        self._arrays[CHECKSUMS][tuple(index)] = np.frombuffer(sums, "<u8")
        return self._take(chunk_path(CHECKSUMS, index, 1))

    def _take(self, path: str) -> tuple[str, bytes]:
        return path, self._pieces.pop(path).to_bytes()

    def _result(self, group: Any, variable: Variable) -> Any:
        plan, name = self.plan, variable.name
        require(name not in plan.factors, "results", f"{name!r} is the name of a factor as well")
        axes = [f"{name}_{axis}" for axis in range(len(variable.shape))]
        taken = [axis for axis in axes if axis in plan.factors]
        require(not taken, "results", f"{', '.join(taken)} is a factor, and what the store calls an axis of {name!r}")
        attributes: dict[str, Any] = {}
        if name in self.definitions:
            attributes["long_name"] = self.definitions[name]
        if variable.meanings:
            attributes["flag_values"] = list(variable.meanings.values())
            attributes["flag_meanings"] = " ".join(variable.meanings)
        if variable.padding is not None:
            attributes["padding_value"] = variable.padding
        return _array(
            group,
            name,
            (*plan.cells, plan.trials, *variable.shape),
            (*(1 for _ in plan.cells), plan.block, *variable.shape),
            np.dtype(variable.dtype),
            (*plan.factors, "trial", *axes),
            fill_value=fill_value(variable),
            attributes=attributes,
        )


def _array(
    group: Any, name: str, shape: Any, chunks: Any, dtype: Any, axes: Any, *, own_checksum: bool = True, **more: Any
) -> Any:
    """A new array of a group, whose chunks are numbers as they are and, with `own_checksum`, their CRC-32C."""
    from zarr.codecs import Crc32cCodec

    return group.create_array(
        name,
        shape=shape,
        chunks=chunks,
        dtype=dtype,
        dimension_names=axes,
        compressors=[Crc32cCodec()] if own_checksum else None,
        filters=None,
        config={"write_empty_chunks": True},
        **more,
    )


def chunk_path(name: str, index: Sequence[int], trailing: int) -> str:
    """Where Zarr looks for the chunk of a block; `trailing` axes of a result are in one piece."""
    return "/".join([name, "c", *map(str, index), *("0" for _ in range(trailing))])


def is_intact(chunk: bytes) -> bool:
    """Whether the bytes of a result's chunk agree with the CRC-32C that they end in."""
    import google_crc32c  # what Zarr itself computes it by

    return google_crc32c.value(chunk[:-4]) == int.from_bytes(chunk[-4:], "little")


def as_json(variables: Sequence[Variable]) -> str:
    """The layout of the results as a string."""
    listed = [[v.name, v.dtype, list(v.shape), v.meanings, v.padding] for v in variables]
    return json.dumps([entry if entry[-1] is not None else entry[:-1] for entry in listed])


def from_json(text: str) -> tuple[Variable, ...]:
    """The inverse of `as_json`."""
    listed = json.loads(text)
    require(isinstance(listed, list) and len(listed) > 0, "layout", "it lists no results")
    for entry in listed:
        require(isinstance(entry, list) and len(entry) in (4, 5), "layout", f"{entry!r} describes no result")
        _check_variable(*entry)
    names = [entry[0] for entry in listed]
    require(names == sorted(set(names)) and "outcome" in names, "layout", f"{names} are not the results of a study")
    return tuple(Variable(name, dtype, tuple(shape), *more) for name, dtype, shape, *more in listed)


def _check_variable(name: Any, dtype: Any, shape: Any, meanings: Any, padding: Any = 0) -> None:
    """**Raises:** `ValueError` for what no block can have given. A name is a folder: nothing else may be one."""
    known = isinstance(name, str) and name.isidentifier() and (name == "outcome" or name not in RESERVED)
    require(known, "layout", f"{name!r} is no name for a result")
    require(isinstance(dtype, str) and dtype in DTYPES, "layout", f"{name} has the unknown dtype {dtype!r}")
    sizes = isinstance(shape, list) and all(type(size) is int and 0 < size <= MOST_INSTANCES for size in shape)
    require(sizes, "layout", f"{name} has the shape {shape!r}")
    codes = isinstance(meanings, dict) and all(type(code) is int and 0 <= code < CODES for code in meanings.values())
    require(codes, "layout", f"{name} has codes that are none")
    words = all(meaning.isidentifier() for meaning in meanings)
    require(words and len(set(meanings.values())) == len(meanings), "layout", f"the codes of {name} are ambiguous")
    limits = np.iinfo(dtype) if dtype[0] in "iu" else None
    fits = type(padding) is int and (padding == 0 or limits is not None and limits.min <= padding <= limits.max)
    require(fits, "layout", f"{name} is filled up with {padding!r}, which is no {dtype}")
    coded = bool(meanings) or name != "outcome"
    require(coded and (dtype == "u1" or not meanings), "layout", f"{name} has the dtype {dtype}, which is no code's")
    require(name != "outcome" or not shape, "layout", "an instance has more than one outcome")


def seal(document: Mapping[str, Any]) -> str:
    """The checksum of a group's metadata: the first 16 digits of SHA-256 of the canonical JSON of all but itself."""
    attributes = {name: value for name, value in document.get("attributes", {}).items() if name != SEAL}
    text = json.dumps({**document, "attributes": attributes}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
