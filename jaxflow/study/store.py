"""The store of a study: opened, continued, committed block by block, declared complete. Only the driver writes."""

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from jaxflow._core import require
from jaxflow.study import layout, manifest
from jaxflow.study.files import explained, read_file, side_folder, write_file
from jaxflow.study.keys import canonical
from jaxflow.study.layout import CHECKSUM_BYTES, CHECKSUMS, Encoder, chunk_path
from jaxflow.study.metadata import GROWN, HEAD, SCHEMA_VERSION, Head, migrate, read_document, read_head
from jaxflow.study.plan import Index, Plan
from jaxflow.study.results import CODES, Variable, difference


class OtherStudy(ValueError):
    """The store holds another study, or results that this run would not continue bit by bit."""


class TwoResults(ValueError):
    """One key gave two results: the experiment is not a function of its key, or has changed."""


class Store:
    """A store that this process writes."""

    def __init__(self, path: Path, head: Head):
        self.shown = path
        # An experiment may go to another folder; files do not follow it.
        self.path = path.absolute()
        self.plan, self.attributes = head.plan, head.attributes
        self.variables: tuple[Variable, ...] | None = None
        # Complete blocks; negative until they have been counted.
        self.done = -1
        self._encoder = Encoder(head.plan, head.definitions)
        self._scratch = side_folder(self.path) / "scratch"
        self._write_metadata(head.variables)

    @staticmethod
    def prepare(
        path: Path,
        plan: Plan,
        definitions: dict[str, str],
        *,
        device_kind: str,
        overwrite: bool = False,
        allow_mixed: bool = False,
    ) -> "Store":
        """A new store, or the one that is there to be continued.

        **Raises:** `ValueError` for a folder that is no study or another schema; `OtherStudy` for another study, or
        results of other versions or another kind of device (unless `allow_mixed`, which is recorded).
        """
        now = manifest.manifest(plan, device_kind)
        if path.exists() and overwrite:
            # Nothing else is ever removed; a study whose metadata are damaged is one all the same.
            read_document(path)
            _remove(path)
        if not path.exists() or (path.is_dir() and not any(path.iterdir())):
            attributes = {
                "schema_version": SCHEMA_VERSION,
                "study": json.dumps(plan.identity()),
                "manifest": json.dumps(now),
                "mixed": "",
                "layout": "",
                "complete": 0,
            }
            return Store(path, Head(plan, None, attributes, definitions))
        migrate(path)
        head = read_head(path)
        attributes = dict(head.attributes)
        _require_same(path, plan, head.plan)
        attributes["mixed"] = _mixed(path, attributes, now, allow_mixed)
        if head.plan.trials < plan.trials:
            _grow(path, head, plan, attributes)
        return Store(path, Head(plan, head.variables, attributes, definitions))

    def commit(self, index: Index, arrays: Mapping[str, np.ndarray], variables: tuple[Variable, ...]) -> bool:
        """Writes the chunks of a block (`outcome` last), then their checksums, whose presence completes it.

        **Returns:** False where the block was complete already, with the same bytes.

        **Raises:** `ValueError` where names, dtypes or shapes differ from those of the blocks before;
        `TwoResults` where intact chunks of the block hold something else.
        """
        if self.variables is None:
            self.attributes["layout"] = layout.as_json(variables)
            self._write_metadata(variables)
        self.check_layout(variables, self.plan.values_at(index))
        pieces = self.check_again(index, arrays)
        if self.is_complete(index):
            return False
        for name in sorted(pieces, key=lambda name: name == "outcome"):
            self._write(*pieces[name])
        sums = b"".join(digest(pieces[variable.name][1]) for variable in variables)
        self._write(*self._encoder.checksums(index, sums))
        return True

    def check_layout(self, found: tuple[Variable, ...], factors: Mapping[str, Any]) -> None:
        """**Raises:** `ValueError` where results look unlike those that the store holds."""
        how = difference(self.variables or found, found)
        require(
            not how, "results", f"every cell must give the same names, dtypes and shapes, but at {dict(factors)}: {how}"
        )

    def check_again(self, index: Index, arrays: Mapping[str, np.ndarray]) -> dict[str, tuple[str, bytes]]:
        """Holds a block to the intact chunks of its first computation, or, of a block that is open since the study has
        grown, to the trials of the smaller one.

        **Returns:** paths and bytes of its chunks by result. **Raises:** `TwoResults` naming results, factors and
        trials.
        """
        trials, variables = self.plan.trials_of(index), self.variables or ()
        pieces = {v.name: self._encoder.chunk(v.name, index, arrays[v.name][: len(trials)]) for v in variables}
        sums = recorded(self.path, variables, index)
        grown = [count for count in self.attributes.get(GROWN, []) if 0 < count - trials.start < self.plan.block]
        stop = trials.stop if sums else max(grown, default=trials.start)
        changed = []
        for variable in variables:
            path, data = pieces[variable.name]
            held = read_file(self.path / path)
            row = int(np.prod(variable.shape, dtype=int)) * np.dtype(variable.dtype).itemsize
            size = len(data) if sums else row * (stop - trials.start)
            # A damaged chunk has nothing to say.
            if held is not None and held[:size] != data[:size] and as_written(held, variable.name, sums):
                changed.append(variable.name)
        if changed and not self.attributes["mixed"]:
            before = f"in {self.shown}" if sums else f"the study in {self.shown} grew"
            raise TwoResults(
                f"experiment: {', '.join(changed)} of trials {trials.start} to {stop - 1} at "
                f"{self.plan.values_at(index)} came out otherwise than before {before}. The experiment is no function "
                "of its key, or has changed since; use another store, or allow a mixed one"
            )
        return pieces

    def is_complete(self, index: Index) -> bool:
        """Whether all chunks of a block are there and match their checksums. Reads them."""
        return bool(is_intact(self.path, self.variables or (), index))

    def pending(self) -> list[Index]:
        """The blocks to be computed: not there, not whole, or damaged."""
        return [index for index in self.plan.blocks() if not self.is_complete(index)]

    def finish(self) -> list[str]:
        """Declares the store complete, unless the manifest lacks something (which is returned)."""
        lacking = manifest.missing(json.loads(self.attributes["manifest"] or "{}"))
        self.attributes.pop(GROWN, None)
        self.attributes["complete"] = int(not lacking)
        self._write_metadata(self.variables)
        return lacking

    def _write_metadata(self, variables: tuple[Variable, ...] | None) -> None:
        """Writes what is missing or differs; the group, which marks the layout as complete, comes last."""
        pieces = self._encoder.group(self.attributes, variables)
        if not (self.path / HEAD).exists():
            with explained(self.shown):
                self._appear(pieces)
        for name, data in pieces.items():
            if read_file(self.path / name) != data:
                self._write(name, data)
        copy = side_folder(self.path) / HEAD
        if read_file(copy) != pieces[HEAD]:
            with self.explained():
                write_file(copy, pieces[HEAD], self._scratch)
        self.variables = variables

    def _appear(self, pieces: Mapping[str, bytes]) -> None:
        """A new store appears whole: killed before the last line, there is none."""
        new = self._scratch / "new"
        for name, data in pieces.items():
            write_file(new / name, data, self._scratch)
        # A link to an empty folder stays one.
        real = self.path.resolve()
        if real.exists():
            real.rmdir()
        os.replace(new, real)

    def _write(self, name: str, data: bytes) -> None:
        target = self.path / name
        inside = target.parent.resolve().is_relative_to(self.path.resolve())
        require(inside, "store", f"{name} in {self.shown} is a link that leads out of it; nothing is written there")
        with self.explained():
            write_file(target, data, self._scratch)

    def explained(self) -> AbstractContextManager[None]:
        """Says of an error while files are written what is kept, and what to do."""
        done, total = self.done, self.plan.block_count
        kept = "" if done < 0 else f"{done} of {total} blocks are complete in {self.shown} and stay valid"
        return explained(self.shown, kept)


