"""What figures 4, 6 and 7 say of stable ranks, against the numbers."""

import numpy as np

from jaxflow.report import Claim, Evidence, count_evidence

Data = dict[str, np.ndarray]

NAMES = {"KQ": "ΔW_K W_Qᵀ", "VO": "ΔW_V W_Oᵀ"}


def by_scale(data: Data) -> tuple[list[Claim], list[str]]:
    """Smaller initial scale, lower stable rank: seed by seed."""
    return [_scale(data, part) for part in NAMES], [_scale_note(data, part) for part in NAMES] + _notes(data, "images")


def growth(data: Data, prefixes: tuple[str, ...]) -> tuple[list[Claim], list[str]]:
    """Whether the stable rank grows in training, and stays below that of the start."""
    claims = [_grows(data, prefix, part) for prefix in prefixes for part in NAMES]
    claims += [_low(data, prefix, part) for prefix in prefixes for part in NAMES]
    return claims, [note for prefix in prefixes for note in _notes(data, prefix)]


def _scale(data: Data, part: str) -> Claim:
    # Mean over layers and heads: one number a seed.
    ranks = data[f"images_{part}_rank"][-1].mean(axis=(-1, -2))
    order = np.argsort(data["images_scales"])
    lower = np.all(np.diff(ranks[order], axis=0) > 0, axis=0)
    count, total = int(lower.sum()), lower.size
    means = ", ".join(
        f"{ranks[i].mean():.2f} ± {ranks[i].std():.2f} at {data['images_scales'][i]:g}" for i in order[::-1]
    )
    return Claim(
        "Figure 7",
        f"Smaller initialization scales lead to lower-rank attention heads ({NAMES[part]}).",
        f"ordered by scale in {count} of {total} seeds; mean over heads and layers: {means}",
        _evidence(data, "images", lower),
        {"ordered": count, "seeds": total},
    )


def _grows(data: Data, prefix: str, part: str) -> Claim:
    ranks = data[f"{prefix}_{part}_rank"][:, 0, :, -1].mean(axis=-1)
    grows = ranks[-1] > ranks[0]
    dips = np.min(ranks, axis=0) < ranks[0] * (1 - 1e-3)
    count, total = int(grows.sum()), grows.size
    return Claim(
        "Figure 4",
        f"The perturbation gradually increases in stable rank during training ({NAMES[part]}, {prefix}).",
        f"higher at the end than at the first measurement in {count} of {total} seeds (mean {ranks[0].mean():.2f} → "
        f"{ranks[-1].mean():.2f}); it dips below its first value in {int(dips.sum())}",
        _evidence(data, prefix, grows),
        {"grows": count, "dips": int(dips.sum()), "seeds": total},
    )


def _low(data: Data, prefix: str, part: str) -> Claim:
    ranks = data[f"{prefix}_{part}_rank"][-1, 0].mean(axis=(-1, -2))
    start = data[f"{prefix}_{part}_initial"][-1, 0].mean(axis=(-1, -2))
    lower = ranks < start
    count, total = int(lower.sum()), ranks.size
    return Claim(
        "Figure 4",
        f"It is ultimately low-rank when compared to the initial spectrum ({NAMES[part]}, {prefix}).",
        f"stable rank {ranks.mean():.2f}, of the initial product {start.mean():.2f}; lower in {count} of {total}",
        _evidence(data, prefix, lower),
        {"lower": count, "seeds": total},
    )


def _evidence(data: Data, prefix: str, good: np.ndarray) -> Evidence:
    """Seed by seed. What the paper says of its own networks, a small one on other data neither proves nor refutes."""
    return count_evidence(good if bool(data[f"{prefix}_published"]) else good[:0])


def _scale_note(data: Data, part: str) -> str:
    ranks = data[f"images_{part}_rank"].mean(axis=(-1, -2, -3))
    rows = "; ".join(
        f"{scale:g}: {ranks[0, i]:.2f} → {ranks[:, i].min():.2f} (lowest) → {ranks[-1, i]:.2f}"
        for i, scale in enumerate(data["images_scales"])
    )
    return f"{NAMES[part]}, stable rank at the first measurement, lowest, and last, by scale: {rows}."


def _notes(data: Data, prefix: str) -> list[str]:
    losses = data[f"{prefix}_losses"].mean(axis=-1)
    listed = ", ".join(f"{losses[-1, i]:.3f} at scale {scale:g}" for i, scale in enumerate(data[f"{prefix}_scales"]))
    steps = data[f"{prefix}_steps"]
    own = "The network and the recipe are those of the paper."
    small = "Small models on small data that come with the dependencies, in kind and not in size those of the paper."
    return [
        f"{prefix}: {losses.shape[1]} scales, {data[f'{prefix}_losses'].shape[2]} seeds, {int(steps[-1])} steps, first "
        f"measured at {int(steps[0])}; mean loss of the last batch {listed}.",
        own if bool(data[f"{prefix}_published"]) else small,
    ]
