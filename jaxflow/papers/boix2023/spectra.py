"""`reproduce boix2023 fig1`, fig5, fig14, fig15: spectra of what training adds to attention heads, and of the start."""

from collections.abc import Callable
from typing import Any

import numpy as np

from jaxflow.papers.boix2023.practical.runs import IMAGES, NETWORKS, Runs, digits_key, image_runs, runs_of
from jaxflow.papers.boix2023.rank_claims import RUNS, Look, each, grows, lower_than_start, notes, said
from jaxflow.papers.registry import AbstractFigure, Data, register_figure
from jaxflow.plots import LayerPanel, SpectrumPanel, draw_layer_ranks, draw_spectrum_panels
from jaxflow.report import Claim

RUN_TIMES = {
    "quick": "a small ViT: 5 seeds, 200 steps of Adam; the ViT of Appendix B: 6 steps; a minute",
    "paper": "a small ViT: 5 seeds, 1,000 steps of Adam; the ViT of Appendix B: 200 steps; six minutes",
    "large": "the published size of the model, for an accelerator",
}
CIFAR, MORE = "ViTs on CIFAR-10 and ImageNet", "ViTs on CIFAR-10, CIFAR-100 and ImageNet"
# "Extreme", a word without a number in the paper: at most half of the stable rank of the start.
EXTREME = 0.5
# Of a picture of one head: the first seed's first head.
SEED, HEAD = 0, 0


# On the same digits: a small transformer from five starts, and the one of Appendix B from one.
PREFIXES = ("images", "network")
# Of deeper networks the pictures show these layers, as the paper does.
LAYERS = (0, 2, 4)


def compute(scale: str, seed: int, say: Callable[[str], None]) -> Data:
    """The runs of figure 4 on digits by Adam, from the default scale, with the spectra of the start."""
    found = image_runs(IMAGES[scale]._replace(scales=(1.0,)), digits_key(seed), say)
    network = image_runs(NETWORKS[scale], digits_key(seed), say)
    return found | {f"network_{name.removeprefix('images_')}": value for name, value in network.items()}


@register_figure("boix2023", "fig1", title="Spectra of one head: the start and what is added", run_times=RUN_TIMES)
class Figure1(AbstractFigure):
    r"""Figure 1 of Boix-Adserà et al. (2023) in kind: $W_KW_Q^\top$ at the start, $\Delta W_KW_Q^\top$ later.

    The paper's are heads of ViTs on CIFAR-10 and on ImageNet; these are one of a small ViT and one of the ViT that the
    paper trains on CIFAR-10, both on scikit-learn's digits.
    """

    def compute(self, scale: str, seed: int, say: Callable[[str], None]) -> Data:
        return compute(scale, seed, say)

    def draw(self, data: Data) -> Any:
        return draw_spectrum_panels([panel(data, prefix, "KQ", layer=1) for prefix in PREFIXES])

    def claims(self, data: Data) -> tuple[list[Claim], list[str]]:
        first = "The difference between trained and initial weights has low rank"
        claims = said("Figure 1", f"{first}.", CIFAR, each(data, PREFIXES, ("KQ",), lower_than_start))
        claims += said(
            "Figure 1",
            "The rank of this difference grows gradually during training.",
            CIFAR,
            each(data, PREFIXES, ("KQ",), grows),
        )
        claims += said(
            "Figure 1",
            f"{first}: its stable rank is below that of the trained weights themselves.",
            CIFAR,
            each(data, PREFIXES, ("KQ",), _not_the_weights),
        )
        return claims, [note for prefix in PREFIXES for note in notes(data, prefix)]


