r"""`reproduce boix2023 fig1`, `fig4` to `fig7`, `fig14`, `fig15`: stable ranks and spectra of heads during training.

Figures 4, 6, 7 and 15 (17, 19) of Boix-Adserà et al. (2023) in kind, on data that are at hand: stable ranks, by layer
and by initial scale. In figures 6 and 7 the initial values of all layers but the token mapper are multiplied by the
scale. Figures 1, 5 and 14 (16, 18): spectra of $W_KW_Q^\top$ at the start, of $\Delta W_KW_Q^\top$ later. The paper's
are ViTs on CIFAR-10, CIFAR-100 and ImageNet; these are a small ViT and the one that the paper trains on CIFAR-10, both
on scikit-learn's digits.
"""

from typing import Any

import numpy as np

from jaxflow.papers.boix2023.training import PRODUCTS, RUNS, TRAINING, above_start, band, notes, product, said, shrinks
from jaxflow.papers.drawing import dress, new_panels
from jaxflow.papers.experiment import Table, register
from jaxflow.plots import new_figure, new_grid

CIFAR = "the ViT on CIFAR-10"
MORE = "ViTs on CIFAR-10, CIFAR-100 and ImageNet"
# Figure 6 shows the first singular values; from the fourth on they are hard to tell apart on small heads.
SHOWN = 3
# On the same digits: a small transformer from five starts, and the one of Appendix B from one.
VITS = ("adam", "network")
RANK = r"stable rank $\|W\|_F^2/\|W\|_2^2$"
# Dark to light in the order of the scales.
SHADES = ("#000000", "#0F5080", "#3A8BC4")


def _unordered(here: Table) -> np.ndarray:
    """By seed: 1 unless the mean over layers and heads rises with the scale."""
    ranks = here.rank[-1].mean(axis=(-1, -2))
    return ~np.all(np.diff(ranks[np.argsort(here.scales)], axis=0) > 0, axis=0)


def _at_once(here: Table) -> np.ndarray:
    """By scale, seed and head of the second layer: 1 unless each of the first singular values of ΔW is no sooner at
    half of its last value than the one before it, and the last of them later than the first; NaN where no measurement
    tells them apart."""
    values = (here.top[..., None] * here.spectrum)[:, :, :, 1, :, :SHOWN]
    # The first measurement from which on it stays above half.
    half = np.argmax(np.flip(np.cumprod(np.flip(values >= 0.5 * values[-1], 0), 0), 0), axis=0)
    good = np.all(np.diff(half, axis=-1) >= 0, axis=-1) & (half[..., -1] > half[..., 0])
    return np.where(np.all(half == half[..., :1], axis=-1), np.nan, ~good)


def draw_growth(numbers: Table) -> Any:
    """Figure 4: in the last layer against the step, mean and standard deviation over heads and seeds."""
    figure, axes = new_figure(len(RUNS), width=5.0 * len(RUNS), height=3.7)
    for axis, (name, title) in zip(axes, RUNS.items(), strict=True):
        for part, (color, symbol) in PRODUCTS.items():
            here = product(numbers, name, part)
            values = here.rank[:, 0, :, -1]
            band(axis, here.steps, values.reshape(len(values), -1), color, rf"$\Delta {symbol}$")
        dress(axis, title, "step", legend=8)
    axes[0].set_ylabel(RANK)
    return figure


def draw_spectra(numbers: Table) -> Any:
    r"""Figure 6: the largest $\sigma_i$ against the step, for one head of the second layer, a column for each scale."""
    scales = product(numbers, "adam", "KQ", default=False).scales
    figure, grid = new_grid(2, len(scales), width=3.3 * len(scales), height=5.6, shared=True)
    for row, (part, (color, symbol)) in enumerate(PRODUCTS.items()):
        here = product(numbers, "adam", part, default=False)
        for column, scale in enumerate(scales):
            axis = grid[row, column]
            values = here.spectrum[:, column, 0, 1, 0, :10] * here.top[:, column, 0, 1, 0, None]
            axis.plot(here.steps, values, color=color, linewidth=1.0)
            first, last = column == 0, row == len(grid) - 1
            labels = ("step" * last, r"$\sigma_i$" * first)
            dress(axis, rf"$\Delta {symbol}$, scale {scale:g}", *labels, size=9)
    return figure


def draw_by_scale(numbers: Table) -> Any:
    """Figure 7: after training by layer for every scale; bars: standard deviation over seeds of the mean over heads."""
    figure, axes = new_figure(2, width=9.0, height=3.7)
    for axis, (part, (_, symbol)) in zip(axes, PRODUCTS.items(), strict=True):
        here = product(numbers, "adam", part, default=False)
        values = here.rank[-1].mean(axis=-1)
        layers = np.arange(values.shape[-1])
        for row, (scale, shade) in enumerate(zip(here.scales, SHADES, strict=False)):
            offset = 0.06 * (row - 0.5 * (len(here.scales) - 1))
            mean, deviation = values[row].mean(axis=0), values[row].std(axis=0)
            axis.errorbar(layers + 1 + offset, mean, deviation, fmt="o", color=shade, capsize=3, label=f"{scale:g}")
        dress(axis, rf"stable rank of $\Delta {symbol}$", "layer", xticks=layers + 1)
    axes[0].set_ylabel(RANK)
    axes[0].legend(frameon=False, fontsize=8, title="initialisation scale", title_fontsize=8)
    return figure


