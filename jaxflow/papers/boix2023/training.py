"""Trained transformers behind figures 1, 4 to 7, 14 and 15, and what the paper says of them.

Its sentences are about ViTs on CIFAR-10, CIFAR-100 and ImageNet and about GPT-2 on Wikitext-103. A statement about
those was not run unless they were trained (`published`); beside it stands what the same sentence is worth
on the runs that were made ("ours"), decided by their numbers. Here the ViT of Appendix B (6 layers of 8 heads, width
512, heads of 128, patches of 4; Adam, rate 1e-4) is trained on scikit-learn's digits (`network`; of its 500 epochs at
a batch of 512 only the first steps), and a small one by Adam (`adam`, from three scales of the start) and, as in
figures 12 and 13, by SGD (`sgd`); and as in figure 20 a GPT-style model, on the help topics of the standard library
(`text`). All layers are trained on the cross-entropy, from the default initial scale.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from jaxflow.papers.boix2023.practical.runs import IMAGES, NETWORKS, TEXTS, Size, by_sgd, image_runs, text_runs
from jaxflow.papers.boix2023.toy import ONCE
from jaxflow.papers.drawing import shade
from jaxflow.papers.experiment import Dataset, Part, Statement, Table, met
from jaxflow.plots import COLORS

RUNS = {
    "adam": "small ViT, digits, Adam",
    "sgd": "small ViT, digits, SGD",
    "network": "the ViT of Appendix B, digits, Adam",
    "text": "small GPT, help topics, Adam",
}
# The products of a head, each with its colour.
PRODUCTS = {"KQ": (COLORS["combined"], "W_KW_Q^\\top"), "VO": (COLORS["factored"], "W_VW_O^\\top")}
NAMES = {"KQ": "ΔW_K W_Qᵀ", "VO": "ΔW_V W_Oᵀ"}
# What is kept of runs, and of each product.
OF_RUNS = ("steps", "losses", "scales", "published")
OF_PRODUCTS = ("rank", "initial", "weights", "spectrum", "initial_spectrum", "weights_spectrum", "top", "initial_top")


def _part(runs: Any, sizes: Callable[[str], Size], instances: str = "") -> Part:
    def one(key: Any, size: Size) -> Table:
        return runs(size, key, lambda line: None)

    return Part(one, lambda scale: {"runs": sizes(scale)}, ONCE, 1, instances, way="on host")


# One cell and one trial each: all runs of `RUNS` by name.
TRAINING = Dataset(
    "boix2023",
    "training",
    {
        "adam": _part(image_runs, lambda scale: IMAGES[scale]),
        # The same starts and batches.
        "sgd": _part(image_runs, lambda scale: by_sgd(IMAGES[scale]._replace(scales=(1.0,))), "adam"),
        "network": _part(image_runs, lambda scale: NETWORKS[scale], "adam"),
        "text": _part(text_runs, lambda scale: TEXTS[scale]),
    },
)


def product(numbers: Table, name: str, part: str, default: bool = True) -> Table:
    """One product of the heads in one set of runs: the columns of runs without their leading axes.

    `part`: `KQ` or `VO`; `default`: the runs from the default scale alone.
    """
    runs, at = getattr(numbers, name).at((0, 0)), list(PRODUCTS).index(part)
    own = {name: getattr(runs, name) for name in OF_RUNS} | {name: getattr(runs, name)[at] for name in OF_PRODUCTS}
    if default:
        kept = np.flatnonzero(own["scales"] == 1.0)
        own |= {name: own[name][:, kept] for name in ("losses", *OF_PRODUCTS)} | {"scales": own["scales"][kept]}
    return Table(own, published=bool(own["published"]))


Look = Callable[[Table], np.ndarray]


def said(
    source: str,
    sentence: str,
    networks: str,
    names: tuple[str, ...],
    missed: Look,
    parts: tuple[str, ...] = ("KQ", "VO"),
    default: bool = True,
) -> list[Statement[Table]]:
    """The paper's sentence of its own networks, and the same of every product in each set of runs.

    `missed`: of one product in one set of runs, of any shape: 0 where the sentence is met, 1 where it is not, NaN where
    that is not known.
    """
    pairs = [(name, part) for name in names for part in parts]

    def seen(numbers: Table, name: str, part: str, published: bool) -> np.ndarray:
        """Nothing where the runs are not these."""
        here = product(numbers, name, part, default)
        return 1.0 * missed(here).ravel()[: None if here.published == published else 0]

    def theirs(numbers: Table) -> np.ndarray:
        return np.concatenate([seen(numbers, *pair, True) for pair in pairs])

    def ours(name: str, part: str) -> Statement[Table]:
        def off(numbers: Table) -> np.ndarray:
            return 1.0 * missed(product(numbers, name, part, default)).ravel()

        return Statement(
            source=f"{source}, ours",
            says=f"{sentence} ({NAMES[part]}, {RUNS[name]})",
            inside=lambda n: np.full(off(n).shape, not product(n, name, part).published),
            residual=off,
        )

    whole = Statement[Table](
        source=source,
        says=sentence,
        residual=theirs,
        found=lambda n, known: met(0.0, theirs(n)) if known.size else f"not run: {networks}",
    )
    return [whole, *(ours(*pair) for pair in pairs)]


def shrinks(here: Table) -> np.ndarray:
    """By seed and layer: 1 unless the mean rank over heads is higher at the end than when first measured."""
    ranks = here.rank[:, 0].mean(axis=-1)
    return ~(ranks[-1] > ranks[0])


def above_start(here: Table) -> np.ndarray:
    """By scale, seed, layer and head: 1 unless the stable rank of ΔW at the end is below that of W(0)."""
    return ~(here.rank[-1] < here.initial[-1])


def notes(*names: str, default: bool = True) -> Callable[[Table], list[str]]:
    """What was trained, how long, and to which loss."""

    def told(numbers: Table, name: str) -> str:
        here = product(numbers, name, "KQ", default)
        losses = here.losses[-1].mean(axis=-1)
        listed = ", ".join(f"{x:.3f} at scale {scale:g}" for x, scale in zip(losses, here.scales, strict=True))
        *_, layers, heads = here.rank.shape
        whose = "Network, recipe and data are those of the paper." if here.published else "Not one of the paper's."
        return (
            f"{RUNS[name]}: {len(here.scales)} scales, {here.losses.shape[2]} seeds, {layers} layers of {heads} heads, "
            f"{int(here.steps[-1])} steps, first measured at {int(here.steps[0])}; mean loss of the last batch "
            f"{listed}. {whose}"
        )

    return lambda numbers: [told(numbers, name) for name in names]


def band(axis: Any, x: np.ndarray, values: np.ndarray, color: str, label: str) -> None:
    """Mean and standard deviation over the second axis."""
    mean, deviation = values.mean(axis=1), values.std(axis=1)
    axis.plot(x, mean, "-o", color=color, markersize=3, label=label)
    shade(axis, x, mean - deviation, mean + deviation, color)
