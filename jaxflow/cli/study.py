"""`jaxflow study`: a user's own study, run, continued, looked at and reported."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from jaxflow.cli.session import AsJson, examples, in_one_line, print_json, print_plainly


def complete_paper(incomplete: str) -> list[str]:
    """Papers by their folders, without imports: completion in a shell is fast."""
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
def _studies(computes: bool = False) -> Iterator[Any]:
    """`jaxflow.study`, of which errors end the command in one line; `computes`: with what a command switches on."""
    from jaxflow import study
    from jaxflow.cli.session import configure

    with in_one_line(ValueError, ImportError, OSError, RuntimeError):
        if computes:
            configure()
            # As `python -m` does: experiments of the folder one stands in can be named.
            if "" not in sys.path and str(Path.cwd()) not in sys.path:
                sys.path.insert(0, str(Path.cwd()))
        yield study


def _run(
    study: Any, store: Path, executor: str | None, quiet: bool, overwrite: bool, mixed: bool, as_json: bool
) -> None:
    from jaxflow import study as studies

    results = study.run(store, executor, progress=not quiet, overwrite=overwrite, allow_mixed=mixed)
    with results:
        table = studies.summary(results)
    if as_json:
        rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
        return print_json({"outcomes": rows, "status": _described(study.status(store))})
    print_plainly(f"{table}\n\n{study.status(store)}")


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
    with _studies(computes=True) as studies:
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
    with _studies(computes=True) as studies:
        study = studies.study_of_store(
            store, lambda name: print_plainly(f"Importing {name}, as {store} asks for.", error=True)
        )
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
    from jaxflow.study.pairs import comparisons

    with _studies() as studies:
        found = studies.status(store, verify=verify)
        if as_json:
            print_json(_described(found))
        else:
            with studies.open_results(store) as results:
                lines = [str(found), *(f"\n{table}" for table in comparisons(results) if found.blocks)]
            print_plainly("\n".join(lines))
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

    with _studies():
        target = store.with_suffix(".html") if out is None else out
        written = write_study_report(store, target, overwrite=overwrite)
        print_plainly(f"wrote {written}")


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
