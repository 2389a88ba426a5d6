"""`jaxflow verify`: the statements of a paper, each with instances, worst residual and verdict."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from jaxflow.cli.session import bad_input_is_exit_2, going_on
from jaxflow.cli.study import ExecutorName


def verify(
    paper: Annotated[str, typer.Argument(help="A paper, as `jaxflow list` names it.")],
    scale: Annotated[str, typer.Option(help="quick, paper or large.")] = "quick",
    seed: Annotated[int, typer.Option(help="Seed of all random instances.")] = 0,
    only: Annotated[list[str] | None, typer.Option(help="Name of a check to run alone; may be repeated.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for all files; out/PAPER by default.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the files of an earlier run.")] = False,
    executor: ExecutorName = None,
) -> None:
    """The statements of a paper, held to instances: how many, the worst residual, a verdict; killed, it goes on."""
    from jaxflow import papers
    from jaxflow.cli.session import configure

    chosen = tuple(only or ())
    with bad_input_is_exit_2():
        papers.plan_verify(paper, scale=scale, only=chosen, out=out, overwrite=overwrite)
    configure()
    console = Console(file=sys.stdout)
    with going_on():
        paths, rows = papers.verify(
            paper, scale=scale, seed=seed, only=chosen, out=out, overwrite=overwrite, executor=executor, progress=True,
            say=lambda line: console.print(line, markup=False),
        )  # fmt: skip
    table = Table(
        "statement", "checked", "instances", "measured", "worst residual", "verdict", title=paper, show_lines=True
    )
    for row in rows:
        cells = (row.source, row.checked, papers.counted(row), papers.told(row), papers.worst(row), row.verdict.value)
        # As text: brackets of intervals are no markup.
        table.add_row(*(Text(cell) for cell in cells))
    console.print(table)
    for path in paths.values():
        console.print(f"wrote {path}", markup=False, soft_wrap=True)
