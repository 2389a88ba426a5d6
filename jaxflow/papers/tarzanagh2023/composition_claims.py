"""What Tarzanagh et al. (2023) say about figures 8 and 11, against the numbers."""

import numpy as np

from jaxflow.papers.tarzanagh2023.composition import Data
from jaxflow.papers.tarzanagh2023.composition_flow import FlowEnd
from jaxflow.papers.tarzanagh2023.composition_notes import (
    CORRELATION,
    FITTED,
    TOO_FEW,
    compositions,
    flow,
    unconditional,
)
from jaxflow.report import Claim, Evidence, common_rate, count_evidence

# "For d >= 8 or Γ <= 1e-9".
LARGE_D = 8
SMALL_GAMMA = 1e-9
# "Γ from 1e-16 to 1e-6": the grid is ours.
EXPONENTS = np.arange(-16.0, -5.75, 0.5)
# "the range of 1e-15" is taken as two decades to either side.
RANGE = (-17.0, -13.0)
# Differences of means, and rank correlations, count beyond this many standard errors.
ERRORS = 2.0
# An exponent fitted over two decades of step sizes: descent stops anywhere in its last step to and fro, so that the
# constants at its two ends differ by up to a factor of two or so, and means over instances by a fifth: log10(1.2)/2.
BIAS = 0.04


def figure8_claims(data: Data) -> tuple[list[Claim], list[str]]:
    """Claims with verdicts, and notes with every denominator."""
    claims = [_predictive(data), _ordered(data), _inverse(data), _masked(data), _improves("§6, Figure 8", data)]
    claims += [_flow_alike(data), _flow_limit(data)]
    return claims, [*unconditional(data), *compositions(data), flow(data), FITTED, TOO_FEW]


def figure11_claims(data: Data) -> tuple[list[Claim], list[str]]:
    """Claims with verdicts, and notes with every denominator."""
    dimensions, mean, error, count = by_threshold(data)
    large = dimensions >= LARGE_D
    sentence = "For d >= 8 or Γ <= 1e-9, the GD solution W achieves a correlation of > 0.99 with W^SVMeq."
    small = np.flatnonzero(EXPONENTS <= np.log10(SMALL_GAMMA) + 1e-9)
    claims = [
        _improves("App. F, Figure 11", data),
        _above(sentence + " (d >= 8, every Γ)", data, mean[large], error[large], count[large], dimensions[large]),
        _above(sentence + " (Γ <= 1e-9, every d)", data, mean[:, small], error[:, small], count[:, small], dimensions),
    ]
    return claims, [*unconditional(data), TOO_FEW]


def last(data: Data, name: str) -> np.ndarray:
    """1 − corr with a baseline at the last step, `(dimension, trial)`; NaN where the baseline has no solution."""
    return data[name][..., -1]


def by_threshold(data: Data) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """1 − corr of kept instances whose masked tokens all have softmax below Γ.

    **Returns:** d `(k,)`; the mean `(k, g)`, NaN of none; its standard error, NaN of fewer than two; how many.
    """
    below = data["kept"][..., None] & (data["log_masked"][..., None] < EXPONENTS)
    count = below.sum(axis=1)
    distance = last(data, "svmeq")[..., None]
    mean = np.sum(np.where(below, distance, 0.0), axis=1) / np.maximum(count, 1)
    squares = np.sum(np.where(below, (distance - mean[:, None]) ** 2, 0.0), axis=1)
    error = np.sqrt(squares / np.maximum(count - 1, 1) / np.maximum(count, 1))
    return data["dimensions"], np.where(count > 0, mean, np.nan), np.where(count > 1, error, np.nan), count


def _predictive(data: Data) -> Claim:
    parts: list[str] = []
    values: dict[str, float | int] = {}
    large: list[tuple[float, float]] = []
    for row, d in enumerate(data["dimensions"]):
        kept, distance = data["kept"][row], last(data, "svmeq")[row]
        solved = ~np.isnan(distance)
        if not kept.any():
            parts.append(f"d = {d}: none kept of {kept.size}")
            continue
        mean, error = _mean(distance[kept])
        parts.append(
            f"d = {d}: {1 - mean:.4f} ± {error:.4f} over {kept.sum()} kept of {kept.size} "
            f"(unconditional: {1 - distance[solved].mean():.4f} over the {solved.sum()} with a solution)"
        )
        values |= {
            f"kept_{d}": int(kept.sum()),
            f"correlation_{d}": 1 - mean,
            f"solved_{d}": int(solved.sum()),
            f"unconditional_correlation_{d}": 1 - float(distance[solved].mean()),
        }
        if d >= LARGE_D:
            large.append((mean, error))
    sentence = (
        "SVM-equivalence displays higher predictability in a larger d regime (with an average correlation exceeding "
        "0.99); read as: for d >= 8."
    )
    return Claim("§6, Figure 8", sentence, "mean correlation " + "; ".join(parts), _near(large), values)


