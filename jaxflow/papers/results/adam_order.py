r"""`reproduce results adam-order`: in which order Adam learns products from small starts.

Algorithm 1 of Boix-Adserà et al. (2023) gives the order of gradient flow. Adam moves every weight by about its rate in
a step, however small the gradient: products grow together, and one would expect the smallest to be learned first.
"""

from typing import Any

import numpy as np

from jaxflow.losses import Squared
from jaxflow.papers.boix2023.beyond_assumptions import (
    ADAM_START,
    HALF,
    RATE,
    STEPS,
    P,
    adam_products,
    disorder,
    draw,
    first_stages,
    learned,
    well_apart,
)
from jaxflow.papers.drawing import dress, of
from jaxflow.papers.experiment import Again, Dataset, Draw, Mask, Part, Statement, Table, register
from jaxflow.plots import COLORS, new_figure

TRIALS = {"quick": 60, "paper": 400, "large": 4000}
# Adam oscillates with its rate: an error of this share of the largest product has settled.
SETTLED = 0.05
# The two runs differ by rounding, of steps of one.
SAME_STEP = 0.0


def follow(key: Any, setting: None) -> Table:
    """Adam from weights of 1e-8 on the squared loss of three products.

    - `times`: of the stages of Algorithm 1 in which no product comes twice (NaN filled up); `coordinates`: their
      products (the others after them). `aims`: the least squares solution. `learned`: the step at which each product
      first has half of its aim, NaN where it never has, all `(3,)`; `off`: how far the last products are from it, over
      the largest.
    """
    risk, model = draw(key, Squared())
    stages, count = first_stages(risk, model)
    first = stages.coordinates[:count].tolist()
    data: Any = risk.data
    aims = np.linalg.lstsq(np.asarray(data.inputs), np.asarray(data.targets), rcond=None)[0]
    found = np.asarray(adam_products(risk, model.scaled(ADAM_START)))
    return Table(
        times=np.where(np.arange(P) < count, stages.times[:P], np.nan),
        coordinates=np.array([*first, *(i for i in range(P) if i not in first)]),
        aims=aims,
        learned=learned(found, aims),
        off=np.max(np.abs(found[-1] - aims)) / np.max(np.abs(aims)),
    )


ORDER = Dataset("results", "adam-order", {"runs": Part(follow, {"adam": None}, TRIALS, way="on host")})


def _by_stage(numbers: Table) -> tuple[Mask, np.ndarray]:
    """Who has two stages or more, well apart; steps in the order of Algorithm 1."""
    runs = numbers.runs
    inside = (np.sum(~np.isnan(runs.times), axis=-1) >= 2) & well_apart(runs.times)
    steps = np.take_along_axis(runs.learned, runs.coordinates.astype(int) % P, axis=-1)
    return inside, np.where(np.isnan(runs.times), np.nan, steps)


def _by_size(numbers: Table) -> tuple[Mask, np.ndarray]:
    """Whose products are apart by the same share as stages have to be; steps from the smallest product on."""
    runs = numbers.runs
    order = np.argsort(np.abs(runs.aims), axis=-1)
    sizes = np.take_along_axis(np.abs(runs.aims), order, axis=-1)
    return well_apart(sizes), np.take_along_axis(runs.learned, order, axis=-1)


def _disorder(numbers: Table, by_size: bool) -> np.ndarray:
    _, steps = (_by_size if by_size else _by_stage)(numbers)
    asked = np.ones_like(steps) if by_size else numbers.runs.times
    return np.where(numbers.runs.off <= SETTLED, disorder(steps, asked), np.nan)


def _again(by_size: bool) -> Again[Table]:
    def residual(numbers: Table, draw_: Draw, at: tuple[int, ...]) -> float:
        key, _ = draw_.instance("runs", at[1])
        risk, model = draw(key, Squared())
        data: Any = risk.data
        start = model.scaled(ADAM_START)
        found = adam(*(np.asarray(x, float) for x in (data.inputs, data.targets, start.u, start.v)))
        runs = numbers.runs.at(at)
        order = np.argsort(np.abs(runs.aims)) if by_size else runs.coordinates.astype(int) % P
        steps = learned(found, runs.aims)[order]
        return float(disorder(steps, np.ones(P) if by_size else runs.times))

    return Again("Adam in NumPy", residual, SAME_STEP)


