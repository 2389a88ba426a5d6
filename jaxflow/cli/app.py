"""The commands. What they run is imported when they run: `--help` waits for nothing."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from jaxflow.cli.study import app as study_app
from jaxflow.cli.verify import verify

app = typer.Typer(
    name="jaxflow",
    help="Where does gradient flow go, which program does its limit solve, and how sure are we?",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

app.add_typer(study_app)
app.command()(verify)

Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the files of an earlier run.")]


def main() -> None:
    """The entry point of the command `jaxflow`."""
    app()


def _print_version(wanted: bool) -> bool:
    if wanted:
        typer.echo(f"jaxflow {version()}")
        raise typer.Exit()
    return wanted


def version() -> str:
    """The version that is installed, or says that none is."""
    # A seventh of a second of `--help`.
    from importlib import metadata

    try:
        return metadata.version("jaxflow-bias")
    except metadata.PackageNotFoundError:
        return "(not installed)"


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Where does gradient flow go, which program does its limit solve, and how sure are we?"""


@contextmanager
def _bad_input_is_exit_2() -> Iterator[None]:
    try:
        yield
    except (ValueError, FileExistsError, NotADirectoryError) as error:
        Console(stderr=True, soft_wrap=True).print(f"Error: {error}", style="red", markup=False, highlight=False)
        raise typer.Exit(2) from error


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the figure and its data.")] = Path("out/demo"),
    overwrite: Overwrite = False,
) -> None:
    """A dozen instances of each parametrisation to their limits: a table and a figure."""
    from jaxflow.cli.demo import plan_demo, run_demo
    from jaxflow.cli.session import configure

    with _bad_input_is_exit_2():
        paths = plan_demo(out, overwrite)
    configure()
    run_demo(paths, Console(file=sys.stdout))


@app.command()
def reproduce(
    paper: Annotated[str, typer.Argument(help="A paper, as `jaxflow list` names it.")],
    figure: Annotated[str, typer.Argument(help="One of its figures.")],
    scale: Annotated[str, typer.Option(help="quick, paper or large.")] = "quick",
    out: Annotated[Path | None, typer.Option(help="Folder for all files; out/PAPER by default.")] = None,
    overwrite: Overwrite = False,
) -> None:
    """A figure of a paper: data, picture, and the paper's claims with verdicts."""
    from jaxflow import papers
    from jaxflow.cli.session import configure

    with _bad_input_is_exit_2():
        papers.plan(paper, figure, scale=scale, out=out, overwrite=overwrite)
    configure()
    console = Console(file=sys.stdout)
    paths, claims = papers.reproduce(
        paper, figure, scale=scale, out=out, overwrite=overwrite, say=lambda line: console.print(line, markup=False)
    )
    table = Table("the paper says", "measured", "verdict", title=f"{paper} {figure}", show_lines=True)
    for claim in claims:
        table.add_row(claim.sentence, papers.told(claim), claim.verdict.value)
    console.print(table)
    for path in paths.values():
        console.print(f"wrote {path}", markup=False, soft_wrap=True)


@app.command("list")
def list_all() -> None:
    """Papers, their figures with run times at each scale, and the theorems in use."""
    from jaxflow import papers

    console = Console(file=sys.stdout)
    for paper in papers.known_papers():
        console.print(f"\n{paper.name}  {paper.title}", style="bold", markup=False)
        console.print(paper.reference, markup=False)
        figures = papers.figures_of(paper.name)
        if figures:
            table = Table("figure", "shows", *papers.SCALES, title="figures", title_justify="left")
            for entry in figures:
                table.add_row(entry.name, entry.title, *(entry.run_times[scale] for scale in papers.SCALES))
            console.print(table)
        checks = papers.checks_of(paper.name)
        if checks:
            table = Table("check", "holds to instances", title="verify", title_justify="left")
            for check in checks:
                table.add_row(check.name, check.statements)
            console.print(table)
        if paper.theorems:
            theorems = Table("theorem", "predicts", "for", title="theorems", title_justify="left")
            for theorem in paper.theorems:
                theorems.add_row(theorem.name, theorem.statement, theorem.model.__name__)
            console.print(theorems)