def _ordered(data: Data) -> Claim:
    parts: list[str] = []
    values: dict[str, float | int] = {}
    ordered: list[bool] = []
    for row, d in enumerate(data["dimensions"]):
        distances = {name: last(data, name)[row] for name in ("svmeq", "mm", "one")}
        kept = data["kept"][row] & ~np.isnan(distances["one"])
        if not kept.any():
            continue
        means = {name: float(distance[kept].mean()) for name, distance in distances.items()}
        # One selected token everywhere makes the three baselines one: rounding is no order.
        worse = int(np.sum(kept & (distances["svmeq"] > distances["mm"] + 1e-12)))
        ordered.append(means["svmeq"] < means["mm"] < means["one"])
        parts.append(
            f"d = {d}: {means['svmeq']:.1e}, {means['mm']:.1e}, {means['one']:.1e} over {kept.sum()} "
            f"(W^SVMeq is worse than W^mm in {worse})"
        )
        values |= {f"{name}_{d}": mean for name, mean in means.items()} | {f"worse_{d}": worse}
    sentence = "W^1token yields unsatisfactory outcomes, W^mm a significant correlation, W^SVMeq further enhances it."
    measured = "mean 1 − corr with W^SVMeq, W^mm, W^1token at " + "; ".join(parts)
    return Claim("§6, Figure 8 (upper)", sentence, measured, count_evidence(np.asarray(ordered, bool)), values)


def _inverse(data: Data) -> Claim:
    parts: list[str] = []
    values: dict[str, float | int] = {}
    scores: list[float] = []
    for row, d in enumerate(data["dimensions"]):
        kept = data["kept"][row]
        if kept.sum() < 3:
            continue
        rank = rank_correlation(data["log_masked"][row][kept], last(data, "svmeq")[row][kept])
        # The standard error of Spearman's coefficient between independent samples.
        error = 1 / np.sqrt(kept.sum() - 1)
        scores.append(rank / error)
        parts.append(f"{rank:+.2f} ± {error:.2f} at d = {d} (of {kept.sum()} kept)")
        values[f"rank_correlation_{d}"] = rank
    sentence = "There exists an inverse correlation between softmax probability (of masked tokens) and predictivity."
    measured = "rank correlation of the largest masked softmax with 1 − corr: " + ", ".join(parts)
    return Claim("§6, Figure 8 (lower)", sentence, measured, _signs(scores), values)


def _masked(data: Data) -> Claim:
    dimensions = [d for d, kept in zip(data["dimensions"], data["kept"], strict=True) if kept.any()]
    medians = [
        float(np.median(masked[kept]))
        for masked, kept in zip(data["log_masked"], data["kept"], strict=True)
        if kept.any()
    ]
    sentence = "As d increases, softmax probabilities over the masked set tend to converge towards the range of 1e-15."
    evidence = Evidence(0)
    if len(medians) > 1:
        there = medians[-1] < medians[0] and RANGE[0] <= medians[-1] <= RANGE[1]
        evidence = Evidence(1, contradicted=int(not there))
    measured = "medians of the largest one: " + ", ".join(
        f"1e{median:.1f} at d = {d}" for d, median in zip(dimensions, medians, strict=True)
    )
    values: dict[str, float | int] = {
        f"median_exponent_{d}": median for d, median in zip(dimensions, medians, strict=True)
    }
    return Claim("§6, Figure 8 (lower)", sentence, measured, evidence, values)


def _improves(source: str, data: Data) -> Claim:
    found = [
        (int(d), *_mean(distance[kept]))
        for d, distance, kept in zip(data["dimensions"], last(data, "svmeq"), data["kept"], strict=True)
        if kept.sum() > 1
    ]
    scores = [
        (before[1] - after[1]) / max(float(np.hypot(before[2], after[2])), np.finfo(float).tiny)
        for before, after in [*zip(found, found[1:], strict=False), *zip(found[:1], found[-1:], strict=True)]
        if before != after
    ]
    # Neighbours may be too close to tell apart; the ends may not, and no neighbour may be worse.
    worse, better = bool(scores) and min(scores) < -ERRORS, bool(scores) and scores[-1] > ERRORS
    evidence = Evidence(int(bool(scores)), int(worse), int(bool(scores) and not worse and not better))
    parts = [f"{mean:.1e} ± {error:.1e} at d = {d}" for d, mean, error in found]
    values: dict[str, float | int] = {f"decorrelation_{d}": mean for d, mean, _ in found}
    return Claim(source, "Higher d enhances alignment.", "mean 1 − corr: " + ", ".join(parts), evidence, values)


