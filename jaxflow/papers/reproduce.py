"""From the name of a figure to its files."""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from jaxflow._core import unknown_name
from jaxflow.papers.registry import SCALES, Entry, find_figure
from jaxflow.plots import save_figure
from jaxflow.report import Claim, claims_json, claims_markdown, manifest, refuse_existing, write_json

SEED = 0


def output_paths(entry: Entry, out: Path) -> dict[str, Path]:
    """Every file that a figure leaves."""
    return {
        "data": out / f"{entry.name}.npz",
        "png": out / f"{entry.name}.png",
        "svg": out / f"{entry.name}.svg",
        "table": out / f"{entry.name}-claims.md",
        "claims": out / f"{entry.name}-claims.json",
        "manifest": out / f"{entry.name}-manifest.json",
    }


def plan(
    paper: str, figure: str, *, scale: str, out: Path | str | None, overwrite: bool
) -> tuple[Entry, dict[str, Path]]:
    """The figure and the files that `reproduce` would write.

    **Raises:** `ValueError` with the nearest name for an unknown paper, figure or scale; `FileExistsError` where
    one of the files exists, unless `overwrite`.
    """
    entry = find_figure(paper, figure)
    if scale not in SCALES:
        raise unknown_name("scale", scale, SCALES)
    paths = output_paths(entry, Path("out") / paper if out is None else Path(out))
    refuse_existing(paths.values(), overwrite)
    return entry, paths


def reproduce(
    paper: str,
    figure: str,
    *,
    scale: str = "quick",
    out: Path | str | None = None,
    overwrite: bool = False,
    say: Callable[[str], None] = print,
) -> tuple[dict[str, Path], list[Claim]]:
    """Computes a figure, saves its numbers, draws it from the saved numbers and holds the paper's claims to them.

    **Arguments:** `paper`, `figure`, `scale` by name; `out`: folder, `out/<paper>` by default; `overwrite`: replace
    files of an earlier run; `say`: receives one line a step.

    **Returns:** the files by kind, and the claims.

    **Raises:** as `plan`, before anything is computed.
    """
    entry, paths = plan(paper, figure, scale=scale, out=out, overwrite=overwrite)
    started = time.monotonic()
    say(f"{entry.title} ({entry.run_times[scale]})")
    data = entry.figure.compute(scale, SEED, say)
    paths["data"].parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(paths["data"], **data)  # pyright: ignore[reportArgumentType]
    return _from_saved(entry, paths, scale, time.monotonic() - started)


def _from_saved(
    entry: Entry, paths: dict[str, Path], scale: str, seconds: float
) -> tuple[dict[str, Path], list[Claim]]:
    with np.load(paths["data"], allow_pickle=False) as archive:
        data = {name: archive[name] for name in archive.files}
    save_figure(entry.figure.draw(data), paths["png"], paths["svg"])
    claims, notes = entry.figure.claims(data)
    title = f"{entry.paper} {entry.name}: {entry.title}"
    paths["table"].write_text(claims_markdown(title, claims, notes), encoding="utf-8")
    write_json(paths["claims"], claims_json(title, claims, notes))
    arguments = {"paper": entry.paper, "figure": entry.name, "scale": scale}
    write_json(paths["manifest"], manifest(arguments=arguments, seed=SEED, seconds=seconds))
    return paths, claims
