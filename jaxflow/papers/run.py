"""From names to files: one figure of a paper, or the table of its statements."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jaxflow._core import as_boolean, as_integer, require, unknown_name
from jaxflow.papers.attempts import added
from jaxflow.papers.claims import CLAIMS, ROWS, Finding, as_json, findings_markdown
from jaxflow.papers.dataset import Draw, Raw, Say, load_arrays, save_arrays
from jaxflow.papers.registry import SCALES, Entry, checks_of, default_folder, find_figure, find_paper
from jaxflow.plots import save_figure
from jaxflow.report import manifest, refuse_existing, write_json
from jaxflow.study.progress import duration

SEED = 0

Paths = dict[str, Path]


def plan(paper: str, figure: str, *, scale: str, out: Path | str | None, overwrite: bool) -> tuple[Entry, Paths]:
    """The figure and the files that `reproduce` would write.

    **Raises:** `ValueError` with the nearest name for an unknown paper, figure or scale; `FileExistsError` where
    one of the files exists, unless `overwrite`.
    """
    entry = find_figure(paper, figure)
    kinds = {"data": ".npz", "png": ".png", "svg": ".svg", "table": "-claims.md", "claims": "-claims.json"}
    kinds |= {"manifest": "-manifest.json"}
    folder = default_folder(paper, out)
    paths = {kind: folder / f"{entry.name}{ending}" for kind, ending in kinds.items()}
    _refuse(scale, paths, overwrite)
    return entry, paths


def plan_verify(
    paper: str, *, scale: str, only: Sequence[str] = (), out: Path | str | None, overwrite: bool
) -> tuple[list[Entry], Paths]:
    """The checks that `verify` would run and the files it would write.

    **Raises:** `ValueError` with the nearest name for an unknown paper, scale or check, or a paper without
    checks; `FileExistsError` where one of the files exists, unless `overwrite`.
    """
    checks = checks_of(find_paper(paper).name)
    if not checks:
        raise ValueError(f"paper: nothing of {paper} is verified yet")
    names = [check.name for check in checks]
    listed = isinstance(only, Sequence) and not isinstance(only, str)
    require(listed, "only", "expected a list of names of checks", got=only)
    for name in only:
        if name not in names:
            raise unknown_name("only", name, names)
    files = {"data": "verify.npz", "rows": "verify.json", "table": "verify.md", "manifest": "verify-manifest.json"}
    paths = {kind: default_folder(paper, out) / name for kind, name in files.items()}
    _refuse(scale, paths, overwrite)
    return [check for check in checks if not only or check.name in only], paths


def reproduce(
    paper: str,
    figure: str,
    *,
    scale: str = "quick",
    seed: int = SEED,
    out: Path | str | None = None,
    overwrite: bool = False,
    executor: Any = None,
    progress: bool = False,
    say: Say = print,
) -> tuple[Paths, list[Finding]]:
    """Computes a figure, saves its numbers, draws it from the saved numbers and tests the paper's claims on them.

    **Arguments:** `paper`, `figure`, `scale` by name; `seed`: of all instances; `out`: folder, `out/<paper>` by
    default; `overwrite`: replace files of an earlier run, and compute its numbers again; `executor`, `progress`: as
    `jaxflow.study.Study.run`; `say`: receives one line a step.

    If a call was killed at any moment, the same call (without `overwrite`) continues with the numbers that exist. Any
    other call that needs these numbers in this folder uses them too.

    **Returns:** the files by kind, and a finding for each statement.

    **Raises:** as `plan`, before anything is computed; as `Dataset.collect`.

    **Example:**

    ```python
    from jaxflow import papers

    files, claims = papers.reproduce("yun2021", "alpha-sweep", out="alpha-sweep")
    for claim in claims:
        print(claim.says, claim.verdict)
    ```
    """
    entry, paths = plan(paper, figure, scale=scale, out=out, overwrite=overwrite)
    seed, progress = _how(seed, progress, say)
    say(f"{entry.title} ({entry.size(scale)})")
    run = _Run(paths, scale, seed, overwrite, say, executor, progress)
    numbers = run.numbers([entry], lambda dataset, name: name)
    findings, notes = entry.find(numbers[entry.dataset.name], Draw(entry.dataset, scale, seed))
    assert entry.draw is not None
    save_figure(entry.draw(numbers[entry.dataset.name]), paths["png"], paths["svg"])
    title = f"{entry.paper} {entry.name}: {entry.title}"
    record = {"title": title, "claims": [as_json(finding) for finding in findings], "notes": notes}
    arguments = {"paper": paper, "figure": figure, "scale": scale}
    run.write(findings_markdown(title, CLAIMS, findings, notes), "claims", record, arguments)
    return paths, findings


def verify(
    paper: str,
    *,
    scale: str = "quick",
    seed: int = SEED,
    only: Sequence[str] = (),
    out: Path | str | None = None,
    overwrite: bool = False,
    executor: Any = None,
    progress: bool = False,
    say: Say = print,
) -> tuple[Paths, list[Finding]]:
    """Tests the statements of a paper on instances: computes the numbers, saves them, and decides by the saved ones.

    **Arguments:** `only`: names of checks, all by default; the others as in `reproduce`.

    Until all checks are done, `verify-partial.md` has the rows of the finished ones.

    **Returns:** the files by kind, and a finding for each statement.

    **Raises:** as `plan_verify`, before anything is computed; as `Dataset.collect`.

    **Example:**

    ```python
    from jaxflow import papers

    files, rows = papers.verify("tarzanagh2023", only=["inequalities"], out="inequalities")
    for row in rows:
        print(row.source, papers.counted(row), papers.worst(row), row.verdict)
    ```
    """
    checks, paths = plan_verify(paper, scale=scale, only=only, out=out, overwrite=overwrite)
    seed, progress = _how(seed, progress, say)
    run = _Run(paths, scale, seed, overwrite, say, executor, progress)
    title = f"{paper}: its statements, held to instances ({scale} scale, seed {seed})"
    partial = paths["table"].with_name("verify-partial.md")
    found: dict[str, list[Finding]] = {}

    def judged(numbers: dict[str, Any]) -> list[Finding]:
        for check in checks:
            if check.dataset.name in numbers and check.name not in found:
                found[check.name] = check.find(numbers[check.dataset.name], Draw(check.dataset, scale, seed))[0]
        return sorted((one for findings in found.values() for one in findings), key=lambda one: _place(one.source))

    def so_far(numbers: dict[str, Any]) -> None:
        if any(check.dataset.name not in numbers for check in checks):
            partial.write_text(findings_markdown(f"{title}: so far", ROWS, judged(numbers)), encoding="utf-8")
            say(f"{len(found)} of {len(checks)} checks, {duration(run.seconds())} so far; their rows: {partial}")

    numbers = run.numbers(checks, lambda dataset, name: f"{dataset}.{name}", so_far)
    partial.unlink(missing_ok=True)
    # Those that stood in the partial table are not judged again: the saved numbers have the same bits, and a check by
    # independent code may take longer than the experiment.
    findings = judged(numbers)
    record = {"title": title, "rows": [as_json(finding) for finding in findings]}
    arguments = {"paper": paper, "scale": scale, "only": list(only)}
    run.write(findings_markdown(title, ROWS, findings), "rows", record, arguments)
    return paths, findings


class _Run:
    """One command: its numbers, each dataset once, and its files."""

    def __init__(self, paths: Paths, scale: str, seed: int, overwrite: bool, say: Say, executor: Any, progress: bool):
        self.paths, self.scale, self.seed, self.overwrite = paths, scale, seed, overwrite
        self.say, self.executor, self.progress = say, executor, progress
        self.started, self.earlier = time.monotonic(), added()

    def seconds(self) -> float:
        """Since the command began."""
        return time.monotonic() - self.started

    def numbers(
        self,
        entries: list[Entry],
        named: Callable[[str, str], str],
        so_far: Callable[[dict[str, Any]], None] = lambda numbers: None,
    ) -> dict[str, Any]:
        """The typed numbers by dataset, as they were saved; `named` names an array of the file; `so_far` is told of
        the datasets that are done whenever another one is."""
        datasets = {entry.dataset.name: entry.dataset for entry in entries}
        folder, file = self.paths["data"].parent, self.paths["data"]
        where = {"scale": self.scale, "seed": self.seed}
        mark = _unfinished(self.paths)
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
        found: dict[str, Raw] = {}
        for name, dataset in datasets.items():
            if self.overwrite:
                dataset.begin_again(folder, **where)
            self.earlier = added(self.earlier, dataset.took(folder, **where))
            found[name] = dataset.collect(folder, **where, say=self.say, executor=self.executor, progress=self.progress)
            so_far({done: datasets[done].typed(raw) for done, raw in found.items()})
        fields = [(name, part, field) for name, raw in found.items() for part in raw for field in raw[part]]
        places = {(name, part, field): named(name, f"{part}.{field}") for name, part, field in fields}
        save_arrays(file, {place: found[name][part][field] for (name, part, field), place in places.items()})
        saved = load_arrays(file)
        for (name, part, field), place in places.items():
            found[name][part][field] = saved[place]
        return {name: dataset.typed(found[name]) for name, dataset in datasets.items()}

    def write(self, table: str, kind: str, record: dict[str, Any], arguments: dict[str, Any]) -> None:
        """The table, the same for machines, and how it came to be."""
        self.paths["table"].write_text(table, encoding="utf-8")
        write_json(self.paths[kind], record)
        # With what all attempts before this one took for the same numbers, in this command or another.
        took = added({"seconds": self.seconds(), "cpu_seconds": time.process_time()}, self.earlier)
        write_json(self.paths["manifest"], manifest(arguments=arguments, seed=self.seed, **took))
        _unfinished(self.paths).unlink()


def _how(seed: int, progress: bool, say: Say) -> tuple[int, bool]:
    require(callable(say), "say", "expected a function of a line", got=say)
    return as_integer("seed", seed), as_boolean("progress", progress)


def _refuse(scale: str, paths: Paths, overwrite: bool) -> None:
    as_boolean("overwrite", overwrite)
    if not isinstance(scale, str) or scale not in SCALES:
        raise unknown_name("scale", scale, SCALES)
    refuse_existing(paths.values(), overwrite or _unfinished(paths).exists())


def _unfinished(paths: Paths) -> Path:
    """A mark that stands while a command runs: the files of a killed one are its own to write over."""
    return paths["data"].parent / "numbers" / f"{paths['data'].stem}.unfinished"


def _place(source: str) -> tuple[int, int, str]:
    """Theorems, then lemmas, then the rest; each by number."""
    kind, _, number = source.partition(" ")
    kinds = ("Theorem", "Lemma")
    return (kinds.index(kind) if kind in kinds else len(kinds), int(number) if number.isdigit() else 0, source)
