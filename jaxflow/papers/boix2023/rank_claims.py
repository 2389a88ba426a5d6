"""What the paper says of spectra and stable ranks of trained transformers, against the numbers.

Its sentences are about ViTs on CIFAR-10, CIFAR-100 and ImageNet and about GPT-2 on Wikitext-103. A claim about those is
outside its hypotheses unless they were trained (`Runs.published`); beside it stands what the same sentence is worth on
the runs that were made ("ours"), decided by their numbers.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from jaxflow.papers.boix2023.practical.runs import Runs, runs_of
from jaxflow.report import Claim, count_evidence

Data = dict[str, np.ndarray]

NAMES = {"KQ": "ΔW_K W_Qᵀ", "VO": "ΔW_V W_Oᵀ"}
RUNS = {
    "images": "small ViT, digits, Adam",
    "sgd": "small ViT, digits, SGD",
    "network": "the ViT of Appendix B, digits, Adam",
    "text": "small GPT, help topics, Adam",
}
# Figure 6 shows the first singular values; from the fourth on they are hard to tell apart on small heads.
SHOWN = 3


class Look(NamedTuple):
    """What one set of runs says: `good` of any shape, where a sentence is met; `decided`: where that is known (all)."""

    measured: str
    good: np.ndarray
    decided: np.ndarray | None = None


class Found(NamedTuple):
    """A sentence on one set of runs; `label`: which runs, which product."""

    label: str
    look: Look
    published: bool

    def count(self, wanted: bool) -> tuple[np.ndarray, np.ndarray]:
        """`good` and `decided` as vectors; none of them unless these runs are the paper's, or ours, as `wanted`."""
        good = self.look.good.ravel()
        decided = np.ones(good.shape, bool) if self.look.decided is None else self.look.decided.ravel()
        return (good, decided) if self.published == wanted else (good[:0], decided[:0])


def said(source: str, sentence: str, networks: str, found: list[Found]) -> list[Claim]:
    """The paper's sentence of its own networks, and the same of each set of runs."""
    whole, known = (np.concatenate(parts) for parts in zip(*(one.count(True) for one in found), strict=True))
    told = f"{int(whole.sum())} of {whole.size}" if whole.size else f"not run: {networks}"
    values: dict[str, float | int] = {"met": int(whole.sum()), "instances": whole.size}
    claims = [Claim(source, sentence, told, count_evidence(whole, decided=known), values)]
    for one in found:
        good, decided = one.count(False)
        claims.append(
            Claim(
                f"{source}, ours",
                f"{sentence} ({one.label})",
                one.look.measured,
                count_evidence(good, decided=decided),
                {"met": int(one.look.good.sum()), "instances": int(one.look.good.size)},
            )
        )
    return claims


def each(
    data: Data, prefixes: tuple[str, ...], parts: tuple[str, ...], look: Callable[[Runs, str], Look]
) -> list[Found]:
    """What `look` finds in the runs of every prefix for every product."""
    found = []
    for prefix in prefixes:
        runs = runs_of(data, prefix)
        found += [Found(f"{NAMES[part]}, {RUNS[prefix]}", look(runs, part), runs.published) for part in parts]
    return found


def by_scale(data: Data) -> tuple[list[Claim], list[str]]:
    """Figure 7: smaller initial scale, lower stable rank, seed by seed."""
    sentence = "Smaller initialization scales lead to lower-rank attention heads."
    claims = said("Figure 7", sentence, "the ViT on CIFAR-10", each(data, ("images",), ("KQ", "VO"), _ordered))
    return claims, [*(_scale_note(data, part) for part in NAMES), *notes(data, "images")]


def evolution(data: Data) -> tuple[list[Claim], list[str]]:
    """Figure 6: incremental learning and a low-rank bias at every scale, the more so the smaller."""
    network = "the ViT on CIFAR-10"
    start = "Incremental learning dynamics and a low-rank bias are evident for all scales"
    claims = said(
        "Figure 6",
        f"{start}: singular values arrive one after another.",
        network,
        each(data, ("images",), ("KQ", "VO"), _one_by_one),
    )
    claims += said(
        "Figure 6",
        f"{start}: stable ranks below those of the start.",
        network,
        each(data, ("images",), ("KQ", "VO"), lower_than_start),
    )
    claims += said(
        "Figure 6",
        "albeit more pronounced at smaller initialization scales.",
        network,
        each(data, ("images",), ("KQ", "VO"), _ordered),
    )
    return claims, [*(_scale_note(data, part) for part in NAMES), *notes(data, "images")]


