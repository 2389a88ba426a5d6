"""The commands. What they run is imported when they run: `--help` waits for nothing."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from jaxflow.cli.session import bad_input_is_exit_2, going_on
from jaxflow.cli.study import ExecutorName
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


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the figure and its data.")] = Path("out/demo"),
    overwrite: Overwrite = False,
) -> None:
    """A dozen instances of each parametrisation to their limits: a table and a figure."""
    from jaxflow.cli.demo import plan_demo, run_demo
    from jaxflow.cli.session import configure

    with bad_input_is_exit_2():
        paths = plan_demo(out, overwrite)
    configure()
    run_demo(paths, Console(file=sys.stdout))


@app.command()
def reproduce(
    paper: Annotated[str, typer.Argument(help="A paper, as `jaxflow list` names it.")],
    figure: Annotated[str, typer.Argument(help="One of its figures.")],
    scale: Annotated[str, typer.Option(help="quick, paper or large.")] = "quick",
    seed: Annotated[int, typer.Option(help="Seed of all random instances.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder for all files; out/PAPER by default.")] = None,
    overwrite: Overwrite = False,
    executor: ExecutorName = None,
) -> None:
    """A figure of a paper: data, picture, and the paper's claims with verdicts; killed, it goes on."""
    from jaxflow import papers
    from jaxflow.cli.session import configure

    with bad_input_is_exit_2():
        papers.plan(paper, figure, scale=scale, out=out, overwrite=overwrite)
    configure()
    console = Console(file=sys.stdout)
    with going_on():
        paths, claims = papers.reproduce(
            paper, figure, scale=scale, seed=seed, out=out, overwrite=overwrite, executor=executor, progress=True,
            say=lambda line: console.print(line, markup=False),
        )  # fmt: skip
    table = Table("the paper says", "measured", "verdict", title=f"{paper} {figure}", show_lines=True)
    for claim in claims:
        # As text: brackets of intervals are no markup.
        table.add_row(*map(Text, (claim.sentence, papers.told(claim), claim.verdict.value)))
    console.print(table)
    for path in paths.values():
        console.print(f"wrote {path}", markup=False, soft_wrap=True)


@app.command("list")
def list_all(
    paper: Annotated[str | None, typer.Argument(help="A paper; all by default.")] = None,
) -> None:
    """Papers: what there is to reproduce and to verify, with run times at each scale, and the theorems in use."""
    from jaxflow import papers

    with bad_input_is_exit_2():
        chosen = papers.known_papers() if paper is None else [papers.find_paper(paper)]
    console = Console(file=sys.stdout)
    for found in chosen:
        console.print(f"\n{found.name}  {found.title}", style="bold", markup=False)
        console.print(found.reference, markup=False)
        table = Table("name", "what", "", *papers.SCALES)
        for entry in sorted(papers.entries_of(found.name), key=lambda entry: (not entry.draw, entry.name)):
            kind = "reproduce" if entry.draw else "verify"
            table.add_row(*map(Text, (entry.name, entry.title, kind, *(entry.run_times[s] for s in papers.SCALES))))
        for theorem in found.theorems:
            table.add_row(theorem.name, f"{theorem.statement} ({theorem.model.__name__})", "predicts", "", "", "")
        console.print(table)