def adam(X: np.ndarray, y: np.ndarray, u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """The products after every step of Adam (Kingma and Ba 2015) on the mean of (X(u ⊙ v) − y)²/2."""
    weights, mean, square = np.stack([u, v]), np.zeros((2, *u.shape)), np.zeros((2, *u.shape))
    found = np.empty((STEPS, len(u)))
    for step in range(1, STEPS + 1):
        pull = X.T @ (X @ (weights[0] * weights[1]) - y) / len(y)
        gradient = pull * weights[::-1]
        mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
        weights = weights - RATE * mean / (1.0 - 0.9**step) / (np.sqrt(square / (1.0 - 0.999**step)) + 1e-8)
        found[step - 1] = weights[0] * weights[1]
    return found


STAGES = Statement[Table](
    source="Boix-Adserà et al. (2023), beyond: Adam",
    says="Adam from α = 1e-8 learns the products in the order of Algorithm 1.",
    inside=lambda n: _by_stage(n)[0],
    residual=lambda n: _disorder(n, False),
    again=_again(False),
)
SIZES = Statement[Table](
    source="Adam, by size",
    says="Adam from α = 1e-8 learns the smallest product of the least squares solution first, and the largest last.",
    inside=lambda n: _by_size(n)[0],
    residual=lambda n: _disorder(n, True),
    again=_again(True),
)


def _notes(numbers: Table) -> list[str]:
    notes = []
    for name, by_size in (("Algorithm 1", False), ("size", True)):
        inside, off = (_by_size if by_size else _by_stage)(numbers)[0], _disorder(numbers, by_size)
        right, total = int(np.sum(inside & (off == 0))), int(np.sum(inside & ~np.isnan(off)))
        notes.append(f"In the order of {name}: {of(right, total)}.")
    runs = numbers.runs
    known = ~np.isnan(runs.learned)
    x, y = np.sqrt(np.abs(runs.aims[known]) * HALF) / RATE, runs.learned[known]
    ratio = y / x
    least, most = np.quantile(ratio, [0.05, 0.95]) if ratio.size else (np.nan, np.nan)
    text = f"Steps to half of a product, over √(½|β|)/η: median {np.median(ratio) if ratio.size else np.nan:.2f}, 90% "
    return [*notes, f"{text}between {least:.2f} and {most:.2f}; {int(np.sum(runs.off > SETTLED))} runs not settled."]


def draw_order(numbers: Table) -> Any:
    """Steps to half of each product against its size, and against the time of Algorithm 1."""
    figure, (left, right) = new_figure(2, width=9.0)
    runs = numbers.runs
    left.plot(np.abs(runs.aims).ravel(), runs.learned.ravel(), "o", color=COLORS["factored"], markersize=3.0)
    sizes = np.geomspace(max(np.min(np.abs(runs.aims)), 1e-6), np.max(np.abs(runs.aims)), 50)
    line = np.sqrt(HALF * sizes) / RATE
    left.plot(sizes, line, "--", color=COLORS["program"], linewidth=0.9, label=r"$\sqrt{|\beta|/2}/\eta$")
    steps = "steps of Adam to half of it"
    dress(left, "(a) against size", r"size of the product, $|\beta|$", steps, log="xy", legend=8)
    right.plot(runs.times.ravel(), _by_stage(numbers)[1].ravel(), "o", color=COLORS["combined"], markersize=3.0)
    dress(right, "(b) against Algorithm 1", "time of the stage in Algorithm 1", steps, log="xy")
    return figure


register(
    ORDER,
    title="The order in which Adam learns products from small starts",
    statements=[STAGES, SIZES],
    notes=_notes,
    draw=draw_order,
)
