"""Keeps a little of finished runs in `runs`, where the tests of statements find them.

    python -m tests.papers.record OUT     numbers of OUT/PAPER, where `jaxflow verify PAPER` and `jaxflow reproduce
                                          PAPER FIGURE` have left them, and what is said of them
    python -m tests.papers.record         only what is said of the numbers, where statements have changed

Runs have seed 0 and the scale of `scale_of`: independent code draws the first instances again.
"""

import sys
from pathlib import Path

import numpy as np

from jaxflow import papers
from jaxflow.papers.dataset import Dataset, Raw, Sweep, load_arrays, save_arrays
from tests.papers.recorded import RUNS, said_of

# Instances of each cell: a rate wants three, and a statement some on either side of its hypotheses. Percentages are
# shares of many.
FEW = 8
MANY = {"fig2": 100, "fig5": 100, "fig6": 100, "supports": 60, "composition": 40, "single": 6, "directions": 12}
MANY |= {"diagonal-flows": 4, "aligned-flows": 4, "push": 4, "failures": 2}
# Longer axes are instances, but for these: times, saved points, entries of spectra, seeds. Some of them, evenly over
# all, say the same.
LONG = 61
SOME: dict[tuple[str, str], dict[int, int]] = {
    ("boix2023", "heads"): {2048: 30},
    ("boix2023", "noise"): {512: 12},
    ("boix2023", "toy"): {512: 40, 100: 100},
    ("boix2023", "training"): {256: 8, 128: 8, 20: 5, 5: 2, 6: 2},
    ("tarzanagh2023", "cones"): {125000: 1500},
    ("tarzanagh2023", "fig1"): {200: 4, 121: 30, 50: 20},
    ("tarzanagh2023", "fig7"): {81: 30, 50: 20},
    ("tarzanagh2023", "sequence-paths"): {16380: 1000},
    ("yun2021", "fig1"): {200: 10},
    ("yun2021", "fig3"): {200: 10},
    ("yun2021", "phase-diagram"): {161: 161},
}


def thinned(dataset: Dataset, part: str, array: np.ndarray) -> np.ndarray:
    """Some instances and some points of a column."""
    few, some = MANY.get(dataset.name, FEW), SOME.get((dataset.paper, dataset.name), {})
    if not isinstance(dataset.parts[part], Sweep):
        array = array[:, :few]
    for axis, size in enumerate(array.shape):
        if size in some:
            array = np.take(array, np.linspace(0, size - 1, some[size]).astype(int), axis)
        elif size > LONG:
            array = np.take(array, np.arange(few), axis)
    return array


def finished(folder: Path, entry: papers.Entry) -> Raw:
    """All numbers of an experiment, from the file that its run has left."""
    file, start = (entry.name, "") if entry.draw else ("verify", f"{entry.dataset.name}.")
    raw: Raw = {part: {} for part in entry.dataset.parts}
    for place, column in load_arrays(folder / f"{file}.npz").items():
        if place.startswith(start):
            part, field = place.removeprefix(start).split(".")
            raw[part][field] = column
    return raw


def keep(paper: str, raw: dict[str, Raw]) -> None:
    """Writes the numbers of all datasets of a paper."""
    datasets = {entry.dataset.name: entry.dataset for entry in papers.entries_of(paper)}
    arrays = {
        f"{name}.{part}.{field}": thinned(datasets[name], part, column)
        for name, parts in raw.items()
        for part, fields in parts.items()
        for field, column in sorted(fields.items())
    }
    save_arrays(RUNS / f"{paper}.npz", arrays)


def main(out: str = "") -> None:
    """All papers."""
    for paper in papers.known_papers():
        entries = papers.entries_of(paper.name)
        if out:
            keep(paper.name, {entry.dataset.name: finished(Path(out) / paper.name, entry) for entry in entries})
        text = "\n\n".join("\n".join([entry.name, *said_of(paper.name, entry.name)]) for entry in entries)
        (RUNS / f"{paper.name}.txt").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
