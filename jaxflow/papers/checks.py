"""From the name of a paper to a row for each of its statements that can be measured."""

import abc
import dataclasses
import math
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxflow._core import unknown_name
from jaxflow.papers.registry import SCALES, Data, known_papers
from jaxflow.report import (
    Claim,
    Evidence,
    Verdict,
    decide,
    evidence_json,
    manifest,
    refuse_existing,
    with_evidence,
    write_json,
)

SEED = 0


@dataclass(frozen=True)
class Row:
    """One statement, held to instances.

    - `source`: which statement; `checked`: what of it, in one sentence; `measured`: what was found, with its
      denominator.
    - `instances`: how many satisfied the hypotheses, decided or not; `outside`: how many did not.
    - `worst`: the largest residual over the instances inside, in the sense of `residual`; +inf where the
      statement leaves nothing to measure.
    - `evidence`: what the verdict rests on; `values`: the numbers behind the text.

    **Raises:** `ValueError` where `instances` is not the denominator of the evidence.
    """

    source: str
    checked: str
    measured: str
    instances: int
    outside: int
    worst: float
    residual: str
    evidence: Evidence
    values: Mapping[str, float | int] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.instances != self.evidence.inside:
            raise ValueError(f"instances: {self.instances} of {self.source}, but evidence of {self.evidence.inside}")

    @property
    def verdict(self) -> Verdict:
        """Decided by the evidence."""
        return decide(self.evidence)


class AbstractCheck(abc.ABC):
    """A group of statements: numbers first, rows from the saved numbers alone."""

    @abc.abstractmethod
    def compute(self, scale: str, key: Any, say: Callable[[str], None]) -> Data:
        """The numbers; every instance is in them, whatever became of it."""

    @abc.abstractmethod
    def rows(self, data: Data) -> list[Row]:
        """Rows with verdicts."""


@dataclass(frozen=True)
class Check:
    """A registered check: `statements` says what it is about."""

    paper: str
    name: str
    statements: str
    check: AbstractCheck


_CHECKS: dict[tuple[str, str], Check] = {}


def register_check(paper: str, name: str, *, statements: str) -> Callable[[type[AbstractCheck]], type[AbstractCheck]]:
    """Enters a check class under its paper and name. **Raises:** `ValueError` for a name that is taken."""

    def enter(check: type[AbstractCheck]) -> type[AbstractCheck]:
        if (paper, name) in _CHECKS:
            raise ValueError(f"name: {paper} {name} is registered twice")
        _CHECKS[paper, name] = Check(paper, name, statements, check())
        return check

    return enter


def checks_of(paper: str) -> list[Check]:
    """The checks of a paper, in the order in which they were registered."""
    return [check for (owner, _), check in _CHECKS.items() if owner == paper]


def plan_verify(
    paper: str, *, scale: str, only: Sequence[str] = (), out: Path | str | None, overwrite: bool
) -> tuple[list[Check], dict[str, Path]]:
    """The checks that `verify` would run and the files it would write.

    **Raises:** `ValueError` with the nearest name for an unknown paper, scale or check, or a paper without
    checks; `FileExistsError` where one of the files exists, unless `overwrite`.
    """
    papers = [known.name for known in known_papers()]
    if paper not in papers:
        raise unknown_name("paper", paper, papers)
    checks = checks_of(paper)
    if not checks:
        raise ValueError(f"paper: nothing of {paper} is verified yet")
    if scale not in SCALES:
        raise unknown_name("scale", scale, SCALES)
    names = [check.name for check in checks]
    for name in only:
        if name not in names:
            raise unknown_name("only", name, names)
    folder = Path("out") / paper if out is None else Path(out)
    files = {"data": "verify.npz", "rows": "verify.json", "table": "verify.md", "manifest": "verify-manifest.json"}
    paths = {kind: folder / name for kind, name in files.items()}
    refuse_existing(paths.values(), overwrite)
    return [check for check in checks if not only or check.name in only], paths


