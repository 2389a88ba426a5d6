"""The commands. Each imports its modules when it runs, so that `--help` is fast."""

import sys
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from jaxflow.cli.session import (
    BAD_INPUT,
    EXIT_CODES,
    AsJson,
    consoles,
    examples,
    in_one_line,
    print_json,
    print_plainly,
)
from jaxflow.cli.study import ExecutorName, complete_paper, complete_scale
from jaxflow.cli.study import app as study_app

app = typer.Typer(
    name="jaxflow",
    help="Where does gradient flow go, which program does its limit solve, and how sure are we?",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

app.add_typer(study_app)

Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the files of an earlier run.")]
PaperName = Annotated[str, typer.Argument(help="A paper, as `jaxflow list` names it.", autocompletion=complete_paper)]
Scale = Annotated[str, typer.Option(help="quick, paper or large.", autocompletion=complete_scale)]
Seed = Annotated[int, typer.Option(help="Seed of all random instances.")]
Folder = Annotated[Path | None, typer.Option(help="Folder for all files; out/PAPER by default.")]


def main(arguments: list[str] | None = None) -> None:
    """The entry point of the command `jaxflow`. An error is one line and exit code 1, with `--debug` a traceback."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    try:
        app(args=[word for word in given if word != "--debug"], prog_name="jaxflow")
    except Exception as error:
        if debug:
            raise
        notes = "".join(f"\n{note}" for note in getattr(error, "__notes__", ()))
        text = f"Error: {type(error).__name__}: {error}{notes}\nThe same command with --debug shows where."
        print_plainly(text, error=True, style="red")
        sys.exit(1)


def _print_version(wanted: bool) -> bool:
    if wanted:
        # A seventh of a second of `--help`.
        from importlib import metadata

        try:
            typer.echo(f"jaxflow {metadata.version('jaxflow-bias')}")
        except metadata.PackageNotFoundError:
            typer.echo("jaxflow (not installed)")
        raise typer.Exit()
    return wanted


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks; may stand anywhere.")] = False,
) -> None:
    """Where does gradient flow go, which program does its limit solve, and how sure are we?"""


@app.command(epilog=examples("jaxflow demo", "jaxflow demo --out pictures --json"))
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the figure and its data.")] = Path("out/demo"),
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """A dozen instances of each parametrisation to their limits: a table and a figure."""
    from jaxflow.cli.demo import numbers_of, plan_demo, run_demo
    from jaxflow.cli.session import configure

    with in_one_line(*BAD_INPUT):
        paths = plan_demo(out, overwrite)
    configure()
    found = run_demo(paths, consoles(as_json))
    if as_json:
        print_json({"rows": numbers_of(found), "files": paths})


@app.command(
    epilog=examples(
        "jaxflow reproduce tarzanagh2023 fig5",
        "jaxflow reproduce tarzanagh2023 fig5 --scale paper --out results",
        "jaxflow reproduce sheen2024 rates --json > claims.json",
    )
)
def reproduce(
    paper: PaperName,
    figure: Annotated[str, typer.Argument(help="One of its figures.")],
    scale: Scale = "quick",
    seed: Seed = 0,
    out: Folder = None,
    overwrite: Overwrite = False,
    executor: ExecutorName = None,
    as_json: AsJson = False,
) -> None:
    """A figure of a paper: data, picture, and verdicts on the paper's claims. The same command resumes a killed run."""
    from jaxflow import papers
    from jaxflow.cli.session import configure

    with in_one_line(*BAD_INPUT):
        papers.plan(paper, figure, scale=scale, out=out, overwrite=overwrite)
    configure()
    console = consoles(as_json)
    with in_one_line(papers.OtherNumbers):
        paths, claims = papers.reproduce(
            paper, figure, scale=scale, seed=seed, out=out, overwrite=overwrite, executor=executor, progress=True,
            say=lambda line: console.print(line, markup=False),
        )  # fmt: skip
    if as_json:
        return print_json({"claims": [papers.as_json(claim) for claim in claims], "files": paths})
    table = Table("the paper says", "measured", "verdict", title=f"{paper} {figure}", show_lines=True)
    for claim in claims:
        table.add_row(*map(Text, (claim.says, papers.told(claim, with_worst=True), claim.verdict.value)))
    _show(console, table, paths)


@app.command(
    epilog=examples(
        "jaxflow verify tarzanagh2023",
        "jaxflow verify yun2021 --only single --scale paper",
        "jaxflow verify sheen2024 --json > rows.json",
    )
)
def verify(
    paper: PaperName,
    scale: Scale = "quick",
    seed: Seed = 0,
    only: Annotated[list[str] | None, typer.Option(help="Name of a check to run alone; may be repeated.")] = None,
    out: Folder = None,
    overwrite: Overwrite = False,
    executor: ExecutorName = None,
    as_json: AsJson = False,
) -> None:
    """Check the statements of a paper on instances: how many, the worst residual, a verdict. A killed run resumes."""
    from jaxflow import papers
    from jaxflow.cli.session import configure
    from jaxflow.papers.verdicts import Verdict

    chosen = tuple(only or ())
    with in_one_line(*BAD_INPUT):
        papers.plan_verify(paper, scale=scale, only=chosen, out=out, overwrite=overwrite)
    configure()
    console = consoles(as_json)
    with in_one_line(papers.OtherNumbers):
        paths, rows = papers.verify(
            paper, scale=scale, seed=seed, only=chosen, out=out, overwrite=overwrite, executor=executor, progress=True,
            say=lambda line: console.print(line, markup=False),
        )  # fmt: skip
    if as_json:
        return print_json({"rows": [papers.as_json(row) for row in rows], "files": paths})
    table = Table(
        "statement", "checked", "instances", "measured", "worst residual", "verdict", title=paper, show_lines=True
    )
    for row in rows:
        cells = (row.source, row.says, papers.counted(row), papers.told(row), papers.worst(row), row.verdict.value)
        table.add_row(*map(Text, cells))
    _show(console, table, paths)
    counts = Counter(row.verdict.value for row in rows)
    told = ", ".join(f"{counts[verdict.value]} {verdict.value}" for verdict in Verdict if counts[verdict.value])
    console.print(f"{paper}: {len(rows)} statements: {told or 'none'}", markup=False, soft_wrap=True)


@app.command("list", epilog=examples("jaxflow list", "jaxflow list yun2021", "jaxflow list --json"))
def list_all(
    paper: Annotated[str | None, typer.Argument(help="A paper; all by default.", autocompletion=complete_paper)] = None,
    as_json: AsJson = False,
) -> None:
    """Papers: what there is to reproduce and to verify, with the instances of each scale, and the theorems in use."""
    from jaxflow import papers

    with in_one_line(*BAD_INPUT):
        chosen = papers.known_papers() if paper is None else [papers.find_paper(paper)]
    told = [_described(found) for found in chosen]
    if as_json:
        return print_json(told)
    console = Console(file=sys.stdout)
    for found in told:
        console.print(f"\n{found['name']}  {found['title']}", style="bold", markup=False)
        console.print(found["reference"], markup=False)
        table, names = Table(), [named["name"] for named in (*found["entries"], *found["theorems"])]
        # Names are typed, so that they stand whole in one line whatever the width.
        table.add_column("name", no_wrap=True, min_width=max(map(len, names)))
        table.add_column("what", overflow="fold")
        table.add_column("", no_wrap=True, min_width=len("reproduce"))
        for scale in papers.SCALES:
            table.add_column(scale, overflow="fold")
        for entry in found["entries"]:
            table.add_row(*map(Text, (entry["name"], entry["title"], entry["command"], *entry["sizes"].values())))
        for theorem in found["theorems"]:
            table.add_row(theorem["name"], f"{theorem['statement']} ({theorem['model']})", "predicts", "", "", "")
        console.print(table)


def _show(console: Console, table: Table, paths: dict[str, Path]) -> None:
    """A table whose cells are `Text` (brackets of intervals are no markup), and the files beside it."""
    console.print(table)
    for path in paths.values():
        console.print(f"wrote {path}", markup=False, soft_wrap=True)


def _described(paper: Any) -> dict[str, Any]:
    """A paper: what `list` shows."""
    from jaxflow import papers

    entries = sorted(papers.entries_of(paper.name), key=lambda entry: (not entry.draw, entry.name))
    return {
        "name": paper.name,
        "title": paper.title,
        "reference": paper.reference,
        "entries": [
            {
                "name": entry.name,
                "title": entry.title,
                "command": "reproduce" if entry.draw else "verify",
                "sizes": {scale: entry.size(scale) for scale in papers.SCALES},
            }
            for entry in entries
        ],
        "theorems": [{"name": t.name, "statement": t.statement, "model": t.model.__name__} for t in paper.theorems],
    }