def growth(data: Data, prefixes: tuple[str, ...]) -> tuple[list[Claim], list[str]]:
    """Figure 4: whether the stable rank grows in training, and stays below that of the start."""
    networks = "ViTs on CIFAR-10, CIFAR-100 and ImageNet, GPT-2 on Wikitext-103"
    start = "The weight perturbation learned during the training process"
    claims = said(
        "Figure 4",
        f"{start} gradually increases in stable rank during training.",
        networks,
        each(data, prefixes, ("KQ", "VO"), grows),
    )
    claims += said(
        "Figure 4",
        f"{start} is ultimately low-rank when compared to the initial spectrum.",
        networks,
        each(data, prefixes, ("KQ", "VO"), lower_than_start),
    )
    return claims, [note for prefix in prefixes for note in notes(data, prefix)]


def grows(runs: Runs, part: str) -> Look:
    """By seed and layer at the first scale: the mean over heads is higher at the end than when first measured."""
    ranks = runs.parts[part].rank[:, 0].mean(axis=-1)
    good = ranks[-1] > ranks[0]
    dips = int(np.sum(np.min(ranks, axis=0) < ranks[0] * (1 - 1e-3)))
    # Of the last layer alone, which the picture shows.
    shown = f"mean {ranks[0].mean():.2f} at step {int(runs.steps[0])}, {ranks[-1].mean():.2f} at the end"
    told = f"higher in {int(good.sum())} of {good.size} layers of {good.shape[0]} seeds ({shown}); dips in {dips}"
    return Look(told, good)


def lower_than_start(runs: Runs, part: str) -> Look:
    """By scale, seed, layer and head: the stable rank of ΔW at the end is below that of W(0)."""
    here = runs.parts[part]
    good = here.rank[-1] < here.initial[-1]
    means = ", ".join(
        f"{here.rank[-1, i].mean():.2f} against {here.initial[-1, i].mean():.2f} at scale {scale:g}"
        for i, scale in enumerate(runs.scales)
    )
    return Look(f"lower in {int(good.sum())} of {good.size} heads; means {means}", good)


def _ordered(runs: Runs, part: str) -> Look:
    """By seed: the mean over layers and heads rises with the scale."""
    ranks = runs.parts[part].rank[-1].mean(axis=(-1, -2))
    order = np.argsort(runs.scales)
    good = np.all(np.diff(ranks[order], axis=0) > 0, axis=0)
    means = ", ".join(f"{ranks[i].mean():.2f} ± {ranks[i].std():.2f} at {runs.scales[i]:g}" for i in order[::-1])
    return Look(f"stable ranks ordered by scale in {int(good.sum())} of {good.size} seeds; means {means}", good)


def _one_by_one(runs: Runs, part: str) -> Look:
    """By scale, seed and head of the second layer: each of the first singular values of ΔW is no sooner at half of its
    last value than the one before it, and the last of them later than the first. Where no measurement tells them
    apart the head is undecided."""
    here = runs.parts[part]
    values = (here.top[..., None] * here.spectrum)[:, :, :, 1, :, :SHOWN]
    # The first measurement from which on it stays above half.
    half = np.argmax(np.flip(np.cumprod(np.flip(values >= 0.5 * values[-1], 0), 0), 0), axis=0)
    good = np.all(np.diff(half, axis=-1) >= 0, axis=-1) & (half[..., -1] > half[..., 0])
    steps = np.asarray(runs.steps)[half]
    told = []
    for i, scale in enumerate(runs.scales):
        when = ", ".join(f"{x:.0f}" for x in steps[i].mean(axis=(0, 1)))
        told.append(f"{int(good[i].sum())} of {good[i].size} at scale {scale:g} (steps {when})")
    same = np.all(half == half[..., :1], axis=-1)
    measured = f"the first {SHOWN} reach half of their last values in order in " + "; ".join(told)
    return Look(f"{measured}; at once, as measured, in {int(same.sum())}", good, ~same)


def _scale_note(data: Data, part: str) -> str:
    runs = runs_of(data, "images")
    ranks = runs.parts[part].rank.mean(axis=(-1, -2, -3))
    rows = "; ".join(
        f"{scale:g}: {ranks[0, i]:.2f} → {ranks[:, i].min():.2f} (lowest) → {ranks[-1, i]:.2f}"
        for i, scale in enumerate(runs.scales)
    )
    return f"{NAMES[part]}, stable rank at the first measurement, lowest, and last, by scale: {rows}."


def notes(data: Data, prefix: str) -> list[str]:
    """What was trained, how long, and to which loss."""
    runs = runs_of(data, prefix)
    losses, steps = runs.losses.mean(axis=-1), runs.steps
    listed = ", ".join(f"{losses[-1, i]:.3f} at scale {scale:g}" for i, scale in enumerate(runs.scales))
    *_, layers, heads = runs.parts["KQ"].rank.shape
    whose = "Network, recipe and data are those of the paper." if runs.published else "Not an experiment of the paper."
    return [
        f"{RUNS[prefix]}: {losses.shape[1]} scales, {runs.losses.shape[2]} seeds, {layers} layers of {heads} heads, "
        f"{int(steps[-1])} steps, first measured at {int(steps[0])}; mean loss of the last batch {listed}. {whose}"
    ]