def draw_layers(numbers: Table) -> Any:
    """Figure 15: in every layer, mean and standard deviation over seeds and heads; dotted: the start, where it is not
    far above."""
    panels = [(name, at) for name in VITS for at in range(product(numbers, name, "KQ").rank.shape[-2])]
    figure, axes = new_panels(len(panels), 4, 3.6, 3.0, RANK)
    for axis, (name, at) in zip(axes, panels, strict=True):
        for part, (color, symbol) in PRODUCTS.items():
            here = product(numbers, name, part)
            values, start = here.rank[:, 0, :, at].reshape(len(here.steps), -1), float(here.initial[0, 0, :, at].mean())
            band(axis, here.steps, values, color, rf"$\Delta {symbol}$; W(0): {start:.3g}")
            if start < 2.0 * values.max():
                axis.axhline(start, color=color, linestyle=":", linewidth=1.0)
        dress(axis, f"layer {at + 1}; {RUNS[name]}", "step", legend=7, size=9)
    return figure


LEARNED = "The weight perturbation learned during the training process"
EVIDENT = "Incremental learning dynamics and a low-rank bias are evident for all scales"
REMAINS = "Stable rank of the perturbation increases gradually, but remains small throughout training"
GRADUAL = "We find evidence of gradual increase in stable rank, leading to a low rank bias"
ALL = "ViTs on CIFAR-10, CIFAR-100 and ImageNet, GPT-2 on Wikitext-103"

register(
    TRAINING,
    "fig4",
    title="Stable rank during training: digits and text",
    statements=[
        *said("Figure 4", f"{LEARNED} gradually increases in stable rank during training.", ALL, tuple(RUNS), shrinks),
        *said(
            "Figure 4",
            f"{LEARNED} is ultimately low-rank when compared to the initial spectrum.",
            ALL,
            tuple(RUNS),
            above_start,
        ),
        # What is said of ours stands above: the same sentence of the same runs.
        *said("Figures 12, 13", f"{GRADUAL}, with SGD too.", "ViTs on CIFAR by SGD", ("sgd",), shrinks)[:1],
        *said("Figure 20", f"{REMAINS}.", "GPT-2 on Wikitext-103", ("text",), shrinks)[:1],
    ],
    notes=notes(*RUNS),
    draw=draw_growth,
)
register(
    TRAINING,
    "fig6",
    title="Spectra during training for smaller initial weights",
    statements=[
        statement
        for sentence, look in (
            (f"{EVIDENT}: singular values arrive one after another.", _at_once),
            (f"{EVIDENT}: stable ranks below those of the start.", above_start),
            ("albeit more pronounced at smaller initialization scales.", _unordered),
        )
        for statement in said("Figure 6", sentence, CIFAR, ("adam",), look, default=False)
    ],
    notes=notes("adam", default=False),
    draw=draw_spectra,
)
register(
    TRAINING,
    "fig7",
    title="Stable rank after training from smaller weights",
    statements=said(
        "Figure 7",
        "Smaller initialization scales lead to lower-rank attention heads.",
        CIFAR,
        ("adam",),
        _unordered,
        default=False,
    ),
    notes=notes("adam", default=False),
    draw=draw_by_scale,
)
register(
    TRAINING,
    "fig15",
    title="Stable ranks during training, layer by layer",
    statements=[
        *said("Figures 15, 17, 19", f"{GRADUAL}: higher at the end, in every layer.", MORE, VITS, shrinks),
        *said("Figures 15, 17, 19", f"{GRADUAL}: below the start, in every layer.", MORE, VITS, above_start),
    ],
    notes=notes(*VITS),
    draw=draw_layers,
)

BOTH = "ViTs on CIFAR-10 and ImageNet"
# "Extreme", a word without a number in the paper: at most half of the stable rank of the start.
EXTREME = 0.5
# Of a picture of one head: the first seed's first head.
SEED, HEAD = 0, 0
# Of deeper networks the pictures show these layers, as the paper does.
LAYERS = (0, 2, 4)


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
    figure, axes = new_panels(len(heads), 3, 4.2, 3.2, r"$\sigma_i/\sigma_1$")
    for axis, (name, part, layer) in zip(axes, heads, strict=True):
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
    return figure


def _shown(numbers: Table, parts: tuple[str, ...]) -> list[tuple[str, str, int]]:
    """Runs, product and layer of every panel."""
    counts = {name: product(numbers, name, "KQ").rank.shape[-2] for name in VITS}
    layers = {name: LAYERS if count > max(LAYERS) else range(count) for name, count in counts.items()}
    return [(name, part, layer) for name in VITS for part in parts for layer in layers[name]]


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
        *said(
            "Figure 5",
            f"{AFTER}: its stable rank is at most half of that of the start.",
            CIFAR,
            VITS,
            lambda here: ~(here.rank[-1] / here.initial[-1] <= EXTREME),
        ),
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