@register_figure("boix2023", "fig5", title="Spectra after training against the start", run_times=RUN_TIMES)
class Figure5(AbstractFigure):
    r"""Figure 5 of Boix-Adserà et al. (2023) in kind: one head a layer, after training; two ViTs on digits.

    The paper's is a ViT on CIFAR-10.
    """

    def compute(self, scale: str, seed: int, say: Callable[[str], None]) -> Data:
        return compute(scale, seed, say)

    def draw(self, data: Data) -> Any:
        return draw_spectrum_panels([panel(data, *one, last=True) for one in _shown(data) if one[1] == "KQ"])

    def claims(self, data: Data) -> tuple[list[Claim], list[str]]:
        start = "The learned perturbation exhibits extreme low-rank bias post-training"
        sentence = f"{start} even in default initialization scales"
        network = "the ViT on CIFAR-10"
        claims = said(
            "Figure 5",
            f"{sentence}: its stable rank is at most half of that of the start.",
            network,
            each(data, PREFIXES, ("KQ", "VO"), _half),
        )
        claims += said(
            "Figure 5",
            f"{sentence}: its normalised singular values lie below those of the start.",
            network,
            each(data, PREFIXES, ("KQ", "VO"), _below),
        )
        return claims, [note for prefix in PREFIXES for note in notes(data, prefix)]


@register_figure("boix2023", "fig14", title="Spectra during training, by layer and product", run_times=RUN_TIMES)
class Figure14(AbstractFigure):
    r"""Figures 14, 16 and 18 of Boix-Adserà et al. (2023) in kind: every layer, both products, from start to end.

    The paper's are ViTs on CIFAR-10 (14), CIFAR-100 (16) and ImageNet (18); these are two ViTs on digits, a small
    one and that of Appendix B. The weights themselves are drawn beside what was added to them.
    """

    def compute(self, scale: str, seed: int, say: Callable[[str], None]) -> Data:
        return compute(scale, seed, say)

    def draw(self, data: Data) -> Any:
        return draw_spectrum_panels([panel(data, *one) for one in _shown(data)])

    def claims(self, data: Data) -> tuple[list[Claim], list[str]]:
        sentence = "To capture the low-rank bias with a non-vanishing initialization scale, we study the difference"
        claims = said(
            "Figures 14, 16, 18",
            f"{sentence}: normalised singular values of ΔW below those of W(0).",
            MORE,
            each(data, PREFIXES, ("KQ", "VO"), _below),
        )
        claims += said(
            "Figures 14, 16, 18",
            f"{sentence}: stable rank of ΔW below that of W(T) itself.",
            MORE,
            each(data, PREFIXES, ("KQ", "VO"), _not_the_weights),
        )
        return claims, [note for prefix in PREFIXES for note in notes(data, prefix)]


@register_figure("boix2023", "fig15", title="Stable ranks during training, layer by layer", run_times=RUN_TIMES)
class Figure15(AbstractFigure):
    r"""Figures 15, 17 and 19 of Boix-Adserà et al. (2023) in kind: stable ranks of both products in every layer.

    The paper's are ViTs on CIFAR-10 (15), CIFAR-100 (17) and ImageNet (19); these are two ViTs on digits.
    """

    def compute(self, scale: str, seed: int, say: Callable[[str], None]) -> Data:
        return compute(scale, seed, say)

    def draw(self, data: Data) -> Any:
        return draw_layer_ranks([_ranks(data, prefix, i) for prefix in PREFIXES for i in range(_layers(data, prefix))])

    def claims(self, data: Data) -> tuple[list[Claim], list[str]]:
        sentence = "We find evidence of gradual increase in stable rank, leading to a low rank bias"
        claims = said(
            "Figures 15, 17, 19",
            f"{sentence}: higher at the end, in every layer.",
            MORE,
            each(data, PREFIXES, ("KQ", "VO"), grows),
        )
        claims += said(
            "Figures 15, 17, 19",
            f"{sentence}: below the start, in every layer.",
            MORE,
            each(data, PREFIXES, ("KQ", "VO"), lower_than_start),
        )
        return claims, [note for prefix in PREFIXES for note in notes(data, prefix)]