def _remove(path: Path) -> None:
    """Out of the way at once, then removed: a process killed in between leaves no half of a store."""
    scratch = side_folder(path) / "scratch"
    with explained(path, f"the store in {path} is as it was"):
        scratch.mkdir(parents=True, exist_ok=True)
        # Where the path is a link to the store, the store goes and the link stays.
        os.replace(path.resolve(), scratch / "overwritten")
    with explained(path, f"what was in {path} lies in {scratch}"):
        shutil.rmtree(scratch / "overwritten")


def recorded(path: Path, variables: Sequence[Variable], index: Index) -> dict[str, bytes] | None:
    """The checksums of a block by result; none of them where there are not as many; None for a block without any."""
    sums = read_file(path / chunk_path(CHECKSUMS, index, 1)) if variables else None
    if sums is None or len(sums) != CHECKSUM_BYTES * len(variables):
        return None if sums is None else {}
    return {v.name: sums[at * CHECKSUM_BYTES : (at + 1) * CHECKSUM_BYTES] for at, v in enumerate(variables)}


def as_written(chunk: bytes | None, name: str, sums: Mapping[str, bytes] | None) -> bool:
    """Whether a chunk is what was written, by the checksums of its block; by its own where the block is open."""
    return digest(chunk) == sums[name] if sums else chunk is None or layout.is_intact(chunk)


