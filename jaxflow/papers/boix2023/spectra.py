r"""`reproduce boix2023 fig1`, `fig5`, `fig14`: spectra of what training adds to attention heads, and of the start.

Figures 1, 5 and 14 (16, 18) of Boix-Adserà et al. (2023) in kind: $W_KW_Q^\top$ at the start, $\Delta W_KW_Q^\top$
later. The paper's are ViTs on CIFAR-10, CIFAR-100 and ImageNet; these are a small ViT and the one that the paper trains
on CIFAR-10, both on scikit-learn's digits.
"""

from typing import Any

import numpy as np

from jaxflow.papers.boix2023.ranks import CIFAR, MORE, VITS
from jaxflow.papers.boix2023.training import (
    PRODUCTS,
    RUNS,
    TRAINING,
    above_start,
    notes,
    product,
    said,
    shrinks,
)
from jaxflow.papers.drawing import dress, kept_axes
from jaxflow.papers.registry import register
from jaxflow.papers.table import Table
from jaxflow.plots import new_grid

BOTH = "ViTs on CIFAR-10 and ImageNet"
# "Extreme", a word without a number in the paper: at most half of the stable rank of the start.
EXTREME = 0.5
# Of a picture of one head: the first seed's first head.
SEED, HEAD = 0, 0
# Of deeper networks the pictures show these layers, as the paper does.
LAYERS = (0, 2, 4)


def _half(here: Table) -> np.ndarray:
    """By scale, seed, layer and head."""
    return ~(here.rank[-1] / here.initial[-1] <= EXTREME)


def _below(here: Table) -> np.ndarray:
    """By scale, seed, layer and head: σ_i/σ_1 of ΔW below that of W(0) for every i from 2 to the heads' dimension."""
    start, end = here.initial_spectrum[-1], here.spectrum[-1]
    # W(0) has no more singular values than a head is wide, ΔW twice as many: those have nothing to be held against.
    count = start.shape[-1] if start.shape[-1] < end.shape[-1] else int(np.max(np.sum(start > 0, axis=-1)))
    return ~(end[..., 1:count] < start[..., 1:count]).all(axis=-1)


def _the_weights(here: Table) -> np.ndarray:
    """By scale, seed, layer and head: 1 unless the stable rank of ΔW is below that of W(T)."""
    return ~(here.rank[-1] < here.weights[-1])


def draw_heads(numbers: Table, heads: list[tuple[str, str, int]], last: bool = False) -> Any:
    """Normalised spectra of one head a panel, from the default scale: the start red, what was added green, the darker
    the later (up to five of the measurements, or the `last` alone), the weights at the end dashed."""
    columns = min(3, len(heads))
    rows = -(-len(heads) // columns)
    figure, grid = new_grid(rows, columns, width=4.2 * columns, height=3.2 * rows)
    for axis, (name, part, layer) in zip(kept_axes(grid, len(heads)), heads, strict=True):
        here, at = product(numbers, name, part), (0, SEED, layer, HEAD)
        points = len(here.steps)
        shown = [points - 1] if last else sorted({round(x) for x in np.linspace(0, points - 1, 5)})
        start, weights = here.initial_spectrum[0][at], here.weights_spectrum[-1][at]
        axis.plot(np.arange(1, len(start) + 1), start, "-", color="#C1272D", linewidth=2, label="W(0)")
        axis.plot(np.arange(1, len(weights) + 1), weights, "--", color="#8C8C8C", linewidth=1.2, label="W(T)")
        for row, point in enumerate(shown):
            values, shade = here.spectrum[point][at], 0.8 * (1.0 - (row + 1) / len(shown))
            color, label = (shade, 0.35 + 0.6 * shade, shade), f"ΔW, step {here.steps[point]}"
            axis.plot(np.arange(1, len(values) + 1), values, "-", color=color, label=label)
        title = f"${PRODUCTS[part][1]}$, layer {layer + 1}; {RUNS[name]}"
        dress(axis, title, "i", legend=7, size=9, ylim=(0.0, 1.02))
    for axis in grid[:, 0]:
        axis.set_ylabel(r"$\sigma_i/\sigma_1$")
    return figure


def _shown(numbers: Table, parts: tuple[str, ...]) -> list[tuple[str, str, int]]:
    """Runs, product and layer of every panel."""
    found = []
    for name in VITS:
        count = product(numbers, name, "KQ").rank.shape[-2]
        layers = LAYERS if count > max(LAYERS) else range(count)
        found += [(name, part, layer) for part in parts for layer in layers]
    return found


FIRST = "The difference between trained and initial weights has low rank"
AFTER = "The learned perturbation exhibits extreme low-rank bias post-training even in default initialization scales"
STUDIED = "To capture the low-rank bias with a non-vanishing initialization scale, we study the difference"
OWN = "its stable rank is below that of the trained weights themselves"
MANY = "Figures 14, 16, 18"

register(
    TRAINING,
    "fig1",
    title="Spectra of one head: the start and what is added",
    statements=[
        *said("Figure 1", f"{FIRST}.", BOTH, VITS, above_start, ("KQ",)),
        *said("Figure 1", "The rank of this difference grows gradually during training.", BOTH, VITS, shrinks, ("KQ",)),
        *said("Figure 1", f"{FIRST}: {OWN}.", BOTH, VITS, _the_weights, ("KQ",)),
    ],
    notes=notes(*VITS),
    draw=lambda n: draw_heads(n, [(name, "KQ", 1) for name in VITS]),
)
register(
    TRAINING,
    "fig5",
    title="Spectra after training against the start",
    statements=[
        *said("Figure 5", f"{AFTER}: its stable rank is at most half of that of the start.", CIFAR, VITS, _half),
        *said(
            "Figure 5", f"{AFTER}: its normalised singular values lie below those of the start.", CIFAR, VITS, _below
        ),
    ],
    notes=notes(*VITS),
    draw=lambda n: draw_heads(n, _shown(n, ("KQ",)), last=True),
)
register(
    TRAINING,
    "fig14",
    title="Spectra during training, by layer and product",
    statements=[
        *said(MANY, f"{STUDIED}: normalised singular values of ΔW below those of W(0).", MORE, VITS, _below),
        *said(MANY, f"{STUDIED}: stable rank of ΔW below that of W(T) itself.", MORE, VITS, _the_weights),
    ],
    notes=notes(*VITS),
    draw=lambda n: draw_heads(n, _shown(n, ("KQ", "VO"))),
)