def _flow_alike(data: Data) -> Claim:
    end, distance = data["flow_end"], data["flow_distance"]
    decided = (end == FlowEnd.reached) | (end == FlowEnd.stationary)
    alike = decided & (distance < 1 - CORRELATION)
    sentence = (
        "(Not in the paper, which trains by descent with steps of length 0.1.) The gradient flow ends where this "
        "descent does: a correlation above 0.99 at the same log t."
    )
    far = np.sort(distance[decided & ~alike])[::-1]
    measured = f"{decided.sum()} of {end.size} flows decided, {alike.sum()} with a correlation above {CORRELATION}"
    if far.size:
        measured += f"; 1 − corr of the others {', '.join(f'{x:.1e}' for x in far[:8])}"
    values: dict[str, float | int] = {"decided": int(decided.sum()), "alike": int(alike.sum())}
    return Claim("§6, Figure 8 (flow)", sentence, measured, count_evidence(alike, decided=decided), values)


def _flow_limit(data: Data) -> Claim:
    rates, end = data["rates"], data["flow_end"].ravel()
    distance = data["descent_distance"].reshape(-1, rates.size)
    decided = (end == FlowEnd.reached) | (end == FlowEnd.stationary)
    # Distances at the shortest steps that are not smaller than at the longest are none of a limit.
    falls = distance[:, -1] < distance[:, 0]
    slopes = np.log(distance[:, 0] / distance[:, -1]) / np.log(rates[0] / rates[-1])
    sentence = (
        "(Not in the paper.) Descent with steps of length η tends to the gradient flow, along kinks to Filippov's "
        "solution: the distance at equal times falls like η."
    )
    rate = common_rate(slopes[decided], 1.0, bias=BIAS, law="distance of descent from the flow against η")
    medians = np.median(distance[decided], axis=0) if decided.any() else np.full(rates.size, np.nan)
    sliding = decided & (data["flow_met"].ravel() > 0)
    parts = ", ".join(f"{median:.1e} at η = {size:g}" for median, size in zip(medians, rates, strict=True))
    measured = (
        f"median distance, relative to the way, {parts} on {decided.sum()} of {end.size} flows, {sliding.sum()} of "
        f"which slide; at the smallest η at most {distance[decided, -1].max(initial=0.0):.1e}"
    )
    if rate is not None:
        each = slopes[decided]
        measured += f"; exponents of single instances from {each.min():.2f} to {each.max():.2f}"
    values: dict[str, float | int] = {
        "sliding": int(sliding.sum()),
        **{f"distance_{size:g}": float(median) for size, median in zip(rates, medians, strict=True)},
        **({} if rate is None else {"exponent": rate.fitted}),
    }
    evidence = count_evidence(falls & decided, decided=decided, limit=True, rate=rate)
    return Claim("§6, Figure 8 (flow)", sentence, measured, evidence, values)


def _above(
    sentence: str, data: Data, mean: np.ndarray, error: np.ndarray, count: np.ndarray, dimensions: np.ndarray
) -> Claim:
    some = count > 0
    measured, evidence = "no kept instance", Evidence(0)
    values: dict[str, float | int] = {"cells": int(some.sum())}
    if some.any():
        row, column = np.unravel_index(np.nanargmax(np.where(some, mean, np.nan)), mean.shape)
        below = int(np.sum(some & (1 - mean <= CORRELATION)))
        measured = (
            f"not so in {below} of {some.sum()} pairs (d, Γ) with instances; lowest mean correlation "
            f"{1 - mean[row, column]:.4f} ± {error[row, column]:.4f}, at d = {dimensions[row]} over "
            f"{count[row, column]} of {data['kept'].shape[1]} instances"
        )
        values |= {"below": below, "lowest": 1 - float(mean[row, column])}
        evidence = _near(list(zip(mean[some], error[some], strict=True)))
    return Claim("App. F, Figure 11", sentence, measured, evidence, values)


def rank_correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Spearman's coefficient of two samples without ties."""

    def ranks(x: np.ndarray) -> np.ndarray:
        return np.argsort(np.argsort(x)).astype(float)

    return float(np.corrcoef(ranks(a), ranks(b))[0, 1])


def _mean(values: np.ndarray) -> tuple[float, float]:
    """Mean and its standard error."""
    error = float(values.std(ddof=1) / np.sqrt(values.size)) if values.size > 1 else float("nan")
    return float(values.mean()), error


def _near(found: list[tuple[float, float]]) -> Evidence:
    """Whether means of 1 − corr, each with its standard error, are below 0.01; within the errors, too few to tell."""
    limit = 1 - CORRELATION
    # An error that is not known (of a single instance) decides nothing against the claim.
    above = [mean - ERRORS * error > limit for mean, error in found]
    below = [mean < limit for mean, _ in found]
    good = np.asarray(below, bool) & ~np.asarray(above, bool)
    return count_evidence(good, decided=good | np.asarray(above, bool))


def _signs(scores: list[float]) -> Evidence:
    """Positive beyond the errors; within them it is too close to tell."""
    values = np.asarray(scores, float)
    return count_evidence(values > ERRORS, decided=np.abs(values) > ERRORS)
