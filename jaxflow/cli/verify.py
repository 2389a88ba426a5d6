"""`jaxflow verify`: the statements of a paper, each with instances, worst residual and verdict."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from jaxflow.cli.session import AsJson, bad_input_is_exit_2, consoles, going_on, print_json
from jaxflow.cli.study import ExecutorName, complete_paper, complete_scale


def verify(
    paper: Annotated[str, typer.Argument(help="A paper, as `jaxflow list` names it.", autocompletion=complete_paper)],
    scale: Annotated[str, typer.Option(help="quick, paper or large.", autocompletion=complete_scale)] = "quick",
    seed: Annotated[int, typer.Option(help="Seed of all random instances.")] = 0,
    only: Annotated[list[str] | None, typer.Option(help="Name of a check to run alone; may be repeated.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for all files; out/PAPER by default.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the files of an earlier run.")] = False,
    executor: ExecutorName = None,
    as_json: AsJson = False,
) -> None:
    """The statements of a paper, held to instances: how many, the worst residual, a verdict; killed, it goes on."""
    from jaxflow import papers
    from jaxflow.cli.session import configure

    chosen = tuple(only or ())
    with bad_input_is_exit_2():
        papers.plan_verify(paper, scale=scale, only=chosen, out=out, overwrite=overwrite)
    configure()
    console = consoles(as_json)
    with going_on():
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
        cells = (row.source, row.checked, papers.counted(row), papers.told(row), papers.worst(row), row.verdict.value)
        # As text: brackets of intervals are no markup.
        table.add_row(*(Text(cell) for cell in cells))
    console.print(table)
    for path in paths.values():
        console.print(f"wrote {path}", markup=False, soft_wrap=True)