def is_intact(path: Path, variables: Sequence[Variable], index: Index, only: str | None = None) -> bool | None:
    """Whether the chunks of a block (or `only` that of one result) match their checksums; None without checksums."""
    sums = recorded(path, variables, index)
    chosen = [v for v in variables if only in (None, v.name)]
    chunks = ((v.name, path / chunk_path(v.name, index, len(v.shape))) for v in chosen)
    return None if sums is None else bool(sums) and all(as_written(read_file(c), name, sums) for name, c in chunks)


def counted(path: Path, plan: Plan, indices: Iterable[Index]) -> np.ndarray:
    """How many trials of these blocks ended in each outcome."""
    total = np.zeros(CODES, int)
    for index in indices:
        data = read_file(path / chunk_path("outcome", index, 0)) or b""
        total += np.bincount(np.frombuffer(data, np.uint8)[: len(plan.trials_of(index))], minlength=CODES)
    return total


def digest(data: bytes | None) -> bytes:
    """What is kept of the SHA-256 of a chunk; empty for a chunk that is not there."""
    return b"" if data is None else hashlib.sha256(data).digest()[:CHECKSUM_BYTES]


def _grow(path: Path, held: Head, plan: Plan, attributes: dict[str, Any]) -> None:
    """Opens the last block of each cell, where it was not full; the attributes become those of the larger study.

    Nothing but checksums is removed: the block is computed again, and its first trials are held to what is there.
    Killed in between, the store is that of the smaller study, with some blocks to be computed again.
    """
    stored = held.plan
    if stored.trials % stored.block:
        for index in stored.blocks():
            if index[-1] == stored.blocks_a_cell - 1:
                with explained(path):
                    (path / chunk_path(CHECKSUMS, index, 1)).unlink(missing_ok=True)
    known = json.loads(attributes["manifest"] or "{}")
    attributes["study"] = json.dumps(plan.identity())
    attributes["manifest"] = json.dumps(known | {"arguments": plan.identity()})
    attributes["complete"] = 0
    attributes[GROWN] = [*attributes.get(GROWN, []), stored.trials]


def _require_same(path: Path, plan: Plan, held: Plan) -> None:
    # Written down: for Python True is 1.
    wanted, stored = plan.identity(), held.identity()
    differing = [
        f"{name} {stored[name]} there, {wanted[name]} here"
        for name in wanted
        if canonical(stored[name]) != canonical(wanted[name]) and not (name == "trials" and held.trials < plan.trials)
    ]
    if differing:
        raise OtherStudy(
            f"store: {path} belongs to another study: {'; '.join(differing)}. Instances that both have would be the "
            "same ones; write to another path, or overwrite"
        )


def _mixed(path: Path, attributes: Mapping[str, Any], now: Mapping[str, Any], allow: bool) -> str:
    """What a resume mixes, as recorded in the store."""
    stored = json.loads(attributes.get("manifest") or "{}")
    found = manifest.mixed(stored, now)
    if found and not allow:
        raise OtherStudy(
            f"store: results in {path} would not be equal bit by bit: {'; '.join(found)}. "
            "To mix them, give allow_mixed=True (--allow-mixed)"
        )
    known = [line for line in str(attributes.get("mixed", "")).split("; ") if line]
    return "; ".join([*known, *(line for line in found if line not in known)])