def verify(
    paper: str,
    *,
    scale: str = "quick",
    seed: int = SEED,
    only: Sequence[str] = (),
    out: Path | str | None = None,
    overwrite: bool = False,
    say: Callable[[str], None] = print,
) -> tuple[dict[str, Path], list[Row]]:
    """Runs the checks of a paper, saves their numbers and judges the statements by the saved numbers.

    **Arguments:** `paper`, `scale` by name; `seed`: of all instances; `only`: names of checks, all by default;
    `out`: folder, `out/<paper>` by default; `overwrite`: replace files of an earlier run; `say`: receives one
    line a step.

    **Returns:** the files by kind, and the rows.

    **Raises:** as `plan_verify`, before anything is computed.
    """
    checks, paths = plan_verify(paper, scale=scale, only=only, out=out, overwrite=overwrite)
    started = time.monotonic()
    data: Data = {}
    for check in checks:
        begun = time.monotonic()
        # A name's checksum, so that a new check leaves the instances of the others as they are.
        key = jax.random.fold_in(jax.random.key(seed), zlib.crc32(check.name.encode()))
        found = check.check.compute(scale, key, say)
        data |= {f"{check.name}.{name}": value for name, value in found.items()}
        say(f"{check.statements}: {time.monotonic() - begun:.0f} s")
    paths["data"].parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(paths["data"], **data)  # pyright: ignore[reportArgumentType]
    with np.load(paths["data"], allow_pickle=False) as archive:
        data = {name: archive[name] for name in archive.files}
    rows = [row for check in checks for row in check.check.rows(_part(data, check.name))]
    rows.sort(key=lambda row: _place(row.source))
    title = f"{paper}: its statements, held to instances ({scale} scale, seed {seed})"
    paths["table"].write_text(rows_markdown(title, rows), encoding="utf-8")
    write_json(paths["rows"], {"title": title, "rows": [_as_json(row) for row in rows]})
    arguments = {"paper": paper, "scale": scale, "only": list(only)}
    write_json(paths["manifest"], manifest(arguments=arguments, seed=seed, seconds=time.monotonic() - started))
    return paths, rows


def rows_markdown(title: str, rows: Sequence[Row]) -> str:
    """The table of a run."""
    lines = [f"# {title}", "", "| statement | checked | instances | measured | worst residual | verdict |"]
    lines.append("|---|---|---|---|---|---|")
    for row in rows:
        cells = (row.source, row.checked, counted(row), told(row), worst(row), f"**{row.verdict.value}**")
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join([*lines, ""])


def counted(row: Row) -> str:
    """The instances of a row in words."""
    return f"{row.instances}" + (f" (+ {row.outside} outside the hypotheses)" if row.outside else "")


def told(row: Row | Claim) -> str:
    """What was measured, and what the verdict rests on."""
    return with_evidence(row.measured, row.evidence)


def worst(row: Row) -> str:
    """The worst residual of a row in words."""
    return f"{row.worst:.1e} ({row.residual})" if math.isfinite(row.worst) else "-"


def _place(source: str) -> tuple[int, int, str]:
    """Theorems, then lemmas, then the rest; each by number."""
    kind, _, number = source.partition(" ")
    kinds = ("Theorem", "Lemma")
    return (kinds.index(kind) if kind in kinds else len(kinds), int(number) if number.isdigit() else 0, source)


def _part(data: Data, name: str) -> Data:
    return {key.removeprefix(f"{name}."): value for key, value in data.items() if key.startswith(f"{name}.")}


def _as_json(row: Row) -> dict[str, Any]:
    finite = {name: value if math.isfinite(value) else None for name, value in row.values.items()}
    return dataclasses.asdict(row) | {
        "worst": row.worst if math.isfinite(row.worst) else None,
        "verdict": row.verdict.value,
        "evidence": evidence_json(row.evidence),
        "values": finite,
    }
