"""`jaxflow study`: a user's own study, run, continued, looked at and reported."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from jaxflow.cli.session import INTERRUPTED, AsJson, examples, print_json


def complete_paper(incomplete: str) -> list[str]:
    """Papers by the folders they are in: a shell that completes a word waits for no import."""
    folders = (Path(__file__).parents[1] / "papers").glob("*/__init__.py")
    return sorted(name for name in (folder.parent.name for folder in folders) if name.startswith(incomplete))


def complete_scale(incomplete: str) -> list[str]:
    """The scales of figures and checks."""
    return [name for name in ("quick", "paper", "large") if name.startswith(incomplete)]


app = typer.Typer(
    name="study",
    help="Monte Carlo studies: run, resume, status, report.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

StorePath = Annotated[Path, typer.Argument(help="The store of a study, RESULTS.zarr.")]
ExecutorName = Annotated[
    str | None,
    typer.Option("--executor", help="serial (default), devices, dask, or tcp://HOST:PORT of a Dask scheduler."),
]
Mixed = Annotated[bool, typer.Option("--allow-mixed", help="Continue results of other versions or devices.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress.")]


@contextmanager
def _errors_in_one_line() -> Iterator[None]:
    from jaxflow import study as studies

    console = Console(stderr=True, soft_wrap=True)
    try:
        yield
    except (ValueError, ImportError, OSError, RuntimeError) as error:
        notes = "".join(f"\n{note}" for note in getattr(error, "__notes__", ()))
        console.print(f"Error: {error}{notes}", style="red", markup=False, highlight=False)
        raise typer.Exit(2 if isinstance(error, ValueError | FileNotFoundError | FileExistsError) else 1) from error
    except studies.Interrupted as stop:
        console.print(str(stop), markup=False, highlight=False)
        raise typer.Exit(INTERRUPTED) from stop


def _run(
    study: Any, store: Path, executor: str | None, quiet: bool, overwrite: bool, mixed: bool, as_json: bool
) -> None:
    from jaxflow import study as studies

    results = study.run(store, executor, progress=not quiet, overwrite=overwrite, allow_mixed=mixed)
    if as_json:
        with results:
            table = studies.summary(results)
        rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
        return print_json({"outcomes": rows, "status": _described(study.status(store))})
    console = Console(file=sys.stdout, soft_wrap=True)
    with results:
        console.print(str(studies.summary(results)), markup=False, highlight=False)
    console.print(f"\n{study.status(store)}", markup=False, highlight=False)


def _start() -> None:
    from jaxflow.cli.session import configure

    configure()
    # As `python -m` does: experiments of the folder one stands in can be named.
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))


def _say(line: str) -> None:
    Console(stderr=True, soft_wrap=True).print(line, markup=False, highlight=False)


@app.command(
    epilog=examples(
        "jaxflow study run selection.toml --out selection.zarr",
        "jaxflow study run selection.toml --out selection.zarr --executor devices",
    )
)
def run(
    spec: Annotated[Path, typer.Argument(help="A TOML file: experiment, data_factors, method_factors, trials, seed.")],
    out: Annotated[Path, typer.Option(help="The store to write, or to continue; RESULTS.zarr.")],
    executor: ExecutorName = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing study.")] = False,
    allow_mixed: Mixed = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Run a study from a file; the same command again continues it, and with more trials extends it."""
    from jaxflow import study as studies

    with _errors_in_one_line():
        _start()
        _run(studies.read_spec(spec), out, executor, quiet, overwrite, allow_mixed, as_json)


@app.command(epilog=examples("jaxflow study resume selection.zarr"))
def resume(
    store: StorePath,
    executor: ExecutorName = None,
    allow_mixed: Mixed = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Continue a study from its store alone; the experiment that it names is imported, and its name printed before."""
    from jaxflow import study as studies

    with _errors_in_one_line():
        _start()
        study = studies.study_of_store(store, lambda name: _say(f"Importing {name}, as {store} asks for."))
        _run(study, store, executor, quiet, False, allow_mixed, as_json)


@app.command(
    epilog=examples("jaxflow study status selection.zarr", "jaxflow study status selection.zarr --verify --json")
)
def status(
    store: StorePath,
    verify: Annotated[bool, typer.Option("--verify", help="Hold every chunk to its checksum.")] = False,
    as_json: AsJson = False,
) -> None:
    """How far a study has come. Exit code 0 if it is complete, 3 if not."""
    from jaxflow import study as studies
    from jaxflow.study.pairs import comparisons

    with _errors_in_one_line():
        found = studies.status(store, verify=verify)
        if as_json:
            print_json(_described(found))
        else:
            with studies.open_results(store) as results:
                lines = [str(found), *(f"\n{table}" for table in comparisons(results) if found.blocks)]
            Console(file=sys.stdout, soft_wrap=True).print("\n".join(lines), markup=False, highlight=False)
    if not found.complete:
        raise typer.Exit(3)


@app.command(epilog=examples("jaxflow study report selection.zarr --out selection.html"))
def report(
    store: StorePath,
    out: Annotated[Path | None, typer.Option(help="The file to write; RESULTS.html by default.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier report.")] = False,
) -> None:
    """One self-contained HTML file: figures, tables, definitions, manifest."""
    from jaxflow.report.study_html import write_study_report

    with _errors_in_one_line():
        target = store.with_suffix(".html") if out is None else out
        written = write_study_report(store, target, overwrite=overwrite)
        Console(file=sys.stdout, soft_wrap=True).print(f"wrote {written}", markup=False, highlight=False)


def _described(status: Any) -> dict[str, Any]:
    """How far a study has come, for machines."""
    plan = status.plan
    return {
        "store": status.path,
        "experiment": plan.experiment["name"],
        "seed": plan.seed,
        "trials": plan.trials,
        "factors": {name: list(values) for name, values in plan.factors.items()},
        "instances": plan.instance_count,
        "blocks": plan.block_count,
        "complete_blocks": status.blocks,
        "damaged_blocks": status.damaged,
        "outcomes": {name: count for name, count in status.counts.items() if count},
        "complete": status.complete,
    }