def panel(data: Data, prefix: str, part: str, layer: int, *, last: bool = False) -> SpectrumPanel:
    """One head at the first scale: the start, and ΔW at up to five of the measurements, or at the last alone."""
    runs = runs_of(data, prefix)
    here = runs.parts[part]
    at = (slice(None), 0, SEED, layer, HEAD)
    points = len(runs.steps)
    shown = [points - 1] if last else sorted({round(x) for x in np.linspace(0, points - 1, 5)})
    product = "$W_KW_Q^" if part == "KQ" else "$W_VW_O^"
    return SpectrumPanel(
        title=f"{product}\\top$, layer {layer + 1}; {RUNS[prefix]}",
        start=here.initial_spectrum[at][0],
        weights=here.weights_spectrum[at][-1],
        steps=runs.steps[shown],
        added=here.spectrum[at][shown],
    )


def _layers(data: Data, prefix: str) -> int:
    return runs_of(data, prefix).parts["KQ"].rank.shape[-2]


def _shown(data: Data) -> list[tuple[str, str, int]]:
    """Runs, product and layer of every panel of figure 14."""
    found = []
    for prefix in PREFIXES:
        count = _layers(data, prefix)
        layers = LAYERS if count > max(LAYERS) else range(count)
        found += [(prefix, part, layer) for part in ("KQ", "VO") for layer in layers]
    return found


def _ranks(data: Data, prefix: str, layer: int) -> LayerPanel:
    runs = runs_of(data, prefix)
    return LayerPanel(
        title=f"layer {layer + 1}; {RUNS[prefix]}",
        steps=runs.steps,
        added={part: here.rank[:, 0, :, layer] for part, here in runs.parts.items()},
        start={part: float(here.initial[0, 0, :, layer].mean()) for part, here in runs.parts.items()},
    )


def _half(runs: Runs, part: str) -> Look:
    """By scale, seed, layer and head."""
    here = runs.parts[part]
    ratio = here.rank[-1] / here.initial[-1]
    good = ratio <= EXTREME
    told = f"{int(good.sum())} of {good.size} heads; ratio median {np.median(ratio):.2f}, largest {ratio.max():.2f}"
    return Look(told, good)


def _below(runs: Runs, part: str) -> Look:
    """By scale, seed, layer and head: σ_i/σ_1 of ΔW below that of W(0) for every i from 2 to the heads' dimension."""
    here = runs.parts[part]
    start, end = here.initial_spectrum[-1], here.spectrum[-1]
    # W(0) has no more singular values than a head is wide, ΔW twice as many: those have nothing to be held against.
    count = start.shape[-1] if start.shape[-1] < end.shape[-1] else int(np.max(np.sum(start > 0, axis=-1)))
    lower = end[..., 1:count] < start[..., 1:count]
    good = lower.all(axis=-1)
    seconds = f"second value {end[..., 1].mean():.2f} against {start[..., 1].mean():.2f}"
    told = f"{int(good.sum())} of {good.size} heads, {lower.mean():.0%} of their values; means of the {seconds}"
    return Look(told, good)


def _not_the_weights(runs: Runs, part: str) -> Look:
    """By scale, seed, layer and head: the stable rank of ΔW is below that of W(T)."""
    here = runs.parts[part]
    good = here.rank[-1] < here.weights[-1]
    # Frobenius norms from the largest singular values.
    size = here.top[-1] * np.sqrt(here.rank[-1]) / (here.initial_top[-1] * np.sqrt(here.initial[-1]))
    told = (
        f"{int(good.sum())} of {good.size} heads; stable ranks ΔW {here.rank[-1].mean():.2f}, W(T) "
        f"{here.weights[-1].mean():.2f}, W(0) {here.initial[-1].mean():.2f}; ‖ΔW‖/‖W(0)‖ median {np.median(size):.2f}"
    )
    return Look(told, good)
