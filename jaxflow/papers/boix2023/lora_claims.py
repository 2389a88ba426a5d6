"""Which rank of the update suffices, and whether its stable rank says so."""

from typing import Any

import numpy as np

from jaxflow.report import Claim, Evidence, count_evidence

Data = dict[str, np.ndarray]

# An update of bounded rank suffices if the loss over all images is at most this much above that of full training
# from the same start on the same batches. Set before anything was run.
TOLERANCE = 0.1

# Percentage points of accuracy that may be lost instead, for the second criterion.
POINTS = 0.5

WAYS = {"lora": "adapters trained from the start", "cut": "the trained update cut down"}

# Permutations behind a p-value; the smallest that can be found is one in so many.
PERMUTATIONS = 9999

LEVEL = 0.05


def sufficient(data: Data) -> Data:
    """The smallest rank that suffices, `(scale, seed)` by way and criterion; twice the largest where none does."""
    found = {}
    for way in WAYS:
        good = data[f"{way}_loss"] <= (1.0 + TOLERANCE) * data["full_loss"][..., None]
        found[f"{way}_sufficient"] = _smallest(good, data["ranks"])
        good = data[f"{way}_accuracy"] >= data["full_accuracy"][..., None] - POINTS / 100.0
        found[f"{way}_sufficient_accuracy"] = _smallest(good, data["ranks"])
    found["stable_rank"] = np.mean([data[f"{part}_rank"].mean(axis=(-1, -2)) for part in ("KQ", "VO")], axis=0)
    return found


def _smallest(good: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    """Of ranks in increasing order; from it on all of them have to be good: one lucky run does not suffice."""
    lasting = np.flip(np.logical_and.accumulate(np.flip(good, -1), axis=-1), -1)
    return np.where(lasting.any(axis=-1), ranks[np.argmax(lasting, axis=-1)], 2 * ranks[-1])


def claims_of(data: Data) -> tuple[list[Claim], list[str]]:
    """The question of the practitioner, with Spearman's correlation over the runs."""
    found = sufficient(data)
    claims = [_predicts(data, found, way, kind) for way in WAYS for kind in ("", "_accuracy")]
    claims += [_enough(data, found, way) for way in WAYS]
    return claims, _notes(data, found)


def _criterion(kind: str) -> str:
    return f"accuracy within {POINTS:g} points" if kind else f"loss within {TOLERANCE:.0%}"


def _predicts(data: Data, found: Data, way: str, kind: str) -> Claim:
    ranks, stable = found[f"{way}_sufficient{kind}"].ravel(), found["stable_rank"].ravel()
    none = int(np.sum(ranks > data["ranks"][-1]))
    told = f"smallest rank that suffices: {_counts(ranks, data['ranks'])}"
    values: dict[str, float | int] = {"runs": ranks.size, "none_suffices": none}
    # One correlation over all runs; without a small p-value it says nothing.
    evidence = Evidence(1, undecided=1)
    if np.ptp(ranks) > 0 and np.ptp(stable) > 0:
        rho, p = correlation(stable, ranks)
        told = f"Spearman's ρ = {rho:.2f} over {ranks.size} runs (p = {p:.4f} by permutation); {told}"
        values |= {"rho": rho, "p": p}
        if p < LEVEL:
            evidence = Evidence(1, contradicted=int(rho <= 0))
    else:
        told = f"no correlation is defined: one of the two is the same in all {ranks.size} runs; {told}"
    return Claim(
        "Beyond the paper",
        f"The stable rank of ΔW predicts the rank that suffices ({WAYS[way]}, {_criterion(kind)}).",
        told,
        evidence,
        values,
    )


def correlation(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Spearman's correlation and its two-sided p-value by permutation, which ties do not spoil."""
    from scipy.stats import permutation_test, rankdata

    left, right = (rankdata(z) - 0.5 * (len(z) + 1) for z in (x, y))
    size = float(np.sqrt(np.sum(left**2) * np.sum(right**2)))

    def statistic(z: Any, axis: int = -1) -> Any:
        return np.sum(z * right, axis=axis) / size

    rng = np.random.default_rng(0)
    test = permutation_test(
        (left,), statistic, permutation_type="pairings", n_resamples=PERMUTATIONS, vectorized=True, rng=rng
    )
    return float(statistic(left)), float(test.pvalue)


def _enough(data: Data, found: Data, way: str) -> Claim:
    ranks = found[f"{way}_sufficient"]
    rounded = np.ceil(found["stable_rank"])
    good = ranks <= rounded
    count, total = int(good.sum()), good.size
    return Claim(
        "Beyond the paper",
        f"A rank of the stable rank, rounded up, suffices ({WAYS[way]}, {_criterion('')}).",
        f"in {count} of {total} runs, where stable ranks are {found['stable_rank'].min():.2f} to "
        f"{found['stable_rank'].max():.2f} (mean over products, layers and heads)",
        count_evidence(good),
        {"enough": count, "runs": total},
    )


def _counts(ranks: np.ndarray, tried: np.ndarray) -> str:
    counts = [f"{rank} in {int(np.sum(ranks == rank))}" for rank in tried if np.any(ranks == rank)]
    none = int(np.sum(ranks > tried[-1]))
    return ", ".join(counts + ([f"none of those tried in {none}"] if none else []))


def _notes(data: Data, found: Data) -> list[str]:
    rows = []
    for i, scale in enumerate(data["scales"]):
        parts = [f"scale {scale:g}: stable rank {found['stable_rank'][i].mean():.2f}"]
        parts.append(f"full training {data['full_loss'][i].mean():.4f} ({data['full_accuracy'][i].mean():.1%})")
        for way in WAYS:
            listed = ", ".join(
                f"{data[f'{way}_loss'][i, :, k].mean():.4f} ({data[f'{way}_accuracy'][i, :, k].mean():.1%})"
                for k in range(len(data["ranks"]))
            )
            parts.append(f"{WAYS[way]} {listed}")
        rows.append("; ".join(parts) + ".")
    tried = ", ".join(map(str, data["ranks"]))
    within = "; ".join(_within(data, found, way) for way in WAYS)
    return [
        f"{data['full_loss'].size} runs ({len(data['scales'])} scales of {data['full_loss'].shape[1]} seeds, "
        f"{int(data['steps'])} steps of Adam), ranks tried {tried}. Adapters: the attention weights stay where they "
        "start, every head's W_K W_Qᵀ and W_V W_Oᵀ get a trained product of so many columns; all other layers are "
        "trained. Loss and accuracy over all 1,797 images, on which the models are trained.",
        f"Tolerances, set before the first run: loss at most {TOLERANCE:.0%} above that of full training of the same "
        f"start and batches; accuracy at most {POINTS:g} points below. A rank suffices if all larger ones do, too.",
        f"Over all runs a smaller scale lowers both ranks. Within one scale, ρ by loss: {within}.",
        "Adapters are given the steps of full training: a rank that does not suffice may be too small, or too slow.",
        *rows,
    ]


def _within(data: Data, found: Data, way: str) -> str:
    listed = []
    for i, scale in enumerate(data["scales"]):
        x, y = found["stable_rank"][i], found[f"{way}_sufficient"][i]
        some = np.ptp(x) > 0 and np.ptp(y) > 0
        listed.append(f"{correlation(x, y)[0]:.2f} at {scale:g}" if some else f"one rank for all at {scale:g}")
    return f"{WAYS[way]} {', '.join(listed)}"
